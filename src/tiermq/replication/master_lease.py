"""MasterLease: who is the master of a broker, as an object in its bucket or in a shared directory.

    <cluster dir>/<broker>/lease-master.tiermq.json

    {"epoch": 7, "holder": 2, "claim": …, "process": …, "address": …, "haAddress": …, "termMs": 10000, "renewals": 41,
     "confirmedOffset": 81920, "inSync": [1, 2], "successor": 0, "nextId": 3,
     "replicas": {"1": {"token": …, "address": …}, "2": {…}}, "queues": {"orders": {"0": [0, 7000], "1": […]}}}

It is an object beside the leases of uploads (`tier/metadata/broker_lease.py`), and not a part of them: a broker lends
those to jobs, and remains the master. It is only ever replaced by compare-and-set, and never removed.

Its times are durations. The holder counts its term from before it sent the renewal, by its own clock, less a margin; a
candidate counts it from after it first read this renewal, by its own; what other replicas write does not count. So the
holder's term is over before a candidate takes the lease, whatever the clocks of the two machines show, as long as they
run equally fast to within the margin.

`holder` 0: free, because its holder released it; `successor` is whom it would like to see next. `claim` is random, of
each process that takes the lease: a copy of the holder's directory has its id, and not its claim. `process` is the
holder among the processes of its machine, where others see that it has ended.

`replicas`: each store directory has a random token; a directory that was emptied has a new one, and so a new id which
is not in sync. A master gets another token in each term: a copy that was the master since, or the original of such a
copy, is another directory. Ids are given once (`nextId`). Replicas beyond REPLICAS_MAX that are not in sync are left
out; one that runs adds itself again.

`queues`: the committed messages of each queue at the last renewal, first and end; null for more than
LEASED_QUEUES_MAX. With them a take-over that loses messages reports which ones.
Pure: bytes and values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tiermq.replication.election import QueueRanges
from tiermq.tier.metadata.document import (
    natural_field,
    open_document,
    refuse_document,
    seal_document,
    text_field,
)
from tiermq.tier.names import OBJECT_SUFFIX, broker_directory

VERSION = 1
SUCCESSOR_MS = 5_000
"""For how long a released lease is left to the successor that it names."""
REPLICAS_MAX = 64
REPLICAS_KEPT = 32
REMEDY = "its holder rewrites it; without one, `tiermq broker promote --accept-loss` begins a new one"


@dataclass(frozen=True, slots=True)
class Replica:
    """A store directory that takes part."""

    token: str
    address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterLease:
    """See the module."""

    epoch: int = 0
    holder: int = 0
    address: str = ""
    ha_address: str = ""
    term_ms: int = 0
    renewals: int = 0
    confirmed: int = 0
    members: frozenset[int] = frozenset()
    successor: int = 0
    nonce: str = ""
    """Of each put another one: drivers take the same bytes again for a repeated put, and a renewal that was put a while
    ago must not count from now.
    """
    claim: str = ""
    process: str = ""
    next_id: int = 1
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    queues: QueueRanges | None = None

    @property
    def is_new(self) -> bool:
        """Whether the broker never had a master."""
        return self.epoch == 0

    @property
    def renewal(self) -> tuple[int, int, str, int, int]:
        """Changes with each renewal, take-over and release, and with nothing else."""
        return self.epoch, self.holder, self.claim, self.renewals, self.successor

    @property
    def free_id(self) -> int:
        """One that no replica ever had."""
        return max(self.next_id, max(self.replicas, default=0) + 1, max(self.members, default=0) + 1)

    def with_replica(self, number: int, replica: Replica) -> MasterLease:
        replicas = {**self.replicas, number: replica}
        if len(replicas) > REPLICAS_MAX:
            stay = {*self.members, self.holder, self.successor, number, *sorted(replicas)[-REPLICAS_KEPT:]}
            replicas = {each: found for each, found in replicas.items() if each in stay}
        return replace(self, replicas=replicas, next_id=max(self.free_id, number + 1))

    def id_of(self, token: str) -> int:
        """The id of the replica with this token; 0 when it has none yet."""
        return next((number for number, each in self.replicas.items() if each.token == token), 0)


def master_lease_name(cluster: str, broker: str) -> str:
    return f"{broker_directory(cluster, broker)}/lease-master{OBJECT_SUFFIX}"


def encode_master_lease(lease: MasterLease) -> bytes:
    body = {
        "address": lease.address,
        "claim": lease.claim,
        "confirmedOffset": lease.confirmed,
        "epoch": lease.epoch,
        "haAddress": lease.ha_address,
        "holder": lease.holder,
        "inSync": sorted(lease.members),
        "nextId": lease.next_id,
        "nonce": lease.nonce,
        "process": lease.process,
        "queues": None if lease.queues is None else _listed(lease.queues),
        "renewals": lease.renewals,
        "replicas": {
            str(number): {"address": each.address, "token": each.token} for number, each in lease.replicas.items()
        },
        "successor": lease.successor,
        "termMs": lease.term_ms,
    }
    return seal_document(body, VERSION)


def decode_master_lease(data: bytes, name: str) -> MasterLease:
    """Raises FutureManifest or CorruptManifest."""
    body = open_document(data, name, VERSION, REMEDY)
    try:
        return MasterLease(
            epoch=natural_field(body, "epoch"),
            holder=natural_field(body, "holder"),
            address=text_field(body, "address"),
            ha_address=text_field(body, "haAddress"),
            term_ms=natural_field(body, "termMs"),
            renewals=natural_field(body, "renewals"),
            confirmed=natural_field(body, "confirmedOffset"),
            members=frozenset(int(each) for each in body["inSync"]),
            successor=natural_field(body, "successor"),
            nonce=text_field(body, "nonce"),
            claim=text_field(body, "claim"),
            process=text_field(body, "process"),
            next_id=natural_field(body, "nextId"),
            replicas={int(number): _replica(each) for number, each in body["replicas"].items()},
            queues=_queues(body.get("queues")),
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        refuse_document(name, f"a body that is no lease of a master ({error})", REMEDY)


def _replica(fields: Any) -> Replica:
    return Replica(text_field(fields, "token"), text_field(fields, "address"))


def _listed(queues: QueueRanges) -> dict[str, dict[str, tuple[int, int]]]:
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for (topic, queue_id), bounds in queues.items():
        found.setdefault(topic, {})[str(queue_id)] = bounds
    return found


def _queues(topics: Any) -> QueueRanges | None:
    """None also of a lease that an earlier version wrote."""
    if topics is None:
        return None
    return {
        (topic, int(queue_id)): (int(begin), int(end))
        for topic, queues in topics.items()
        for queue_id, (begin, end) in queues.items()
    }


EPOCH_MAX = 1 << 40
"""More than elections reach: 35,000 years of one in each second."""


def why_not_take(
    lease: MasterLease,
    own: int,
    end: int,
    epoch: int,
    *,
    seen_ms: int,
    holes: QueueRanges | None = None,
    accept_loss: bool = False,
    has_ended: bool = False,
) -> str:
    """Why replica `own`, whose log ends at `end` in `epoch`, may not take this lease, whose last renewal it has seen
    for `seen_ms`; empty when it may. `has_ended`: the process that holds it has ended for certain. `holes`: messages of
    the lease's queues that neither this log nor the tier has.
    """
    left_s = (lease.term_ms - seen_ms) / 1000
    if lease.epoch > EPOCH_MAX:
        return (
            f"expected the epoch of an election, found {lease.epoch} in the lease, which no replica wrote: another "
            "program writes here. Remove the lease, and `tiermq broker promote --accept-loss` at the replica with the "
            "longest log"
        )
    if lease.is_new and not lease.members:
        if epoch > 0 and not accept_loss:
            return (
                f"expected the lease of a broker whose log has epoch {epoch}, found none: whether this replica has all "
                "that was acknowledged is not known; if it has, or the rest is lost: "
                "`tiermq broker promote --accept-loss`"
            )
        if epoch > 0 and left_s > 0:
            return f"there was a lease: a master that is alive writes it again within {left_s:.1f} s"
        if end == 0 and left_s > 0:
            return "a replica that has messages goes first"
        return ""
    if lease.holder and not has_ended and left_s > 0:
        if lease.holder == own:
            return f"an earlier process of this replica may still run, and holds the lease for another {left_s:.1f} s"
        return f"replica {lease.holder} holds the lease for another {left_s:.1f} s at most"
    if own in lease.members and end >= lease.confirmed and not holes:
        if lease.holder == 0 and lease.successor not in (0, own) and seen_ms < SUCCESSOR_MS:
            return f"it was released for replica {lease.successor}"
        return ""
    if accept_loss:
        return "" if seen_ms >= max(lease.term_ms, SUCCESSOR_MS) else f"{_named(lease.members)} in sync may go first"
    if own not in lease.members:
        return (
            f"this replica, {own}, is not in sync: {_named(lease.members)} may have acknowledged messages that it lacks"
        )
    if end >= lease.confirmed and holes:
        (topic, queue_id), (first, behind) = min(holes.items())
        others = f" and of {len(holes) - 1} more queues" if len(holes) > 1 else ""
        return (
            f"this log begins behind the end of the tier: neither has messages {first} to {behind - 1} of {topic}-"
            f"{queue_id}{others}, as far as the tier is known here. Start a replica that has them: it uploads them"
        )
    return (
        f"this log ends at physical offset {end}, and messages up to {lease.confirmed} were acknowledged: it lost "
        "its tail, such as by a power cut under ASYNC_FLUSH"
    )


def _named(members: frozenset[int]) -> str:
    return f"{'replica' if len(members) == 1 else 'replicas'} {', '.join(map(str, sorted(members)))}"
