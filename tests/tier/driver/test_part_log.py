"""The parts of an open segment: order, ranges, damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import CorruptSegment
from tiermq.tier.driver.part_log import PartLog, Piece, from_listing, part_path, part_position, sound_prefix

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=20)


def rows_of(sizes: list[int]) -> list[tuple[int, int]]:
    return [(sum(sizes[:at]), size) for at, size in enumerate(sizes)]


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
    parts = {position: text[position : position + size] for position, size in rows_of(sizes)}
    start = data.draw(st.integers(0, log.end - 1))
    stop = data.draw(st.integers(start + 1, log.end))
    pieces = log.pieces(start, stop - start)
    joined = b"".join(parts[piece.part][piece.start : piece.start + piece.length] for piece in pieces)
    assert joined == text[start:stop]
    assert all(piece.length > 0 for piece in pieces)


def test_a_range_outside_is_a_mistake_of_the_caller() -> None:
    log = from_listing("path", [(0, 10)])
    for position, length in [(0, 11), (-1, 2), (10, 1), (3, 0)]:
        with pytest.raises(ValueError, match="within 10 bytes"):
            log.pieces(position, length)


def test_own_writes_continue_the_log() -> None:
    log = PartLog()
    log.append(10)
    log.append(5)
    assert log.positions == [0, 10]
    assert log.pieces(8, 4) == [Piece(0, 8, 2), Piece(10, 0, 2)]
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
def test_a_listing_that_cannot_be_is_damage_and_says_where(rows: list[tuple[int, int]], end: int, damage: str) -> None:
    sound = sound_prefix(rows)
    assert sound.log.end == end
    assert sound.damage is not None
    assert damage in sound.damage
    with pytest.raises(CorruptSegment, match=f"up to {end} are sound"):
        from_listing("path", rows)


def test_an_empty_part_at_the_end_is_the_seal_mark() -> None:
    log = from_listing("path", [(10, 0), (0, 10)])
    assert log.marked
    assert (log.end, len(log)) == (10, 1)


def test_names_of_parts_lead_back_to_positions_and_others_to_none() -> None:
    assert part_path("a/b", 1234) == "a/b.parts/00000000000000001234"
    assert part_position("a/b", part_path("a/b", 1234)) == 1234
    for name in ["a/b.parts/1234", "a/b.parts/0000000000000000123x", "a/c.parts/00000000000000001234", "a/b"]:
        assert part_position("a/b", name) is None
