"""EvictionProof: which part of the local log is in the tier, byte for byte, so that its files may go.

A commit-log file may be deleted only when every record of a tiered topic in it is proven in the tier. That has two
halves. *Copied*: the queue's commit reaches beyond the record; the first message of a queue that is not copied is at
some physical offset, and the smallest of these, over all queues, is where copying ends:

    0                              copied_to                         end of the log
    |  every tiered record is cold  |  something here is not           |

*Proven*: an acknowledgement does not prove the bytes that were stored. Either the back end returned a checksum of
its own with the upload that equals ours (mode `checksum`, where it has one), or the stored bytes are read back and
compared with the local ones, which are still there (mode `readback`: always). That is done for what is about to go,
and for nothing else: bytes that stay local need no proof. What a process before this one uploaded is read back.

Where the bytes differ, the checksums of the segment's blocks decide which side is correct. When it is the local one,
the range is written to the tier again and compared again; when it is the tier's, that is the proof. Otherwise, and when
this process may not write the queue, the file stays, and `trouble` has the reason.

A queue that has not been compared with the tier since the start proves nothing: its metadata may record more than
the bucket holds. Records that have no unit yet prove nothing either. Filtered topics and batch topics do not count.

The store's cleaner never waits for the tier: `must_stay` answers from what is proven, and notes what is to be proven
next. That is read on the thread of `start`, which calls `on_proven` so that the cleaner comes again at once; without
that thread, `prove` does it. What could not be proven is tried again when the cleaner needs it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreClosed, TierError
from tiermq.kernel import check_window
from tiermq.service import Service
from tiermq.tier.dispatch.local_source import LocalSource
from tiermq.tier.dispatch.plan import TopicFilter
from tiermq.tier.flat.flat_file import FlatAppendFile
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.queue.records import CollectedRecords
from tiermq.tier.queue.units import RUN_BYTES, log_range, runs_of_records, unit_at
from tiermq.tier.tier_config import CHECKSUM, READBACK
from tiermq.tier.tier_metrics import DispatchMetrics

_log = logging.getLogger(__name__)

UNITS_AT_ONCE = 8_192
REST_S = 60.0  # A request for proof wakes the thread.


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the tier is behind: where copying ends, how many bytes of log are behind it, and of which queue."""

    copied_to: int
    bytes: int
    topic: str = ""
    queue_id: int = -1


class EvictionProof:
    """Give `must_stay` to `LocalStore.add_eviction_veto`. Any thread may call anything; one at a time proves.

    `must_stay`, `lag` and `state` take no lock and read the local store only.

    `may_write` returns whether this process owns a queue's tier, and so may repair it.
    """

    def __init__(
        self,
        source: LocalSource,
        files: FlatFileStore,
        topic_filter: TopicFilter,
        metrics: DispatchMetrics,
        *,
        mode: str = CHECKSUM,
        may_write: Callable[[str, int], bool] = lambda _topic, _queue_id: False,
    ) -> None:
        self._source = source
        self._files = files
        self._filter = topic_filter
        self._metrics = metrics
        self._mode = mode
        self._may_write = may_write
        self._lock = threading.Lock()
        self._proven: dict[FlatMessageFile, int] = {}  # Every local message below that queue offset is proven.
        self._log_proven: dict[FlatMessageFile, int] = {}  # So is the tier's log below that.
        self._wanted = 0  # Up to where the cleaner would delete, if that were proven.
        self._trouble = ""
        self._on_proven: Callable[[], None] = lambda: None
        self._thread = _ProofThread(self)
        self.held_topics: frozenset[str] = frozenset()  # Being deleted: what the tier has of them is of another life.

    # Living

    def start(self, on_proven: Callable[[], None]) -> None:
        """Start a thread that proves what `must_stay` noted, and calls `on_proven` after that."""
        self._on_proven = on_proven
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Read back nothing more than what is being read."""
        self._thread.ask_to_stop()

    def stop_within(self, timeout_s: float) -> bool:
        """End the thread; False when a request takes longer than that. Nothing is proven after it."""
        return self._thread.stop_within(timeout_s)

    # Answering

    def must_stay(self, first_offset: int, end_offset: int) -> bool:
        """Whether a local log file [first_offset, end_offset) holds a record that is not proven, as far as is known.

        What is copied and not proven is noted for `prove`. Sends no request.
        """
        if first_offset >= end_offset:
            return False
        if end_offset > self.lag().copied_to:
            return True
        if next(self._unproven(end_offset), None) is None:
            self._wanted, self._trouble = 0, ""
            return False
        self._wanted = end_offset
        self._thread.wake()
        return True

    @property
    def state(self) -> str:
        """Why files that are copied and due stay, as text; empty when none does."""
        wanted = self._wanted
        if self._trouble or next(self._unproven(wanted), None) is None:
            return self._trouble
        return f"the log before {wanted} is to be compared with the tier"

    def lag(self) -> Lag:
        begin, end = self._source.log_bounds()
        found = Lag(end, 0)
        for topic, queue_id, file in self._tiered():
            is_compared = file is not None and file.compared and topic not in self.held_topics
            committed = file.commit_offset if file is not None and is_compared else -1
            first = self._source.first_message(topic, queue_id, max(0, committed))
            if first is not None and first[1] < found.copied_to:
                copied = max(begin, first[1])
                found = Lag(copied, end - copied, topic, queue_id)
        return found

    def _tiered(self) -> list[tuple[str, int, FlatMessageFile | None]]:
        return [
            (topic, queue_id, self._files.find(topic, queue_id))
            for topic, queue_id in self._source.queues()
            if not self._filter.is_filtered(topic)
        ]

    def _unproven(self, physical_end: int) -> Iterator[tuple[FlatMessageFile, int]]:
        """Each queue's first message before an offset of the local log that is not proven; again, until it is."""
        for topic, queue_id, file in self._tiered():
            while file is not None:
                known = max(self._proven.get(file, 0), file.min_offset)  # What the tier expired is not wanted any more.
                first = self._source.first_message(topic, queue_id, known)
                if first is None or first[1] >= physical_end:
                    break
                yield file, first[0]

    # Proving

    def prove(self) -> bool:
        """Prove, on this thread, what the cleaner was refused last; whether it is. Waits for the tier."""
        with self._lock:
            wanted = self._wanted
            if not wanted:
                return False
            try:
                if next(self._unproven(wanted), None) is None:
                    return True
                trouble = self._trouble_before(wanted)
            except StoreClosed:
                return False
            except TierError as error:
                trouble = f"the tier could not be asked: {error}"
                _log.warning("local files stay, because their copies are not proven: %s", error)
            self._trouble = trouble
        if not trouble:
            self._on_proven()
        return not trouble

    def _trouble_before(self, physical_end: int) -> str:
        """Prove every queue's messages before an offset of the local log; what could not be proven, as text."""
        for file, offset in self._unproven(physical_end):
            if self._thread.stopping:
                return "the store is being closed"
            proven = self._prove(file, offset)
            if proven <= offset:
                return f"{file.queue.logical_path}: message {offset} in the tier is not the local one"
            self._proven[file] = proven
        known = {file for _, _, file in self._tiered()}
        self._proven = {file: offset for file, offset in self._proven.items() if file in known}
        self._log_proven = {file: offset for file, offset in self._log_proven.items() if file in known}
        return ""

    def _prove(self, file: FlatMessageFile, offset: int) -> int:
        """Prove the messages from `offset` on, one read of the log at most; the next offset, or `offset` if not proven.

        Raises TierError.
        """
        if confirmed := self._confirmed_by_checksums(file, offset):
            return confirmed
        count = min(UNITS_AT_ONCE, file.commit_offset - offset)
        if count <= 0:
            return offset  # The queue was deleted meanwhile.
        position, length = offset * UNIT_BYTES, count * UNIT_BYTES
        is_confirmed = self._mode == CHECKSUM and file.units.is_confirmed(position, position + length)
        if not is_confirmed and _agrees(file.units, position, length) is False:
            start, end = self._log_offset_behind(file, offset - 1), -1  # Damaged units do not locate the records.
        else:
            run = next(runs_of_records(file.units.reread(position, length), offset), None)
            if run is None:
                return offset + count  # A recorded gap.
            first, units = run
            if first > offset:
                return first
            count = len(units) // UNIT_BYTES
            start, end = log_range(units)
            if not file.log.min_offset <= start < end <= file.log.commit_offset:
                return offset
            if is_confirmed and file.log.is_confirmed(start, end):
                self._metrics.proven(CHECKSUM, end - start)
                self._log_proven[file] = end
                return offset + count
        most = RUN_BYTES if end < 0 else end - start
        local = self._source.collect(*file.queue.name, offset, count, most, start)
        if local.count == 0:
            return self._prove_alone(file, offset)
        self._metrics.proven(READBACK, len(local.data))
        if self._is_equal(file, offset, start, local) or self._settle(file, offset, start, local):
            self._log_proven[file] = start + len(local.data)
            return offset + local.count
        return offset

    def _confirmed_by_checksums(self, file: FlatMessageFile, offset: int) -> int:
        """Where the tier ends if checksums confirmed all of it from `offset` on, without a request; else 0."""
        if self._mode != CHECKSUM:
            return 0
        end, log_end = file.commit_offset, file.log.commit_offset  # In this order: units follow their records.
        log_begin = self._log_proven.get(file, max(0, file.log.min_offset))
        is_confirmed = file.units.is_confirmed(offset * UNIT_BYTES, end * UNIT_BYTES) and file.log.is_confirmed(
            min(log_begin, log_end - 1), log_end
        )
        if not is_confirmed:
            return 0
        self._metrics.proven(CHECKSUM, log_end - log_begin)
        self._log_proven[file] = log_end
        return end

    @staticmethod
    def _log_offset_behind(file: FlatMessageFile, offset: int) -> int:
        """Where the record behind the one of `offset` is: its own unit is damaged. Raises TierError."""
        if offset >= max(0, file.min_offset):
            unit = unit_at(file.units.reread(offset * UNIT_BYTES, UNIT_BYTES), 0)
            if file.log.min_offset <= unit.log_offset < unit.end < file.log.commit_offset:
                return unit.end
        return max(0, file.log.min_offset)

    @staticmethod
    def _is_equal(file: FlatMessageFile, offset: int, start: int, local: CollectedRecords) -> bool:
        return (
            file.units.reread(offset * UNIT_BYTES, len(local.units)) == local.units
            and file.log.reread(start, len(local.data)) == local.data
        )

    @staticmethod
    def _prove_alone(file: FlatMessageFile, offset: int) -> int:
        """Of a message that the local store cannot read any more, the tier's copy must be valid on its own."""
        unit = file.units.reread(offset * UNIT_BYTES, UNIT_BYTES)
        _, log_offset, size, _ = unit_at(unit, 0)
        topic, queue_id = file.queue.name
        whole = check_window(
            unit, file.log.reread(log_offset, size), log_offset, offset, True, topic.encode(), queue_id
        )
        is_sound = whole and _agrees(file.log, log_offset, size) is not False
        return offset + 1 if is_sound else offset

    def _settle(self, file: FlatMessageFile, offset: int, start: int, local: CollectedRecords) -> bool:
        """The copies differ: find out which is right, and write the tier's again when it is not. Whether it is now."""
        name, position, last = file.queue.logical_path, offset * UNIT_BYTES, offset + local.count - 1
        sides = ((file.units, position, local.units), (file.log, start, local.data))
        if all(_agrees(part, at, len(data)) for part, at, data in sides):
            _log.error("%s: messages from %d on are damaged in the local store; the tier has them whole", name, offset)
            return True
        self._metrics.proof_failures.add()
        is_local_whole = all(_agrees(part, at, len(data), data) for part, at, data in sides)
        if not (is_local_whole and _is_sound(file, offset, start, local) and self._may_write(*file.queue.name)):
            text = "the tier's copy of messages %d to %d is not what is stored here; the local files stay"
            _log.error(f"%s: {text}. Run `tiermq tier verify`, then `tier repair --store`", name, offset, last)
            return False
        with file.lock:
            for part, at, data in sides:
                if part.reread(at, len(data)) != data:
                    part.rewrite(at, data)
            is_right = self._is_equal(file, offset, start, local)
        outcome = "right now" if is_right else "still wrong: the local files stay"
        text = (
            "the tier had stored other bytes for messages %d to %d than were sent; they were written again and are %s"
        )
        _log.error(f"%s: {text}", name, offset, last, outcome)
        if is_right:
            self._metrics.tier_repairs.add()
        return is_right


class _ProofThread(Service):
    """Reads back copies before eviction: a request that hangs delays only the files that wait for it."""

    def __init__(self, proof: EvictionProof) -> None:
        super().__init__("tier-proof")
        self._proof = proof

    def run_once(self) -> float:
        self._proof.prove()
        return REST_S


def _is_sound(file: FlatMessageFile, offset: int, start: int, local: CollectedRecords) -> bool:
    """Whether the local records are whole by their own checksums: damage must not be copied over what is right."""
    topic, queue_id = file.queue.name
    return check_window(local.units, local.data, start, offset, True, topic.encode(), queue_id) == local.count


def _agrees(part: FlatAppendFile, offset: int, length: int, data: bytes | None = None) -> bool | None:
    """Whether the stored bytes, with `data` in their place if given, have the checksums of their blocks.

    None: not all of them have one.
    """
    at, is_covered = 0, True
    for segment, start, count in part.pieces(offset, length):
        sums = segment.sums
        low, high = sums.part(start, start + count)
        block = bytearray(part.reread(segment.base + low, min(high, segment.commit_position) - low))
        if data is not None:
            block[start - low : start - low + count] = data[at : at + count]
        at += count
        if sums.bad_blocks(memoryview(block), low):
            return False
        is_covered = is_covered and start + count <= sums.size
    return True if is_covered else None
