"""Which records are indexed: the one thing that lets a crash lose nothing and double nothing.

A queue's records are contiguous in its tier commit log, and are put into the index in that order. So what is
indexed of a queue is everything before `end`, less some holes:

    0 ------------- hole.start ~~~~~~~~~~~ hole.stop ------------- end
       indexed                  missing             indexed

* A put at or behind `end` is new and moves `end`. A put before it is a repetition and changes nothing.
* A hole is what an earlier life of the process committed to the tier and did not get into the index. It is filled
  from its start on, by reading the tier, while new puts continue behind it.
* A hole may be OPEN: the offset of the next new put is not known yet. The first one closes it.
* The first put of a queue since the start that is beyond `end` leaves a hole: in between may be committed
  records. Later ones do not, because then the dispatcher has been here all the time: what it skipped is garbage that
  an upload left, of which no consume-queue unit knows.

Below `doubtful_end` the index is RocketMQ's. It drops keys when a file is full, so that a message may be there which no
query finds; only reading the records again shows it, which is what `reindex` makes a hole for.

A queue has one topic id: a topic that was deleted and created again starts over, with new offsets.

`CoverageRecord` is a moment of all queues together with the local files that hold the items of that moment. It is
written atomically, after those files were synced; what it does not contain does not count:

    { "version": 1, "next_base": 0, "is_base_known": true,
      "files":  [ {"begin_ms", "slots", "capacity", "item_count", "slot_count", "oldest_ms", "newest_ms",
                   "topic_ids"} ],
      "queues": [ ["topic", topic id, queue id, end, [[start, stop or null], ...]] ],
      "doubtful": [ ["topic", queue id, doubtful end] ] }      left out when there are none

In a local file, "crc32" is the last field: of the text without it (`sealed_text`). A file without one is an older one.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from tiermq.errors import StoreDamaged
from tiermq.tier.index.index_write_file import FileFacts
from tiermq.tier.names import QueueName

RECORD_VERSION = 1
FIELDS = {"version", "next_base", "is_base_known", "files", "queues", "doubtful"}
_SEAL = re.compile(rb',"crc32":(\d{1,10})}$')
OPEN = (1 << 63) - 1
"""The stop of a hole that is not closed yet."""

LogRange = tuple[int, int]
"""Offsets [start, stop) of a queue's commit log."""


class CoverageDamaged(StoreDamaged):
    """A record that is not what was written, or was never one."""


class QueueTail(NamedTuple):
    """A queue that has records in the tier, and the tier offset behind its last committed one."""

    topic: str
    topic_id: int
    queue_id: int
    committed_end: int


class Hole(NamedTuple):
    """Tier offsets [start, stop) of a queue that are not indexed."""

    start: int
    stop: int


@dataclass(slots=True)
class QueueCoverage:
    """What is indexed of one queue. Changed under the index store's lock only."""

    topic_id: int
    end: int = 0
    holes: list[Hole] = field(default_factory=list)
    is_live: bool = False  # Has seen a put since the start.
    doubtful_end: int = 0  # Before it RocketMQ indexed, which may have dropped keys.

    def open_hole(self) -> None:
        """Open a hole behind `end`: records there may be committed and not indexed."""
        if not self.is_live and not any(hole.stop == OPEN for hole in self.holes):
            self.holes.append(Hole(self.end, OPEN))

    def admit(self, tier_offset: int) -> bool:
        """Whether a record that was just committed is to be put; called before it is."""
        return tier_offset >= self.end

    def note_put(self, tier_offset: int, size: int) -> None:
        """A new record was put."""
        if not self.is_live:
            self.is_live = True
            self._close_open_hole(tier_offset)
        self.end = max(self.end, tier_offset + size)

    def _close_open_hole(self, tier_offset: int) -> None:
        is_open = bool(self.holes) and self.holes[-1].stop == OPEN
        start = self.holes.pop().start if is_open else self.end
        if tier_offset > start:
            self.holes.append(Hole(start, tier_offset))

    def wants(self, tier_offset: int) -> bool:
        """Whether a record that was read back is in the first hole."""
        return bool(self.holes) and self.holes[0].start <= tier_offset < self.holes[0].stop

    def note_filled(self, tier_offset: int, size: int) -> None:
        """A record that the first hole `wants` was put: the hole begins behind it."""
        hole = self.holes[0]
        start = tier_offset + size
        self.holes[0] = Hole(start, max(start, hole.stop))
        if hole.stop == OPEN:
            self.end = start
        elif start >= hole.stop:
            self.holes.pop(0)

    def close_hole(self) -> None:
        """Everything of the first hole was read back."""
        self.holes.pop(0)

    def reindex(self) -> bool:
        """Make a hole of what is doubtful; False when nothing is. Items that are there already do no harm."""
        doubtful_end, self.doubtful_end = self.doubtful_end, 0
        if doubtful_end <= 0:
            return False
        behind = [Hole(max(hole.start, doubtful_end), hole.stop) for hole in self.holes if hole.stop > doubtful_end]
        self.holes = [Hole(0, doubtful_end), *behind]
        return True

    @property
    def is_complete(self) -> bool:
        """Whether every record is indexed for certain."""
        return not self.holes and self.doubtful_end == 0


class Coverage:
    """What is indexed of all queues, by topic and queue id. Changed under the index store's lock only."""

    __slots__ = ("is_base_known", "queues")

    def __init__(self, queues: dict[QueueName, QueueCoverage] | None = None, *, is_base_known: bool = True) -> None:
        self.queues: dict[QueueName, QueueCoverage] = queues if queues is not None else {}
        self.is_base_known = is_base_known  # False: what an earlier life indexed stands in the tier, not read yet.

    def of(self, topic: str, topic_id: int, queue_id: int) -> QueueCoverage:
        """The coverage of a queue; a new one for a queue that is new or belongs to another topic id than before."""
        found = self.queues.get((topic, queue_id))
        if found is None or found.topic_id != topic_id:
            found = self.queues[topic, queue_id] = QueueCoverage(topic_id)
        return found

    def expect(self, tails: Iterable[QueueTail]) -> None:
        """Open a hole in each queue that has more committed than indexed."""
        for tail in tails:
            queue = self.of(tail.topic, tail.topic_id, tail.queue_id)
            if tail.committed_end > queue.end:
                queue.open_hole()

    def take_as_indexed(self, tails: Iterable[QueueTail]) -> None:
        """Begin with what is committed now: RocketMQ, which committed it, had an index of its own, for what it is."""
        for tail in tails:
            queue = self.of(tail.topic, tail.topic_id, tail.queue_id)
            queue.end = max(queue.end, tail.committed_end)
            queue.doubtful_end = max(queue.doubtful_end, tail.committed_end)

    def begin_from(self, base: Coverage) -> None:
        """Learn, some puts too late, what was indexed before them."""
        for name, old in base.queues.items():
            new = self.queues.setdefault(name, old)
            if new.topic_id == old.topic_id and new.end == 0:
                self.queues[name] = old  # Known by name only: nothing was put yet.
                continue
            if new is old or new.topic_id != old.topic_id or not new.holes:
                continue  # Without a hole the queue began at offset 0: it is another one than before.
            new.doubtful_end = old.doubtful_end
            hole = new.holes.pop(0)
            if old.end < hole.stop:
                new.holes.insert(0, Hole(max(hole.start, old.end), hole.stop))
            new.holes[:0] = [older for older in old.holes if older.stop != OPEN]  # An open one began at its end.
        self.is_base_known = True

    def forget(self, topic: str, queue_id: int) -> None:
        """The queue is gone; one of the same name would begin at offset 0."""
        self.queues.pop((topic, queue_id), None)

    def reindex(self) -> int:
        """Make holes of everything doubtful; in how many queues there was something."""
        return sum(queue.reindex() for queue in self.queues.values())

    @property
    def hole_count(self) -> int:
        return sum(len(queue.holes) for queue in self.queues.values())

    def is_complete(self, topic: str | None = None) -> bool:
        """Whether every record of a topic, or of all, is indexed for certain."""
        queues = (queue for (name, _), queue in self.queues.items() if topic is None or name == topic)
        return self.is_base_known and all(queue.is_complete for queue in queues)


@dataclass(frozen=True, slots=True)
class CoverageRecord:
    """A durable moment of the index (see the module)."""

    files: tuple[FileFacts, ...]
    queues: tuple[tuple[str, int, int, int, tuple[Hole, ...]], ...]
    next_base: int = 0
    is_base_known: bool = True
    doubtful: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def of(cls, coverage: Coverage, files: Iterable[FileFacts], next_base: int = 0) -> CoverageRecord:
        queues = tuple(
            (topic, queue.topic_id, queue_id, queue.end, tuple(queue.holes))
            for (topic, queue_id), queue in coverage.queues.items()
        )
        doubtful = tuple(
            (topic, queue_id, queue.doubtful_end)
            for (topic, queue_id), queue in coverage.queues.items()
            if queue.doubtful_end > 0
        )
        return cls(tuple(files), queues, next_base, coverage.is_base_known, doubtful)

    def coverage(self) -> Coverage:
        ends = {(topic, queue_id): end for topic, queue_id, end in self.doubtful}
        return Coverage(
            {
                (topic, queue_id): QueueCoverage(
                    topic_id, end, list(holes), doubtful_end=ends.get((topic, queue_id), 0)
                )
                for topic, topic_id, queue_id, end, holes in self.queues
            },
            is_base_known=self.is_base_known,
        )

    def encode(self) -> bytes:
        files = [{**asdict(facts), "topic_ids": sorted(facts.topic_ids)} for facts in self.files]
        queues = [
            [topic, topic_id, queue_id, end, [[hole.start, None if hole.stop == OPEN else hole.stop] for hole in holes]]
            for topic, topic_id, queue_id, end, holes in self.queues
        ]
        record = {
            "version": RECORD_VERSION,
            "next_base": self.next_base,
            "is_base_known": self.is_base_known,
            "files": files,
            "queues": queues,
            **({"doubtful": self.doubtful} if self.doubtful else {}),
        }
        return json.dumps(record, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> CoverageRecord:
        """Raises CoverageDamaged for anything that `encode` did not write, StoreDamaged for another version."""
        try:
            record: dict[str, Any] = json.loads(data)
            version = record["version"]
            if version != RECORD_VERSION:
                raise StoreDamaged(
                    f"{where}: expected version {RECORD_VERSION} of the index coverage, found {version}; "
                    "a newer TierMQ wrote it, use that one"
                )
            files = [FileFacts(**{**row, "topic_ids": frozenset(row["topic_ids"])}) for row in record["files"]]
            queues = [
                (topic, topic_id, queue_id, end, tuple(Hole(a, OPEN if b is None else b) for a, b in holes))
                for topic, topic_id, queue_id, end, holes in record["queues"]
            ]
            doubtful = tuple((str(topic), int(at), int(end)) for topic, at, end in record.get("doubtful", ()))
            return cls(tuple(files), tuple(queues), record["next_base"], record["is_base_known"], doubtful)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CoverageDamaged(
                f"{where}: expected the index coverage as JSON, found {type(error).__name__}: {error}; "
                "remove the file to index from here on, and index older messages again"
            ) from error


def sealed_text(record: CoverageRecord) -> bytes:
    """The record as a local file holds it: with a checksum."""
    text = record.encode()
    return b'%b,"crc32":%d}' % (text[:-1], zlib.crc32(text))


def open_sealed(data: bytes, where: str) -> CoverageRecord:
    """The record of a local file. Raises CoverageDamaged, and StoreDamaged for another version."""
    found = _SEAL.search(data)
    if found is not None:
        text = data[: found.start()] + b"}"
        if zlib.crc32(text) != int(found[1]):
            raise CoverageDamaged(f"{where}: expected the index coverage, found one whose checksum is of another")
        return CoverageRecord.decode(text, where)
    record = CoverageRecord.decode(data, where)
    odd = sorted(set(json.loads(data)) - FIELDS)
    if odd:  # Its checksum, by another name.
        raise CoverageDamaged(f"{where}: expected the index coverage, found fields that it does not have: {odd}")
    return record


# What a coverage lacks, as ranges of a queue's log


def uncovered(known: QueueCoverage | None, topic_id: int, log: LogRange) -> list[LogRange]:
    """Ranges of the log that a coverage does not speak for, in order. `known` of another topic id covers nothing."""
    if known is None or known.topic_id != topic_id:
        return [log] if log[0] < log[1] else []
    missing = [(0, known.doubtful_end), *known.holes, (known.end, log[1])]
    return joined((max(start, log[0]), min(stop, log[1])) for start, stop in missing)


def joined(ranges: Iterable[LogRange]) -> list[LogRange]:
    """The ranges in order, those that touch made one, empty ones left out."""
    found: list[LogRange] = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def in_both(one: Sequence[LogRange], other: Sequence[LogRange]) -> list[LogRange]:
    """What is in both."""
    return joined((max(a, c), min(b, d)) for a, b in one for c, d in other)


def without(ranges: Sequence[LogRange], done: Iterable[LogRange]) -> list[LogRange]:
    """What is left of the ranges when others were done."""
    left = list(ranges)
    for start, stop in done:
        left = [part for a, b in left for part in ((a, min(b, start)), (max(a, stop), b)) if part[0] < part[1]]
    return joined(left)


def coverage_of(left: Sequence[LogRange], topic_id: int, log: LogRange) -> QueueCoverage:
    """The coverage of a queue of whose log these ranges are missing: the last one is behind its end, others holes."""
    if left and left[-1][1] >= log[1]:
        return QueueCoverage(topic_id, left[-1][0], [Hole(*hole) for hole in left[:-1]])
    return QueueCoverage(topic_id, log[1], [Hole(*hole) for hole in left])


def with_queues(record: CoverageRecord, queues: Mapping[QueueName, QueueCoverage]) -> CoverageRecord:
    """The record with other coverages of some queues; the older ones are not needed."""
    coverage = Coverage({**record.coverage().queues, **queues})
    return CoverageRecord.of(coverage, record.files, record.next_base)


def covered_more(
    known: QueueCoverage | None, topic_id: int, log: LogRange, done: Iterable[LogRange], *, trust_doubtful: bool = False
) -> QueueCoverage:
    """The coverage of a queue with the log `log` after the ranges `done` were indexed, too.

    `trust_doubtful`: what RocketMQ indexed stays as doubtful as it is; otherwise it counts as missing.
    """
    doubtful_end = 0
    if trust_doubtful and known is not None and known.topic_id == topic_id:
        doubtful_end, known = known.doubtful_end, replace(known, doubtful_end=0)
    found = coverage_of(without(uncovered(known, topic_id, log), done), topic_id, log)
    found.doubtful_end = doubtful_end
    return found


def either(one: QueueCoverage, other: QueueCoverage | None) -> QueueCoverage:
    """What one of two coverages of a queue has, both of which are true. Of two lives of its topic the later counts.

    Doubtful is what neither has for certain.
    """
    if other is None or one.topic_id != other.topic_id:
        return one if other is None or one.topic_id > other.topic_id else other
    log = (0, max(one.end, other.end))
    sure = [replace(each, doubtful_end=0) for each in (one, other)]
    missing = in_both(*(uncovered(each, one.topic_id, log) for each in sure))
    found = coverage_of(missing, one.topic_id, log)
    found.doubtful_end = min(one.doubtful_end, other.doubtful_end)
    return found
