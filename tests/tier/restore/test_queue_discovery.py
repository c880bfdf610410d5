"""A queue in the tier that something happened to: what counts, what is said about it, and nothing wrong believed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tier.metadata.metadata_samples import QUEUE, log_key, units_key
from tier.metadata.tier_samples import CODA, START_MS, TierQueue, record, time_of
from tiermq.consumequeue.unit import PRE_BLANK, UNIT
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import EntrySpacing, Gap, Segment, SegmentStatus, TimeEntry
from tiermq.tier.names import SegmentType
from tiermq.tier.restore.queue_discovery import DiscoveredQueue, discover_queue
from tiermq.tier.restore.restore_report import Finding


def discovered(driver: MemoryDriver, manifest: QueueManifest | None = None, **options: EntrySpacing) -> DiscoveredQueue:
    return discover_queue(driver, QUEUE, list(driver.list_segments()), manifest, 99, **options)


def findings(found: DiscoveredQueue) -> list[Finding]:
    return [remark.finding for remark in found.remarks]


def offsets(found: DiscoveredQueue) -> tuple[int, int]:
    return found.queue.min_offset, found.queue.max_offset


def row(found: DiscoveredQueue, segment_type: SegmentType, index: int = 0) -> Segment:
    return [segment for segment in found.segments if segment.key.type is segment_type][index]


def test_a_healthy_queue_has_nothing_to_remark_on() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(100).put(b"a", b"b").put(b"c")
    found = discovered(driver)
    assert findings(found) == []
    assert offsets(found) == (100, 103)
    log, units = row(found, SegmentType.COMMIT_LOG), row(found, SegmentType.CONSUME_QUEUE)
    assert (log.size, log.begin_offset, log.end_offset) == (queue.log_end, 100, 103)
    assert (log.begin_ms, log.end_ms) == (units.begin_ms, units.end_ms) == (time_of(100), time_of(102))
    assert found.time_entries == [TimeEntry(100, time_of(100), 0)]


def test_bug_05_a_unit_that_was_cut_does_not_count() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a", b"b")
    driver.write(queue.units_key, 40, [b"\0" * 7])
    found = discovered(driver)
    assert findings(found) == [Finding.TRIMMED]
    assert row(found, SegmentType.CONSUME_QUEUE).size == 40
    assert offsets(found) == (0, 2)


def test_bug_05_a_record_that_was_cut_does_not_count() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a", b"b")
    driver.write(queue.log_key, queue.log_end, [record(2, queue.log_end)[:50]])
    found = discovered(driver)
    assert findings(found) == [Finding.TRIMMED]
    assert row(found, SegmentType.COMMIT_LOG).size == queue.log_end
    assert offsets(found) == (0, 2)


def test_whole_records_without_units_are_kept_for_the_recovery_of_the_queue() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a").put(b"b", b"c", units=False)
    found = discovered(driver)
    assert findings(found) == [Finding.RECORDS_WITHOUT_UNITS]
    assert offsets(found) == (0, 1)  # Readers see what has units.
    log = row(found, SegmentType.COMMIT_LOG)
    assert (log.size, log.end_offset, log.end_ms) == (queue.log_end, 3, time_of(2))


def test_units_without_records_do_not_count() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a", b"b")
    driver.write(queue.units_key, 40, [UNIT.pack(queue.log_end, 100, 0), UNIT.pack(queue.log_end + 100, 100, 0)])
    found = discovered(driver)
    assert findings(found) == [Finding.TRIMMED]
    assert offsets(found) == (0, 2)
    assert row(found, SegmentType.CONSUME_QUEUE).size == 40


def test_damaged_units_in_the_middle_are_a_gap_and_the_messages_behind_them_stay() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a")
    driver.write(queue.units_key, 20, [UNIT.pack(-5, 3, 0), UNIT.pack(0, 0, 0)])
    queue.offset = 3
    queue.put(b"d")
    found = discovered(driver)
    assert findings(found) == [Finding.DAMAGED_UNITS]
    assert offsets(found) == (0, 4)
    assert [(gap.from_offset, gap.to_offset) for gap in found.gaps] == [(1, 3)]


def test_blank_units_are_the_gap_that_they_stand_for() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a")
    driver.write(queue.units_key, 20, [PRE_BLANK * 3])
    queue.offset = 4
    queue.put(b"e")
    found = discovered(driver)
    assert findings(found) == []
    assert [(gap.from_offset, gap.to_offset) for gap in found.gaps] == [(1, 4)]
    known = QueueManifest(QUEUE, gaps=(Gap(1, 4, "local files were deleted", 5),))
    assert discovered(driver, known).gaps == [Gap(1, 4, "local files were deleted", 5)]


def test_a_record_that_is_not_what_its_unit_reports_is_reported() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a")
    driver.write(queue.log_key, queue.log_end, [record(77, queue.log_end)])
    driver.write(queue.units_key, 20, [UNIT.pack(queue.log_end, len(record(77, 0)), 0)])
    found = discovered(driver)
    assert findings(found) == [Finding.DAMAGED_RECORD]
    assert "queue offset 77" in found.remarks[0].text
    assert row(found, SegmentType.COMMIT_LOG).end_ms == time_of(0)  # Its time is not believed.


def test_a_missing_log_segment_in_the_middle_is_a_gap() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a", b"b").roll_log()
    lost = queue.log_key
    queue.put(b"c", b"d").roll_log().put(b"e")
    driver.delete(lost)
    found = discovered(driver)
    assert findings(found) == [Finding.HOLE]
    assert [(gap.from_offset, gap.to_offset) for gap in found.gaps] == [(2, 4)]
    assert offsets(found) == (0, 5)


def test_a_missing_segment_of_units_in_the_middle_is_a_gap() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a", b"b").roll_units()
    lost = queue.units_key
    queue.put(b"c", b"d").roll_units().put(b"e")
    driver.delete(lost)
    found = discovered(driver)
    assert findings(found) == [Finding.HOLE]
    assert [(gap.from_offset, gap.to_offset) for gap in found.gaps] == [(2, 4)]


def test_expired_records_move_the_minimum_and_are_no_damage() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a", b"b")
    expired = queue.log_key
    queue.roll_log().put(b"c")
    driver.delete(expired)
    found = discovered(driver)
    assert findings(found) == []
    assert offsets(found) == (2, 3)
    assert found.gaps == []


def test_a_queue_of_which_only_units_are_left_keeps_its_end_and_is_reported() -> None:
    driver = MemoryDriver()
    TierQueue(driver).begin(0).put(b"a", b"b").roll_log().put(b"c")
    for info in list(driver.list_segments()):
        if info.key.type is SegmentType.COMMIT_LOG:
            driver.delete(info.key)
    found = discovered(driver)
    assert offsets(found) == (3, 3)
    assert findings(found) == [Finding.MISSING_COMMIT_LOG]
    assert found.remarks[0].where == QUEUE.directory
    assert "3 units; the next message gets queue offset 3" in found.remarks[0].text


def test_a_manifest_that_saw_the_records_expire_leaves_nothing_to_show() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a", b"b")
    driver.delete(queue.log_key)
    units = Segment(queue.units_key, size=40, begin_ms=time_of(0), end_ms=time_of(1))
    manifest = QueueManifest(QUEUE, min_offset=2, max_offset=2, segments=(units,))
    found = discovered(driver, manifest)
    assert findings(found) == []
    assert offsets(found) == (2, 2)


def test_a_commit_log_without_units_is_kept_and_reported() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(5).put(b"a", b"b")
    driver.delete(queue.units_key)
    found = discovered(driver)
    assert set(findings(found)) == {Finding.MISSING_CONSUME_QUEUE, Finding.RECORDS_WITHOUT_UNITS}
    log = row(found, SegmentType.COMMIT_LOG)
    assert (log.begin_offset, log.end_offset, log.size) == (5, 7, queue.log_end)


def test_an_end_mark_behind_the_last_record_is_accepted() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a")
    driver.write(queue.log_key, queue.log_end, [CODA])
    found = discovered(driver)
    assert findings(found) == []
    assert row(found, SegmentType.COMMIT_LOG).size == queue.log_end + 16


def test_a_segment_that_reaches_into_the_next_one_is_clipped() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a")
    driver.write(queue.log_key, queue.log_end, [b"torn tail that could not be trimmed"])
    queue.roll_log().put(b"b")
    found = discovered(driver)
    assert findings(found) == [Finding.OVERLAP]
    assert row(found, SegmentType.COMMIT_LOG).size == queue.places[0][2]
    assert offsets(found) == (0, 2)


def test_a_manifest_that_claims_more_than_there_is_is_not_believed() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a", b"b")
    claims = QueueManifest(
        QUEUE, epoch=4, max_offset=9, segments=(Segment(queue.log_key, 10**6, begin_ms=1, end_ms=2, end_offset=9),)
    )
    found = discovered(driver, claims)
    assert findings(found) == [Finding.MANIFEST_DISAGREES]
    log = row(found, SegmentType.COMMIT_LOG)
    assert (log.begin_ms, log.end_ms, log.end_offset) == (time_of(0), time_of(1), 2)
    assert (offsets(found), found.queue.epoch) == ((0, 2), 4)


def test_segments_older_than_the_manifest_are_orphans() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a")
    orphan = queue.log_key
    queue.roll_log().roll_units().put(b"b")
    size = driver.size(queue.log_key)
    manifest = QueueManifest(
        QUEUE, min_offset=1, max_offset=2,
        segments=(
            Segment(queue.log_key, size, begin_ms=5, end_ms=6, begin_offset=1, end_offset=2),
            Segment(queue.units_key, 20, begin_ms=5, end_ms=6),
            Segment(units_key(0), 20, SegmentStatus.DELETED),
        ),
    )  # fmt: skip
    found = discovered(driver, manifest)
    assert findings(found) == [Finding.ORPHAN, Finding.ORPHAN]
    assert {remark.where for remark in found.remarks} == {orphan.path, units_key(0).path}
    assert [segment.key for segment in found.segments if segment.status is SegmentStatus.DELETED] == [units_key(0)]
    assert offsets(found) == (1, 2)


def test_believing_a_manifest_saves_reading() -> None:
    reads: list[object] = []

    class CountingDriver(MemoryDriver):
        def read(self, key: object, position: int, length: int) -> memoryview:
            reads.append((key, position, length))
            return super().read(key, position, length)  # type: ignore[arg-type]

    driver = CountingDriver()
    queue = TierQueue(driver).begin(0).put(*[b"x"] * 50)
    manifest = QueueManifest(
        QUEUE, min_offset=0, max_offset=50,
        segments=(
            Segment(queue.log_key, queue.log_end, begin_ms=START_MS, end_ms=time_of(49), begin_offset=0, end_offset=50),
            Segment(queue.units_key, 1000, begin_ms=START_MS, end_ms=time_of(49)),
        ),
        time_index=(TimeEntry(0, START_MS, 0),),
    )  # fmt: skip
    assert discovered(driver, manifest).segments == list(manifest.segments)
    assert reads == []
    queue.put(b"newer")
    assert findings(discovered(driver, manifest)) == [Finding.BEYOND_MANIFEST]
    assert len(reads) == 2  # The new unit, and the time of its record.


def test_the_time_index_is_found_again_in_the_records() -> None:
    driver = MemoryDriver()
    TierQueue(driver).begin(0).put(*[b"x"] * 100)
    entries = discovered(driver, spacing=EntrySpacing(messages_max=10)).time_entries
    assert [(entry.queue_offset, entry.store_ms) for entry in entries] == [
        (offset, time_of(offset)) for offset in range(0, 100, 10)
    ]


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.integers(0, 400),
    st.integers(0, 60),
)
def test_whatever_is_cut_off_the_ends_the_rest_is_right(batches: list[int], log_cut: int, units_cut: int) -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(7)
    for count in batches:
        queue.put(*[b"m" * count] * count)
    log_size = max(driver.size(queue.log_key) - log_cut, 1)
    units_size = max(driver.size(queue.units_key) - units_cut, 1)
    driver.trim(queue.log_key, log_size)
    driver.trim(queue.units_key, units_size)
    whole = [place for place in queue.places if place[1] + place[2] <= log_size]
    with_units = min(len(whole), units_size // 20)
    found = discovered(driver)
    assert found.queue.max_offset == 7 + with_units
    assert row(found, SegmentType.COMMIT_LOG).size == sum(size for _, _, size in whole)
    assert row(found, SegmentType.CONSUME_QUEUE).size == 20 * with_units
    if with_units:
        assert found.time_entries[0] == TimeEntry(7, time_of(7), 0)


def test_a_log_of_nothing_but_rubbish_counts_for_nothing() -> None:
    driver = MemoryDriver()
    driver.write(log_key(0), 0, [b"\x01" * 2000])
    found = discovered(driver)
    assert findings(found) == [Finding.TRIMMED, Finding.MISSING_CONSUME_QUEUE]
    assert (row(found, SegmentType.COMMIT_LOG).size, offsets(found)) == (0, (-1, -1))


def test_units_of_nothing_but_rubbish_lead_to_no_message() -> None:
    driver = MemoryDriver()
    queue = TierQueue(driver).begin(0).put(b"a")
    driver.write(queue.units_key, 20, [b"\xff" * 200])
    found = discovered(driver)
    assert findings(found) == [Finding.TRIMMED]
    assert (row(found, SegmentType.CONSUME_QUEUE).size, offsets(found)) == (20, (0, 1))
