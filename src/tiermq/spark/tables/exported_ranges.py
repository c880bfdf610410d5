"""Which messages a table has: ranges of queue offsets, by queue. By them a message is exported once.

As JSON: {"cluster/broker/topic/queue": [[from, to], …]}, ranges ascending, apart from each other and never empty.
Names hold no slash, so the text of a queue is its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tiermq.history.time_ranges import OffsetRange, subtract
from tiermq.tier.names import QueueKey


class ExportedRanges:
    """Changed by its owner alone; `copy` for anybody else."""

    def __init__(self, ranges: dict[QueueKey, list[OffsetRange]] | None = None) -> None:
        self._ranges: dict[QueueKey, list[OffsetRange]] = {}
        for queue, each in (ranges or {}).items():
            for begin, end in each:
                self.add(queue, begin, end)

    def add(self, queue: QueueKey, begin: int, end: int) -> None:
        """Say that the table has these; neighbours are joined."""
        if begin >= end:
            return
        merged: list[OffsetRange] = []
        for low, high in sorted([*self._ranges.get(queue, ()), (begin, end)]):
            if merged and low <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        self._ranges[queue] = merged

    def remove(self, queue: QueueKey, begin: int, end: int) -> None:
        """Say that the table has none of these: the next run asks for them again."""
        if begin >= end:
            return
        left = subtract(self._ranges.get(queue, ()), (begin, end))
        if left:
            self._ranges[queue] = left
        else:
            self._ranges.pop(queue, None)

    def missing(self, queue: QueueKey, begin: int, end: int) -> list[OffsetRange]:
        """What of [begin, end) the table has not."""
        left = [(begin, end)] if begin < end else []
        for each in self._ranges.get(queue, ()):
            left = subtract(left, each)
        return left

    def overlaps(self, queue: QueueKey, begin: int, end: int) -> bool:
        return self.missing(queue, begin, end) != ([(begin, end)] if begin < end else [])

    def end(self, queue: QueueKey) -> int | None:
        """Behind the last message of a queue; None when there is none of it."""
        found = self._ranges.get(queue)
        return found[-1][1] if found else None

    def queues(self) -> list[QueueKey]:
        return sorted(self._ranges)

    def of(self, queue: QueueKey) -> list[OffsetRange]:
        return list(self._ranges.get(queue, ()))

    @property
    def messages(self) -> int:
        return sum(end - begin for each in self._ranges.values() for begin, end in each)

    def copy(self) -> ExportedRanges:
        return ExportedRanges(self._ranges)

    def as_json(self) -> dict[str, list[list[int]]]:
        return {queue_text(queue): [list(each) for each in self._ranges[queue]] for queue in self.queues()}

    @classmethod
    def of_json(cls, document: dict[str, Any]) -> ExportedRanges:
        return cls({queue_of(text): [(int(low), int(high)) for low, high in each] for text, each in document.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExportedRanges) and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment] # It changes.


def queue_text(queue: QueueKey) -> str:
    return f"{queue.cluster}/{queue.broker}/{queue.topic}/{queue.queue_id}"


def queue_of(text: str) -> QueueKey:
    cluster, broker, topic, number = text.split("/")
    return QueueKey(cluster, broker, topic, int(number))


def total(ranges: Iterable[OffsetRange]) -> int:
    return sum(end - begin for begin, end in ranges)
