"""The parts of an open segment: order, ranges, damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import CorruptSegment
from tiermq.tier.driver.part_log import (
    MERGED_BYTES_MAX,
    SMALL_PART_BYTES,
    PartLog,
    PartObject,
    Piece,
    from_listing,
    merge_groups,
    part_object,
    part_path,
    sound_prefix,
)

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def rows_of(sizes: list[int]) -> list[PartObject]:
    return [PartObject(sum(sizes[:at]), size) for at, size in enumerate(sizes)]


def merged(position: int, end: int) -> PartObject:
    return PartObject(position, end - position, is_merged=True)


@given(lengths, st.randoms(use_true_random=False))
def test_a_listing_in_any_order_is_the_log_that_was_written(sizes: list[int], chance: random.Random) -> None:
    rows = rows_of(sizes)
    chance.shuffle(rows)
    log = from_listing("path", rows)
    assert (log.end, len(log), log.marked) == (sum(sizes), len(sizes), False)


@given(lengths, st.data())
def test_the_pieces_of_a_range_join_to_the_range(sizes: list[int], data: st.DataObject) -> None:
    log = from_listing("path", rows_of(sizes))
    text = bytes(number % 251 for number in range(log.end))
    parts = {part: text[part.position : part.end] for part in rows_of(sizes)}
    start = data.draw(st.integers(0, log.end - 1))
    stop = data.draw(st.integers(start + 1, log.end))
    pieces = log.pieces(start, stop - start)
    joined = b"".join(parts[piece.part][piece.start : piece.start + piece.length] for piece in pieces)
    assert joined == text[start:stop]
    assert all(piece.length > 0 for piece in pieces)


def test_a_range_outside_is_a_mistake_of_the_caller() -> None:
    log = from_listing("path", [PartObject(0, 10)])
    for position, length in [(0, 11), (-1, 2), (10, 1), (3, 0)]:
        with pytest.raises(ValueError, match="within 10 bytes"):
            log.pieces(position, length)


def test_own_writes_continue_the_log() -> None:
    log = PartLog()
    log.append(10)
    log.append(5)
    assert log.objects == [PartObject(0, 10), PartObject(10, 5)]
    assert log.pieces(8, 4) == [Piece(PartObject(0, 10), 8, 2), Piece(PartObject(10, 5), 0, 2)]
    assert [position for position in range(16) if log.boundary(position)] == [0, 10, 15]


@pytest.mark.parametrize(
    ("rows", "end", "damage"),
    [
        ([(0, 10), (20, 5)], 10, "a hole: the next part is at 20"),
        ([(5, 10)], 0, "a hole: the next part is at 5"),
        ([(0, 10), (7, 5)], 10, "an overlap: the next part is at 7"),
        ([(0, 10), (10, 0), (10, 4)], 10, "nothing after the seal mark"),
        ([(0, 10), (10, 0), (15, 4)], 10, "nothing after the seal mark"),
        ([(0, 4), (10, 5)], 4, "a hole"),  # The first part was cut from 10 bytes to 4.
        ([(0, 0), (10, 5)], 0, "nothing after the seal mark"),  # The first part was cut to nothing.
    ],
)
def test_a_listing_that_cannot_be_is_damage_and_reports_where(
    rows: list[tuple[int, int]], end: int, damage: str
) -> None:
    objects = [PartObject(*row) for row in rows]
    sound = sound_prefix(objects)
    assert sound.log.end == end
    assert sound.damage is not None
    assert damage in sound.damage
    with pytest.raises(CorruptSegment, match=f"up to {end} are sound"):
        from_listing("path", objects)


def test_an_empty_part_at_the_end_is_the_seal_mark() -> None:
    log = from_listing("path", [PartObject(10, 0), PartObject(0, 10)])
    assert log.marked
    assert (log.end, len(log)) == (10, 1)


def test_names_of_parts_lead_back_to_positions_and_others_to_none() -> None:
    assert part_path("a/b", 1234) == "a/b.parts/00000000000000001234"
    assert part_object("a/b", part_path("a/b", 1234), 9) == PartObject(1234, 9)
    assert part_object("a/b", merged(1234, 2234).path("a/b"), 1000) == merged(1234, 2234)
    assert part_object("a/b", merged(1234, 2234).path("a/b"), 999) is None
    for name in ["a/b.parts/1234", "a/b.parts/0000000000000000123x", "a/c.parts/00000000000000001234", "a/b"]:
        assert part_object("a/b", name, 9) is None


@given(lengths, st.data())
def test_merged_parts_supersede_what_begins_in_them_whatever_is_deleted_of_it(
    sizes: list[int], data: st.DataObject
) -> None:
    """Merges of several processes may overlap; each process deletes what is superseded in its own listing."""
    rows, bounds = rows_of(sizes), [*(part.position for part in rows_of(sizes)), sum(sizes)]
    text = bytes(number % 251 for number in range(bounds[-1]))
    for _ in range(data.draw(st.integers(0, 4))):
        low, high = sorted(data.draw(st.tuples(st.sampled_from(bounds), st.sampled_from(bounds))))
        if low < high and merged(low, high) not in rows:
            rows.append(merged(low, high))
        live = sound_prefix(rows).log.objects
        gone = data.draw(st.sets(st.sampled_from(rows)))
        rows = [row for row in rows if row in live or row not in gone]
        log = from_listing("path", data.draw(st.permutations(rows)))
        joined = b"".join(
            text[piece.part.position :][piece.start : piece.start + piece.length] for piece in log.pieces(0, log.end)
        )
        assert (log.end, joined) == (bounds[-1], text)


def test_a_stale_part_inside_a_merged_one_does_not_count_however_long_it_is() -> None:
    rows = [merged(0, 100), PartObject(30, 500), PartObject(60, 0), PartObject(100, 5)]
    log = from_listing("path", rows)
    assert (log.end, log.marked, log.objects) == (105, False, [rows[0], rows[3]])


def test_small_parts_are_merged_but_for_the_last_and_merged_ones_join_when_it_is_worth_it() -> None:
    def plan(*parts: PartObject) -> list[list[tuple[int, int]]]:
        return [[(part.position, part.end) for part in group] for group in merge_groups(parts)]

    assert plan() == plan(PartObject(0, 5)) == plan(*rows_of([5, 5])) == []
    assert plan(*rows_of([5, 5, 5])) == [[(0, 5), (5, 10)]]
    assert plan(merged(0, 40), *[PartObject(40 + at, 1) for at in range(9)]) == [
        [(40 + at, 41 + at) for at in range(8)]
    ]
    assert plan(merged(0, 40), *[PartObject(40 + at, 1) for at in range(11)])[0][0] == (0, 40)
    large = SMALL_PART_BYTES
    assert plan(*rows_of([5, 5, large, 5, 5, 5])) == [
        [(large + 10, large + 15), (large + 15, large + 20)],
        [(0, 5), (5, 10)],
    ]
    halves = rows_of([large // 2] * 40)
    groups = merge_groups(halves)
    assert [part for group in reversed(groups) for part in group] == halves[:-1]
    assert max(group[-1].end - group[0].position for group in groups) == MERGED_BYTES_MAX


@given(st.lists(st.integers(1, 2_000), min_size=300, max_size=600))
def test_a_segment_of_any_small_parts_stays_in_few_objects_and_is_rewritten_few_times(sizes: list[int]) -> None:
    log, rewritten = PartLog(), 0
    for size in sizes:
        log.append(size)
        if log.small_run % 32 == 0:
            objects = log.objects
            for group in merge_groups(objects):
                made = merged(group[0].position, group[-1].end)
                rewritten += made.length
                objects = [made if part == group[0] else part for part in objects if part not in group[1:]]
            log = from_listing("path", objects)
    assert log.end == sum(sizes)
    assert len(log) <= 32 + 8
    assert rewritten <= 6 * sum(sizes)
