"""Merging the parts of an open segment: what it costs, what dying in it leaves, and who may still write."""

from __future__ import annotations

import time

import pytest
from obstore.store import MemoryStore

from simulation.manual_clock import ManualClock
from tier.driver.conformance import fresh_segment, pattern
from tier.driver.objects import URL, TestRequests, paths_in
from tiermq.clock import HOUR_MS
from tiermq.errors import CorruptSegment, SegmentConflict, SegmentSealed, TierUnavailable
from tiermq.tier.driver.object_requests import ObjectRequests
from tiermq.tier.driver.object_store import PARTS_RUN_MAX, ObjectStoreDriver
from tiermq.tier.driver.part_log import PartObject, part_path

KEY = fresh_segment()
COUNT, STEP = 300, 10
DATA = pattern(COUNT * STEP)


def opened(store: MemoryStore, *, hours: int = 0, die_at: int | None = None, landed: bool = False) -> ObjectStoreDriver:
    """A driver whose clock is `hours` ahead of the store's."""
    clock = ManualClock(time.time_ns() // 1_000_000 + hours * HOUR_MS)
    return ObjectStoreDriver(TestRequests(store, die_at=die_at, landed=landed), URL, clock=clock)


def in_parts(store: MemoryStore, count: int = COUNT) -> None:
    """Parts as versions before merges wrote them."""
    requests = ObjectRequests(store, URL)
    for position in range(0, count * STEP, STEP):
        requests.create(part_path(KEY.path, position), DATA[position : position + STEP])


def gets(driver: ObjectStoreDriver, length: int = len(DATA)) -> int:
    before = driver.requests.counts.get("get", 0)
    assert driver.read(KEY, 0, length) == DATA[:length]
    return driver.requests.counts["get"] - before


def test_a_writer_of_single_messages_keeps_reads_and_objects_bounded_by_itself() -> None:
    store = MemoryStore()
    driver = opened(store)
    for position in range(0, len(DATA), STEP):
        driver.write(KEY, position, [DATA[position : position + STEP]])
    assert gets(driver) <= PARTS_RUN_MAX + 8
    merges = COUNT // (PARTS_RUN_MAX - 1)
    counts = driver.requests.counts
    assert (counts["put"], counts["list"], counts["head"]) == (COUNT + merges, 1, 1)
    later = opened(store, hours=7)
    for number in range(2 * PARTS_RUN_MAX):
        later.write(KEY, len(DATA) + number, [b"x"])
    assert len(paths_in(store)) <= 3 * PARTS_RUN_MAX
    assert later.requests.counts["list"] <= 3
    driver.trim(KEY, len(DATA))
    driver.seal(KEY)
    assert paths_in(store) == [KEY.path, part_path(KEY.path, len(DATA))]
    assert opened(store).read(KEY, 0, len(DATA)) == DATA


def test_a_merge_leaves_two_objects_and_the_parts_of_the_last_hours() -> None:
    store = MemoryStore()
    in_parts(store)
    assert opened(store).merge(KEY) == COUNT - 1
    assert len(paths_in(store)) == COUNT + 1
    assert opened(store, hours=7).merge(KEY) == 0
    made = PartObject(0, len(DATA) - STEP, is_merged=True)
    assert paths_in(store) == sorted([made.path(KEY.path), part_path(KEY.path, len(DATA) - STEP)])
    for driver in (opened(store), opened(store, hours=7)):
        assert gets(driver) <= 3  # One asks for the canonical object.
        [info] = driver.list_segments()
        assert (info.size, info.sealed, info.part_count, info.damage) == (len(DATA), False, 2, None)


@pytest.mark.crash
@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("hours", [0, 7])
def test_dying_at_any_request_of_a_merge_changes_no_byte_and_it_is_completed_later(landed: bool, hours: int) -> None:
    deaths, count = 0, 12
    size = count * STEP
    while True:
        store = MemoryStore()
        in_parts(store, count)
        try:
            opened(store, hours=hours, die_at=deaths + 1, landed=landed).merge(KEY)
        except TierUnavailable:
            deaths += 1
        else:
            break
        stranger = opened(store, hours=7)
        assert stranger.size(KEY) == size
        assert stranger.read(KEY, 5, size - 5) == DATA[5:size]
        stranger.write(KEY, size, [b"next"])
        stranger.merge(KEY)
        assert gets(opened(store), size) <= 4
        assert opened(store).size(KEY) == size + 4
    assert deaths >= count + 3


def test_a_merge_that_fails_in_a_write_does_not_fail_the_write_and_is_tried_again() -> None:
    store = MemoryStore()
    in_parts(store, PARTS_RUN_MAX - 1)
    driver = opened(store, die_at=3)  # The listing and the put are answered, nothing else.
    at = (PARTS_RUN_MAX - 1) * STEP
    driver.write(KEY, at, [DATA[at : at + STEP]])
    driver = opened(store)
    for position in range(at + STEP, 2 * PARTS_RUN_MAX * STEP, STEP):
        assert not any("-" in path.rpartition("/")[2] for path in paths_in(store))
        driver.write(KEY, position, [DATA[position : position + STEP]])
    assert gets(driver, 2 * PARTS_RUN_MAX * STEP) == 2


def test_a_reader_and_a_writer_with_an_old_view_continue_after_a_merge() -> None:
    store = MemoryStore()
    in_parts(store, 20)
    reader, writer = opened(store), opened(store)
    assert reader.read(KEY, 0, 200) == DATA[:200]
    assert writer.size(KEY) == 200
    opened(store, hours=7).merge(KEY)
    assert reader.read(KEY, 15, 150) == DATA[15:165]
    writer.write(KEY, 200, [DATA[200:230]])
    writer.write(KEY, 190, [DATA[190:240]])
    assert opened(store).read(KEY, 0, 240) == DATA[:240]


def test_a_stale_writer_at_a_merged_position_is_refused_and_never_changes_a_byte() -> None:
    store = MemoryStore()
    in_parts(store, 5)
    clock = ManualClock(time.time_ns() // 1_000_000)

    class Suspending(TestRequests):
        def create(self, path: str, data: bytes | memoryview) -> str | None:
            clock.advance_ms(7 * HOUR_MS)
            return super().create(path, data)

    sleeper = opened(store)
    suspended = ObjectStoreDriver(TestRequests(store), URL, clock=clock)
    slow = ObjectStoreDriver(Suspending(store), URL, clock=clock)
    assert sleeper.size(KEY) == suspended.size(KEY) == slow.size(KEY) == 50
    writer = opened(store)
    for position in range(50, 200, STEP):
        writer.write(KEY, position, [DATA[position : position + STEP]])
    writer.merge(KEY)
    with pytest.raises(SegmentConflict):
        sleeper.write(KEY, 50, [b"of another history, and longer than what is there" * 9])
    opened(store, hours=7).merge(KEY)
    assert part_path(KEY.path, 50) not in paths_in(store)
    with pytest.raises(SegmentConflict):  # The hours pass while the request is under way.
        slow.write(KEY, 50, [b"of another history, and longer than what is there" * 9])
    assert part_path(KEY.path, 50) in paths_in(store)
    with pytest.raises(SegmentConflict):  # It does not rely on what it knew hours ago.
        suspended.write(KEY, 50, [b"of another history"])
    for driver in (opened(store), writer):
        assert driver.size(KEY) == 200
        assert driver.read(KEY, 0, 200) == DATA[:200]
    writer.write(KEY, 200, [DATA[200:210]])
    opened(store).seal(KEY)
    assert opened(store).read(KEY, 0, 210) == DATA[:210]


def test_a_merged_segment_is_trimmed_replaced_and_deleted_whole() -> None:
    store = MemoryStore()
    in_parts(store, 20)
    driver = opened(store)
    driver.merge(KEY)
    driver.trim(KEY, 190)
    assert opened(store).size(KEY) == 190
    driver.trim(KEY, 85)
    assert opened(store).size(KEY) == 85
    assert opened(store).read(KEY, 0, 85) == DATA[:85]
    for position in range(85, 190, STEP):
        driver.write(KEY, position, [DATA[position : position + STEP][: 190 - position]])
    assert opened(store).read(KEY, 0, 190) == DATA[:190]
    driver.rewrite(KEY, 45, b"damaged")
    assert opened(store).read(KEY, 40, 20) == DATA[40:45] + b"damaged" + DATA[52:60]
    driver.rewrite(KEY, 45, DATA[45:52])
    driver.trim(KEY, 0)
    assert paths_in(store) == []
    in_parts(store, 20)
    driver.merge(KEY)
    driver.replace(KEY, [DATA[:77]], "damaged-17")
    assert opened(store).read(KEY, 0, 77) == DATA[:77]
    assert opened(store).size(KEY) == 77
    driver.merge(KEY)
    driver.delete(KEY)
    assert not [path for path in paths_in(store) if "damaged" not in path]


def test_a_sealed_segment_and_one_that_is_absent_have_nothing_to_merge() -> None:
    store = MemoryStore()
    assert opened(store).merge(KEY) == 0
    in_parts(store, 4)
    driver = opened(store)
    driver.seal(KEY)
    assert driver.merge(KEY) == 0
    with pytest.raises(SegmentSealed):
        driver.write(KEY, 40, [b"x"])


def test_a_merged_part_that_is_not_equal_is_refused_and_the_parts_stay() -> None:
    class Spoiling(TestRequests):
        def create(self, path: str, data: bytes | memoryview) -> str | None:
            super().create(path, bytes(len(data)) if "-" in path.rpartition("/")[2] else data)
            return "no checksum"

    store = MemoryStore()
    in_parts(store, 20)
    before = paths_in(store)
    with pytest.raises(CorruptSegment, match="No part was deleted"):
        ObjectStoreDriver(Spoiling(store), URL, clock=ManualClock(time.time_ns() // 1_000_000 + 7 * HOUR_MS)).merge(KEY)
    assert paths_in(store) == before
    assert opened(store).read(KEY, 0, 200) == DATA[:200]
