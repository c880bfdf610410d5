"""One queue of the tier, as its segments and its manifest together show it: the rows that a restore writes.

    listing ──┬► choose segments ──► units beyond the manifest ──► times of a few records ──► the log's tail ──► rows
    manifest ─┘  (used where it agrees with the listing)

The manifest saves reading, it is never needed: without one, all units are read, and of the records only the fixed part
of those that begin or end a segment or stand in the time index. Nothing is written, not even to the tier: a torn tail
counts only up to its last complete record, and the queue's recovery trims it when a writer opens the queue.

Which of the segments that a listing shows make up a queue's file, and how much of each counts.

The listing defines which segments exist and their sizes; the manifest has the intended state. A segment that the
manifest has marked as deleted, or that is before all its live segments, is an orphan: an expiry was interrupted. A
segment that overlaps the next one is clipped: the writer of the next one had decided so.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import CorruptSegment
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.index_item import HEADER, HEADER_BYTES, ITEM_BYTES, MAGIC_END, SLOT_BYTES, IndexHeader
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import (
    DEFAULT_SPACING,
    NEVER_MS,
    UNKNOWN_OFFSET,
    EntrySpacing,
    Gap,
    Queue,
    Segment,
    SegmentStatus,
    TimeEntry,
    sample,
)
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType
from tiermq.tier.queue.log_walk import walk_tail
from tiermq.tier.queue.records import peek_store_ms
from tiermq.tier.queue.segments import SegmentList, of_type
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.queue.units import Unit, UnitChunk, offset_runs, sort_units
from tiermq.tier.restore.restore_report import Finding, Remark


@dataclass(slots=True)
class Choice:
    """The live segments of one type in order, what is to be deleted, and whether the manifest can be used."""

    live: list[Segment]
    deleted: list[Segment]
    remarks: list[Remark]
    agrees: bool


def choose_segments(infos: Sequence[SegmentInfo], manifest: QueueManifest | None, segment_type: SegmentType) -> Choice:
    """Compare a listing of one queue and type, in any order, with the manifest."""
    rows = {row.key: row for row in (manifest.segments if manifest else ()) if row.key.type is segment_type}
    meant = [row for row in rows.values() if row.status is not SegmentStatus.DELETED]
    first_meant = min((row.key.base for row in meant), default=-1)
    choice = Choice([], [], [], agrees=manifest is not None)
    # A listing is sorted by path, and paths begin with a hash.
    for info in sorted(infos, key=lambda info: info.key.base):
        row = rows.get(info.key)
        if info.damage is not None:
            choice.remarks.append(Remark(Finding.DAMAGED_SEGMENT, info.key.path, info.damage))
        if row is not None and row.status is SegmentStatus.DELETED:
            choice.deleted.append(replace(row, size=info.size))
            choice.remarks.append(Remark(Finding.ORPHAN, info.key.path, "its deletion was interrupted"))
        elif row is None and info.key.base + info.size <= first_meant:
            choice.remarks.append(Remark(Finding.ORPHAN, info.key.path, "older than everything in the manifest"))
        elif segment_type is SegmentType.CONSUME_QUEUE and info.key.base % UNIT_BYTES:
            choice.agrees = False
            choice.remarks.append(Remark(Finding.ORPHAN, info.key.path, f"its base is no multiple of {UNIT_BYTES}"))
        else:
            choice.live.append(_segment(info, row))
    _compare(choice, meant, {info.key: info.size for info in infos})
    _clip(choice)
    return choice


def _segment(info: SegmentInfo, row: Segment | None) -> Segment:
    """The segment as the listing has it, with the particulars of the manifest's row as far as they still hold."""
    if row is None:
        segment = Segment(info.key, info.size, created_ms=info.modified_ms)
    else:
        segment = row if row.size == info.size else replace(row.cut(info.size), crc32=None, size=info.size)
    if info.sealed and segment.status is SegmentStatus.NEW:
        segment = replace(segment, status=SegmentStatus.SEALED, sealed_ms=info.modified_ms)
    return segment


def _compare(choice: Choice, meant: Sequence[Segment], sizes: dict[SegmentKey, int]) -> None:
    """Whether the tier has at least what the manifest records."""
    first_live = choice.live[0].key.base if choice.live else None
    for row in meant:
        size = sizes.get(row.key, 0)
        if size >= row.size:
            continue
        if size:
            choice.agrees = False
            text = f"{size} bytes where the manifest has {row.size}"
            choice.remarks.append(Remark(Finding.MANIFEST_DISAGREES, row.key.path, text))
            continue
        at_head = first_live is None or row.key.base < first_live
        # A missing head is what an expiry leaves that died before it could write the manifest.
        choice.agrees = choice.agrees and at_head
        text = f"{row.size} bytes, " + ("at the head: expired or lost" if at_head else "in the middle: lost")
        choice.remarks.append(Remark(Finding.MISSING_SEGMENT, row.key.path, text))


def _clip(choice: Choice) -> None:
    """Clip segments that overlap the next one, and report holes."""
    for index in range(len(choice.live) - 1):
        segment, following = choice.live[index], choice.live[index + 1]
        room = following.key.base - segment.key.base
        if segment.size > room:
            text = f"{segment.size} bytes, but the next segment begins after {room}"
            choice.remarks.append(Remark(Finding.OVERLAP, segment.key.path, text))
            choice.live[index] = segment.cut(room)
        elif segment.size < room:
            text = f"offsets {segment.end} to {following.key.base}"
            choice.remarks.append(Remark(Finding.HOLE, segment.key.path, text))


# The uploaded index files of a broker: their time ranges, and the topic ids that their entries carry.

ITEMS_READ_BYTES = 150_000 * ITEM_BYTES


def discover_index(
    driver: TierDriver, infos: Sequence[SegmentInfo], manifest: QueueManifest | None
) -> tuple[list[Segment], list[Remark]]:
    """The index segments with the times from their headers, and what is wrong with them."""
    choice = choose_segments(infos, manifest, SegmentType.INDEX)
    segments, remarks = [], list(choice.remarks)
    for segment in choice.live:
        found = _read_header(driver, segment)
        if isinstance(found, str):
            # It is kept, so that retention can find it; its times are those of its object.
            remarks.append(Remark(Finding.DAMAGED_SEGMENT, segment.key.path, found))
            segments.append(replace(segment, begin_ms=segment.created_ms, end_ms=segment.created_ms))
        else:
            begin_ms, end_ms, _ = found
            segments.append(replace(segment, begin_ms=begin_ms, end_ms=end_ms, status=SegmentStatus.SEALED))
    return segments + choice.deleted, remarks


def topic_ids_in_index(driver: TierDriver, segments: Sequence[Segment]) -> Counter[int]:
    """How many entries carry which topic id. Reads every entry; wanted only when ids are in doubt."""
    counts: Counter[int] = Counter()
    for segment in segments:
        found = _read_header(driver, segment) if segment.status is not SegmentStatus.DELETED else ""
        if isinstance(found, str):
            continue
        position = segment.size - found[2] * ITEM_BYTES
        while position < segment.size:
            length = min(ITEMS_READ_BYTES, segment.size - position)
            fields = struct.unpack(">" + "4xi20x" * (length // ITEM_BYTES), driver.read(segment.key, position, length))
            counts.update(fields)
            position += length
    return counts


def _read_header(driver: TierDriver, segment: Segment) -> tuple[int, int, int] | str:
    """(begin_ms, end_ms, item_count), or what is wrong."""
    if segment.size < HEADER_BYTES:
        return f"an index file has at least {HEADER_BYTES} bytes, found {segment.size}"
    header = IndexHeader._make(HEADER.unpack(driver.read(segment.key, 0, HEADER_BYTES)))
    # How many slots there are is not in the header; it follows from the size.
    slots_bytes = segment.size - HEADER_BYTES - header.item_count * ITEM_BYTES
    if header.magic != MAGIC_END:
        return f"expected magic {MAGIC_END & 0xFFFFFFFF:#010x}, found {header.magic & 0xFFFFFFFF:#010x}"
    if header.item_count < 0 or slots_bytes <= 0 or slots_bytes % SLOT_BYTES:
        return f"{header.item_count} items do not fit its {segment.size} bytes"
    return header.begin_ms, max(header.begin_ms, header.end_ms), header.item_count


# What a walk over a queue's units finds out: which records begin and end each segment, which belong into the time
# index, and which units are odd. Collected chunk by chunk, so that a long queue needs little memory.


class UnitFindings:
    """The collected findings of one queue; used by one thread."""

    def __init__(
        self, logs: Sequence[Segment], units: Sequence[Segment], last_entry: TimeEntry | None, spacing: EntrySpacing
    ) -> None:
        self._logs, self._units, self._spacing = logs, units, spacing
        self._last_entry = last_entry
        self.log_ends: list[tuple[Unit, Unit] | None] = [None] * len(logs)
        self.unit_ends: list[tuple[Unit, Unit] | None] = [None] * len(units)
        self.samples: list[Unit] = []
        self.blank: list[int] = []
        self.expired_count = 0
        self.lost: list[int] = []
        self.beyond: list[int] = []
        self.bad: list[int] = []

    def take(self, chunk: UnitChunk) -> None:
        """Add the next chunk."""
        self.blank += chunk.blank
        self.expired_count += len(chunk.expired)
        self.lost += chunk.lost
        self.beyond += chunk.beyond
        self.bad += chunk.bad
        if not chunk.log_offsets:
            return
        for index, log in enumerate(self._logs):
            self.log_ends[index] = _extended(self.log_ends[index], chunk, chunk.in_log(log.key.base, log.end))
        for index, units in enumerate(self._units):
            found = chunk.in_queue(units.key.base // UNIT_BYTES, units.end // UNIT_BYTES)
            self.unit_ends[index] = _extended(self.unit_ends[index], chunk, found)
        for index in sample(self._last_entry, chunk.queue_offsets, chunk.log_offsets, self._spacing):
            unit = chunk.unit(index)
            self.samples.append(unit)
            self._last_entry = TimeEntry(unit.queue_offset, 0, unit.log_offset)

    def wanted_records(self) -> list[Unit]:
        """The records whose times are wanted, in the order of the queue."""
        ends = (unit for pair in (*self.log_ends, *self.unit_ends) if pair for unit in pair)
        wanted = {unit.queue_offset: unit for unit in (*ends, *self.samples)}
        return [wanted[queue_offset] for queue_offset in sorted(wanted)]

    def good_end(self, end: int) -> int:
        """The end of the queue without the units at its very end that have no record."""
        odd = sorted(self.beyond + self.bad)
        while odd and odd[-1] == end - 1:
            end = odd.pop()
        return end

    def bad_before(self, end: int) -> list[int]:
        """Damaged units, and such without a record, that are followed by good ones."""
        return sorted(_before(self.bad, end) + _before(self.beyond, end))


def _extended(ends: tuple[Unit, Unit] | None, chunk: UnitChunk, found: tuple[int, int]) -> tuple[Unit, Unit] | None:
    first, behind = found
    if first >= behind:
        return ends
    return (ends[0] if ends else chunk.unit(first)), chunk.unit(behind - 1)


def _before(offsets: Iterable[int], end: int) -> list[int]:
    return [offset for offset in offsets if offset < end]


BLANK_REASON = "blank units in the consume queue"
LOST_REASON = "the segment of the records is missing in the tier"
HOLE_REASON = "the segment of the units is missing in the tier"
DAMAGE_REASON = "the units are damaged"


@dataclass(slots=True)
class DiscoveredQueue:
    """What was found of a queue."""

    queue: Queue
    segments: list[Segment] = field(default_factory=list)
    time_entries: list[TimeEntry] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def discover_queue(
    driver: TierDriver,
    key: QueueKey,
    infos: Sequence[SegmentInfo],
    manifest: QueueManifest | None,
    now_ms: int,
    spacing: EntrySpacing = DEFAULT_SPACING,
) -> DiscoveredQueue:
    """Discover one queue. Raises what the driver raises when it cannot be read; damage is in the remarks."""
    return _QueueDiscovery(driver, key, infos, manifest, now_ms, spacing).run()


class _QueueDiscovery:
    """The state of one discovery; used once, by one thread."""

    def __init__(
        self,
        driver: TierDriver,
        key: QueueKey,
        infos: Sequence[SegmentInfo],
        manifest: QueueManifest | None,
        now_ms: int,
        spacing: EntrySpacing,
    ) -> None:
        self.driver, self.key, self.manifest, self.now_ms = driver, key, manifest, now_ms
        logs = choose_segments(of_type(infos, SegmentType.COMMIT_LOG), manifest, SegmentType.COMMIT_LOG)
        units = choose_segments(of_type(infos, SegmentType.CONSUME_QUEUE), manifest, SegmentType.CONSUME_QUEUE)
        self.remarks = logs.remarks + units.remarks
        self.deleted = logs.deleted + units.deleted
        self.believed = manifest if manifest is not None and logs.agrees and units.agrees else None
        self.logs = self._as_far_as_believed(logs)
        self.units = self._aligned(self._as_far_as_believed(units))
        if manifest is not None and manifest.max_offset > 0 and not self.logs and not self.units:
            self._go_on_behind(manifest)
        elif not self.logs or not self.units:
            self.logs = self.logs or self._begun(SegmentType.COMMIT_LOG)
            self.units = self.units or self._begun(SegmentType.CONSUME_QUEUE) or self._first_units()
        self.entries = list(self.believed.time_index) if self.believed else []
        self.found = UnitFindings(self.logs, self.units, self.entries[-1] if self.entries else None, spacing)

    def run(self) -> DiscoveredQueue:
        begin = self.units[0].key.base // UNIT_BYTES if self.units else UNKNOWN_OFFSET
        end = self.units[-1].end // UNIT_BYTES if self.units else UNKNOWN_OFFSET
        scan_from = max(begin, self.believed.max_offset) if self.believed else begin
        self._take_units(scan_from)
        end = self._cut_units(end)
        times = self._read_times(self.found.wanted_records())
        self._fill_in_times(times)
        self._walk_log_tails(end)
        min_offset, max_offset = self._offsets(begin, end)
        self._remark_on_the_whole(scan_from, max_offset)
        return DiscoveredQueue(
            Queue(self.key, min_offset, max_offset, self.manifest.epoch if self.manifest else 0, self.now_ms),
            self._open_ended(self.logs) + self._open_ended(self.units) + self.deleted,
            [entry for entry in self.entries if min_offset <= entry.queue_offset < max_offset],
            self._gaps(min_offset, max_offset),
            self.remarks,
        )

    def _take_units(self, scan_from: int) -> None:
        """Sort all units from `scan_from` on by what they are."""
        # Without checksums of blocks: a damaged unit is found by its values, and its neighbours are good.
        units = [replace(segment, sums=None) for segment in self.units]
        queue, log_end = TierQueue(self.driver, self.key, self.logs, units), 0
        for first, data in queue.unit_chunks(scan_from, over_holes=True):
            chunk = sort_units(data, first, queue.logs, log_end)
            if chunk.log_offsets:
                log_end = chunk.log_offsets[-1] + chunk.sizes[-1]
            self.found.take(chunk)

    def _open_ended(self, segments: list[Segment]) -> list[Segment]:
        """A sealed segment takes nothing more: where the next one was not begun, its row is what a roll would make."""
        if not segments or segments[-1].status is not SegmentStatus.SEALED:
            return segments
        following = self.key.segment(segments[-1].key.type, segments[-1].end)
        return [*segments, Segment(following, created_ms=self.now_ms)]

    def _as_far_as_believed(self, choice: Choice) -> list[Segment]:
        """Find times and offsets again where the manifest cannot be used."""
        if self.believed is not None:
            return choice.live
        return [
            replace(
                segment,
                begin_ms=NEVER_MS,
                end_ms=NEVER_MS,
                begin_offset=UNKNOWN_OFFSET,
                end_offset=UNKNOWN_OFFSET,
            )
            for segment in choice.live
        ]

    def _go_on_behind(self, manifest: QueueManifest) -> None:
        """Every segment expired. Offsets are never assigned twice, in the queue or in its log: both continue behind."""
        ends = [row.end for row in manifest.segments if row.key.type is SegmentType.COMMIT_LOG]
        log = self.key.segment(SegmentType.COMMIT_LOG, max(ends, default=0))
        units = self.key.segment(SegmentType.CONSUME_QUEUE, manifest.max_offset * UNIT_BYTES)
        self.logs, self.units = [Segment(log, created_ms=self.now_ms)], [Segment(units, created_ms=self.now_ms)]

    def _begun(self, segment_type: SegmentType) -> list[Segment]:
        """The empty segment that replaces expired ones: only the manifest has it."""
        rows = self.manifest.segments if self.manifest is not None else ()
        return [
            row for row in rows if row.key.type is segment_type and row.size == 0 and row.status is SegmentStatus.NEW
        ]

    def _first_units(self) -> list[Segment]:
        """Where units go that a queue never got: its first records are there, and the writer died before their units.

        Only a manifest distinguishes that from lost units.
        """
        if self.manifest is None or self.manifest.max_offset > 0 or self.manifest.segments or len(self.logs) != 1:
            return []
        first = max(walk_tail(self.driver, self.logs[0], self.logs[0].key.base).first_queue_offset, 0)
        return [Segment(self.key.segment(SegmentType.CONSUME_QUEUE, first * UNIT_BYTES), created_ms=self.now_ms)]

    def _aligned(self, segments: list[Segment]) -> list[Segment]:
        for index, segment in enumerate(segments):
            rest = segment.size % UNIT_BYTES
            if rest:
                self._say(Finding.TRIMMED, segment.key.path, f"{rest} bytes of a unit that has {UNIT_BYTES}")
                segments[index] = segment.cut(segment.size - rest)
        return segments

    def _cut_units(self, end: int) -> int:
        """Units at the very end that have no record do not count: the next message gets their offset."""
        good_end = self.found.good_end(end)
        if good_end < end:
            text = f"queue offsets {good_end} to {end} have units but no records"
            self._say(Finding.TRIMMED, self.units[-1].key.path, text)
        for index, segment in enumerate(self.units):
            size = max(min(segment.size, good_end * UNIT_BYTES - segment.key.base), 0)
            if size < segment.size:
                self.units[index] = segment.cut(size)
        return good_end

    def _read_times(self, wanted: Sequence[Unit]) -> dict[int, int]:
        """Store times by queue offset; a record that is not the one of its unit is remarked upon and has none."""
        times = {}
        logs = SegmentList(self.logs)
        for unit in wanted:
            log = logs.find(unit.log_offset)
            assert log is not None, "A good unit leads into a segment."
            try:
                times[unit.queue_offset] = peek_store_ms(self.driver, log, unit)
            except CorruptSegment as error:
                self._say(Finding.DAMAGED_RECORD, log.key.path, str(error))
        return times

    def _fill_in_times(self, times: dict[int, int]) -> None:
        for segments, all_ends in ((self.logs, self.found.log_ends), (self.units, self.found.unit_ends)):
            for index, ends in enumerate(all_ends):
                if ends is None:
                    continue
                first, last = ends[0].queue_offset, ends[1].queue_offset
                inside = [store_ms for offset, store_ms in times.items() if first <= offset <= last]
                segment = _with_times(segments[index], inside)
                if segments is self.logs:
                    segment = replace(
                        segment,
                        begin_offset=first if segment.begin_offset < 0 else segment.begin_offset,
                        end_offset=last + 1,
                    )
                segments[index] = segment
        self.entries += [
            TimeEntry(unit.queue_offset, times[unit.queue_offset], unit.log_offset)
            for unit in self.found.samples
            if unit.queue_offset in times
        ]

    def _walk_log_tails(self, end: int) -> None:
        """Behind the last record that has a unit: whole records count, a torn one does not."""
        for index, log in enumerate(self.logs):
            begin = self._tail_begin(log, index)
            if begin >= log.end:
                continue
            tail = walk_tail(self.driver, log, begin)
            grown = log
            if tail.record_count and tail.last_queue_offset >= end:
                text = f"{tail.record_count} records with {tail.end - begin} bytes"
                self._say(Finding.RECORDS_WITHOUT_UNITS, log.key.path, text)
                grown = replace(
                    _with_times(log, [tail.begin_ms, tail.end_ms]),
                    begin_offset=tail.first_queue_offset if log.begin_offset < 0 else log.begin_offset,
                    end_offset=tail.last_queue_offset + 1,
                )
            if tail.torn:
                self._say(Finding.TRIMMED, log.key.path, f"{log.end - tail.end} of {log.size} bytes: {tail.torn}")
                grown = grown.cut(tail.end - log.key.base)
            self.logs[index] = grown

    def _tail_begin(self, log: Segment, index: int) -> int:
        """The end of the last record in the segment that is known to be whole."""
        ends = self.found.log_ends[index]
        if ends is not None:
            return ends[1].log_offset + ends[1].size
        row = next((row for row in self.believed.segments if row.key == log.key), None) if self.believed else None
        return log.key.base if row is None else row.end

    def _offsets(self, begin: int, end: int) -> tuple[int, int]:
        if not self.units:
            known = self.manifest.max_offset if self.manifest else UNKNOWN_OFFSET
            return known, known
        without_records = end if self.found.expired_count else begin
        first_in_log = next((log.begin_offset for log in self.logs if log.begin_offset >= 0), without_records)
        known = self.believed.min_offset if self.believed else UNKNOWN_OFFSET
        return min(max(begin, first_in_log, known), end), end

    def _remark_on_the_whole(self, scan_from: int, max_offset: int) -> None:
        where = self.key.directory
        if self.logs and not self.units:
            self._say(Finding.MISSING_CONSUME_QUEUE, where, f"{len(self.logs)} commit-log segments")
        if self.believed is None and self.found.expired_count and not self.logs:
            # A manifest shows that they expired, or names the missing segments. Without one that is unknown.
            text = f"{self.found.expired_count} units; the next message gets queue offset {max_offset}"
            self._say(Finding.MISSING_COMMIT_LOG, where, text)
        for first, behind in offset_runs(self.found.bad_before(max_offset)):
            self._say(Finding.DAMAGED_UNITS, where, f"queue offsets {first} to {behind}")
        if self.believed and 0 <= scan_from < max_offset:
            self._say(Finding.BEYOND_MANIFEST, where, f"queue offsets {scan_from} to {max_offset}")

    def _gaps(self, min_offset: int, max_offset: int) -> list[Gap]:
        """The gaps that the manifest knows, and those that the segments show."""
        gaps = list(self.manifest.gaps) if self.manifest else []
        shown = [(*run, BLANK_REASON) for run in offset_runs(self.found.blank)]
        shown += [(*run, LOST_REASON) for run in offset_runs(self.found.lost)]
        shown += [(*run, DAMAGE_REASON) for run in offset_runs(self.found.bad_before(max_offset))]
        for segment, following in zip(self.units, self.units[1:], strict=False):
            if segment.end < following.key.base:
                shown.append((segment.end // UNIT_BYTES, following.key.base // UNIT_BYTES, HOLE_REASON))
        for first, behind, reason in shown:
            known = any(gap.from_offset <= first and behind <= gap.to_offset for gap in gaps)
            if behind > min_offset and not known:
                gaps.append(Gap(max(first, min_offset), behind, reason, self.now_ms))
        return sorted(gaps, key=lambda gap: gap.from_offset)

    def _say(self, finding: Finding, where: str, text: str) -> None:
        self.remarks.append(Remark(finding, where, text))


def _with_times(segment: Segment, times: Sequence[int]) -> Segment:
    if not times:
        return segment
    known = [] if segment.end_ms == NEVER_MS else [segment.begin_ms, segment.end_ms]
    return replace(segment, begin_ms=min([*times, *known]), end_ms=max([*times, *known]))
