"""Runs of windows ahead of a reader: one read of units, windows that end at lines, in order, nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier.fetch.fetch_world import QUEUE_ID, TOPIC, FetchWorld, IdlePool, Mail, mails, unit_of
from tiermq.consumequeue.unit import PRE_BLANK, UNIT, UNIT_BYTES
from tiermq.tier.fetch import read_ahead as run_ahead
from tiermq.tier.fetch.read_ahead import GRID_BYTES_MAX, QueueReader, RunAhead, grid_for, next_line, split_run
from tiermq.tier.names import SegmentType
from tiermq.tier.queue.units import first_behind

Make = Callable[..., FetchWorld]
LOG, UNITS = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
MUCH = 1 << 30


def units_of(sizes: list[int], start: int = 0) -> bytes:
    units, place = b"", start
    for size in sizes:
        units += UNIT.pack(place, size, 0)
        place += size
    return units


@given(st.integers(1, 1 << 40), st.integers(1, 1 << 30))
def test_the_grid_is_a_power_of_two_near_what_is_wanted_and_within_what_may_be_fetched(wanted: int, most: int) -> None:
    grid = grid_for(wanted, most)
    assert grid.bit_count() == 1
    assert grid <= GRID_BYTES_MAX
    assert grid <= max(1, most // 2)
    assert grid * 2 > min(wanted, most // 2, GRID_BYTES_MAX - 1)


def test_windows_of_about_8_mib_lie_on_a_grid_of_8_mib() -> None:
    assert grid_for(GRID_BYTES_MAX - 500_000, MUCH) == GRID_BYTES_MAX


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (0, 1024),
        (1, 1024),
        (895, 1024),
        (900, 2048),  # A stretch of 124 is not worth a request.
        (1024, 2048),
        (2900, 3000),  # Where the next segment begins.
        (3000, 4024),
        (5000, 6072),  # A stretch of 48 is not worth a request either.
        (-7, 1024),
    ],
)
def test_a_window_ends_at_the_next_line_of_its_segment(place: int, line: int) -> None:
    assert next_line([0, 3000], place, 1024) == line


@given(st.lists(st.integers(91, 5_000), min_size=1, max_size=200), st.integers(0, 100_000))
def test_windows_of_a_run_cover_it_and_begin_with_the_first_record_behind_a_line(sizes: list[int], start: int) -> None:
    units = units_of(sizes, start)
    ends = split_run(units, [0], 4096)
    assert ends[-1] == len(sizes)
    assert all(first < behind for first, behind in pairwise((0, *ends)))
    for end in ends[:-1]:
        place, before = (UNIT.unpack_from(units, at * UNIT_BYTES)[0] for at in (end, end - 1))
        assert before // 4096 < place // 4096


@given(
    st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=50),
    st.sampled_from([1, 64, 8 << 20]),
)
def test_damaged_units_still_make_windows_that_cover_the_run(fields: list[tuple[int, int]], grid_bytes: int) -> None:
    units = b"".join(UNIT.pack(place, size, 0) for place, size in fields)
    ends = split_run(units, [0, 10_000], grid_bytes)
    assert ends[-1] == len(fields)
    assert all(first < behind for first, behind in pairwise((0, *ends)))


def test_the_first_unit_behind_a_line_is_found() -> None:
    units = units_of([100] * 10)
    assert [first_behind(units, line) for line in (0, 1, 100, 901, 5_000)] == [0, 1, 1, 10, 10]
    assert first_behind(units, 0, 3) == 3


# Fetching


def asking(world: FetchWorld, pool: object, bytes_max: int = MUCH) -> tuple[RunAhead, QueueReader]:
    return RunAhead(world.fetcher.loader, pool, lambda: bytes_max), QueueReader("g", world.queue(), 32_768)  # type: ignore[arg-type]


def reads_of(world: FetchWorld, kind: SegmentType) -> list[tuple[int, int]]:
    return [(position, length) for key, position, length in world.driver.reads if key.type is kind]


def test_a_run_costs_one_read_of_units_and_one_of_records_for_each_line(world: FetchWorld) -> None:
    file = world.write([Mail(body=bytes(300))] * 1_000)
    size = unit_of(file, 0)[1]
    world.driver.reads.clear()
    runs, reader = asking(world, world.pool)
    runs.ask(reader, 0, 1_000, 65_536 // size, size)
    assert reads_of(world, UNITS) == [(0, 1_000 * UNIT_BYTES)]
    logs = reads_of(world, LOG)
    assert len(logs) == -(-1_000 * size // 65_536)
    assert [position // 65_536 for position, _ in logs] == list(range(len(logs)))
    assert sum(length for _, length in logs) == file.log.commit_offset
    assert (reader.ahead.planned_end, reader.ahead.asked) == (1_000, None)
    assert world.fetcher.cache.covered_until(file, 0) == 1_000


def test_a_run_that_ends_between_two_lines_leaves_the_rest_for_the_next_one(world: FetchWorld) -> None:
    file = world.write([Mail(body=bytes(300))] * 1_000)
    size = unit_of(file, 0)[1]
    runs, reader = asking(world, world.pool)
    runs.ask(reader, 0, 500, 65_536 // size, size)
    end = reader.ahead.planned_end
    assert 0 < end < 500
    assert unit_of(file, end - 1)[0] // 65_536 < unit_of(file, end)[0] // 65_536
    assert world.fetcher.cache.covered_until(file, 0) == end


def test_units_of_long_runs_are_read_in_several_pieces_and_each_once(
    world: FetchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_ahead, "RUN_UNITS_MAX", 300)
    file = world.write([Mail(body=bytes(300))] * 1_000)
    size = unit_of(file, 0)[1]
    world.driver.reads.clear()
    runs, reader = asking(world, world.pool)
    runs.ask(reader, 0, 1_000, 16_384 // size, size)
    assert reads_of(world, UNITS) == [
        (at * UNIT_BYTES, min(300, 1_000 - at) * UNIT_BYTES) for at in range(0, 1_000, 300)
    ]
    assert len(reads_of(world, LOG)) == -(-file.log.commit_offset // 16_384)
    assert world.fetcher.cache.covered_until(file, 0) == 1_000


def test_more_that_is_asked_for_before_the_first_has_begun_becomes_one_run(world: FetchWorld) -> None:
    file = world.write(mails(1_000))
    size = unit_of(file, 0)[1]
    world.driver.reads.clear()
    pool = IdlePool()
    runs, reader = asking(world, pool)
    runs.ask(reader, 0, 100, 1_000, size)
    runs.ask(reader, 100, 1_000, 1_000, size)
    pool.run_all()
    assert reads_of(world, UNITS) == [(0, 1_000 * UNIT_BYTES)]
    assert world.fetcher.cache.covered_until(file, 0) == 1_000


def test_a_reader_that_jumped_is_not_fetched_for_any_more(world: FetchWorld) -> None:
    world.write(mails(1_000))
    pool = IdlePool()
    runs, reader = asking(world, pool)
    runs.ask(reader, 0, 1_000, 1_000, 200)
    reader.ahead.on_read(0, 32)
    reader.ahead.on_read(700, 732)
    pool.run_all()
    assert world.driver.reads == []


def test_what_another_reader_has_fetched_is_passed_over(world: FetchWorld) -> None:
    file = world.write(mails(1_000))
    theirs = world.fetcher.loader.load(file, 300, 200, MUCH, "other").window
    world.driver.reads.clear()
    runs, reader = asking(world, world.pool)
    runs.ask(reader, 0, 1_000, 1_000, 200)
    assert len(reads_of(world, LOG)) == 2
    assert sum(length for _, length in reads_of(world, LOG)) == file.log.commit_offset - len(theirs.data)
    assert world.fetcher.cache.covered_until(file, 0) == 1_000


def test_much_larger_messages_than_expected_are_not_all_fetched(make_world: Make) -> None:
    world = make_world()
    small, large = [Mail(body=bytes(100))] * 100, [Mail(body=bytes(50_000))] * 400
    file = world.write([*small, *large])
    size = unit_of(file, 0)[1]
    world.driver.reads.clear()
    runs, reader = asking(world, world.pool)
    runs.ask(reader, 0, 500, 500, size)
    limit = run_ahead.SURPRISE_FACTOR * 500 * size
    fetched = sum(length for _, length in reads_of(world, LOG))
    assert fetched <= limit + unit_of(file, 499)[1] < file.log.commit_offset / 20
    assert 100 <= reader.ahead.planned_end < 110


def test_a_window_keeps_no_more_units_in_memory_than_its_own(world: FetchWorld) -> None:
    file = world.write([Mail(body=bytes(300))] * 1_000)
    size = unit_of(file, 0)[1]
    runs, reader = asking(world, world.pool)
    runs.ask(reader, 0, 1_000, 65_536 // size, size)
    at = 0
    while at < 1_000:
        window = world.fetcher.cache.peek(file, at)
        assert window is not None
        assert memoryview(window.units.obj).nbytes == window.count * UNIT_BYTES
        at = window.end_offset


def test_gaps_and_rolled_segments_within_a_run_are_read_like_any_other(make_world: Make) -> None:
    world = make_world(log_bytes=20_000)
    file = world.write(mails(300))
    assert file.skip_to(700, "gone") is not None
    world.write(mails(300))
    assert PRE_BLANK in bytes(file.units.read_units(299, 3))
    runs, reader = asking(world, world.pool)
    runs.ask(reader, 0, 1_000, 50, 200)
    assert world.fetcher.cache.covered_until(file, 0) >= 299
    found = [*range(300), *range(700, 1_000)]
    assert world.read_all() == found
    assert world.fetcher.counts().corrupt_count == 0


def test_a_back_end_that_is_away_is_asked_again_by_the_next_plan(world: FetchWorld) -> None:
    world.write(mails(1_000))
    runs, reader = asking(world, world.pool)
    world.driver.down = True
    runs.ask(reader, 0, 1_000, 1_000, 200)
    assert (reader.ahead.planned_end, reader.ahead.plan_at, reader.ahead.asked) == (0, -1, None)
    assert world.fetcher.cache.count == 0


def test_a_sequential_reader_of_a_long_queue_has_windows_on_lines_and_few_reads_of_units(make_world: Make) -> None:
    world = make_world(cache_bytes=8 << 20)
    file = world.write([Mail(body=bytes(1_000))] * 20_000)
    offset = 0
    while offset < 20_000:
        offset = world.fetcher.get(TOPIC, QUEUE_ID, offset, group="g").next_offset
    logs = reads_of(world, LOG)
    assert sum(length for _, length in logs) == file.log.commit_offset
    grid = 1 << 20
    on_lines = [position for position, length in logs if position % grid < 2_000 and length > grid // 2]
    assert len(on_lines) * grid > 0.7 * file.log.commit_offset
    assert len(reads_of(world, UNITS)) < len(logs)
