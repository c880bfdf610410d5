"""What the index gets of each record of a batch."""

from __future__ import annotations

import struct

from tiermq.message import encode_record
from tiermq.tier.index.index_request import IndexRequest, index_requests
from tiermq.tier.queue.records import RecordBatch

UNIT = struct.Struct(">qiq")
LOG_OFFSET = 5000


def batch_of(*properties: dict[str, str]) -> RecordBatch:
    data, units = b"", b""
    for number, named in enumerate(properties):
        record = encode_record(
            topic="T", body=b"b" * number, queue_id=3, flag=0, queue_offset=number, sys_flag=0, born_timestamp_ms=1,
            physical_offset=LOG_OFFSET + len(data), born_host="[::1]:1" if number % 2 else "127.0.0.1:1",
            store_timestamp_ms=1000 + number, store_host="127.0.0.1:2", reconsume_times=0,
            prepared_transaction_offset=0, properties=named,
        )  # fmt: skip
        units += UNIT.pack(LOG_OFFSET + len(data), len(record), 0)
        data += record
    return RecordBatch.of_bytes(data, units, 0)


def test_each_record_is_requested_with_its_keys_its_offset_and_its_time() -> None:
    batch = batch_of({"KEYS": "a b"}, {"UNIQ_KEY": "u", "KEYS": "c"}, {"UNIQ_KEY": "ü"})
    reported = list(index_requests(batch, "T", 7, 3))
    places = [(place, size) for place, size, _ in UNIT.iter_unpack(batch.units)]
    assert reported == [
        IndexRequest("T", 7, 3, keys, place, size, 1000 + number)
        for number, (keys, (place, size)) in enumerate(zip([("a", "b"), ("u", "c"), ("ü",)], places, strict=True))
    ]


def test_a_record_without_keys_is_requested_too_so_that_coverage_goes_on() -> None:
    assert [request.keys for request in index_requests(batch_of({}, {"TAGS": "x"}), "T", 7, 3)] == [(), ()]


def test_bytes_that_are_no_record_do_not_stop_the_walk() -> None:
    batch = batch_of({"KEYS": "a"}, {"KEYS": "b"}, {"KEYS": "c"})
    (_, first_size, _), (_, second_size, _), _ = UNIT.iter_unpack(batch.units)
    damaged = bytearray(batch.data)
    damaged[first_size : first_size + second_size] = bytes(second_size)
    broken = RecordBatch(bytes(damaged), batch.units, 0, LOG_OFFSET, batch.begin_ms, batch.end_ms)
    assert [request.keys for request in index_requests(broken, "T", 7, 3)] == [("a",), ("c",)]
