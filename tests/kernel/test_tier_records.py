"""What moves messages to a tier and back, in both twins of the kernel."""

from __future__ import annotations

import random
import struct
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiermq.kernel.pure as pure
from tiermq.errors import CorruptRecord
from tiermq.kernel.stop_reasons import Disagreement
from tiermq.message import decode_records, encode_record
from tiermq.message.java_hash import java_hash, key_hash

try:
    import tiermq.kernel.compiled as compiled
except ModuleNotFoundError:
    compiled = None  # type: ignore[assignment]

UNIT = struct.Struct(">qiq")
TWINS = [pytest.param(pure, id="pure")]
if compiled is not None:
    TWINS.append(pytest.param(compiled, id="compiled"))

pytestmark = pytest.mark.parametrize("kernel", TWINS)


def queue_and_log(kernel: ModuleType, bodies: list[bytes], host: str = "127.0.0.1:1") -> tuple[object, object]:
    """A queue of those bodies, spread over several small files of queue and log."""
    log_bytes, unit_bytes = bytearray(), bytearray()
    for number, body in enumerate(bodies):
        record = encode_record(
            topic="T", body=body, queue_id=0, flag=0, queue_offset=number, physical_offset=len(log_bytes), sys_flag=0,
            born_timestamp_ms=1, born_host=host, store_timestamp_ms=1000 + number, store_host="127.0.0.1:2",
            reconsume_times=0, prepared_transaction_offset=0, properties={"KEYS": f"k{number}"},
        )  # fmt: skip
        unit_bytes += UNIT.pack(len(log_bytes), len(record), 7 + number)
        log_bytes += record
    return segments(kernel, unit_bytes, 60), segments(kernel, log_bytes, 1 << 20)


def segments(kernel: ModuleType, data: bytearray, file_size: int) -> object:
    tails = []
    for base in range(0, max(1, len(data)), file_size):
        piece = bytearray(data[base : base + file_size])
        used = len(piece)
        piece += bytes(file_size - used)
        tail = kernel.WriteCursor(piece, base, file_size)
        tail.position = used
        tails.append(tail)
    return kernel.Segments(tails, file_size)


def test_collected_records_carry_their_tier_offsets_and_nothing_else_changes(kernel: ModuleType) -> None:
    bodies = [bytes([65 + n]) * n for n in range(10)]
    queue, log = queue_and_log(kernel, bodies)
    got = kernel.collect_for_tier(queue, log, 2, 100, 1 << 20, 5000)
    messages = list(decode_records(got.data))
    assert (got.count, got.next_offset, got.begin_ms, got.end_ms) == (8, 10, 1002, 1009)
    assert [message.body for message in messages] == bodies[2:]
    assert [message.queue_offset for message in messages] == list(range(2, 10))
    at = 5000
    for message, (place, size, tags) in zip(messages, UNIT.iter_unpack(got.units), strict=True):
        assert (message.physical_offset, place, size, tags) == (at, at, message.size, 7 + message.queue_offset)
        at += size


def test_the_store_time_of_a_record_with_an_ipv6_born_host_is_read_where_it_stands(kernel: ModuleType) -> None:
    queue, log = queue_and_log(kernel, [b"x"], host="[::1]:9")
    assert kernel.collect_for_tier(queue, log, 0, 1, 1, 0).begin_ms == 1000


def test_limits_hold_but_the_first_record_always_goes(kernel: ModuleType) -> None:
    queue, log = queue_and_log(kernel, [b"a" * 500] * 5)
    assert kernel.collect_for_tier(queue, log, 0, 100, 1, 0).count == 1
    assert kernel.collect_for_tier(queue, log, 0, 3, 1 << 20, 0).count == 3
    assert kernel.collect_for_tier(queue, log, 0, 0, 1 << 20, 0).count == 0
    assert kernel.collect_for_tier(queue, log, 5, 10, 1 << 20, 0).count == 0


def test_collection_stops_before_a_record_that_is_not_the_one_its_unit_describes(kernel: ModuleType) -> None:
    queue, _ = queue_and_log(kernel, [b"a" * 50] * 5)
    _, other = queue_and_log(kernel, [b"a" * 50] * 3 + [b"b" * 51] * 2)
    assert kernel.collect_for_tier(queue, other, 0, 10, 1 << 20, 0).count == 3


def test_a_window_is_intact_up_to_its_first_damage(kernel: ModuleType) -> None:
    queue, log = queue_and_log(kernel, [b"hello" * 9] * 6)
    got = kernel.collect_for_tier(queue, log, 0, 100, 1 << 20, 300)
    size = len(got.data) // 6
    assert kernel.check_window(got.units, got.data, 300, 0) == 6
    damaged = bytearray(got.data)
    damaged[3 * size + 95] ^= 1
    assert kernel.check_window(got.units, bytes(damaged), 300, 0) == 3
    assert kernel.check_window(got.units, bytes(damaged), 300, 0, False) == 6
    assert kernel.check_window(got.units, got.data[:-1], 300, 0) == 5
    assert kernel.check_window(got.units, got.data, 301, 0) == 0
    assert kernel.check_window(got.units, got.data, 300, 1) == 0
    assert kernel.check_window(b"", got.data, 300, 0) == 0


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:9"])
def test_a_window_is_intact_up_to_a_record_that_names_another_queue(kernel: ModuleType, host: str) -> None:
    queue, log = queue_and_log(kernel, [b"hello" * 9] * 6, host)
    got = kernel.collect_for_tier(queue, log, 0, 100, 1 << 20, 300)
    size = len(got.data) // 6
    assert kernel.check_window(got.units, got.data, 300, 0, True, b"T", 0) == 6
    assert kernel.check_window(got.units, got.data, 300, 0, True, b"T", 1) == 0
    for other in (b"U", b"TT", b"%", b"t" * 127):
        assert kernel.check_window(got.units, got.data, 300, 0, True, other, 0) == 0
    topic_at = got.data.index(b"hello" * 9) + 45 + 1
    for at in (2 * size + 15, 2 * size + topic_at):  # The last byte of the queue's number, and the topic.
        damaged = bytearray(got.data)
        damaged[at] ^= 4
        assert kernel.check_window(got.units, bytes(damaged), 300, 0) == 6
        assert kernel.check_window(got.units, bytes(damaged), 300, 0, True, b"T", 0) == 2


def open_index(slots: int, items: int, hashes: list[int]) -> bytearray:
    data = bytearray(28 + 8 * slots + 32 * items)
    struct.pack_into(">iqqii", data, 0, -1127939447, 5, 9, len({h % slots for h in hashes}), len(hashes))
    for number, value in enumerate(hashes, 1):
        slot_at = 28 + 8 * (value % slots)
        (previous,) = struct.unpack_from(">i", data, slot_at)
        item = (value, 1, 2, number * 100, 50, number, previous)
        struct.pack_into(">iiiqiii", data, 28 + 8 * slots + 32 * number, *item)
        struct.pack_into(">i", data, slot_at, number)
    return data


def by_chain(data: bytearray, slots: int) -> bytes:
    """The original's way: walk every chain."""
    head, items, position = bytearray(data[:28]), bytearray(), 28 + 8 * slots
    head[:4] = 0xBCC50285.to_bytes(4, "big")
    table = bytearray()
    for slot in range(slots):
        (number,) = struct.unpack_from(">i", data, 28 + 8 * slot)
        start = position
        while number:
            at = 28 + 8 * slots + 32 * number
            items += data[at : at + 28]
            position += 28
            (number,) = struct.unpack_from(">i", data, at + 28)
        table += struct.pack(">ii", start, position - start)
    return bytes(head + table + items)


def test_rearranging_gives_the_bytes_of_a_walk_along_the_chains(kernel: ModuleType) -> None:
    chosen = random.Random(5)
    for slots, items, count in ((1, 10, 9), (7, 50, 0), (7, 50, 1), (50, 300, 299), (1000, 300, 120)):
        data = open_index(slots, items, [chosen.randrange(2**31) for _ in range(count)])
        assert kernel.rearrange_index(data, slots, items) == (by_chain(data, slots) if count else b"")


def test_an_index_file_that_cannot_be_is_refused(kernel: ModuleType) -> None:
    data = open_index(5, 20, [1, 2, 3])
    with pytest.raises(CorruptRecord):
        kernel.rearrange_index(data[:-1], 5, 20)
    struct.pack_into(">i", data, 24, 20)
    with pytest.raises(CorruptRecord):
        kernel.rearrange_index(data, 5, 20)
    negative = open_index(5, 20, [1, 2])
    struct.pack_into(">i", negative, 28 + 8 * 5 + 32, -5)
    with pytest.raises(CorruptRecord):
        kernel.rearrange_index(negative, 5, 20)


def tagged(kernel: ModuleType, tags: list[str | None], tier_offset: int = 300) -> tuple[bytearray, bytearray]:
    """Records of topic T, queue 3, and their units, from queue offset 10 on."""
    data, units = bytearray(), bytearray()
    for number, tag in enumerate(tags):
        place = tier_offset + len(data)
        record = encode_record(
            topic="T", body=b"b" * (number * 9), queue_id=3, flag=0, queue_offset=10 + number, physical_offset=place,
            sys_flag=0, born_timestamp_ms=1, born_host="[::1]:9" if number % 2 else "127.0.0.1:1",
            store_timestamp_ms=1000 - number, store_host="127.0.0.1:2", reconsume_times=0,
            prepared_transaction_offset=0, properties={"KEYS": "k"} if tag is None else {"a": "b", "TAGS": tag},
        )  # fmt: skip
        data += record
        units += UNIT.pack(place, len(record), java_hash(tag) if tag else 0)
    return data, units


def test_records_that_are_all_their_units_promise_are_counted_with_their_times(kernel: ModuleType) -> None:
    data, units = tagged(kernel, ["a", None, "some longer tag of ours", "b"])
    found = kernel.check_records(units, data, 300, 10, b"T", 3)
    assert found == (4, len(data), 997, 1000, Disagreement.END)
    assert kernel.check_records(b"", data, 300, 10, b"T", 3) == (0, 0, 0, 0, Disagreement.END)
    assert kernel.check_records(units, b"", 300, 10, b"T", 3) == (0, 0, 0, 0, Disagreement.ROOM)


@pytest.mark.parametrize(
    ("where", "form", "value", "ended"),
    [
        (("units", 0), ">q", 7, Disagreement.PLACE),
        (("units", 8), ">i", 1 << 20, Disagreement.ROOM),
        (("units", 8), ">i", 5, Disagreement.UNIT),
        (("units", 8), ">i", 91, Disagreement.UNIT),
        (("units", 12), ">q", 1, Disagreement.TAG),
        (("units", 12), ">q", -(1 << 40), Disagreement.END),
        (("data", 4), ">i", 1, Disagreement.RECORD),
        (("data", 12), ">i", 4, Disagreement.OWNER),
        (("data", 20), ">q", 9, Disagreement.UNIT),
        (("data", 28), ">q", 9, Disagreement.RECORD),
        (("data", 101), ">B", 0, Disagreement.RECORD),
    ],
)
def test_the_first_disagreement_is_reported_and_all_before_it_counted(
    kernel: ModuleType, where: tuple[str, int], form: str, value: int, ended: Disagreement
) -> None:
    data, units = tagged(kernel, ["a", "b", "c", "d"])
    second, _, _ = UNIT.unpack_from(units, 20)
    name, at = where
    struct.pack_into(form, *((units, 20 + at) if name == "units" else (data, second - 300 + at)), value)
    found = kernel.check_records(units, data, 300, 10, b"T", 3)
    assert found == (4, len(data), 997, 1000, ended) if ended == 0 else (1, second - 300, 1000, 1000, ended)


def test_another_topic_and_a_tag_beyond_ascii_are_for_others_to_look_at(kernel: ModuleType) -> None:
    data, units = tagged(kernel, ["a", "\u00fc", "c"])
    assert kernel.check_records(units, data, 300, 10, b"T", 3)[::4] == (1, Disagreement.TAG)
    assert kernel.check_records(units, data, 300, 10, b"U", 3)[::4] == (0, Disagreement.OWNER)
    assert kernel.check_records(units, data, 300, 10, b"TT", 3)[::4] == (0, Disagreement.OWNER)


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 20), st.integers(1, 255)), max_size=3))
def test_a_check_of_damaged_records_never_reports_more_than_the_pure_twin(
    kernel: ModuleType, flips: list[tuple[bool, int, int]]
) -> None:
    data, units = tagged(kernel, ["a", None, "tag", "b" * 40, "e"])
    for in_units, at, bits in flips:
        target = units if in_units else data
        target[at % len(target)] ^= bits
    arguments = (bytes(units), bytes(data), 300, 10, b"T", 3)
    assert kernel.check_records(*arguments) == pure.check_records(*arguments)


def test_records_of_a_pull_become_the_same_records_and_units_at_their_tier_offsets(kernel: ModuleType) -> None:
    tags = ["a", None, "some longer tag of ours", "b"]
    pulled, _ = tagged(kernel, tags, 77)
    data, units = tagged(kernel, tags, 300)
    found = kernel.rebase_records(bytes(pulled), 10, 99, 1 << 20, 300, b"T", 3)
    assert (found.data, found.units) == (bytes(data), bytes(units))
    assert (found.count, found.next_offset, found.begin_ms, found.end_ms) == (4, 14, 997, 1000)
    assert not found.has_ext_address
    assert kernel.rebase_records(memoryview(pulled), 10, 2, 1 << 20, 300, b"T", 3).count == 2
    assert kernel.rebase_records(pulled, 10, 99, 1, 300, b"T", 3).count == 1
    assert kernel.rebase_records(b"", 10, 99, 1, 300, b"T", 3).next_offset == 10


def test_records_of_another_queue_offset_or_topic_are_not_taken_from_a_pull(kernel: ModuleType) -> None:
    data, _ = tagged(kernel, ["a", "\u00fc", "c"])
    assert kernel.rebase_records(data, 11, 99, 1 << 20, 0, b"T", 3).count == 0
    assert kernel.rebase_records(data, 10, 99, 1 << 20, 0, b"T", 4).count == 0
    assert kernel.rebase_records(data, 10, 99, 1 << 20, 0, b"U", 3).count == 0
    assert kernel.rebase_records(data[:-1], 10, 99, 1 << 20, 0, b"T", 3).count == 2
    assert kernel.rebase_records(data, 10, 99, 1 << 20, 0, b"T", 3).has_ext_address


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=3))
def test_damaged_records_of_a_pull_end_it_in_both_twins_alike(kernel: ModuleType, flips: list[tuple[int, int]]) -> None:
    data, _ = tagged(kernel, ["a", None, "tag", "b" * 40, "e"])
    for at, bits in flips:
        data[at % len(data)] ^= bits
    found, expected = (twin.rebase_records(bytes(data), 10, 9, 1 << 20, 5, b"T", 3) for twin in (kernel, pure))
    for name in ("data", "units", "count", "next_offset", "begin_ms", "end_ms", "has_ext_address"):
        assert getattr(found, name) == getattr(expected, name)


def indexed(begin_ms: int = 1000) -> tuple[bytearray, bytearray]:
    """Records of topic T, queue 3, with two keys each, and their compacted index items by tier offset."""
    data, items = bytearray(), bytearray()
    for number in range(4):
        place = 300 + len(data)
        record = encode_record(
            topic="T", body=b"b" * number, queue_id=3, flag=0, queue_offset=number, physical_offset=place, sys_flag=0,
            born_timestamp_ms=1, born_host="127.0.0.1:1", store_timestamp_ms=begin_ms + 700 * number,
            store_host="127.0.0.1:2", reconsume_times=0, prepared_transaction_offset=0,
            properties={"UNIQ_KEY": f"u{number}", "KEYS": f"k{number}"},
        )  # fmt: skip
        for key in (f"u{number}", f"k{number}"):
            items += struct.pack(">iiiqii", key_hash(f"T#{key}"), 1, 3, place, len(record), 700 * number // 1000)
        data += record
    return data, items


def test_index_items_that_lead_to_their_messages_are_counted(kernel: ModuleType) -> None:
    data, items = indexed()
    assert kernel.check_index_items(items, data, 300, "T", 3, 1000) == (8, 3100)
    assert kernel.check_index_items(items, data[:-1], 300, "T", 3, 1000) == (6, 2400)
    assert kernel.check_index_items(b"", data, 300, "T", 3, 1000) == (0, 0)
    for topic, queue_id, begin_ms in (("U", 3, 1000), ("T", 4, 1000), ("T", 3, 9000), ("\u00fc", 3, 1000)):
        assert kernel.check_index_items(items, data, 300, topic, queue_id, begin_ms) == (0, 0)


@settings(max_examples=150, deadline=None)
@given(flips=st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 20), st.integers(1, 255)), max_size=3))
def test_a_check_of_damaged_index_items_reports_what_the_pure_twin_reports(
    kernel: ModuleType, flips: list[tuple[bool, int, int]]
) -> None:
    data, items = indexed()
    for in_items, at, bits in flips:
        target = items if in_items else data
        target[at % len(target)] ^= bits
    arguments = (bytes(items), bytes(data), 300, "T", 3, 1000)
    assert kernel.check_index_items(*arguments) == pure.check_index_items(*arguments)
