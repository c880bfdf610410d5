"""CheckPoint: messages of a queue that one pop delivered to a group, and which of them were acknowledged.

    CheckPoints     open check points, in memory: by receipt, and by due time

Invariants: a check point exists until all its messages are acknowledged or returned; it is due when the invisible time
is over; at most one thread takes it for revival. On disk it is a record of the revive topic,
in RocketMQ's form (`to_json`), and so is each acknowledgement (`pop_log`). Any thread may call.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tiermq.broker.group.group_table import is_group_name
from tiermq.broker.pop.pop_waiting import INVISIBLE_MS_MAX
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import is_broker_topic, topic_problem
from tiermq.remoting.json_dialect import as_int, int32_in, int64_in, text_in
from tiermq.settings import LONG_MAX

OFFSETS_MAX = 127
"""Maximum messages of one check point: RocketMQ counts them in a byte, and delivers 32 at most."""


LEASE = "lease"
"""TierMQ's own field, ignored by RocketMQ."""
Lease = tuple[str, str]
"""A client's id and its account's key."""


def lease_in(table: dict[str, Any]) -> Lease | None:
    """The lease in a record. Raises RequestRefused."""
    found = table.get(LEASE)
    if not isinstance(found, list) or len(found) != 2:
        return None
    return text_in(found[0], LEASE), text_in(found[1], LEASE)


class PoppedMessage(NamedTuple):
    """What identifies a check point."""

    group: str
    topic: str
    queue_id: int
    start_offset: int
    pop_ms: int


@dataclass(slots=True)
class CheckPoint:
    """See the module. Changed under the lock of the table that it is in."""

    popped: PoppedMessage
    invisible_ms: int
    offsets: tuple[int, ...]
    revive_queue: int
    log_offset: int = -1
    """Its offset in the revive queue."""
    open: set[int] = field(default_factory=set)
    """Unacknowledged offsets."""
    lease: Lease | None = None
    """The client that has the messages for as long as it lives; it is not asked for more time."""
    is_read: bool = False
    """It was read from the log: RocketMQ's acknowledgements of it may wait in the timer wheel until it is due."""

    def __post_init__(self) -> None:
        self.open = set(self.offsets)

    @property
    def due_ms(self) -> int:
        return self.popped.pop_ms + self.invisible_ms

    def to_json(self, broker: str) -> dict[str, Any]:
        start = self.popped.start_offset
        leased = {} if self.lease is None else {LEASE: list(self.lease)}
        return leased | {
            "bm": 0,
            "bn": broker,
            "c": self.popped.group,
            "d": [offset - start for offset in self.offsets],
            "it": self.invisible_ms,
            "n": len(self.offsets),
            "pt": self.popped.pop_ms,
            "q": self.popped.queue_id,
            "ro": 0,
            "so": start,
            "t": self.popped.topic,
        }

    @classmethod
    def from_json(cls, table: dict[str, Any], revive_queue: int, log_offset: int) -> CheckPoint:
        """Raises RequestRefused for an invalid record."""
        popped = popped_in(table)
        gaps = table.get("d")
        if not isinstance(gaps, list) or not gaps:  # RocketMQ leaves them out when there are no holes.
            gaps = range(min(int32_in(table, "n"), OFFSETS_MAX + 1))
        if not 1 <= len(gaps) <= OFFSETS_MAX:
            raise RequestRefused(f"expected a check point of 1 to {OFFSETS_MAX} messages, found {len(gaps)} or more")
        offsets = tuple(popped.start_offset + as_int(gap) for gap in gaps)
        if not 0 <= min(offsets) <= max(offsets) < LONG_MAX:
            raise RequestRefused(f"expected offsets of 63 bits, found {min(offsets)} to {max(offsets)}")
        invisible_ms = min(int64_in(table, "it"), INVISIBLE_MS_MAX)
        found = cls(popped, invisible_ms, offsets, revive_queue, log_offset, lease=lease_in(table))
        bits = int32_in(table, "bm")
        found.open -= {offset for at, offset in enumerate(offsets) if bits >> at & 1}
        return found


def popped_in(table: dict[str, Any]) -> PoppedMessage:
    """The check point of a record of the revive topic. Raises RequestRefused."""
    found = PoppedMessage(
        text_in(table.get("c"), "c"),
        text_in(table.get("t"), "t"),
        int32_in(table, "q"),
        int64_in(table, "so"),
        int64_in(table, "pt"),
    )
    if not is_group_name(found.group):
        raise RequestRefused(f"expected a check point of a group, found {found.group[:40]!r}")
    # RocketMQ's newer retry topics have a `+`, which is illegal elsewhere.
    if topic_problem(found.topic.replace("+", "_")) is not None or is_broker_topic(found.topic):
        raise RequestRefused(f"expected a check point of a topic of clients, found {found.topic[:40]!r}")
    if found.queue_id < 0 or found.start_offset < 0 or found.pop_ms < 0:
        raise RequestRefused(f"expected numbers of 0 and above in q, so and pt, found {found[2:]}")
    return found


class CheckPoints:
    """See the module."""

    def __init__(self, revive_queues: int) -> None:
        self._lock = threading.Lock()
        self._table: dict[PoppedMessage, CheckPoint] = {}
        self._due: list[tuple[int, int, CheckPoint]] = []
        self._numbers = itertools.count()
        # In the order of the log: each is added under the lock of its queue, after its record was appended.
        self._logged: dict[int, dict[int, CheckPoint]] = {queue: {} for queue in range(revive_queues)}
        self._leased: dict[Lease, dict[PoppedMessage, CheckPoint]] = {}

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[CheckPoint]:
        with self._lock:
            return iter(tuple(self._table.values()))

    def add(self, point: CheckPoint) -> None:
        with self._lock:
            known = self._table.get(point.popped)
            if known is not None and known is not point:  # This one has more time for the same messages.
                known.open = set()
                self._forget(known)
            self._table[point.popped] = point
            if point.lease is not None:
                self._leased.setdefault(point.lease, {})[point.popped] = point
            logged = self._logged.setdefault(point.revive_queue, {})
            is_late = point.log_offset < next(reversed(logged), -1)  # A timer had delivered its record.
            logged[point.log_offset] = point
            if is_late:
                self._logged[point.revive_queue] = dict(sorted(logged.items()))
            heapq.heappush(self._due, (point.due_ms, next(self._numbers), point))

    def find(self, popped: PoppedMessage) -> CheckPoint | None:
        return self._table.get(popped)

    def acknowledge(self, popped: PoppedMessage, offsets: Collection[int]) -> set[int]:
        """Close `offsets`; returns those that were open. A check point without open messages is removed."""
        with self._lock:
            point = self._table.get(popped)
            if point is None:
                return set()
            closed = point.open.intersection(offsets)
            point.open -= closed
            if not point.open:
                self._forget(point)
            return closed

    def _forget(self, point: CheckPoint) -> None:
        self._table.pop(point.popped, None)
        self._end_lease(point)
        self._logged.get(point.revive_queue, {}).pop(point.log_offset, None)

    def _end_lease(self, point: CheckPoint) -> None:
        if point.lease is not None and (own := self._leased.get(point.lease)) is not None:
            own.pop(point.popped, None)
            if not own:
                del self._leased[point.lease]

    def lease(self, popped: PoppedMessage, lease: Lease) -> None:
        """A client has the open messages for as long as it lives. The log knows once they get more time."""
        with self._lock:
            point = self._table.get(popped)
            if point is not None:
                self._end_lease(point)
                point.lease = lease
                self._leased.setdefault(lease, {})[popped] = point

    def leased(self, lease: Lease | None = None) -> list[CheckPoint]:
        """Those whose messages a client has for as long as it lives: of one client, or of all."""
        with self._lock:
            owners = self._leased.values() if lease is None else (self._leased.get(lease, {}),)
            return [point for own in owners for point in own.values()]

    def next_due_ms(self) -> int | None:
        """When the next one is due; None without one."""
        with self._lock:
            while self._due and not self._due[0][2].open:
                heapq.heappop(self._due)
            return self._due[0][0] if self._due else None

    def take_due(self, now_ms: int) -> CheckPoint | None:
        """A due check point with open messages. It stays in the table: acknowledge these, or `put_off` it."""
        with self._lock:
            while self._due and self._due[0][0] <= now_ms:
                point = heapq.heappop(self._due)[2]
                if point.open:
                    return point
            return None

    def put_off(self, point: CheckPoint, until_ms: int) -> None:
        """Make a taken check point due again at `until_ms`: its messages could not be revived."""
        with self._lock:
            heapq.heappush(self._due, (until_ms, next(self._numbers), point))

    def oldest_logged(self, revive_queue: int) -> int | None:
        """The log offset of the oldest open check point; None without one."""
        with self._lock:
            return next(iter(self._logged.get(revive_queue, {})), None)

    def forget_topic(self, topic: str) -> None:
        """Drop the check points of a deleted topic: they must not revive messages of a later topic of that name."""
        with self._lock:
            for point in [each for each in self._table.values() if each.popped.topic == topic]:
                point.open.clear()
                self._forget(point)
