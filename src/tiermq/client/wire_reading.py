"""A task is read over the wire: pulls, some of them on their way at once, become runs of records.

The broker says how many records it gives at a time. The next pulls are sent at the places where they will probably have
to begin; where one begins is known when the one before is answered, and what was asked in vain is then thrown away.

Each message of the task is in a run once, in the order of its queue, or told as a loss: EXPIRED when the broker moves
on from before its oldest message, GAP for a hole, BEYOND_END when the queue ends before the task. With tags the broker
leaves messages out, so a hole is then none.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

from tiermq.client.queue_access import Pulled
from tiermq.client.wire_history import WireHistory
from tiermq.errors import CorruptRecord, RemotingError
from tiermq.history.losses import data_loss
from tiermq.history.open_history import OpenHistory
from tiermq.history.reading import OnLoss, read_task
from tiermq.history.scan_values import Loss, LossReason, RecordRun, ScanCounters, ScanTask, Side
from tiermq.kernel.column_values import OWN_PLACES
from tiermq.message.layout import QUEUE_OFFSET_AT, RECORD_BYTES_MIN
from tiermq.remoting.codes import ResponseCode

RUN_BYTES = 4 << 20
RUN_RECORDS = 16_384
AHEAD = 4
STUCK_MAX = 3
_SIZE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")


def read_placed_task(
    history: OpenHistory, task: ScanTask, counters: ScanCounters, on_loss: OnLoss | None = None
) -> Iterator[RecordRun]:
    """The records of a task, from files or over the wire. Raises as `read_task` does, and RemotingError."""
    if isinstance(history, WireHistory):
        return _WireReading(history, task, counters, on_loss).runs()
    return read_task(history, task, counters, on_loss)


class _WireReading:
    """One task under way. `at` is the queue offset behind everything that was given or lost."""

    def __init__(self, history: WireHistory, task: ScanTask, counters: ScanCounters, on_loss: OnLoss | None) -> None:
        self._history = history
        self._queue = history.queue(task.queue)
        self._task = task
        self._counters = counters
        self._on_loss = on_loss
        # Tags that the text of a subscription cannot hold are left to the rows.
        tags = sorted(task.request.tags)
        is_plain = bool(tags) and not any("|" in tag or tag != tag.strip() or tag == "*" for tag in tags)
        self._expression = " || ".join(tags) if is_plain else "*"
        self._at = task.from_offset
        self._step = 0
        self._stuck = 0
        self._asked: deque[tuple[int, Future[Pulled]]] = deque()

    def runs(self) -> Iterator[RecordRun]:
        pages: list[bytes] = []
        size = count = 0
        try:
            while self._at < self._task.to_offset:
                page = self._next_page()
                if page:
                    pages += page
                    size += sum(map(len, page))
                    count += len(page)
                if size >= RUN_BYTES or count >= RUN_RECORDS:
                    yield self._run(pages)
                    pages, size, count = [], 0, 0
            if pages:
                yield self._run(pages)
        finally:
            self._forget()

    def _next_page(self) -> list[bytes]:
        """The next records, and `at` behind them."""
        while self._asked and self._asked[0][0] != self._at:
            self._forget()
        self._ask_ahead()
        _, answer = self._asked.popleft()
        pulled = answer.result()
        self._counters.requests += 1
        self._counters.bytes_read += len(pulled.records)
        if pulled.code == ResponseCode.SUCCESS:
            return self._taken(pulled)
        self._moved(pulled)
        return []

    def _ask_ahead(self) -> None:
        """So many pulls on their way as are of use: without a filter their places can be guessed."""
        place = self._asked[-1][0] + self._step if self._asked else self._at
        guessing = self._step > 0 and self._expression == "*"
        while len(self._asked) < (AHEAD if guessing else 1) and place < self._task.to_offset:
            pull = self._queue.pull(place, self._expression)
            self._asked.append((place, self._history.cluster.later(pull)))
            place += self._step

    def _forget(self) -> None:
        for _, answer in self._asked:
            answer.cancel()
        self._asked.clear()

    def _taken(self, pulled: Pulled) -> list[bytes]:
        began, end = self._at, self._task.to_offset
        records = []
        for record in split_records(pulled.records):
            (offset,) = _OFFSET.unpack_from(record, QUEUE_OFFSET_AT)
            if not self._at <= offset < end:
                continue
            self._pass_over(offset)
            records.append(record)
            self._at = offset + 1
        # Behind the last record there may be some that the filter left out.
        self._at = max(self._at, min(pulled.next_offset, end)) if self._expression != "*" else self._at
        if self._at == began:
            self._stay(pulled)
        self._step = self._at - began
        return records

    def _moved(self, pulled: Pulled) -> None:
        """No records: the broker says where to go on."""
        task, at, to = self._task, self._at, min(pulled.next_offset, self._task.to_offset)
        self._step = 0
        if pulled.code == ResponseCode.PULL_NOT_FOUND or pulled.next_offset < at:
            detail = f"the broker has nothing at {at} any more, and goes on at {pulled.next_offset}"
            self._lose(Loss(task.queue, at, task.to_offset, LossReason.BEYOND_END, detail))
            self._at = task.to_offset
        elif pulled.next_offset == at:
            self._stay(pulled)
        elif pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            self._lose(Loss(task.queue, at, to, LossReason.EXPIRED, "gone from the broker since the scan was planned"))
            self._at = to
        else:
            self._pass_over(to)
            self._at = to

    def _stay(self, pulled: Pulled) -> None:
        """A broker that does not get on is asked again, a few times: a file may just have been deleted."""
        self._stuck += 1
        if self._stuck > STUCK_MAX:
            queue = self._task.queue
            raise RemotingError(
                f"topic {queue.topic!r}, queue {queue.queue_id}: expected a message at {self._at} or a place to go on "
                f"at, found neither (code {pulled.code}, next {pulled.next_offset}); see the log of {queue.broker}"
            )

    def _pass_over(self, offset: int) -> None:
        if self._at < offset and self._expression == "*":
            self._lose(Loss(self._task.queue, self._at, offset, LossReason.GAP, "the broker passes over them"))

    def _lose(self, loss: Loss) -> None:
        if self._task.loss_is_error:
            raise data_loss([loss])
        if self._on_loss is not None:
            self._on_loss(loss)

    def _run(self, records: list[bytes]) -> RecordRun:
        sizes: Any = np.fromiter((len(record) for record in records), np.int64, len(records))
        starts: Any = np.cumsum(sizes) - sizes
        self._counters.rows_read += len(records)
        self._counters.hot_bytes_read += int(sizes.sum())
        segment = self._queue.place.address
        return RecordRun(self._task.queue, Side.WIRE, b"".join(records), starts, sizes, OWN_PLACES, segment)


def split_records(data: bytes) -> list[bytes]:
    """The records that lie end to end in the body of an answer. Raises CorruptRecord unless they add up."""
    records = []
    at, end = 0, len(data)
    while at < end:
        size = _SIZE.unpack_from(data, at)[0] if end - at >= RECORD_BYTES_MIN else 0
        if not RECORD_BYTES_MIN <= size <= end - at:
            raise CorruptRecord(f"record at byte {at} of an answer: expected {size} bytes, found {end - at} left")
        records.append(data[at : at + size])
        at += size
    return records
