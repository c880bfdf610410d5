"""One queue of the tier, as its segments and its manifest together show it: the rows that a restore writes.

    listing ──┬► choose segments ──► units beyond the manifest ──► times of a few records ──► the log's tail ──► rows
    manifest ─┘  (believed where it agrees with the listing)

The manifest saves reading, it is never needed: without one, all units are read, and of the records only the fixed part
of those that begin or end a segment or stand in the time index. Nothing is written, not even to the tier: a torn tail
counts only as far as it is whole, and the queue's recovery trims it when a writer opens the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import CorruptSegment
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.log_tail import walk_tail
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, Gap, Queue, Segment, SegmentStatus, TimeEntry
from tiermq.tier.metadata.record_peek import UnitPlace, peek_store_ms
from tiermq.tier.metadata.restore_report import Finding, Remark
from tiermq.tier.metadata.segment_choice import Choice, choose_segments
from tiermq.tier.metadata.time_index import DEFAULT_STRETCH, Stretch
from tiermq.tier.metadata.unit_findings import UnitFindings
from tiermq.tier.metadata.unit_walk import LogRanges, runs, walk_units
from tiermq.tier.names import QueueKey, SegmentType

BLANK_REASON = "blank units in the consume queue"
LOST_REASON = "the segment of the records is missing in the tier"
HOLE_REASON = "the segment of the units is missing in the tier"
DAMAGE_REASON = "the units are damaged"


@dataclass(slots=True)
class QueueSurvey:
    """What was found of a queue."""

    queue: Queue
    segments: list[Segment] = field(default_factory=list)
    time_entries: list[TimeEntry] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def survey_queue(
    driver: TierDriver,
    key: QueueKey,
    infos: Sequence[SegmentInfo],
    manifest: QueueManifest | None,
    now_ms: int,
    stretch: Stretch = DEFAULT_STRETCH,
) -> QueueSurvey:
    """Look at one queue. Raises what the driver raises when it cannot be read; damage is told in the remarks."""
    return _Surveyor(driver, key, infos, manifest, now_ms, stretch).survey()


class _Surveyor:
    """The state of one survey; used once, by one thread."""

    def __init__(
        self,
        driver: TierDriver,
        key: QueueKey,
        infos: Sequence[SegmentInfo],
        manifest: QueueManifest | None,
        now_ms: int,
        stretch: Stretch,
    ) -> None:
        self.driver, self.key, self.manifest, self.now_ms = driver, key, manifest, now_ms
        logs = choose_segments(_of(infos, SegmentType.COMMIT_LOG), manifest, SegmentType.COMMIT_LOG)
        units = choose_segments(_of(infos, SegmentType.CONSUME_QUEUE), manifest, SegmentType.CONSUME_QUEUE)
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
        self.found = UnitFindings(self.logs, self.units, self.entries[-1] if self.entries else None, stretch)

    def survey(self) -> QueueSurvey:
        begin = self.units[0].key.base // UNIT_BYTES if self.units else UNKNOWN_OFFSET
        end = self.units[-1].end // UNIT_BYTES if self.units else UNKNOWN_OFFSET
        scan_from = max(begin, self.believed.max_offset) if self.believed else begin
        for chunk in walk_units(self.driver, self.units, LogRanges(self.logs), scan_from):
            self.found.take(chunk)
        end = self._cut_units(end)
        times = self._read_times(self.found.places())
        self._fill_in_times(times)
        self._walk_log_tails(end)
        min_offset, max_offset = self._offsets(begin, end)
        self._remark_on_the_whole(scan_from, max_offset)
        return QueueSurvey(
            Queue(self.key, min_offset, max_offset, self.manifest.epoch if self.manifest else 0, self.now_ms),
            self._open_ended(self.logs) + self._open_ended(self.units) + self.deleted,
            [entry for entry in self.entries if min_offset <= entry.queue_offset < max_offset],
            self._gaps(min_offset, max_offset),
            self.remarks,
        )

    def _open_ended(self, segments: list[Segment]) -> list[Segment]:
        """A sealed segment takes nothing more: where the next one was not begun, its row is what a roll would make."""
        if not segments or segments[-1].status is not SegmentStatus.SEALED:
            return segments
        following = self.key.segment(segments[-1].key.type, segments[-1].end)
        return [*segments, Segment(following, created_ms=self.now_ms)]

    def _as_far_as_believed(self, choice: Choice) -> list[Segment]:
        """Times and offsets of a manifest that is not believed are found anew."""
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
        """Every segment expired. Offsets are never given twice, in the queue or in its log: both go on behind."""
        ends = [row.end for row in manifest.segments if row.key.type is SegmentType.COMMIT_LOG]
        log = self.key.segment(SegmentType.COMMIT_LOG, max(ends, default=0))
        units = self.key.segment(SegmentType.CONSUME_QUEUE, manifest.max_offset * UNIT_BYTES)
        self.logs, self.units = [Segment(log, created_ms=self.now_ms)], [Segment(units, created_ms=self.now_ms)]

    def _begun(self, segment_type: SegmentType) -> list[Segment]:
        """The segment that takes the place of the expired ones and has no byte yet: only the manifest tells of it."""
        rows = self.manifest.segments if self.manifest is not None else ()
        return [
            row for row in rows if row.key.type is segment_type and row.size == 0 and row.status is SegmentStatus.NEW
        ]

    def _first_units(self) -> list[Segment]:
        """Where units go that a queue never got: its first records are there, and the writer died before their units.

        Only a manifest tells that from units which are lost.
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

    def _read_times(self, places: Sequence[UnitPlace]) -> dict[int, int]:
        """Store times by queue offset; a record that is not the one of its unit is remarked upon and has none."""
        times = {}
        for place in places:
            log = next(log for log in self.logs if log.key.base <= place.log_offset < log.end)
            try:
                times[place.queue_offset] = peek_store_ms(self.driver, log, place)
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
            TimeEntry(place.queue_offset, times[place.queue_offset], place.log_offset)
            for place in self.found.samples
            if place.queue_offset in times
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
            # A manifest knows that they expired, or names the segments that are missing. Without one nobody knows.
            text = f"{self.found.expired_count} units; the next message gets queue offset {max_offset}"
            self._say(Finding.MISSING_COMMIT_LOG, where, text)
        for first, behind in runs(self.found.bad_before(max_offset)):
            self._say(Finding.DAMAGED_UNITS, where, f"queue offsets {first} to {behind}")
        if self.believed and 0 <= scan_from < max_offset:
            self._say(Finding.BEYOND_MANIFEST, where, f"queue offsets {scan_from} to {max_offset}")

    def _gaps(self, min_offset: int, max_offset: int) -> list[Gap]:
        """The gaps that the manifest knows, and those that the segments show."""
        gaps = list(self.manifest.gaps) if self.manifest else []
        shown = [(*run, BLANK_REASON) for run in runs(self.found.blank)]
        shown += [(*run, LOST_REASON) for run in runs(self.found.lost)]
        shown += [(*run, DAMAGE_REASON) for run in runs(self.found.bad_before(max_offset))]
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


def _of(infos: Sequence[SegmentInfo], segment_type: SegmentType) -> list[SegmentInfo]:
    return [info for info in infos if info.key.type is segment_type]


def _with_times(segment: Segment, times: Sequence[int]) -> Segment:
    if not times:
        return segment
    known = [] if segment.end_ms == NEVER_MS else [segment.begin_ms, segment.end_ms]
    return replace(segment, begin_ms=min([*times, *known]), end_ms=max([*times, *known]))
