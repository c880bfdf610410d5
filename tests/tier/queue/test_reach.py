"""Which records lie behind units: end marks are stepped over, damage costs one message, nothing damaged is served."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier.fetch.fetch_world import CODA, Mail, Run
from tiermq.consumequeue.unit import PRE_BLANK, UNIT, UNIT_BYTES
from tiermq.tier.queue.records import is_coda, split
from tiermq.tier.queue.units import Reach, careful_reach, quick_reach

FAR = 1 << 40


def record_123(queue_offset: int, place: int) -> bytes:
    """A record of 123 bytes, as those of RocketMQ's own tests."""
    mail = Mail(body=b"")
    short = len(mail.record(queue_offset, place))
    data = Mail(body=bytes(123 - short)).record(queue_offset, place)
    assert len(data) == 123
    return data


def around_a_coda(second_unit_at: int) -> tuple[bytes, bytes]:
    """Two records with an end mark between them; the second unit points where the test says."""
    data = record_123(6, 0) + CODA + record_123(7, 139)
    return UNIT.pack(0, 123, 0) + UNIT.pack(second_unit_at, 123, 0), data


def starts(units: bytes, data: bytes, first_offset: int = 6) -> list[int]:
    return [unit.log_offset for unit in split(units, data, 0, first_offset)[0]]


# Splitting


def test_nothing_is_split_into_nothing() -> None:
    assert split(b"", b"", 0, 0) == ([], [])
    assert split(b"", record_123(6, 0), 0, 6) == ([], [])


def test_units_without_records_are_damaged() -> None:
    assert split(UNIT.pack(0, 123, 0), b"", 0, 6) == ([], [6])


def test_two_units_around_an_end_mark_have_their_records() -> None:
    assert starts(*around_a_coda(139)) == [0, 139]


def test_an_end_mark_that_a_unit_points_to_is_stepped_over() -> None:
    assert starts(*around_a_coda(123)) == [0, 139]


def test_a_unit_with_another_size_than_its_record_is_damaged() -> None:
    units, data = around_a_coda(139)
    smaller = UNIT.pack(0, 122, 0) + units[UNIT_BYTES:]
    assert starts(smaller, data) == [139]
    assert split(smaller, data, 0, 6)[1] == [6]


def test_units_beyond_the_data_are_damaged() -> None:
    _, data = around_a_coda(139)
    units = UNIT.pack(0, 1234, 0) + UNIT.pack(1000, 123, 0)
    assert split(units, data, 0, 6) == ([], [6, 7])


def test_a_damaged_magic_costs_its_own_message_only() -> None:
    units, data = around_a_coda(139)
    assert starts(units, data[:4] + b"\0\0\0\0" + data[8:]) == [139]


def test_an_end_mark_with_no_room_behind_it_is_damaged() -> None:
    units, data = around_a_coda(123)
    assert starts(units, data[:-1]) == [0]


@pytest.mark.parametrize("position", [8, 20, 27, 28, 35, 60 + 32])
def test_a_record_that_is_not_what_its_unit_reports_is_never_served(position: int) -> None:
    """Body CRC, queue offset, physical offset, body: a flipped bit in any of them."""
    run = Run.of([Mail(body=b"x" * 40)], 6, 0)
    data = bytearray(run.data)
    data[position] ^= 1
    assert split(run.units, bytes(data), 0, 6) == ([], [6])


def test_a_gap_is_neither_a_message_nor_damage() -> None:
    run = Run.of([Mail()], 6, 0)
    later = Run.of([Mail()], 10, len(run.data))
    units, data = run.units + PRE_BLANK * 3 + later.units, run.data + later.data
    found, bad = split(units, data, 0, 6)
    assert [place.queue_offset for place in found] == [6, 10]
    assert bad == []


def test_bug_09_messages_behind_a_damaged_one_keep_their_own_offsets() -> None:
    run = Run.of([Mail(body=b"m%d" % n) for n in range(5)], 100, 0)
    size = UNIT.unpack(run.units[:UNIT_BYTES])[1]
    data = bytearray(run.data)
    data[size * 1 + 90] ^= 0xFF
    data[size * 3 + 90] ^= 0xFF
    found, bad = split(run.units, bytes(data), 0, 100)
    assert [(place.queue_offset, place.log_offset) for place in found] == [(100, 0), (102, 2 * size), (104, 4 * size)]
    assert len(bad) == 2


# Reach


def contiguous(sizes: list[int], start: int = 1000) -> bytes:
    units, place = b"", start
    for size in sizes:
        units += UNIT.pack(place, size, 0)
        place += size
    return units


def test_whole_units_reach_from_the_first_record_to_the_end_of_the_last() -> None:
    units = contiguous([100, 200, 300])
    assert quick_reach(units, 0, FAR, FAR) == Reach(3, 1000, 1600)
    assert careful_reach(units, 0, FAR, FAR) == Reach(3, 1000, 1600)


@pytest.mark.parametrize(
    ("bytes_max", "kept", "end"), [(600, 3, 1600), (599, 2, 1300), (300, 2, 1300), (299, 1, 1100), (1, 1, 1100)]
)
def test_bytes_are_limited_but_one_record_always_comes(bytes_max: int, kept: int, end: int) -> None:
    units = contiguous([100, 200, 300])
    assert quick_reach(units, 0, FAR, bytes_max) == Reach(kept, 1000, end)
    assert careful_reach(units, 0, FAR, bytes_max) == Reach(kept, 1000, end)


@given(st.lists(st.integers(91, 5000), min_size=1, max_size=40), st.integers(1, 60_000))
def test_the_quick_and_the_careful_way_agree_on_whole_units(sizes: list[int], bytes_max: int) -> None:
    units = contiguous(sizes)
    assert quick_reach(units, 0, FAR, bytes_max) == careful_reach(units, 0, FAR, bytes_max)


@pytest.mark.parametrize(
    "units",
    [
        PRE_BLANK + contiguous([100]),
        contiguous([100]) + PRE_BLANK,
        UNIT.pack(5000, 100, 0) + UNIT.pack(1000, 100, 0),
        UNIT.pack(-1, 100, 0) + UNIT.pack(1000, 100, 0),
        UNIT.pack(1000, 90, 0),
        UNIT.pack(1000, 100, 0) + UNIT.pack(1001, 100, 0),
    ],
)
def test_the_quick_way_gives_up_where_units_do_not_look_whole(units: bytes) -> None:
    assert quick_reach(units, 0, 9000, FAR) is None


def test_gaps_are_counted_and_add_nothing() -> None:
    units = PRE_BLANK * 2 + contiguous([100, 100]) + PRE_BLANK
    assert careful_reach(units, 0, FAR, FAR) == Reach(5, 1000, 1200)
    assert careful_reach(PRE_BLANK * 4, 0, FAR, FAR) == Reach(4, -1, -1)


def test_units_outside_of_the_log_add_nothing() -> None:
    units = UNIT.pack(10, 100, 0) + contiguous([100, 100]) + UNIT.pack(99_950, 100, 0)
    assert careful_reach(units, 500, 100_000, FAR) == Reach(4, 1000, 1200)


@given(st.integers(3, 30), st.data())
def test_one_unit_that_points_anywhere_hides_no_other(count: int, data: st.DataObject) -> None:
    """Unless it is at an edge, where it may widen the range, the range is that of the others."""
    units = bytearray(contiguous([100] * count))
    at = data.draw(st.integers(0, count - 1))
    wild = UNIT.pack(data.draw(st.integers(-(2**63), 2**63 - 1)), data.draw(st.integers(-(2**31), 2**31 - 1)), 0)
    units[at * UNIT_BYTES : (at + 1) * UNIT_BYTES] = wild
    reach = careful_reach(bytes(units), 0, 1000 + 100 * count + 5000, FAR)
    first, last = (1 if at == 0 else 0), (count - 2 if at == count - 1 else count - 1)
    assert reach.kept == count
    assert reach.start <= 1000 + 100 * first
    assert reach.end >= 1000 + 100 * (last + 1)


def test_a_wild_last_unit_does_not_make_the_fetch_longer_than_allowed() -> None:
    units = contiguous([100, 100]) + UNIT.pack(10**9, 100, 0)
    assert careful_reach(units, 0, FAR, 10_000) == Reach(2, 1000, 1200)


def test_an_end_mark_is_known_by_its_magic() -> None:
    assert is_coda(b"xx" + CODA, 2)
    assert not is_coda(record_123(0, 0), 0)
    assert not is_coda(CODA[:7], 0)
