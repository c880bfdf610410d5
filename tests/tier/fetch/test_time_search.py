"""Offsets by time: RocketMQ's boundaries, two requests with the time index, few without it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tier.fetch.fetch_world import CODA, FetchWorld, Mail, Run, mails, unit_of
from tier.flat.flat_world import remove_first
from tiermq.consumequeue.queue_units import Boundary
from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.errors import TierUnavailable
from tiermq.tier.fetch import time_search
from tiermq.tier.fetch.time_search import TimeSearch
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET
from tiermq.tier.names import SegmentType
from tiermq.tier.queue.records import PEEK_BYTES

Make = Callable[..., FetchWorld]
LOWER, UPPER = Boundary.LOWER, Boundary.UPPER
FAR = 10**9


def at_times(*times: int) -> list[Mail]:
    return [Mail(store_ms=ms) for ms in times]


def without_time_index(file: FlatMessageFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tier that RocketMQ wrote: no entries, and nothing known about segments."""
    monkeypatch.setattr(file, "time_entries", list)
    for segment in file.log.segments:
        segment.begin_offset = UNKNOWN_OFFSET


def expected(times: list[int], low: int, timestamp: int, boundary: Boundary) -> int:
    """The rule, spelled out."""
    if boundary is UPPER and timestamp in times:
        return low + len(times) - 1 - times[::-1].index(timestamp)
    return low + bisect_left(times, timestamp)


@pytest.mark.parametrize(
    ("timestamp", "lower", "upper"),
    [(50, 7, 7), (100, 7, 7), (150, 8, 8), (200, 8, 10), (250, 11, 11), (300, 11, 11), (301, 12, 12)],
)
def test_boundaries_are_rocketmqs(world: FetchWorld, timestamp: int, lower: int, upper: int) -> None:
    file = world.write(at_times(100, 200, 200, 200, 300), first=7)
    search = TimeSearch()
    assert search.offset_by_time(file, timestamp, LOWER) == lower
    assert search.offset_by_time(file, timestamp, UPPER) == upper


def test_messages_that_all_have_one_time(world: FetchWorld) -> None:
    file = world.write(at_times(*[11] * 100), first=100)
    search = TimeSearch()
    assert [search.offset_by_time(file, ms) for ms in (10, 11, 12)] == [100, 100, 200]
    assert [search.offset_by_time(file, ms, UPPER) for ms in (10, 11, 12)] == [100, 199, 200]


def test_an_empty_queue_answers_where_it_begins(world: FetchWorld) -> None:
    assert TimeSearch().offset_by_time(world.queue(first=9), 100) == 9


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    batch=st.integers(1, 20),
    first=st.integers(0, 5),
    indexed=st.booleans(),
)
def test_every_time_is_answered_by_the_rule(
    make_world: Make, steps: list[int], batch: int, first: int, indexed: bool
) -> None:
    times, now = [], 100
    for step in steps:
        now += step
        times.append(now)
    world = make_world()
    file = world.write(at_times(*times), first=first, batch=batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_search, "SEARCHED_MESSAGES_MAX", 4)
        if not indexed:
            without_time_index(file, patch)
        search = TimeSearch()
        for timestamp in range(98, now + 3):
            for boundary in Boundary:
                found = search.offset_by_time(file, timestamp, boundary)
                assert found == expected(times, first, timestamp, boundary), (timestamp, boundary)
    world.close()


def test_gap_12_a_search_needs_two_requests_however_long_the_queue_is(make_world: Make) -> None:
    world = make_world()
    times = [1_000 + n // 3 for n in range(40_000)]
    file = world.write(at_times(*times), batch=2_000)
    search = TimeSearch()
    for timestamp in (0, 1_000, 1_001, 5_000, 9_999, 14_332, 14_333, 99_999):
        for boundary in Boundary:
            world.driver.reads.clear()
            assert search.offset_by_time(file, timestamp, boundary) == expected(times, 0, timestamp, boundary)
            assert len(world.driver.reads) <= 2


def test_equal_times_over_many_chunks_cost_two_requests_too(make_world: Make) -> None:
    world = make_world()
    times = [5] * 3_000 + [7] * 30_000 + [9] * 3_000
    file = world.write(at_times(*times), batch=1_000)
    search = TimeSearch()
    for timestamp in (5, 6, 7, 8, 9):
        for boundary in Boundary:
            world.driver.reads.clear()
            assert search.offset_by_time(file, timestamp, boundary) == expected(times, 0, timestamp, boundary)
            assert len(world.driver.reads) <= 2


def test_without_a_time_index_the_range_is_halved_and_what_was_learned_is_remembered(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    times = [1_000 + n for n in range(60_000)]
    file = world.write(at_times(*times))
    without_time_index(file, monkeypatch)
    file.log.segments[0].begin_offset = 0
    search = TimeSearch()
    world.driver.reads.clear()
    assert search.offset_by_time(file, 21_777) == 20_777
    cold = len(world.driver.reads)
    assert cold <= 2 * 5
    assert world.driver.bytes_read(SegmentType.COMMIT_LOG) < 4_096 * 200
    world.driver.reads.clear()
    assert search.offset_by_time(file, 21_900, UPPER) == 20_900
    assert len(world.driver.reads) == 2


def test_huge_messages_are_not_fetched_to_learn_their_times(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_search, "SEARCHED_BYTES_MAX", 300_000)
    world = make_world()
    file = world.write([Mail(body=bytes(100_000), store_ms=n) for n in range(64)])
    without_time_index(file, monkeypatch)
    file.log.segments[0].begin_offset = 0
    world.driver.reads.clear()
    assert TimeSearch().offset_by_time(file, 40) == 40
    assert world.driver.bytes_read(SegmentType.COMMIT_LOG) < 500_000


def test_bug_22_a_search_stays_within_what_the_tier_still_holds(make_world: Make) -> None:
    world = make_world(log_bytes=3_000)
    file = world.write(at_times(*range(100, 300)), batch=20)
    for _ in range(4):
        remove_first(file.log, file.log.segments[0])
    low = file.min_offset
    assert low > 0 == file.units.min_queue_offset
    search = TimeSearch()
    for boundary in Boundary:
        assert search.offset_by_time(file, 50, boundary) == low
        assert search.offset_by_time(file, 100 + low, boundary) == low
        assert search.offset_by_time(file, 100 + low + 5, boundary) == low + 5
        assert search.offset_by_time(file, FAR, boundary) == 200
    assert search.store_time_of(file, low - 1) == -1


def test_gaps_and_damage_are_no_messages(make_world: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_search, "SEARCHED_MESSAGES_MAX", 8)
    world = make_world()
    file = world.write(at_times(*range(100, 120)))
    assert file.skip_to(1_000, "gone") is not None
    world.write(at_times(*range(200, 220)))
    world.damage(SegmentType.COMMIT_LOG, unit_of(file, 5)[0] + 4, b"\0\0\0\0")
    without_time_index(file, monkeypatch)
    search = TimeSearch()
    assert search.offset_by_time(file, 104) == 4
    assert search.offset_by_time(file, 105) == 6
    assert search.offset_by_time(file, 119, UPPER) == 19
    assert search.offset_by_time(file, 150) == 1_000
    assert search.offset_by_time(file, 150, UPPER) == 1_000
    assert search.offset_by_time(file, 219) == 1_019
    assert search.offset_by_time(file, 220) == 1_020
    assert [search.store_time_of(file, offset) for offset in (4, 5, 500, 1_000)] == [104, -1, -1, 200]


def test_store_times_come_from_two_small_reads_or_from_memory(world: FetchWorld) -> None:
    file = world.write(
        [Mail(body=bytes(50_000), store_ms=1_000 + n, born_host="[::1]:5") for n in range(50)], first=100
    )
    search = TimeSearch(world.fetcher.cache)
    assert [search.store_time_of(file, offset) for offset in (100, 120)] == [1_000, 1_020]
    assert [length for _, _, length in world.driver.reads] == [20, PEEK_BYTES, 20, PEEK_BYTES]
    assert search.store_time_of(file, 99) == search.store_time_of(file, 150) == -1
    world.get(100)
    world.driver.reads.clear()
    assert search.store_time_of(file, 101) == 1_001
    assert world.driver.reads == []


def test_a_store_time_behind_an_end_mark_is_found(world: FetchWorld) -> None:
    file = world.queue()
    first = Run.of([Mail()], 0, 0)
    second = Run.of([Mail(store_ms=4_242)], 1, len(first.data) + len(CODA))
    place, size, tags_code = UNIT.unpack(second.units)
    file.log.append(first.data + CODA + second.data, 0)
    file.units.append_units(first.units + UNIT.pack(place - len(CODA), size, tags_code), 0, 0)
    assert file.commit()
    assert TimeSearch().store_time_of(file, 1) == 4_242


@pytest.mark.parametrize("wild", [(2**50, 150), (0, 2**31 - 2), (-7, 150), (0, 10)])
def test_a_unit_that_points_nowhere_has_no_time(world: FetchWorld, wild: tuple[int, int]) -> None:
    file = world.write(mails(10))
    world.damage(SegmentType.CONSUME_QUEUE, 3 * UNIT_BYTES, UNIT.pack(*wild, 0))
    assert TimeSearch().store_time_of(file, 3) == -1


def test_a_tier_that_cannot_be_reached_is_an_error(world: FetchWorld) -> None:
    file = world.write(mails(10))
    world.driver.down = True
    with pytest.raises(TierUnavailable):
        TimeSearch().offset_by_time(file, 1_001)
    with pytest.raises(TierUnavailable):
        TimeSearch().store_time_of(file, 5)


def test_what_is_remembered_is_bounded_and_goes_with_its_queue(
    world: FetchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_search, "SEARCHED_MESSAGES_MAX", 2)
    monkeypatch.setattr(time_search, "LEARNED_MAX", 5)
    file = world.write(at_times(*range(200)))
    without_time_index(file, monkeypatch)
    search = TimeSearch()
    for timestamp in range(0, 200, 7):
        assert search.offset_by_time(file, timestamp) == timestamp
    assert len(search._learned[file]) == 5
