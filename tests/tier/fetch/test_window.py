"""A window serves slices of its bytes: limits, filters, gaps, damage, and the times of its messages."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier.fetch.fetch_world import Mail, Run, mails
from tiermq.consumequeue.unit import PRE_BLANK, UNIT, UNIT_BYTES, ext_address
from tiermq.errors import CorruptSegment
from tiermq.message.message_filter import TagFilter
from tiermq.message.record import decode_records
from tiermq.tier.fetch.window_cache import OVERHEAD_BYTES, UNIT_VALUE_BYTES, Window


def window_of(some: list[Mail], first: int = 100, log_offset: int = 5000) -> Window:
    run = Run.of(some, first, log_offset)
    return Window(first, run.units, run.data, log_offset)


def offsets(data: bytes) -> list[int]:
    return [message.queue_offset for message in decode_records(data)]


def damaged(window: Window, *indexes: int) -> Window:
    """The same window with a flipped bit in the magic of some records."""
    data = bytearray(window.data)
    for index in indexes:
        data[window._end_of(index) + 4] ^= 1
    return Window(window.first_offset, window.units, bytes(data), window.log_offset)


def test_a_page_is_a_slice_of_the_bytes() -> None:
    window = window_of(mails(10))
    assert window.is_plain
    data, count, next_offset = window.take(103, 4, 10**6)
    assert (offsets(data), count, next_offset) == ([103, 104, 105, 106], 4, 107)


def test_a_page_ends_with_the_window() -> None:
    data, count, next_offset = window_of(mails(10)).take(108, 32, 10**6)
    assert (offsets(data), count, next_offset) == ([108, 109], 2, 110)


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers(0, 20), st.integers(1, 40), st.integers(0, 4000)
)
def test_bytes_limit_a_page_to_the_record_but_the_first_one_always_goes(
    sizes: list[int], at: int, max_messages: int, max_bytes: int
) -> None:
    window = window_of([Mail(body=bytes(size)) for size in sizes])
    index = at % len(sizes)
    records = [m.size for m in decode_records(bytes(window.data))]
    expected = 1
    while expected < min(max_messages, len(sizes) - index) and sum(records[index : index + expected + 1]) <= max_bytes:
        expected += 1
    data, count, next_offset = window.take(100 + index, max_messages, max_bytes)
    assert (count, next_offset, len(data)) == (
        expected, 100 + index + expected, sum(records[index : index + expected]),
    )  # fmt: skip
    # One who looks at each message comes to the same.
    assert window.take_matching(100 + index, max_messages, max_bytes, None)[1:] == (count, next_offset)


def test_a_damaged_record_ends_a_page_and_is_an_error_where_it_would_begin_one() -> None:
    window = damaged(window_of(mails(10)), 0, 4, 9)
    assert window.corrupt_count == 3
    for offset in (100, 104, 109):
        with pytest.raises(CorruptSegment, match=f"queue offset {offset} is damaged"):
            window.take(offset, 32, 10**6)
    data, count, next_offset = window.take(101, 32, 10**6)
    assert (offsets(data), count, next_offset) == ([101, 102, 103], 3, 104)
    data, count, next_offset = window.take(105, 2, 10**6)
    assert (offsets(data), count, next_offset) == ([105, 106], 2, 107)


def test_a_gap_is_passed_over() -> None:
    run = Run.of(mails(2), 100, 0)
    later = Run.of(mails(2), 105, len(run.data))
    window = Window(100, run.units + PRE_BLANK * 3 + later.units, run.data + later.data, 0)
    data, count, next_offset = window.take(101, 2, 10**6)
    assert (offsets(data), count, next_offset) == ([101, 105], 2, 106)
    assert window.take(102, 1, 10**6)[1:] == (1, 106)
    assert window.corrupt_count == 0


def tagged(pattern: list[str]) -> Window:
    return window_of([Mail(tag=tag) for tag in pattern])


def test_a_filter_goes_on_behind_the_last_message_that_it_took() -> None:
    window = tagged(["0", "1"] * 50)
    data, count, next_offset = window.take_matching(100, 32, 10**6, TagFilter("1 || 2"))
    assert (offsets(data)[:2], count, next_offset) == ([101, 103], 32, 164)
    assert window.take_matching(164, 32, 10**6, TagFilter("1 || 2"))[1:] == (18, 200)
    assert window.take_matching(100, 32, 10**6, TagFilter("0"))[1:] == (32, 163)
    assert window.take_matching(100, 32, 10**6, TagFilter("9")) == (b"", 0, 200)


def test_a_filter_in_a_damaged_window_leads_up_to_the_damage() -> None:
    window = damaged(tagged(["0", "1"] * 5), 4)
    assert window.take_matching(102, 2, 10**6, TagFilter("0"))[2] == 104
    data, _, next_offset = window.take_matching(100, 5, 10**6, TagFilter("1"))
    assert (offsets(data), next_offset) == ([101, 103], 104)
    with pytest.raises(CorruptSegment):
        window.take_matching(104, 2, 10**6, TagFilter("1"))
    data, _, next_offset = window.take_matching(105, 2, 10**6, TagFilter("1"))
    assert (offsets(data), next_offset) == ([105, 107], 108)


def test_a_tag_whose_hash_collides_is_sorted_out_by_the_record() -> None:
    window = tagged(["Aa", "BB"])
    assert offsets(window.take_matching(100, 9, 10**6, TagFilter("BB"))[0]) == [101]


def test_bytes_limit_a_filtered_page_too() -> None:
    window = tagged(["a"] * 6)
    size = len(window.data) // 6
    assert window.take_matching(100, 32, 2 * size, TagFilter("a"))[1:] == (2, 102)
    assert window.take_matching(100, 32, 1, TagFilter("a"))[1:] == (1, 101)


def test_an_ext_address_is_no_tag_so_the_record_decides() -> None:
    run = Run.of([Mail(tag="paid"), Mail(tag="open")], 100, 0)
    units = b"".join(UNIT.pack(place, size, ext_address(40)) for place, size, _ in UNIT.iter_unpack(run.units))
    window = Window(100, units, run.data, 0)
    assert offsets(window.take_matching(100, 9, 10**6, TagFilter("open"))[0]) == [101]


@pytest.mark.parametrize(
    "some",
    [
        [Mail(born_host="[fe80::1]:7", store_host="[fe80::2]:9", store_ms=55), Mail(store_ms=56)],
        [Mail(store_host="[fe80::2]:9", store_ms=55), Mail(born_host="[fe80::1]:7", store_ms=56)],
    ],
)
def test_bug_11_store_times_are_found_behind_hosts_of_either_shape(some: list[Mail]) -> None:
    window = window_of(some)
    assert window.is_plain
    assert [window.store_time_of(100), window.store_time_of(101)] == [55, 56]
    assert window.store_time_of(99) == window.store_time_of(102) == -1


def test_records_of_long_topics_are_served_as_any() -> None:
    topic = "t" * 200
    run = Run.of(mails(3), 0, 0, topic)
    window = Window(0, run.units, run.data, 0)
    assert window.is_plain
    assert [message.topic for message in decode_records(window.take(0, 9, 10**6)[0])] == [topic] * 3


def test_the_first_message_from_a_time_on_is_found_by_halving() -> None:
    window = window_of([Mail(store_ms=ms) for ms in (100, 200, 200, 200, 300)], first=7)
    found = {ms: window.first_stored_from(ms) for ms in (50, 100, 150, 200, 201, 300, 301)}
    assert found == {50: 7, 100: 7, 150: 8, 200: 8, 201: 11, 300: 11, 301: 12}
    assert window.last_stored_before(11) == (10, 200)
    assert window.last_stored_before(12) == (11, 300)
    assert window.last_stored_before(7) is None


def test_times_of_a_damaged_window_are_those_of_its_good_messages() -> None:
    window = damaged(window_of([Mail(store_ms=ms) for ms in (100, 200, 200, 200, 300)], first=7), 1, 4)
    assert [window.first_stored_from(ms) for ms in (100, 150, 250)] == [7, 9, 12]
    assert window.last_stored_before(9) == (7, 100)
    assert window.last_stored_before(7) is None
    assert window.store_time_of(8) == -1
    assert window.store_time_of(9) == 200


def test_a_window_weighs_its_bytes_and_what_surrounds_them() -> None:
    plain = window_of(mails(10))
    assert plain.weight == len(plain.units) + len(plain.data) + OVERHEAD_BYTES
    broken = damaged(plain, 3)
    assert broken.weight == plain.weight + 9 * UNIT_VALUE_BYTES
    place = broken.good_units[0]  # type: ignore[index]
    assert sys.getsizeof(place) + sum(map(sys.getsizeof, place)) <= UNIT_VALUE_BYTES


def test_a_window_also_weighs_the_memory_that_its_views_keep_but_do_not_show() -> None:
    run = Run.of(mails(10), 0, 0)
    block = memoryview(bytearray(run.data) + bytearray(500))
    assert Window(0, run.units, block[: len(run.data)], 0).weight == Window(0, run.units, run.data, 0).weight + 500


def test_units_of_an_odd_length_count_as_whole_units_only() -> None:
    run = Run.of(mails(2), 0, 0)
    assert Window(0, run.units[: UNIT_BYTES * 2], run.data, 0).count == 2
