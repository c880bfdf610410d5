"""Fetching windows: two reads each, once for all readers, and an error lasts no longer than one try."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tier.fetch.fetch_world import CODA, TOPIC, FetchWorld, Mail, Run, mails, quick_pace, unit_of
from tiermq.consumequeue.unit import PRE_BLANK, UNIT, UNIT_BYTES
from tiermq.errors import TierUnavailable
from tiermq.tier.fetch.window_loader import Loaded, WindowLoader, fetch_window
from tiermq.tier.names import SegmentType

Make = Callable[..., FetchWorld]
LOG, UNITS = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
MUCH = 1 << 30


def test_a_window_costs_one_read_of_units_and_one_of_records(world: FetchWorld) -> None:
    file = world.write(mails(100), first=1000)
    window = fetch_window(file, 1010, 50, MUCH)
    assert window.is_plain
    assert (window.first_offset, window.end_offset) == (1010, 1060)
    assert [key.type for key, _, _ in world.driver.reads] == [UNITS, LOG]


def test_a_window_is_as_long_as_its_bytes_allow_and_holds_one_message_at_least(world: FetchWorld) -> None:
    file = world.write([Mail(body=bytes(1000))] * 20)
    size = unit_of(file, 0)[1]
    assert fetch_window(file, 0, 20, 3 * size).count == 3
    assert fetch_window(file, 0, 20, 1).count == 1


def test_bytes_that_a_window_does_not_serve_are_not_kept_in_memory(world: FetchWorld) -> None:
    file = world.write([Mail(body=bytes(1000))] * 20)
    window = fetch_window(file, 0, 20, 3 * unit_of(file, 0)[1])
    assert len(window.units) == 3 * UNIT_BYTES
    assert memoryview(window.units.obj).nbytes == len(window.units)
    assert window.data.nbytes == 3 * unit_of(file, 0)[1]
    assert memoryview(window.data.obj).nbytes == window.data.nbytes


def test_bug_14_a_window_goes_over_any_number_of_segments(make_world: Make) -> None:
    world = make_world(log_bytes=300, unit_bytes=60)
    file = world.write(mails(40))
    assert len(file.log.segments) >= 20
    assert len(file.units.segments) == 14
    window = fetch_window(file, 0, 40, MUCH)
    assert window.is_plain
    assert window.count == 40


def test_an_end_mark_between_segments_is_stepped_over_wherever_a_unit_points(world: FetchWorld) -> None:
    """As RocketMQ would have sealed a segment: the mark, then the next record; the unit may point to either."""
    for points_to_mark in (False, True):
        file = world.queue("coda", int(points_to_mark))
        first = Run.of([Mail()], 0, 0, "coda", int(points_to_mark))
        second = Run.of([Mail()], 1, len(first.data) + len(CODA), "coda", int(points_to_mark))
        place, size, tags_code = UNIT.unpack(second.units)
        unit = UNIT.pack(place - len(CODA) * points_to_mark, size, tags_code)
        file.log.append(first.data + CODA + second.data, 0)
        file.units.append_units(first.units + unit, 0, 0)
        assert file.commit()
        for start, count in ((0, 2), (1, 1)):
            window = fetch_window(file, start, count, MUCH)
            assert window.corrupt_count == 0
            assert window.take(start, 9, MUCH)[1] == count
            assert window.store_time_of(1) == 1_000


def test_one_unit_that_points_astray_costs_one_message(world: FetchWorld) -> None:
    file = world.write(mails(30))
    for at in (0, 7, 29):
        place, size, tags_code = unit_of(file, at)
        for wild in ((place + 600, size), (place - 250, size), (2**50, size), (place, 2**30), (place, -5), (-9, size)):
            world.damage(UNITS, at * UNIT_BYTES, UNIT.pack(*wild, tags_code))
            found: list[int] = []
            start = 0
            while start < 30:
                window = fetch_window(file, start, 30 - start, MUCH)
                assert window.end_offset > start
                assert window.good_units is not None
                found += [one.queue_offset for one in window.good_units]
                start = window.end_offset
            assert found == [n for n in range(30) if n != at], (at, wild)
        world.damage(UNITS, at * UNIT_BYTES, UNIT.pack(place, size, tags_code))
    assert fetch_window(file, 0, 30, MUCH).is_plain


def test_a_window_of_nothing_but_gaps_asks_the_log_nothing(world: FetchWorld) -> None:
    file = world.write(mails(2))
    assert file.skip_to(50, "gone") is not None
    world.driver.reads.clear()
    window = fetch_window(file, 2, 48, MUCH)
    assert (window.count, window.corrupt_count) == (48, 0)
    assert [key.type for key, _, _ in world.driver.reads] == [UNITS]
    assert PRE_BLANK in bytes(window.units)


# Single flight


def loader_of(world: FetchWorld) -> WindowLoader:
    return world.fetcher.loader


def test_a_kept_window_is_not_fetched_again(world: FetchWorld) -> None:
    file = world.write(mails(100))
    loader = loader_of(world)
    first = loader.load(file, 0, 64, MUCH, "g")
    world.driver.reads.clear()
    again = loader.load(file, 40, 64, MUCH, "h")
    assert again.window is first.window
    assert again.kept is first.kept
    assert loader.load(file, 40, 64, MUCH, "h", read=False) == Loaded(first.window)
    assert world.driver.reads == []


def test_a_fetch_ends_where_something_kept_begins(world: FetchWorld) -> None:
    file = world.write(mails(100))
    loader = loader_of(world)
    loader.load(file, 50, 20, MUCH, "g")
    assert loader.load(file, 10, 64, MUCH, "g").window.end_offset == 50
    assert loader.load(file, 70, 500, MUCH, "g").window.end_offset == 100


def test_everybody_who_needs_a_fetch_that_is_under_way_waits_for_it(world: FetchWorld) -> None:
    file = world.write(mails(100))
    loader = loader_of(world)
    world.driver.gate = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        one = pool.submit(loader.load, file, 0, 64, MUCH, "g")
        world.driver.waiting.acquire()
        others = [pool.submit(loader.load, file, offset, 64, MUCH, "h") for offset in (0, 5, 63)]
        behind = pool.submit(loader.load, file, 64, 64, MUCH, "h")
        world.driver.gate.set()
        assert all(other.result().window is one.result().window for other in others)
        assert behind.result().window.first_offset == 64
    assert len(world.driver.reads) == 4


def test_a_fetch_that_came_back_shorter_is_continued_by_who_needs_the_rest(world: FetchWorld) -> None:
    file = world.write([Mail(body=bytes(100))] * 100)
    few_bytes = 10 * unit_of(file, 0)[1]
    loader = loader_of(world)
    world.driver.gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(loader.load, file, 0, 64, few_bytes, "g")
        world.driver.waiting.acquire()
        other = pool.submit(loader.load, file, 40, 8, MUCH, "h")
        world.driver.gate.set()
        assert one.result().window.end_offset < 40
        window = other.result().window
    assert window.first_offset <= 40 < window.end_offset


def test_an_error_reaches_everybody_who_waits_and_is_not_kept(world: FetchWorld) -> None:
    file = world.write(mails(100))
    loader = loader_of(world)
    world.driver.gate, world.driver.down = threading.Event(), True
    with ThreadPoolExecutor(4) as pool:
        one = pool.submit(loader.load, file, 0, 64, MUCH, "g")
        world.driver.waiting.acquire()
        others = [pool.submit(loader.load, file, offset, 64, MUCH, "h") for offset in (1, 2, 3)]
        world.driver.gate.set()
        for future in (one, *others):
            with pytest.raises(TierUnavailable):
                future.result()
    assert world.fetcher.cache.count == 0
    world.driver.down = False
    assert loader.load(file, 0, 64, MUCH, "g").window.count == 64
    assert loader._flights == {}


def test_what_is_not_kept_is_served_all_the_same(make_world: Make) -> None:
    world = make_world(cache_bytes=100)
    file = world.write(mails(10), topic=TOPIC)
    loaded = loader_of(world).load(file, 0, 10, MUCH, "g")
    assert loaded.kept is None
    assert loaded.window.count == 10


def test_a_fetch_ends_where_another_that_is_under_way_begins(world: FetchWorld) -> None:
    file = world.write(mails(100))
    loader = loader_of(world)
    world.driver.gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        behind = pool.submit(loader.load, file, 50, 20, MUCH, "g")
        world.driver.waiting.acquire()
        before = pool.submit(loader.load, file, 10, 64, MUCH, "h")
        world.driver.waiting.acquire()
        world.driver.gate.set()
        assert before.result().window.end_offset == 50
        assert behind.result().window.end_offset == 70


def test_only_who_fetches_for_himself_reports_how_quick_the_back_end_is(world: FetchWorld) -> None:
    file = world.write(mails(100))
    pace = quick_pace()
    loader = WindowLoader(world.fetcher.cache, pace=pace)
    loader.load(file, 0, 10, 1 << 20, "g", read=False)
    assert pace.is_slow
    loader.load(file, 10, 10, 1 << 20, "g")
    assert not pace.is_slow
