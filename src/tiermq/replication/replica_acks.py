"""ReplicaAcks: what each replica has of the log, and up to where enough of them have it.

    replicas = the master, and one per name: the address of a slave, or its id where a handshake gives one
    in sync  = connected, and at most `gap_bytes_max` behind the master
    needed   = `in_sync_replicas`; with `auto` at most as many as are in sync, never fewer than the least

Replicas on one machine fail together, so the slaves of one address count as one: the best of them. The same rule keeps
a second connection of a slave from counting twice. Under a controller, which gave the ids, each id counts.

Invariants: `confirmed` never goes back; a report beyond the master's end changes nothing. Everything here is arithmetic
on values; the thread of the HA port is the only one that changes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRules:
    """How many replicas must have a message, the master included."""

    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    auto: bool = False
    gap_bytes_max: int = 256 << 20
    by_set: bool = False
    """Of a master that was elected: every member of its in-sync set must have a message (`sync_set`), and
    `in_sync_replicas` is the least number of members.
    """

    @property
    def waits(self) -> bool:
        """Whether a message ever waits for a slave."""
        return self.in_sync_replicas > 1 or self.by_set


@dataclass(frozen=True, slots=True)
class Replica:
    """What one connection of a slave has reported."""

    name: str
    ack: int


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """`in_sync` counts the master, `needed` too; `confirmed` is the end of what `needed` replicas have."""

    in_sync: int
    needed: int
    confirmed: int

    @property
    def is_available(self) -> bool:
        """Whether enough replicas are there that can confirm a message."""
        return self.needed <= self.in_sync


def best_by_name(replicas: Iterable[Replica]) -> dict[str, int]:
    """The newest offset that each replica has."""
    best: dict[str, int] = {}
    for each in replicas:
        best[each.name] = max(each.ack, best.get(each.name, -1))
    return best


def state_of(rules: ReplicaRules, end: int, replicas: Iterable[Replica], confirmed: int) -> ReplicaState:
    """The state of a log that ends at `end`, after one that was `confirmed`."""
    acks = sorted(best_by_name(replicas).values(), reverse=True)
    in_sync = 1 + sum(end - ack <= rules.gap_bytes_max for ack in acks)
    needed = rules.in_sync_replicas
    if rules.auto:
        needed = max(min(needed, in_sync), rules.min_in_sync_replicas)
    others = needed - 1
    reached = end if others <= 0 else acks[others - 1] if others <= len(acks) else 0
    return ReplicaState(in_sync, needed, max(confirmed, min(reached, end)))
