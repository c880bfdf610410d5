"""OrderInfos: messages of each queue held by groups that pop in order, kept in RocketMQ's `consumerOrderInfo.json`.

    {"table":{"orders@CG":{0:{"popTime":…,"i":60000,"o":[12,1,2],"oc":{12:1},"cm":1,"l":…,"a":"…"}}}}

`o` is the first offset and the distances of further offsets from it, `cm` has a bit for each that was acknowledged,
`oc` how often each was delivered before, `ot` when one with an extended invisible time may be delivered again.

Invariants: while a message of a queue is neither acknowledged nor past its invisible time, no client gets more of it,
except the attempt that got it, which gets the same again; the group's offset follows acknowledged messages without a
gap, so unacknowledged messages are delivered again, in order. Any thread may call. The file is written periodically:
after a crash a queue may be free too early, and counts may be lower; no message is lost.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiermq.broker.pop.pop_checkpoints import LEASE, Lease, lease_in
from tiermq.clock import Clock
from tiermq.errors import RequestRefused
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.topic_name import lite_parent
from tiermq.remoting.json_dialect import as_int, decode_object, int64_in, object_in, text_in

FILE = "consumerOrderInfo.json"
QueueOfGroup = tuple[str, str, int]
"""Topic, group, queue id."""


@dataclass(slots=True)
class OrderInfo:
    """The messages of one queue that a group has now."""

    offsets: tuple[int, ...]
    pop_ms: int
    invisible_ms: int
    attempt_id: str = ""
    counts: dict[int, int] = field(default_factory=dict)
    visible_ms: dict[int, int] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    lease: Lease | None = None

    def free_ms(self, offset: int) -> int:
        """When a message may be delivered again."""
        return self.visible_ms.get(offset, self.pop_ms + self.invisible_ms)

    @property
    def next_offset(self) -> int:
        """Up to where everything is acknowledged."""
        return next((offset for offset in self.offsets if offset not in self.acked), self.offsets[-1] + 1)

    def to_json(self) -> dict[str, Any]:
        first = self.offsets[0]
        bits = sum(1 << at for at, offset in enumerate(self.offsets) if offset in self.acked)
        return {
            "popTime": self.pop_ms,
            "i": self.invisible_ms,
            "o": [first, *(offset - first for offset in self.offsets[1:])],
            "ot": self.visible_ms,
            "oc": self.counts,
            "l": self.pop_ms,
            "cm": bits,
            "a": self.attempt_id,
            **({} if self.lease is None else {LEASE: list(self.lease)}),
        }

    @classmethod
    def from_json(cls, value: object) -> OrderInfo | None:
        """None for one without messages. Raises RequestRefused."""
        table = object_in(value, "an order info")
        listed = table.get("o") or []
        if not isinstance(listed, list):
            raise RequestRefused(f"expected a list of offsets in o, found a {type(listed).__name__}")
        numbers = [as_int(each) for each in listed]
        if not numbers:
            return None
        offsets = (numbers[0], *(numbers[0] + each for each in numbers[1:]))
        bits = int64_in(table, "cm")
        return cls(
            offsets,
            int64_in(table, "popTime"),
            int64_in(table, "i"),
            text_in(table.get("a"), "a"),
            _numbers(table.get("oc")),
            _numbers(table.get("ot")),
            {offset for at, offset in enumerate(offsets) if bits >> at & 1},
            lease_in(table),
        )


def _numbers(value: object) -> dict[int, int]:
    return {as_int(key): as_int(each) for key, each in object_in(value or {}, "a map of offsets").items()}


class OrderInfos:
    """See the module."""

    def __init__(self, directory: str, clock: Clock) -> None:
        """Reads the file in `directory` if there is one. Raises StoreDamaged when it cannot be read."""
        self.path = os.path.join(directory, FILE)
        self._clock = clock
        self._access = OsFileAccess()
        self._lock = threading.Lock()
        self._table: dict[QueueOfGroup, OrderInfo] = self._access.read_config(self.path, decode_order_infos) or {}
        self._leased: dict[Lease, set[QueueOfGroup]] = {}
        for queue, info in self._table.items():
            self._list(queue, info)
        self._changed = False

    def _list(self, queue: QueueOfGroup, info: OrderInfo) -> None:
        if info.lease is not None:
            self._leased.setdefault(info.lease, set()).add(queue)

    def _unlist(self, queue: QueueOfGroup, info: OrderInfo | None) -> None:
        if info is not None and info.lease is not None and (own := self._leased.get(info.lease)) is not None:
            own.discard(queue)
            if not own:
                del self._leased[info.lease]

    def blocked_until_ms(self, queue: QueueOfGroup, attempt_id: str = "") -> int | None:
        """When the queue is free at the latest; None if it is free now."""
        now_ms = self._clock.now_ms()
        with self._lock:
            info = self._table.get(queue)
            if info is None or (attempt_id and attempt_id == info.attempt_id):
                return None
            waits = [info.free_ms(each) for each in info.offsets if each not in info.acked]
            return max((each for each in waits if each > now_ms), default=None)

    def popped(
        self,
        queue: QueueOfGroup,
        offsets: tuple[int, ...],
        pop_ms: int,
        invisible_ms: int,
        attempt_id: str,
    ) -> dict[int, int]:
        """These were delivered; returns earlier delivery counts, of those that have any."""
        with self._lock:
            before = self._table.get(queue)
            counts: dict[int, int] = {}
            if before is not None and attempt_id and attempt_id == before.attempt_id:
                counts = before.counts  # The same delivery again, since its answer may be lost.
            elif before is not None:
                again = set(before.offsets).intersection(offsets)
                counts = {offset: before.counts.get(offset, 0) + 1 for offset in sorted(again)}
            self._unlist(queue, before)
            self._table[queue] = OrderInfo(offsets, pop_ms, invisible_ms, attempt_id, counts)
            self._changed = True
            return dict(counts)

    def acknowledge(self, queue: QueueOfGroup, offset: int, pop_ms: int) -> int | None:
        """The group's offset from now on; None when that receipt is outdated."""
        with self._lock:
            info = self._table.get(queue)
            if info is None or info.pop_ms != pop_ms or offset not in info.offsets:
                return None
            info.acked.add(offset)
            self._changed = True
            return info.next_offset

    def change_time(
        self, queue: QueueOfGroup, offset: int, pop_ms: int, visible_ms: int, *, counts: bool = True
    ) -> bool:
        """A message may be delivered again at another time. False when that receipt is outdated. `counts`: its next
        delivery counts as one more attempt.
        """
        with self._lock:
            info = self._table.get(queue)
            if info is None or info.pop_ms != pop_ms or offset not in info.offsets:
                return False
            info.visible_ms[offset] = visible_ms
            if not counts:
                info.counts[offset] = info.counts.get(offset, 0) - 1
            self._changed = True
            return True

    def lease(self, queue: QueueOfGroup, pop_ms: int, lease: Lease) -> None:
        """A client has the messages of a pop for as long as it lives."""
        self._change(queue, pop_ms, None, lease)

    def leased(self, lease: Lease | None = None) -> list[tuple[QueueOfGroup, Lease, int, int]]:
        """Queues whose messages a client has for as long as it lives, of one client or of all: its lease, the pop, and
        when they are free.
        """
        with self._lock:
            owners = tuple(self._leased) if lease is None else (lease,)
            return [
                (queue, owner, info.pop_ms, info.pop_ms + info.invisible_ms)
                for owner in owners
                for queue in self._leased.get(owner, ())
                if not (info := self._table[queue]).acked.issuperset(info.offsets)
            ]

    def end_leases(self, held_ms: int) -> int:
        """No client has messages for as long as it lives any more: they are free at the latest `held_ms` after their
        pop. Returns how many queues had such messages.
        """
        with self._lock:
            ended = [queue for own in self._leased.values() for queue in own]
            for queue in ended:
                info = self._table[queue]
                info.lease, info.invisible_ms = None, min(info.invisible_ms, held_ms)
            self._leased.clear()
            self._changed = self._changed or bool(ended)
            return len(ended)

    def was_given(self, queue: QueueOfGroup, offset: int, pop_ms: int, *, is_open: bool = False) -> bool:
        """Whether the group's last pop of a queue gave a message; `is_open`: that is not acknowledged yet."""
        with self._lock:
            info = self._table.get(queue)
            if info is None or info.pop_ms != pop_ms or offset not in info.offsets:
                return False
            return not is_open or offset not in info.acked

    def extend(self, queue: QueueOfGroup, pop_ms: int, until_ms: int, lease: Lease | None) -> None:
        """The messages of a pop are free at another time; receipts stay valid."""
        self._change(queue, pop_ms, until_ms - pop_ms, lease)

    def _change(self, queue: QueueOfGroup, pop_ms: int, invisible_ms: int | None, lease: Lease | None) -> None:
        with self._lock:
            info = self._table.get(queue)
            if info is not None and info.pop_ms == pop_ms:
                self._unlist(queue, info)
                info.lease = lease
                self._list(queue, info)
                if invisible_ms is not None:
                    info.invisible_ms = invisible_ms
                self._changed = True

    def clear(self, queue: QueueOfGroup) -> None:
        """The group's offset was reset: open messages do not block it."""
        with self._lock:
            gone = self._table.pop(queue, None)
            self._unlist(queue, gone)
            self._changed = gone is not None or self._changed

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Topics are deleted, and with them their lite topics."""
        gone = frozenset(topics)
        with self._lock:
            for queue in [each for each in self._table if each[0] in gone or lite_parent(each[0]) in gone]:
                self._unlist(queue, self._table.pop(queue))
                self._changed = True

    def flush(self) -> bool:
        """Write the file if anything changed. Raises OSError."""
        with self._lock:
            if not self._changed:
                return False
            self._changed = False
            data = encode_order_infos(self._table)
        try:
            self._access.make_directories(os.path.dirname(self.path))
            self._access.write_config(self.path, data)
        except BaseException:
            self._changed = True
            raise
        return True


def encode_order_infos(table: Mapping[QueueOfGroup, OrderInfo]) -> bytes:
    """Numeric keys have no quotes, as in RocketMQ's files."""
    groups: dict[str, dict[int, Any]] = {}
    for (topic, group, queue_id), info in sorted(table.items()):
        groups.setdefault(f"{topic}@{group}", {})[queue_id] = info.to_json()
    return f'{{"table":{_text(groups)}}}'.encode()


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(key)}:{_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def decode_order_infos(data: bytes) -> dict[QueueOfGroup, OrderInfo]:
    """Raises RequestRefused for what is no such file."""
    found: dict[QueueOfGroup, OrderInfo] = {}
    for key, queues in object_in(decode_object(data).get("table"), "table").items():
        topic, _, group = key.partition("@")
        for queue_id, value in object_in(queues, key).items():
            info = OrderInfo.from_json(value)
            if info is not None:
                found[topic, group, as_int(queue_id)] = info
    return found
