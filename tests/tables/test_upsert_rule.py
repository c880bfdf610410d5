"""Which of the writes of a key is the last one."""

from __future__ import annotations

import pyarrow as pa

from tiermq.tables.upsert_rule import last_per_key

COLUMNS = ("storeTimestamp", "queueOffset", "brokerName", "queueId")


def last_of(*writes: tuple[int, int, str, int]) -> tuple[int, int, str, int]:
    """The (store time, queue offset, broker, queue) of the write that a table keeps."""
    rows = pa.table({"key": ["k"] * len(writes), **dict(zip(COLUMNS, zip(*writes, strict=True), strict=True))})
    [found] = last_per_key(rows, "key").to_pylist()
    return found["storeTimestamp"], found["queueOffset"], found["brokerName"], found["queueId"]


def test_the_store_time_decides_before_everything_else() -> None:
    assert last_of((2, 0, "a", 0), (1, 9, "b", 9)) == (2, 0, "a", 0)


def test_at_one_store_time_the_queue_offset_decides_before_the_broker() -> None:
    assert last_of((1, 9, "a", 0), (1, 3, "b", 9)) == (1, 9, "a", 0)


def test_at_one_time_and_offset_the_broker_decides_before_the_queue() -> None:
    assert last_of((1, 3, "b", 0), (1, 3, "a", 9)) == (1, 3, "b", 0)
    assert last_of((1, 3, "b", 0), (1, 3, "b", 1)) == (1, 3, "b", 1)
