"""Columns of records: both twins alike, whatever the bytes, and only what was asked for."""

from __future__ import annotations

import random
import struct
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from kernel.kernel_world import COMPILED, KERNELS, needs_both
from kernel.record_runs import ALL_COLUMNS, LOG_BASE, Run, messages, plain, runs
from tiermq.kernel import COLUMN_SHAPES, Check, ColumnRequest, DecodedColumns, Shape, pure
from tiermq.kernel.columns import OWN_PLACES
from tiermq.message.properties import encode_properties
from tiermq.message.record import decode_record

DELAYS_MS = (1000, 5000, 10_000)


def request_for(run: Run, columns: tuple[str, ...] = ALL_COLUMNS, **options: Any) -> ColumnRequest:
    return ColumnRequest(columns, run.topic.encode(), run.queue_id, run.log_base, **{"delays_ms": DELAYS_MS, **options})


def decode(kernel: Any, run: Run, request: ColumnRequest, **limits: int) -> DecodedColumns:
    made: DecodedColumns = kernel.decode_columns(bytes(run.buffer), run.starts, run.sizes, request, **limits)
    return made


def seen(made: DecodedColumns) -> tuple[Any, ...]:
    return made.rows, made.next_index, made.corrupt, plain(made)


def both_alike(run: Run, request: ColumnRequest, **limits: int) -> DecodedColumns:
    one, other = decode(pure, run, request, **limits), decode(COMPILED, run, request, **limits)
    assert seen(one) == seen(other)
    return one


requests = st.fixed_dictionaries(
    {
        "check": st.sampled_from(Check),
        "decompress": st.booleans(),
        "first_offset": st.sampled_from([-1, 0, 1]),
        "begin_ms": st.sampled_from([-(1 << 63), 0, 1_700_000_000_000]),
        "end_ms": st.sampled_from([(1 << 63) - 1, 1_700_000_000_000]),
        "tags": st.sampled_from([(), (), (b"a",), (b"a b", b"1", b"zz"), tuple(b"%d" % n for n in range(100))]),
        "keys": st.sampled_from([(), (), (b"a",), (b"b", b"", b"99"), tuple(b"%d" % n for n in range(100))]),
    }
)


@needs_both
@examples(50)
@given(
    runs,
    requests,
    st.sets(st.sampled_from(ALL_COLUMNS)),
    st.sampled_from([1, 2, 8192]),
    st.sampled_from([1, 90, 1 << 20]),
)
def test_both_kernels_make_the_same_columns(
    run: Run, options: dict[str, Any], columns: set[str], max_rows: int, max_bytes: int
) -> None:
    request = request_for(run, tuple(sorted(columns)), **options)
    first = 0
    while first < len(run.starts):
        made = both_alike(run, request, first=first, max_rows=max_rows, max_bytes=max_bytes)
        assert made.next_index > first
        assert made.rows <= max_rows
        first = made.next_index


@needs_both
@examples(50)
@given(runs, st.data())
def test_both_kernels_see_the_same_damage(run: Run, data: st.DataObject) -> None:
    if not run.buffer:
        return
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(run.buffer) - 1))
        run.buffer[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        number = data.draw(st.integers(0, len(run.starts) - 1))
        run.sizes[number] += data.draw(st.sampled_from([-1, 1, -(1 << 40), 1 << 40]))
        run.starts[number] += data.draw(st.sampled_from([0, 1, -1, 1 << 62, -(1 << 62)]))
    both_alike(run, request_for(run, check=Check.BODY_AND_PROPERTY))


@needs_both
def test_both_kernels_read_bytes_without_sense_alike() -> None:
    chance = random.Random(7)
    magics = [struct.pack(">I", magic) for magic in (0xDAA320A7, 0xDAA320AB, 0xCBD43194, 0)]
    for _ in range(300):
        run = Run("T", 0, [], log_base=0)
        for _ in range(4):
            size = chance.choice([0, 50, 91, 92, 120, 300])
            head = struct.pack(">i", size) + chance.choice(magics) + bytes(20) + struct.pack(">q", len(run.buffer))
            noise = chance.choice([bytes(400), chance.randbytes(400), b"\x00\x00\x00\x01" * 100])
            run.starts.append(len(run.buffer))
            run.sizes.append(size)
            run.buffer += (head + noise)[:size]
        assert both_alike(run, request_for(run)).rows == 4


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_run_is_given_in_pieces_of_at_most_so_many_rows_and_bytes(kernel: ModuleType) -> None:
    run = Run("T", 0, [{"body": b"x" * 100, "properties": b""}] * 10)
    request = request_for(run, ("queueOffset",))
    assert [decode(kernel, run, request, first=at, max_rows=4).next_index for at in (0, 4, 8)] == [4, 8, 10]
    assert decode(kernel, run, request, max_bytes=250).rows == 3
    assert decode(kernel, run, request, max_bytes=1).rows == 1
    assert decode(kernel, run, request, first=10).rows == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_columns_that_were_asked_for_are_made(kernel: ModuleType) -> None:
    run = Run("T", 0, [{"body": b"x", "properties": b""}])
    assert list(decode(kernel, run, request_for(run, ("flag", "body"))).buffers) == ["flag", "body"]
    assert decode(kernel, run, request_for(run, ())).rows == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_arguments_that_cannot_be_are_refused(kernel: ModuleType) -> None:
    request = ColumnRequest(("flag",), b"T", 0)
    with pytest.raises(ValueError, match="found 1 and 2"):
        kernel.decode_columns(b"", array("q", [0]), array("q", [1, 2]), request)
    with pytest.raises(ValueError, match="found -1"):
        kernel.decode_columns(b"", array("q", [0]), array("q", [1]), request, -1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_of_equal_names_the_last_value_counts_in_the_first_place(kernel: ModuleType) -> None:
    run = Run("T", 0, [{"body": b"", "properties": b"a\x011\x02b\x012\x02a\x013\x02\x02c\x01\x02d\x014"}])
    got = plain(decode(kernel, run, request_for(run, ("properties",))))
    assert got["properties"] == [[(b"a", b"3"), (b"b", b"2"), (b"d", b"4")]]


@pytest.mark.parametrize("kernel", KERNELS)
def test_properties_that_fill_their_whole_length_are_all_given(kernel: ModuleType) -> None:
    names = [bytes([1 + 2 + n // 120, 8 + n % 120]) for n in range(6000)]
    encoded = b"".join(name + b"\x01v\x02" for name in names)[:32767]
    run = Run(
        "T", 0, [{"body": b"", "properties": encoded}, {"body": b"", "properties": b"a\x01b\x02" * 8191 + b"a\x01c"}]
    )
    got = plain(decode(kernel, run, request_for(run, ("properties",))))["properties"]
    assert got[0] == list(dict(piece.split(b"\x01") for piece in encoded.split(b"\x02") if len(piece) > 3).items())
    assert got[1] == [(b"a", b"c")]


@pytest.mark.parametrize("kernel", KERNELS)
def test_text_that_is_not_utf_8_is_read_as_java_reads_it(kernel: ModuleType) -> None:
    run = Run("T", 0, [{"body": b"x", "properties": b"TAGS\x01caf\xe9\x02x\x01\xf0\x9f\x98\x80\x02"}])
    got = plain(decode(kernel, run, request_for(run)))
    assert got["tags"] == ["caf\N{REPLACEMENT CHARACTER}".encode()]
    assert got["properties"][0][1] == (b"x", "\N{GRINNING FACE}".encode())


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_light_queue_s_messages_have_its_own_offsets(kernel: ModuleType) -> None:
    shared = encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "7,9"})
    run = Run("parent", 5, [{"body": b"x", "properties": shared}, {"body": b"y", "properties": b""}])
    request = replace(request_for(run, ("queueOffset",)), topic=b"%LMQ%b", queue_id=0)
    made = decode(kernel, run, request)
    assert plain(made)["queueOffset"] == [9, None]
    assert made.corrupt == [
        (1, 1, f"record at log offset {LOG_BASE + run.starts[1]}: it is of topic 'parent', queue 5")
    ]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_OUT_MS": "5", "TIMER_DELIVER_MS": "6"}, 5),
        ({"TIMER_DELIVER_MS": "6"}, 6),
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "3", "TIMER_DELIVER_MS": "6"}, 3000),
        ({"TIMER_DELAY_MS": "3"}, 1003),
        ({"DELAY": "2"}, 6000),
        ({"DELAY": "200"}, 11_000),
        ({"DELAY": "0"}, None),
        ({"DELAY": "-1"}, None),
        ({"TIMER_DELIVER_MS": "soon"}, None),
        ({}, None),
    ],
)
def test_a_delayed_message_reports_when_it_is_due(
    kernel: ModuleType, properties: dict[str, str], due_ms: int | None
) -> None:
    fields = {"body": b"", "properties": encode_properties(properties), "store_timestamp_ms": 1000}
    run = Run("T", 0, [fields])
    got = plain(decode(kernel, run, request_for(run, ("deliverTime",))))["deliverTime"]
    assert got == [None if due_ms is None else due_ms * 1000]


@pytest.mark.parametrize("kernel", KERNELS)
def test_columns_outlive_the_bytes_they_were_read_from(kernel: ModuleType) -> None:
    run = Run("T", 0, [{"body": b"x" * 200, "properties": b""}] * 2000)
    kept = [decode(kernel, run, request_for(run, ("body",))) for _ in range(5)]
    run.buffer[:] = bytes(len(run.buffer))
    assert all(plain(made)["body"] == [b"x" * 200] * 2000 for made in kept)


@pytest.mark.parametrize("kernel", KERNELS)
def test_threads_decode_at_once_without_taking_each_other_s_memory(kernel: ModuleType) -> None:
    batches = [Run("T", 0, [{"body": bytes([65 + n]) * 300, "properties": b"n\x01%d\x02" % n}] * 300) for n in range(4)]

    def work(run: Run) -> bool:
        first = plain(decode(kernel, run, request_for(run)))
        return all(plain(decode(kernel, run, request_for(run))) == first for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, batches)) == [True] * 4


@pytest.mark.parametrize("kernel", KERNELS)
def test_buffers_of_any_kind_are_read(kernel: ModuleType) -> None:
    run = Run("T", 0, [{"body": b"abc", "properties": b""}])
    for buffer in (run.buffer, memoryview(bytes(run.buffer)), memoryview(bytes(run.buffer)).cast("b")):
        made = kernel.decode_columns(buffer, run.starts, run.sizes, request_for(run, ("body",)))
        assert plain(made)["body"] == [b"abc"]


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=30)
@given(message=messages)
def test_a_body_is_given_as_it_was_sent_or_as_it_is_stored(kernel: ModuleType, message: dict[str, Any]) -> None:
    run = Run("T", 0, [message])
    whole = plain(decode(kernel, run, request_for(run, ("body",))))["body"]
    assert whole == [None if message["compression"] == "damaged" else message["body"]]
    stored = plain(decode(kernel, run, request_for(run, ("body", "sysFlag"), decompress=False)))
    assert stored["body"] == [decode_record(run.record(0)).body]


@needs_both
@examples(30)
@given(runs, st.integers(0, 1 << 40))
def test_records_from_anywhere_say_themselves_where_they_lie(run: Run, moved: int) -> None:
    placed = both_alike(run, request_for(run, first_offset=-1, check=Check.BODY))
    apart = replace(request_for(run, first_offset=-1, check=Check.BODY), log_base=OWN_PLACES)
    gathered = both_alike(run, apart)
    if not placed.corrupt:
        assert seen(gathered) == seen(placed)
    elsewhere = replace(apart, log_base=run.log_base + moved + 1)
    assert len(both_alike(run, elsewhere).corrupt) >= len(placed.corrupt)


def test_a_column_that_no_record_has_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match="'bodyy'; there are queueOffset, .*body"):
        ColumnRequest(columns=("flag", "bodyy"), topic=b"T", queue_id=0)


def test_numbers_come_before_strings_and_strings_before_nested_columns() -> None:
    ranks = {Shape.I64: 0, Shape.I32: 1, Shape.TEXT: 2, Shape.BYTES: 2, Shape.LIST: 3, Shape.MAP: 4}
    order = [ranks[shape] for shape in COLUMN_SHAPES.values()]
    assert order == sorted(order)
    assert set(ranks) == set(Shape)


def test_decoded_columns_hold_what_they_were_given() -> None:
    made = DecodedColumns(1, 2, [(0, 1, "why")], {"flag": (None, b"\0\0\0\0")})
    assert (made.rows, made.next_index, made.corrupt, made.buffers["flag"]) == (
        1,
        2,
        [(0, 1, "why")],
        (None, b"\0\0\0\0"),
    )
