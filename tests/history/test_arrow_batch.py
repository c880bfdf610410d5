"""Runs of records to Arrow batches: every column against the reference decoder, in both forms of the kernel."""

from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from golden import reading
from kernel.kernel_world import KERNELS
from kernel.record_runs import Run, runs
from tiermq.errors import CorruptRecord, UnknownColumn
from tiermq.history import arrow_batch
from tiermq.history.arrow_batch import DELAYS_MS, OnCorrupt, constant, decode_run
from tiermq.history.arrow_schema import ALIASES, COLUMNS, arrow_schema
from tiermq.history.scan_values import RecordRun, ScanRequest, Side
from tiermq.message.java_hash import tags_code
from tiermq.message.properties import decode_properties
from tiermq.message.record import CrcPropertyCheck, decode_record
from tiermq.tier.names import QueueKey

EVERYTHING = [*COLUMNS, *ALIASES]
WHOLE = ScanRequest()
TIME_MS_MAX = (2**63 - 1) // 1000


@pytest.fixture(params=KERNELS)
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: ModuleType = request.param
    monkeypatch.setattr(arrow_batch, "decode_columns", kernel.decode_columns)


both_kernels = pytest.mark.usefixtures("_kernel")
with_fixture = settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def record_run(run: Run, side: Side = Side.HOT, first_offset: int | None = None) -> RecordRun:
    key = QueueKey("c", "broker-x", run.topic, run.queue_id)
    return RecordRun(key, side, bytes(run.buffer), run.starts, run.sizes, run.log_base, "segment-1", first_offset)


def rows_of(run: RecordRun, columns: list[str] = EVERYTHING, request: ScanRequest = WHOLE, **options: Any) -> list[Any]:
    rows: list[Any] = []
    for batch in decode_run(run, columns, request, **options):
        batch.validate(full=True)
        assert batch.schema.equals(arrow_schema(columns), check_metadata=True)
        assert batch.num_rows > 0
        rows += plain_times(batch).to_pylist()
    return rows


def plain_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times as microseconds: Python's own reach from year 1 to 9999 only."""
    arrays = [array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def microseconds(time_ms: int | None) -> int | None:
    return None if time_ms is None or abs(time_ms) > TIME_MS_MAX else time_ms * 1000


def due_ms(properties: dict[str, str], store_ms: int) -> int | None:
    def number(name: str) -> int | None:
        text = properties.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None

    level = number("DELAY") or 0
    candidates = [
        number("TIMER_OUT_MS"),
        None if number("TIMER_DELAY_SEC") is None else store_ms + 1000 * int(properties["TIMER_DELAY_SEC"]),
        None if number("TIMER_DELAY_MS") is None else store_ms + int(properties["TIMER_DELAY_MS"]),
        number("TIMER_DELIVER_MS"),
        store_ms + DELAYS_MS[min(level, len(DELAYS_MS)) - 1] if level else None,
    ]
    return next((value for value in candidates if value is not None), None)


def expected_row(record: bytes, side: Side, key: QueueKey, log_offset: int) -> dict[str, Any]:
    """The row of one record by the reference decoder; only its places when it is damaged."""
    row: dict[str, Any] = dict.fromkeys(EVERYTHING)
    row |= {"topic": key.topic, "brokerName": key.broker, "queueId": key.queue_id, "partition": key.queue_id}
    row |= {"tier": side.value, "segment": "segment-1", "commitLogOffset": log_offset, "timestampType": 1}
    check = CrcPropertyCheck.IF_PRESENT if side is Side.HOT else CrcPropertyCheck.IGNORE
    message = decode_record(record, check_crc=False)
    row["queueOffset"] = row["offset"] = message.queue_offset
    row["recordId"] = f"{key.broker}/{key.topic}/{key.queue_id}/{message.queue_offset}"
    try:
        decode_record(record, crc_property=check)
        body = message.decompressed_body()
    except CorruptRecord:
        row["_corrupt"] = "damaged"
        return row
    properties = decode_properties(message.encoded_properties, errors="replace")
    state = message.transaction_type.name.lower()
    unique = properties.get("UNIQ_KEY")
    store_us = microseconds(message.store_timestamp_ms)
    headers = [{"key": name, "value": value.encode()} for name, value in properties.items()]
    return row | {
        "tags": properties.get("TAGS"),
        "keys": [key for key in properties.get("KEYS", "").split(" ") if key],
        "key": properties["KEYS"].encode() if "KEYS" in properties else None,
        "uniqKey": unique,
        "body": body,
        "value": body,
        "properties": list(properties.items()),
        "headers": headers,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": microseconds(message.born_timestamp_ms),
        "bornHost": message.born_host,
        "storeTimestamp": store_us,
        "timestamp": store_us,
        "storeHost": message.store_host,
        "msgId": unique or row["recordId"],
        "offsetMsgId": message.message_id if side is Side.HOT else None,
        "tagsCode": tags_code(properties.get("TAGS")),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCrc": message.body_crc,
        "storeSize": message.size,
        "deliverTime": microseconds(due_ms(properties, message.store_timestamp_ms)),
        "transactionState": None if state == "none" else state,
    }


def expected_rows(run: RecordRun) -> list[dict[str, Any]]:
    pieces = zip(run.starts, run.sizes, strict=True)
    return [
        expected_row(bytes(run.buffer[start : start + size]), run.side, run.queue, run.log_base + start)
        for start, size in pieces
    ]


def without_words(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "_corrupt": row["_corrupt"] and "damaged"} for row in rows]


@both_kernels
@with_fixture
@given(runs, st.sampled_from(Side), st.sampled_from([1, 3, 8192]))
def test_every_column_reports_what_the_reference_decoder_reports(run: Run, side: Side, max_rows: int) -> None:
    found = record_run(run, side)
    assert without_words(rows_of(found, max_rows=max_rows)) == expected_rows(found)


@both_kernels
@with_fixture
@given(runs, st.sets(st.sampled_from(EVERYTHING), min_size=1).map(sorted))
def test_a_column_is_the_same_whatever_others_are_asked_for(run: Run, columns: list[str]) -> None:
    found = record_run(run)
    # A damaged stream shows only when the body is decompressed.
    decompress = bool({"body", "value"} & set(columns))
    every = rows_of(found, EVERYTHING, decompress=decompress)
    few = rows_of(found, columns, decompress=decompress)
    assert few == [{name: row[name] for name in columns} for row in every]


@both_kernels
@with_fixture
@given(runs, st.data())
def test_damaged_bytes_never_pass_for_another_message(run: Run, data: st.DataObject) -> None:
    if not run.buffer:
        return
    sound = without_words(expected_rows(record_run(run)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(run.buffer) - 1))
        run.buffer[at] ^= data.draw(st.integers(1, 255))
    found = record_run(run, first_offset=0)
    rows = rows_of(found)
    assert [row["commitLogOffset"] for row in rows] == [row["commitLogOffset"] for row in sound]
    assert [row["queueOffset"] for row in rows] == list(range(len(sound)))
    for number, (row, before) in enumerate(zip(rows, sound, strict=True)):
        if row["_corrupt"] is not None:
            kept = {name for name, value in row.items() if value is not None}
            assert kept == {"topic", "brokerName", "queueId", "partition", "queueOffset", "offset", "commitLogOffset",
                            "tier", "segment", "timestampType", "recordId", "_corrupt"}  # fmt: skip
        elif before["_corrupt"] is None and "body" in row:
            # What the checksum covers is what was sent; other fields are what the bytes say now.
            assert row == expected_row(run.record(number), found.side, found.queue, found.log_base + run.starts[number])
            assert row["body"] == before["body"] or row["bodyCrc"] != before["bodyCrc"] or changed_frame(row, before)


def changed_frame(row: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether another SYSFLAG says that the same bytes are to be read otherwise."""
    return bool(row["sysFlag"] != before["sysFlag"])


@both_kernels
@pytest.mark.parametrize("name", reading.ALL_NAMES)
def test_every_message_that_rocketmq_stored_becomes_its_row(name: str) -> None:
    queues: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for physical, record in reading.golden(name).records.items():
        message = decode_record(record)
        queues.setdefault((message.topic, message.queue_id), []).append((physical, record))
    assert queues
    for (topic, queue_id), records in queues.items():
        base = records[0][0]
        data = bytearray(records[-1][0] - base + len(records[-1][1]))
        for physical, record in records:
            data[physical - base : physical - base + len(record)] = record
        starts = array("q", [physical - base for physical, _ in records])
        sizes = array("q", [len(record) for _, record in records])
        key = QueueKey("DefaultCluster", "broker-a", topic, queue_id)
        run = RecordRun(key, Side.HOT, memoryview(data), starts, sizes, base, "segment-1")
        rows = rows_of(run)
        assert rows == expected_rows(run)
        assert [row["_corrupt"] for row in rows] == [None] * len(records)


def small_run(count: int = 3, **fields: Any) -> Run:
    return Run("T", 1, [{"body": b"body-%d" % number, "properties": b"", **fields} for number in range(count)])


@both_kernels
def test_a_damaged_record_is_an_error_where_asked_for() -> None:
    run = small_run()
    run.buffer[run.starts[1] + 90] ^= 1
    batches = decode_run(record_run(run), ["body"], WHOLE, on_corrupt=OnCorrupt.RAISE)
    with pytest.raises(
        CorruptRecord,
        match=rf"topic 'T', queue 1, hot segment 'segment-1': record at log offset {run.log_base + run.starts[1]}",
    ):
        list(batches)


@both_kernels
def test_a_damaged_record_reports_why() -> None:
    run = small_run()
    run.buffer[run.starts[1] + 90] ^= 1
    run.buffer[run.starts[2] + 4] ^= 1
    reasons = [row["_corrupt"] for row in rows_of(record_run(run), ["_corrupt"])]
    place = run.log_base
    assert reasons[0] is None
    assert reasons[1].startswith(f"record at log offset {place + run.starts[1]}: body CRC: the record has ")
    assert reasons[2].startswith(f"record at log offset {place + run.starts[2]}: expected the magic of a record")


@both_kernels
def test_a_record_of_another_queue_or_place_is_damage() -> None:
    run = small_run(2)
    elsewhere = record_run(run)
    elsewhere.log_base += 1
    assert all("its own physical offset is" in row["_corrupt"] for row in rows_of(elsewhere, ["_corrupt"]))
    other = record_run(run)
    other.queue = QueueKey("c", "b", "T", 2)
    assert all("it is of topic 'T', queue 1" in row["_corrupt"] for row in rows_of(other, ["_corrupt"]))
    shifted = record_run(run, first_offset=5)
    rows = rows_of(shifted, ["_corrupt", "queueOffset"])
    assert [row["queueOffset"] for row in rows] == [5, 6]
    assert "expected queue offset 5, found 0" in rows[0]["_corrupt"]


@both_kernels
def test_checksums_can_be_left_alone() -> None:
    run = small_run(1)
    run.buffer[90] ^= 1
    (row,) = rows_of(record_run(run), ["body", "_corrupt"], check_crc=False)
    assert (row["body"][:2], row["body"][3:], row["_corrupt"]) == (b"bo", b"y-0", None)


@both_kernels
@pytest.mark.parametrize("side", Side)
def test_without_bodies_the_column_is_null_and_their_bytes_are_not_read(side: Side) -> None:
    run = small_run(2, body=b"x" * 500, sys_flag=1, crc_property=True)
    for start in run.starts:
        run.buffer[start + 88 : start + 88 + 500] = bytes(500)  # As a reader leaves it that skips bodies.
    columns = ["body", "value", "queueOffset", "_corrupt"]
    found = record_run(run, side)
    assert all(row["_corrupt"] for row in rows_of(found, columns, ScanRequest(include_body=False)))
    found.has_bodies = False
    for request in (ScanRequest(include_body=False), WHOLE):
        rows = rows_of(found, columns, request)
        assert rows == [{"body": None, "value": None, "queueOffset": n, "_corrupt": None} for n in range(2)]


@both_kernels
def test_light_queues_of_rocketmq_give_the_messages_that_they_share_with_their_own_numbers() -> None:
    found: dict[str, list[int]] = {}
    for physical, record in reading.golden("rocketmq-5.3.3-light-queues").records.items():
        properties = decode_record(record).properties
        if "INNER_MULTI_DISPATCH" not in properties:
            continue
        numbers = properties["INNER_MULTI_QUEUE_OFFSET"].split(",")
        for name, number in zip(properties["INNER_MULTI_DISPATCH"].split(","), numbers, strict=True):
            key = QueueKey("c", "b", name, 0)
            run = RecordRun(
                key, Side.HOT, record, array("q", [0]), array("q", [len(record)]), physical, "s", int(number)
            )
            (row,) = rows_of(run, ["topic", "queueOffset", "body", "_corrupt"])
            body = decode_record(record).decompressed_body()
            assert row == {"topic": name, "queueOffset": int(number), "body": body, "_corrupt": None}
            found.setdefault(name, []).append(int(number))
    assert found
    assert all(numbers == list(range(len(numbers))) for numbers in found.values())


@both_kernels
def test_places_may_be_numpy_arrays_of_any_integers() -> None:
    run = record_run(small_run(4))
    run.starts, run.sizes = np.array(run.starts, dtype=">i8")[::2], np.array(run.sizes, dtype=np.int32)[::2]
    assert [row["queueOffset"] for row in rows_of(run, ["queueOffset"])] == [0, 2]


@both_kernels
def test_only_wanted_messages_are_given_and_no_batch_is_empty() -> None:
    run = small_run(100)
    request = ScanRequest(tags=frozenset(["none"]))
    assert list(decode_run(record_run(run), ["body"], request)) == []
    assert [batch.num_rows for batch in decode_run(record_run(run), ["body"], WHOLE, max_rows=40)] == [40, 40, 20]
    assert [batch.num_rows for batch in decode_run(record_run(run), [], WHOLE, max_rows=60)] == [60, 40]


def test_what_cannot_be_asked_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UnknownColumn, match="did you mean 'body'"):
        decode_run(record_run(small_run()), ["bodi"], WHOLE)
    with pytest.raises(ValueError, match="a batch must hold one row: max_rows is 0"):
        list(decode_run(record_run(small_run()), ["body"], WHOLE, max_rows=0))


def test_times_are_moments_in_utc() -> None:
    run = small_run(1, store_timestamp_ms=1_700_000_000_123)
    (batch,) = decode_run(record_run(run), ["storeTimestamp"], WHOLE)
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC) + timedelta(milliseconds=123)
    assert batch.to_pylist() == [{"storeTimestamp": moment}]


def test_constant_columns_share_their_memory_between_batches() -> None:
    batches = list(decode_run(record_run(small_run(7)), ["topic", "queueId", "_corrupt"], WHOLE, max_rows=4))
    assert [batch.num_rows for batch in batches] == [4, 3]
    for column in range(3):
        # The last buffer has the values; that of nulls may be none.
        assert len({batch.column(column).buffers()[-1].address for batch in batches}) == 1


@pytest.mark.parametrize("rows", [1, 2, 3, 8191, 8192, 8193])
def test_a_constant_column_has_exactly_its_rows(rows: int) -> None:
    assert constant("x", pa.string(), rows).to_pylist() == ["x"] * rows
    assert constant(7, pa.int32(), rows).to_pylist() == [7] * rows
    nothing = constant(None, pa.string(), rows)
    assert (len(nothing), nothing.null_count) == (rows, rows)
