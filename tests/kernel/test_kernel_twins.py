"""The two kernels against each other: the same messages give the same bytes, results, units, entries and pages."""

from __future__ import annotations

import inspect
import random
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from kernel.kernel_world import COMPILED, KERNELS, World, message_in, needs_both, values_of
from present import present
from tiermq.kernel import pure
from tiermq.message.crc import verify_crc_property
from tiermq.message.properties import encode_properties
from tiermq.message.record import decode_record, encode_record

HOST = "127.0.0.1:10911"
text = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), max_size=12)
names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "x", "KEY", "TAGSX"])
encoded = st.one_of(
    st.dictionaries(names, text.filter(bool), max_size=4).map(encode_properties),
    st.lists(st.tuples(names, text), max_size=5).map(  # With duplicates, empty values and a missing last separator.
        lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
    ),
    st.binary(max_size=20).filter(lambda data: b"INNER_" not in data and b"__CRC32#" not in data and 0 not in data),
    st.integers(1, 90).map(lambda count: encode_properties({"KEYS": " ".join(f"k{n}" for n in range(count))})),
)
messages = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "Other", "%RETRY%" + "g" * 200]),
        "body": st.one_of(st.binary(max_size=60), st.binary(min_size=1000, max_size=1100)),
        "queue_id": st.sampled_from([0, 1, 2**31 - 1]),
        "encoded_properties": encoded,
        "flag": st.integers(-(2**31), 2**31 - 1),
        "sys_flag": st.integers(-(2**31), 2**31 - 1).map(lambda bits: bits & ~0x80),
        "born_timestamp_ms": st.sampled_from([0, 1, 2**62, -5]),
        "born_host": st.sampled_from(["1.2.3.4:5", "[2001:db8::1]:6", ""]).map(lambda host: host or b""),
        "reconsume_times": st.integers(-(2**31), 2**31 - 1),
        "prepared_transaction_offset": st.integers(-(2**63), 2**63 - 1),
    }
)
worlds = st.fixed_dictionaries(
    {
        "host": st.sampled_from([HOST, "[::1]:10911"]),
        "crc_property": st.booleans(),
        "max_body_bytes": st.sampled_from([1050, 4194304]),
    }
)


def both(options: dict[str, Any]) -> tuple[World, World]:
    return World(pure, **options), World(COMPILED, **options)


def put_one_by_one(world: World, batch: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    found = []
    for fields in batch:
        world.now += 700
        found.append(values_of(world.appender.put(message_in(world.kernel, fields))))
    return found


def state_of(world: World) -> tuple[Any, ...]:
    """Everything that a kernel left behind."""
    return (
        world.log(),
        [(tail.base, tail.position, tail.limit) for tail in world.tails],
        sorted((h.topic, h.queue_id, h.next_offset, h.puts, h.stored_bytes) for h in world.appender.handles()),
        (world.appender.puts, world.appender.stored_bytes, world.appender.last_store_timestamp_ms),
        world.refusals,
    )


def built_by(world: World) -> tuple[Any, ...]:
    """Everything that dispatch left behind."""
    return (
        bytes(world.index_buffer),
        {name: (bytes(units), queue.tail.position, queue.max_physical_offset, queue.last_store_timestamp_ms)
         for name, (units, queue) in world.queues.items()},
    )  # fmt: skip


@needs_both
@settings(max_examples=60)
@given(worlds, st.lists(messages, max_size=12))
def test_both_kernels_store_the_same_bytes_and_say_the_same(
    options: dict[str, Any], batch: list[dict[str, Any]]
) -> None:
    one, other = both(options)
    assert put_one_by_one(one, batch) == put_one_by_one(other, batch)
    assert state_of(one) == state_of(other)


@needs_both
@settings(max_examples=40)
@given(worlds, st.lists(messages, max_size=12))
def test_both_kernels_put_many_alike(options: dict[str, Any], batch: list[dict[str, Any]]) -> None:
    found: list[tuple[object, ...]] = []
    for world in both(options):
        results = world.appender.put_many([message_in(world.kernel, fields) for fields in batch])
        others = {at: values_of(result) for at, result in results.others_by_index.items()}
        found.append(([values_of(result) for result in results], others, state_of(world)))
        found.append((len(results), results.all_ok, results.end_offset, results.store_timestamp_ms))
    assert found[:2] == found[2:]


@needs_both
@settings(max_examples=40)
@given(worlds, st.lists(messages, max_size=6))
def test_both_kernels_put_together_alike(options: dict[str, Any], batch: list[dict[str, Any]]) -> None:
    found = []
    for world in both(options):
        world.roll()
        world.bind("T", 0)
        group = [message_in(world.kernel, {**fields, "topic": "T", "queue_id": 0}) for fields in batch]
        outcome = world.appender.put_together(group)
        refused = outcome.name if isinstance(outcome, pure.Refusal) else None
        found.append((refused or [values_of(result) for result in outcome], state_of(world)))
    assert found[0] == found[1]


@needs_both
@settings(max_examples=60)
@given(worlds, st.lists(messages, max_size=12), st.sampled_from([0, 1]))
def test_both_kernels_dispatch_alike(options: dict[str, Any], batch: list[dict[str, Any]], crc_mode: int) -> None:
    one, other = both(options)
    for world in (one, other):
        put_one_by_one(world, batch)
    assert one.dispatch(crc_mode)[-1:] == other.dispatch(crc_mode)[-1:]
    assert built_by(one) == built_by(other)


@needs_both
@settings(max_examples=40)
@given(
    st.lists(messages, min_size=1, max_size=12),
    st.integers(-2, 40),
    st.integers(-1, 40),
    st.sampled_from([100, 150, 1200, 10**6]),
    st.tuples(*[st.sampled_from([1, 3, 200, 10**6])] * 6),
)
def test_both_kernels_read_pages_alike(
    batch: list[dict[str, Any]], offset: int, max_messages: int, max_bytes: int, limits: tuple[int, ...]
) -> None:
    pages = []
    for world in both({}):
        put_one_by_one(world, [{**fields, "topic": "T", "queue_id": 0} for fields in batch])
        world.dispatch()
        queue = world.queues.get(("T", 0))
        views = [] if queue is None else [queue[1].tail]
        segments = world.kernel.Segments(views, 20 * 400)
        page = world.kernel.read_page(
            segments, 0, offset, world.segments(), max_messages, max_bytes, world.kernel.TransferLimits(*limits)
        )
        pages.append(
            (
                page.status,
                page.next_offset,
                page.min_offset,
                page.max_offset,
                page.data,
                page.count,
                page.suggest_slave,
                repr(page),
            )
        )
    assert pages[0] == pages[1]


def scans_of(world: World, crc_mode: int) -> list[tuple[Any, ...]]:
    found = [world.kernel.scan(tail, 0, 4096, crc_mode) for tail in world.tails]
    return [(position, stop.name, *rest) for position, stop, *rest in found]


@needs_both
@examples(50)
@given(st.lists(messages, min_size=1, max_size=8), st.data(), st.sampled_from([0, 1, 2]), st.booleans())
def test_both_kernels_stop_at_the_same_damage(
    batch: list[dict[str, Any]], data: st.DataObject, crc_mode: int, crc_property: bool
) -> None:
    one, other = both({"crc_property": crc_property})
    for world in (one, other):
        put_one_by_one(world, batch)
    if not one.tails:
        return
    file = data.draw(st.integers(0, len(one.tails) - 1))
    end = max(1, one.tails[file].position)
    for _ in range(data.draw(st.integers(0, 3))):
        at, value = data.draw(st.integers(0, min(end, 4096) - 1)), data.draw(st.integers(0, 255))
        for world in (one, other):
            world.buffers[file][at] = value
    assert scans_of(one, crc_mode) == scans_of(other, crc_mode)
    assert one.dispatch(crc_mode)[-1:] == other.dispatch(crc_mode)[-1:]
    assert built_by(one) == built_by(other)


@settings(max_examples=40)
@given(worlds, messages)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_record_is_the_one_that_the_message_room_encodes(
    kernel: ModuleType, options: dict[str, Any], fields: dict[str, Any]
) -> None:
    world = World(kernel, **options)
    result = world.appender.put(message_in(kernel, fields))
    if not result.ok:
        assert len(fields["body"]) > options["max_body_bytes"]
        return
    expected = encode_record(
        topic=fields["topic"],
        body=fields["body"],
        queue_id=fields["queue_id"],
        flag=fields["flag"],
        queue_offset=0,
        physical_offset=0,
        sys_flag=fields["sys_flag"],
        born_timestamp_ms=fields["born_timestamp_ms"] or result.store_timestamp_ms,
        born_host=fields["born_host"] or options["host"],
        store_timestamp_ms=result.store_timestamp_ms,
        store_host=options["host"],
        reconsume_times=fields["reconsume_times"],
        prepared_transaction_offset=fields["prepared_transaction_offset"],
        properties=fields["encoded_properties"],
        crc_property=options["crc_property"],
    )
    record = world.log()[: result.size]
    assert record == expected
    assert not options["crc_property"] or verify_crc_property(record)


@pytest.mark.parametrize("kernel", KERNELS)
def test_crc32_is_zlib_s_for_every_small_size(kernel: ModuleType) -> None:
    source = random.Random(7).randbytes(2_700)
    for size in range(2_701):  # Past where long bodies are folded in wider steps.
        assert kernel.crc32(source[:size]) == zlib.crc32(source[:size])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [16_383, 16_384, 16_385, 40_000, 65_536, 65_599])
def test_long_bodies_are_stored_as_they_are_wherever_they_begin(kernel: ModuleType, size: int) -> None:
    body = random.Random(size).randbytes(size)
    world = World(kernel, file_size=1 << 20)
    world.roll()
    for shift in range(5):
        world.bind("T" * (1 + 13 * shift), 0)  # Of another length, so that bodies begin at other places of a line.
        result = world.appender.put(kernel.Message("T" * (1 + 13 * shift), body))
        at = result.physical_offset
        message = decode_record(world.log()[at : at + result.size])  # Compares the CRC.
        assert message.body == body


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.binary(max_size=300), st.integers(0, 64))
def test_crc32_is_zlib_s_at_every_alignment(kernel: ModuleType, data: bytes, shift: int) -> None:
    padded = memoryview(bytes(shift) + data)
    assert kernel.crc32(padded[shift:]) == zlib.crc32(data)
    assert kernel.crc32(bytearray(data)) == zlib.crc32(data)


@needs_both
def test_both_kernels_export_the_same_names() -> None:
    assert COMPILED is not None
    assert sorted(pure.__all__) == sorted(present(COMPILED).__all__)


NATIVE = Path(__file__).resolve().parents[2] / "native"


def shape(thing: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults of parameters; the compiled form cannot tell the types."""
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.name != "self"
    ]


@needs_both
def test_both_kernels_have_the_same_names() -> None:
    assert sorted(pure.__all__) == sorted(present(COMPILED).__all__)


@needs_both
@pytest.mark.parametrize("name", [name for name in pure.__all__ if callable(getattr(pure, name)) and name != "crc32"])
def test_both_kernels_have_the_same_signatures(name: str) -> None:
    ours, theirs = getattr(pure, name), getattr(COMPILED, name)
    if not inspect.isclass(ours):
        assert shape(ours) == shape(theirs)
        return
    # What the pure classes offer each other beyond this is C functions in the compiled form.
    methods = [each for each in vars(theirs) if not each.startswith("_") and callable(getattr(theirs, each))]
    assert {each: shape(getattr(ours, each)) for each in methods} == {
        each: shape(getattr(theirs, each)) for each in methods
    }


@needs_both
@pytest.mark.parametrize("name", ["Message", "PutResult"])
def test_help_shows_what_users_make_and_get(name: str) -> None:
    ours, theirs = getattr(pure, name), getattr(COMPILED, name)
    assert shape(ours) == shape(theirs)
    assert ours.__doc__.split("\n")[0] == theirs.__doc__.split("\n")[0]


def test_each_compiled_topic_has_a_pure_module_of_its_name() -> None:
    pure_names = {path.stem for path in (NATIVE.parent / "src" / "tiermq" / "kernel").glob("*.py")}
    topics = {path.stem for path in NATIVE.glob("*.pxi")}
    assert topics
    assert topics <= pure_names
