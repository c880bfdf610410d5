"""Builder, IndexTail and scan: which records the fast path takes, and that it stops before the others untouched."""

from __future__ import annotations

import struct
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.kernel_world import ENTRIES, KERNELS, SLOTS, World
from tiermq.kernel import pure
from tiermq.message.java_hash import java_hash, key_hash

pytestmark = pytest.mark.parametrize("kernel", KERNELS)


def log_of(kernel: ModuleType, *fields: dict[str, Any]) -> World:
    """A world whose log holds these messages of topic T; its queue has room and is known to the builder."""
    world = World(kernel)
    for each in fields or ({},):
        world.appender.put(kernel.Message(**{"topic": "T", "body": b"x", **each}))
    world._dispatch_slowly(world.tails[0], 0)
    return world


def step(world: World, start: int = 0, **options: Any) -> tuple[int, str]:
    tail = world.tails[0]
    position, stop = world.builder.dispatch(tail, start, tail.position, **options)
    return position, stop.name


def queue_of(world: World) -> Any:
    return world.queues["T", 0][1]


def unit(world: World, number: int) -> tuple[int, int, int]:
    data = world.queues["T", 0][0][20 * number : 20 * number + 20]
    return tuple(int.from_bytes(data[a:b], "big", signed=True) for a, b in ((0, 8), (8, 12), (12, 20)))  # type: ignore[return-value]


def test_units_and_arrivals_of_ordinary_records(kernel: ModuleType) -> None:
    world = log_of(kernel, {"tags": "a"}, {"tags": "bb"}, {})
    end, stop = step(world)
    assert (end, stop) == (world.tails[0].position, "END")
    size = world.appender.record_bytes(kernel.Message("T", b"x", tags="a"))
    assert unit(world, 0) == (0, size, java_hash("a"))
    assert unit(world, 1) == (size, size + 1, java_hash("bb"))
    assert unit(world, 2)[2] == 0
    assert queue_of(world).max_physical_offset == end
    assert [(queue.topic, next_offset) for queue, next_offset in world.builder.take_touched()] == [("T", 3)]
    assert world.builder.take_touched() == []
    assert (world.builder.records, world.builder.last_store_timestamp_ms) == (3, world.now)


@given(data=st.data())
def test_every_key_is_indexed_however_spaces_part_them(kernel: ModuleType, data: st.DataObject) -> None:
    text = data.draw(st.text("ab ", min_size=1, max_size=40))
    world = log_of(kernel, {"encoded_properties": b"KEYS\x01%s\x02" % text.encode()})
    step(world)
    at = 40 + 4 * SLOTS + 20
    keys = [key for key in text.split(" ") if key]
    found = [int.from_bytes(world.index_buffer[at + 20 * n : at + 20 * n + 4], "big") for n in range(len(keys))]
    assert found == [key_hash(f"T#{key}") for key in keys]
    assert max(1, int.from_bytes(world.index_buffer[36:40], "big")) == 1 + len(keys)


def test_a_builder_finds_each_of_many_queues_that_were_added_one_by_one(kernel: ModuleType) -> None:
    world = World(kernel, file_size=1 << 16)
    queues = {}
    for number in range(300):
        topic, queue_id = f"T{number // 4}", number % 4
        queues[topic, queue_id] = kernel.QueueTail(topic, queue_id)
        queues[topic, queue_id].tail = tail = kernel.WriteCursor(bytearray(40), 0, 40)
        tail.limit = 40
        world.builder.add(queues[topic, queue_id])
        world.builder.add(queues[topic, queue_id])
        world.appender.put(kernel.Message(topic, b"x", queue_id))
    replaced = kernel.QueueTail("T0", 0)
    world.builder.add(replaced)
    replaced.tail = queues["T0", 0].tail
    queues["T0", 0] = replaced
    assert step(world) == (world.tails[0].position, "END")
    assert {queue for queue, _ in world.builder.take_touched()} == set(queues.values())
    assert [queue.tail.position for queue in queues.values()] == [20] * 300


def test_a_queue_that_is_not_known_stops_the_walk_before_its_record(kernel: ModuleType) -> None:
    world = log_of(kernel, {}, {"topic": "Other"}, {})
    first = world.appender.record_bytes(kernel.Message("T", b"x"))
    assert step(world) == (first, "SLOW")
    world.builder.remove("T", 0)
    assert step(world) == (0, "SLOW")
    world.builder.clear()
    assert step(world) == (0, "SLOW")


@pytest.mark.parametrize(
    "fields",
    [{"properties": {"INNER_MULTI_DISPATCH": "%LMQ%a"}}, {"tags": "ü"}],
    ids=["multi dispatch", "a tag that is not ASCII"],
)
def test_records_of_the_slow_path_stop_the_walk_with_nothing_done(kernel: ModuleType, fields: dict[str, Any]) -> None:
    world = World(kernel)
    world.roll()
    world.bind("T", 0)
    world.appender.put_expecting(kernel.Message("T", b"x", **fields), 0, 1)
    world._dispatch_slowly(world.tails[0], 0)
    before = bytes(world.index_buffer)
    assert step(world) == (0, "SLOW")
    assert (queue_of(world).tail.position, bytes(world.index_buffer)) == (0, before)


def test_a_full_queue_file_stops_the_walk(kernel: ModuleType) -> None:
    world = log_of(kernel, {}, {})
    queue_of(world).tail.limit = 20
    size = world.appender.record_bytes(kernel.Message("T", b"x"))
    assert step(world) == (size, "SLOW")
    queue_of(world).tail = None
    assert step(world, size) == (size, "SLOW")


def test_a_unit_that_has_another_place_stops_the_walk(kernel: ModuleType) -> None:
    world = log_of(kernel, {}, {})
    queue_of(world).tail.append(bytes(20))
    assert step(world) == (0, "SLOW")


def test_a_record_that_has_its_unit_gets_no_second_one(kernel: ModuleType) -> None:
    world = log_of(kernel, {}, {})
    step(world)
    before = queue_of(world).tail.position
    assert step(world)[1] == "END"
    assert queue_of(world).tail.position == before == 40
    assert len(world.builder.take_touched()) == 1


@pytest.mark.parametrize(("kind", "units", "keys"), [(0, 1, 1), (4, 0, 1), (8, 1, 1), (12, 0, 0)])
def test_transactions(kernel: ModuleType, kind: int, units: int, keys: int) -> None:
    world = log_of(kernel, {"sys_flag": kind, "keys": "k"})
    step(world)
    assert queue_of(world).tail.position == 20 * units
    assert max(1, int.from_bytes(world.index_buffer[36:40], "big")) == 1 + keys


def test_a_budget_ends_the_walk_between_records(kernel: ModuleType) -> None:
    world = log_of(kernel, *[{}] * 5)
    size = world.appender.record_bytes(kernel.Message("T", b"x"))
    assert step(world, budget=1) == (size, "END")
    assert step(world, size, budget=size + 1) == (3 * size, "END")
    assert step(world, 3 * size, budget=0) == (3 * size, "END")


def test_a_walk_stops_at_a_blank_record_and_at_damage(kernel: ModuleType) -> None:
    world = log_of(kernel, {}, {})
    end = world.tails[0].position
    world.roll()
    assert step(world) == (end, "BLANK")
    size = end // 2
    world.buffers[0][size + 88] ^= 1
    assert step(world, 0, crc_mode=1) == (size, "CORRUPT")
    assert step(world, 0, crc_mode=0)[1] == "BLANK"
    world.tails[0].detach()
    assert step(world)[1] == "CORRUPT"


def test_keys_of_a_record_are_indexed_together_or_not_at_all(kernel: ModuleType) -> None:
    world = log_of(kernel, {"keys": ["a", "b"], "properties": {"UNIQ_KEY": "u"}}, {"keys": [f"k{n}" for n in range(9)]})
    world.index.entry_limit = 10
    size = world.appender.record_bytes(kernel.Message("T", b"x", keys=["a", "b"], properties={"UNIQ_KEY": "u"}))
    assert step(world) == (size, "SLOW")
    assert int.from_bytes(world.index_buffer[36:40], "big") == 4
    assert queue_of(world).tail.position == 20
    first_entry = 40 + 4 * SLOTS + 20
    hashes = [int.from_bytes(world.index_buffer[at : at + 4], "big") for at in range(first_entry, first_entry + 60, 20)]
    assert hashes == [key_hash(f"T#{key}") for key in ("u", "a", "b")]


def test_a_record_at_the_end_of_the_index_goes_the_slow_way_and_older_ones_are_not_indexed_again(
    kernel: ModuleType,
) -> None:
    world = log_of(kernel, {"keys": "a"}, {"keys": "b"})
    end, _ = step(world)
    before = bytes(world.index_buffer)
    assert step(world) == (end // 2, "SLOW")
    assert bytes(world.index_buffer) == before


def test_without_an_index_records_are_only_queued(kernel: ModuleType) -> None:
    world = log_of(kernel, {"keys": "a"})
    world.builder.index = None
    assert step(world)[1] == "END"
    assert bytes(world.index_buffer) == bytes(len(world.index_buffer))


def test_a_record_without_keys_needs_no_room_in_the_index(kernel: ModuleType) -> None:
    world = log_of(kernel, {}, {"keys": "a"})
    world.index.entry_limit = 0
    assert step(world) == (world.appender.record_bytes(kernel.Message("T", b"x")), "SLOW")
    assert queue_of(world).tail.position == 20


def test_an_index_tail_puts_what_fits(kernel: ModuleType) -> None:
    buffer = bytearray(40 + 4 * 3 + 20 * 5)
    index = kernel.IndexTail(buffer, 3, 5)
    assert index.put_many(array("i", [1]), array("q", [7]), array("q", [9])) == 0
    index.entry_limit = 5
    hashes, offsets, times = (
        array("i", [1, 4, 2, 1, 9]),
        array("q", [10, 20, 30, 40, 50]),
        array("q", [5000, 6999, 7000, 4000, 1]),
    )
    assert index.put_many(hashes, offsets, times) == 4
    numbers = [int.from_bytes(buffer[at : at + 8], "big") for at in (0, 8, 16, 24)]
    assert numbers == [5000, 4000, 10, 40]
    assert [int.from_bytes(buffer[at : at + 4], "big") for at in (32, 36)] == [2, 5]
    entries = [bytes(buffer[52 + 20 * number : 72 + 20 * number]) for number in range(1, 5)]
    assert [int.from_bytes(entry[12:16], "big") for entry in entries] == [0, 1, 2, 0]
    assert [int.from_bytes(entry[16:20], "big") for entry in entries] == [0, 1, 0, 2]
    index.detach()
    assert index.put_many(array("i", [1]), array("q", [7]), array("q", [9])) == 0


def test_an_index_tail_refuses_a_buffer_that_is_too_small_and_arrays_of_different_length(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="smaller"):
        kernel.IndexTail(bytearray(100), SLOTS, ENTRIES)
    index = kernel.IndexTail(bytearray(40 + 4 + 20 * 3), 1, 3)
    with pytest.raises(ValueError, match="equally long"):
        index.put_many(array("i", [1, 2]), array("q", [1]), array("q", [1]))


def test_a_scan_counts_records_and_reports_the_last(kernel: ModuleType) -> None:
    world = log_of(kernel, {}, {}, {})
    end = world.tails[0].position
    size = end // 3
    position, stop, records, last, last_ms, blank = world.kernel.scan(world.tails[0], 0, end)
    assert (position, stop.name, records, last, last_ms, blank) == (end, "END", 3, 2 * size, world.now, 0)
    position, stop, records, last, _, _ = world.kernel.scan(world.tails[0], 0, 4096)
    assert (position, stop.name, records) == (end, "CORRUPT", 3)
    world.roll()
    assert world.kernel.scan(world.tails[0], 0, 4096)[1].name == "BLANK"
    assert world.kernel.scan(world.tails[0], 0, 4096)[5] == 4096 - end
    assert world.kernel.scan(world.tails[0], 4096, 4096)[1].name == "END"
    world.tails[0].detach()
    assert world.kernel.scan(world.tails[0], 0, 4096)[1].name == "CORRUPT"


UNIT_OF_QUEUE = struct.Struct(">qiq")
some_units = st.lists(
    st.tuples(
        st.integers(-10, 400) | st.sampled_from([0, 2**63 - 1, -(2**63)]),
        st.integers(-5, 60) | st.sampled_from([0x7FFFFFFF, 0x7FFFFFFE, -(2**31)]),
    ),
    max_size=12,
)


@given(some_units, st.integers(0, 300), st.sampled_from([0, 200, 400, 2**63 - 1]), st.integers(0, 19))
def test_the_end_of_a_queues_units_is_found_alike(
    kernel: ModuleType, units: list[tuple[int, int]], previous_end: int, physical_end_max: int, torn: int
) -> None:
    data = b"".join(UNIT_OF_QUEUE.pack(offset, size, 7) for offset, size in units) + bytes(torn)
    expected = pure.scan_units(data, previous_end, physical_end_max)
    assert kernel.scan_units(memoryview(data), previous_end, physical_end_max) == expected
    valid_bytes, end, has_real = expected
    assert valid_bytes % 20 == 0
    assert has_real == (end != previous_end or any(0 < size < 0x7FFFFFFF for _, size in units[: valid_bytes // 20]))


@given(
    st.lists(st.sampled_from([bytes(512), bytes(511), b"x", bytes(200), b"y" * 512]), max_size=9), st.integers(0, 900)
)
def test_the_first_zero_page_is_found_alike(kernel: ModuleType, pieces: list[bytes], start: int) -> None:
    data = b"".join(pieces)
    expected = [at for at in range(0, len(data) - 511, 512) if at >= start and not any(data[at : at + 512])]
    assert kernel.first_zero_page(memoryview(data), start, len(data)) == (expected[0] if expected else -1)


SCHEDULE = "SCHEDULE_TOPIC_XXXX"


@pytest.mark.parametrize(
    ("delay", "due_after_ms"),
    [("1", 1_000), ("2", 5_000), ("3", 7_000), ("99", 7_000), ("999999999", 7_000), ("002", 5_000)],
)
def test_the_unit_of_a_delayed_message_holds_the_time_at_which_it_is_due(
    kernel: ModuleType, delay: str, due_after_ms: int
) -> None:
    world = delayed(kernel, delay)
    assert step(world) == (world.tails[0].position, "END")
    assert tags_code(world, SCHEDULE) == world.now + due_after_ms


@pytest.mark.parametrize("delay", ["0", "x", "1x", "-1", "é"])
def test_the_unit_of_a_schedule_message_without_a_level_holds_its_tag(kernel: ModuleType, delay: str) -> None:
    world = delayed(kernel, delay)
    world.dispatch()
    assert tags_code(world, SCHEDULE) == java_hash("a")


def test_a_level_without_delays_is_due_after_a_second_and_other_topics_keep_their_tags(kernel: ModuleType) -> None:
    world = delayed(kernel, "4", delays_ms=())
    step(world)
    assert tags_code(world, SCHEDULE) == world.now + 1_000
    plain = log_of(kernel, {"properties": {"TAGS": "a", "DELAY": "1"}})
    step(plain)
    assert unit(plain, 0)[2] == java_hash("a")


def delayed(kernel: ModuleType, delay: str, delays_ms: tuple[int, ...] = (1_000, 5_000, 7_000)) -> World:
    """A world with one message of the schedule topic, whose queue is known to the builder."""
    world = World(kernel)
    world.builder = kernel.Builder(delays_ms)
    world.builder.index = world.index
    world.appender.put(kernel.Message(SCHEDULE, b"x", properties={"TAGS": "a", "DELAY": delay}))
    world._dispatch_slowly(world.tails[0], 0)
    return world


def tags_code(world: World, topic: str) -> int:
    return int.from_bytes(world.queues[topic, 0][0][12:20], "big", signed=True)
