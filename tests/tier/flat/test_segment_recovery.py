"""The decisions of recovery, as functions of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier.flat.flat_world import batch, record
from tiermq.consumequeue.unit import PRE_BLANK, UNIT, UNIT_BYTES
from tiermq.tier.flat.queue_recovery import (
    Accepted,
    accept_units,
    intact_units,
)
from tiermq.tier.metadata.metadata_values import Gap
from tiermq.tier.queue.log_walk import LogWalk, take_head, take_in_order
from tiermq.tier.queue.records import derive_units
from tiermq.tier.queue.units import runs_of_records

ONE = len(record(100))
WHOLE = batch(50, 6, 700)


def test_units_are_accepted_while_they_continue_the_chain() -> None:
    end = 700 + 6 * ONE
    assert accept_units(WHOLE.units, 50, 700, end, []) == Accepted(6, end)
    assert accept_units(WHOLE.units, 50, 701, end, []) == Accepted(0, 701)
    assert accept_units(WHOLE.units, 50, 700, end - 1, []) == Accepted(5, end - ONE)
    assert accept_units(b"", 50, 700, end, []) == Accepted(0, 700)


def test_a_blank_unit_is_accepted_inside_of_a_recorded_gap_only() -> None:
    tail = WHOLE.units[:20] + PRE_BLANK * 3 + UNIT.pack(700 + ONE, ONE, 1)
    gap = Gap(51, 54, "gone", 1)
    assert accept_units(tail, 50, 700, 1 << 30, [gap]) == Accepted(5, 700 + 2 * ONE)
    assert accept_units(tail, 50, 700, 1 << 30, [Gap(51, 53, "gone", 1)]).count == 3
    assert accept_units(tail, 50, 700, 1 << 30, []).count == 1


@given(cut=st.integers(0, 6 * ONE))
def test_the_whole_records_of_any_prefix_are_adopted(cut: int) -> None:
    assert derive_units(WHOLE.data[:cut], 700, 50) == WHOLE.units[: cut // ONE * UNIT_BYTES]


@pytest.mark.parametrize(("log_offset", "queue_offset"), [(701, 50), (700, 51)])
def test_records_of_another_place_or_number_are_not_adopted(log_offset: int, queue_offset: int) -> None:
    assert derive_units(WHOLE.data, log_offset, queue_offset) == b""


@given(at=st.integers(0, 6 * ONE - 1), flip=st.integers(1, 255))
def test_no_record_behind_a_changed_body_is_adopted(at: int, flip: int) -> None:
    damaged = bytearray(WHOLE.data)
    damaged[at] ^= flip
    units = derive_units(bytes(damaged), 700, 50)
    inside_body = 88 <= at % ONE < 128
    if inside_body:
        assert units == WHOLE.units[: at // ONE * UNIT_BYTES]
    else:
        assert len(units) >= at // ONE * UNIT_BYTES


@given(zeros_from=st.integers(0, 120))
def test_a_unit_that_lost_its_end_is_not_intact(zeros_from: int) -> None:
    torn = WHOLE.units[:zeros_from].ljust(120, b"\0")
    same = next((n for n in range(6) if torn[n * 20 : n * 20 + 20] != WHOLE.units[n * 20 : n * 20 + 20]), 6)
    assert intact_units(torn, WHOLE.units) == same


def test_another_tags_code_is_the_writer_s_choice() -> None:
    other = b"".join(UNIT.pack(place, size, 12345) for place, size, _ in UNIT.iter_unpack(WHOLE.units))
    assert intact_units(other, WHOLE.units) == 6


def test_runs_end_at_blanks_at_jumps_and_where_a_read_would_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    units = [UNIT.pack(0, 100, 0), UNIT.pack(100, 100, 0), PRE_BLANK, PRE_BLANK, UNIT.pack(200, 100, 0)]
    units += [UNIT.pack(350, 100, 0), UNIT.pack(450, 100, 0)]
    found = [(offset, len(run) // UNIT_BYTES) for offset, run in runs_of_records(b"".join(units), 7)]
    assert found == [(7, 2), (11, 1), (12, 2)]
    monkeypatch.setattr("tiermq.tier.queue.units.RUN_BYTES", 150)
    assert [offset for offset, _ in runs_of_records(b"".join(units), 7)] == [7, 8, 11, 12, 13]
    assert list(runs_of_records(b"", 7)) == []


def test_a_window_grows_to_the_first_record_but_not_beyond_the_end() -> None:
    lengths: list[int] = []

    def read(offset: int, length: int) -> bytes:
        lengths.append(length)
        return WHOLE.data[offset - 700 : offset - 700 + length]

    walk = LogWalk(read, 700, 700 + 2 * ONE, take_in_order(50), window_bytes=100)
    assert [*walk] == [WHOLE.units[:20], WHOLE.units[20:40]]
    assert (lengths, walk.at, walk.torn) == ([100, ONE, 100, ONE], 700 + 2 * ONE, "")
    lengths.clear()
    walk = LogWalk(read, 700, 700 + ONE - 1, take_in_order(50), window_bytes=100)
    assert [*walk] == []
    assert (lengths, walk.at) == ([100], 700)
    assert walk.torn == f"a record of {ONE} bytes, of which only {ONE - 1} are there"


@given(window_bytes=st.integers(8, 7 * ONE), lost=st.integers(0, 5))
def test_damage_hides_no_other_record_wherever_windows_end(window_bytes: int, lost: int) -> None:
    data = WHOLE.data[: lost * ONE] + bytes(ONE) + WHOLE.data[(lost + 1) * ONE :]
    walk = LogWalk[int](
        lambda offset, length: data[offset - 700 : offset - 700 + length],
        700,
        700 + len(data),
        lambda window, at: None if (taken := take_head(window, at)) is None else (taken[0], taken[1].queue_offset),
        damage=lambda _begin, _end: -1,
        window_bytes=window_bytes,
    )
    assert [offset for offset in walk if offset >= 0] == [50 + number for number in range(6) if number != lost]
