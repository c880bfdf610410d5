"""Heartbeats: which brokers this controller hears of, and since when it listens. In memory only.

    heard ──► alive ──silent for its own time-out, or its connection closed──► lost ──heard──► alive

Invariants: a broker that was never heard of counts as lost only once the controller has listened for LISTEN_S: a
controller that has just started, or was suspended, cannot know yet. What a broker has (epoch, offset) never falls while
it is alive. While a broker is alive, no other address is heard under its id: a copied directory has the same one. Any
thread may call; the lock guards both tables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from tiermq.clock import Clock
from tiermq.controller.broker_set import Life, Lives

LISTEN_S = 10.0
BROKERS_MAX = 10_000


class SetKey(NamedTuple):
    """A broker set of a cluster."""

    cluster: str
    name: str


class BrokerKey(NamedTuple):
    """A broker of a set."""

    set: SetKey
    id: int


@dataclass(slots=True)
class _Heard:
    life: Life
    until_s: float
    connection: Hashable
    address: str


class Heartbeats:
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[SetKey, dict[int, _Heard]] = {}
        self._lost: dict[BrokerKey, None] = {}  # The one that was lost first is the first.
        self._count = 0
        self._since_s = clock.monotonic()

    def other_address(self, broker: BrokerKey, address: str) -> str:
        """The address of a living broker that has this id at another one; empty when there is none."""
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._heard.get(broker.set, {}).get(broker.id)
        is_other = known is not None and known.until_s >= now_s and known.address != address
        return known.address if known is not None and is_other else ""

    def heard(self, broker: BrokerKey, life: Life, timeout_ms: int, connection: Hashable, address: str = "") -> bool:
        """A heartbeat came. False where it cannot be noted: too many brokers are known."""
        until_s = self._clock.monotonic() + timeout_ms / 1000
        with self._lock:
            brokers = self._heard.get(broker.set, {})
            before = brokers.get(broker.id)
            if before is None:
                if self._count >= BROKERS_MAX:
                    return False
                self._count += 1
            elif (before.life.epoch, before.life.max_offset) > (life.epoch, life.max_offset):
                # An older heartbeat, on another connection.
                life = Life(before.life.epoch, before.life.max_offset, life.priority)
            self._heard.setdefault(broker.set, brokers)[broker.id] = _Heard(life, until_s, connection, address)
            self._lost.pop(broker, None)
            return True

    def closed(self, connection: Hashable) -> list[BrokerKey]:
        """A connection has ended; the brokers that are lost by that."""
        return [broker for broker, _ in self._lose(lambda each: each.connection is connection)]

    def expire(self) -> list[tuple[BrokerKey, Hashable]]:
        """Brokers that were silent for too long, with their connections; they are lost from now on."""
        now_s = self._clock.monotonic()
        return self._lose(lambda each: each.until_s < now_s)

    def _lose(self, is_lost: Callable[[_Heard], bool]) -> list[tuple[BrokerKey, Hashable]]:
        with self._lock:
            gone = [
                (BrokerKey(key, broker), each.connection)
                for key, brokers in self._heard.items()
                for broker, each in brokers.items()
                if is_lost(each)
            ]
            for (key, broker), _ in gone:
                del self._heard[key][broker]
                if not self._heard[key]:
                    del self._heard[key]
                self._lost[BrokerKey(key, broker)] = None
            self._count -= len(gone)
            while len(self._lost) > BROKERS_MAX:
                del self._lost[next(iter(self._lost))]
        return gone

    def listen_again(self) -> None:
        """The process was suspended: what it did not hear meanwhile means nothing."""
        with self._lock:
            self._since_s = self._clock.monotonic()
            self._heard.clear()
            self._lost.clear()
            self._count = 0

    def lives(self, key: SetKey) -> Lives:
        """Of the brokers of a set."""
        now_s = self._clock.monotonic()
        with self._lock:
            heard = self._heard.get(key, {})
            alive = {broker: each.life for broker, each in heard.items() if each.until_s >= now_s}
            lost = frozenset(each.id for each in self._lost if each.set == key) | (heard.keys() - alive.keys())
        return Lives(alive, lost, is_settled=now_s - self._since_s >= LISTEN_S)

    def sets(self) -> list[SetKey]:
        """Those that have a living broker."""
        with self._lock:
            return list(self._heard)
