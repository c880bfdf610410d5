"""Putting a batch into the index is putting its records one by one: same files, same coverage, in both kernels."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiermq.kernel.pure as pure
from present import present
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.message import encode_record
from tiermq.tier.index import index_table, index_write_file
from tiermq.tier.index.index_item import open_file_bytes
from tiermq.tier.index.index_request import PutOutcome, index_requests
from tiermq.tier.index.index_table import IndexTable
from tiermq.tier.index.index_write_file import FileFacts
from tiermq.tier.queue.records import RecordBatch

try:
    import tiermq.kernel.compiled as compiled
except ModuleNotFoundError:
    compiled = None  # type: ignore[assignment]

NOW_MS = 1_700_000_000_000
SLOTS = 7
UNIT = struct.Struct(">qiq")
KERNELS = [pytest.param(pure, id="pure")]
if compiled is not None:
    KERNELS.append(pytest.param(compiled, id="compiled"))

some_keys = st.lists(st.sampled_from(["", "a", "b", "order-42", "b" * 20, "schlüssel", "鍵", "ajvakuzm"]), max_size=5)
records = st.fixed_dictionaries(
    {
        "keys": st.one_of(some_keys, st.integers(60, 70).map(lambda count: [f"k{n}" for n in range(count)])),
        "unique": st.sampled_from(["", "a", "U 1", "ü"]),
        "ms": st.sampled_from([0, 1, NOW_MS - 1_999, NOW_MS, NOW_MS + 2_500, NOW_MS + 10**13]),
        "broken": st.sampled_from([False] * 9 + [True]),
        "v6": st.booleans(),
    }
)
batches = st.lists(records, min_size=1, max_size=12)


def batch_of(rows: list[dict[str, Any]], log_offset: int) -> RecordBatch:
    data, units = bytearray(), bytearray()
    for number, row in enumerate(rows):
        properties = {"KEYS": " ".join(row["keys"]), "TAGS": "t", "UNIQ_KEY": row["unique"]}
        record = bytearray(
            encode_record(
                topic="T", body=b"x" * number, queue_id=3, flag=0, queue_offset=number,
                physical_offset=log_offset + len(data), sys_flag=0, born_timestamp_ms=1,
                born_host="[::1]:9" if row["v6"] else "127.0.0.1:1", store_timestamp_ms=row["ms"],
                store_host="127.0.0.1:2", reconsume_times=0, prepared_transaction_offset=0,
                properties={name: value for name, value in properties.items() if value},
            )
        )  # fmt: skip
        if row["broken"]:
            record[4] ^= 1
        units += UNIT.pack(log_offset + len(data), len(record), 0)
        data += record
    return RecordBatch(bytes(data), bytes(units), 0, log_offset, 0, 0)


def table_with(access: SimulatedFileAccess, capacity: int) -> IndexTable:
    return IndexTable(access, "/index", SLOTS, capacity, ManualClock(NOW_MS))


def state_of(
    table: IndexTable, access: SimulatedFileAccess
) -> tuple[object, list[tuple[FileFacts, bytes]], object, object]:
    moment = present(table.moment())
    return (
        [(entry.begin_ms, entry.state) for entry in table.entries()],
        [(facts, access.read_bytes(file.path)) for file, facts in moment.files],
        moment.record,
        [entry.sealed_record for entry in moment.sealed],
    )


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=50)
@given(rows=batches, more=batches, capacity=st.sampled_from([2, 6, 70, 400]), topic=st.sampled_from(["T", "Tür"]))
def test_a_batch_leaves_what_its_records_leave_one_by_one(
    kernel: ModuleType, rows: list[dict[str, Any]], more: list[dict[str, Any]], capacity: int, topic: str
) -> None:
    first = batch_of(rows, 1_000)
    second = batch_of(more, 1_000 + len(first.data))
    by_one, by_batch = SimulatedFileAccess(), SimulatedFileAccess()
    one, whole = table_with(by_one, capacity), table_with(by_batch, capacity)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_table, "put_tier_keys", kernel.put_tier_keys)
        patch.setattr(index_write_file, "put_tier_keys", kernel.put_tier_keys)
        patch.setattr(index_write_file, "RESERVE_ITEMS", 5)
        for batch in (first, first, second):
            for request in index_requests(batch, topic, 2**32 + 9, 3):
                one.put(request)
            assert whole.put_batch(batch, topic, 2**32 + 9, 3) is PutOutcome.SUCCESS
        assert state_of(whole, by_batch) == state_of(one, by_one)


@pytest.mark.skipif(compiled is None, reason="there is no compiled kernel to compare with")
@given(rows=batches, start=st.integers(0, 3), capacity=st.sampled_from([1, 6, 300]), limit=st.sampled_from([0, 5, 300]))
def test_both_kernels_put_the_same_items_and_stop_at_the_same_record(
    rows: list[dict[str, Any]], start: int, capacity: int, limit: int
) -> None:
    batch = batch_of(rows, 50)
    files = []
    answers = []
    for kernel in (pure, compiled):
        file = bytearray(open_file_bytes(SLOTS, capacity))
        struct.pack_into(">Iqqii", file, 0, 0xBCC50289, NOW_MS, 0, 0, 0)
        answers.append(
            kernel.put_tier_keys(file, SLOTS, capacity, limit, batch.units, batch.data, start, 50, "T", -7, 3)
        )
        files.append(file)
    assert answers[0] == answers[1]
    assert files[0] == files[1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_record_beyond_the_data_and_a_file_that_is_too_small_are_not_touched(kernel: ModuleType) -> None:
    batch = batch_of([{"keys": ["a"], "unique": "", "ms": NOW_MS, "broken": False, "v6": False}] * 3, 0)
    file = bytearray(open_file_bytes(SLOTS, 20))
    struct.pack_into(">Iqqii", file, 0, 0xBCC50289, NOW_MS, 0, 0, 0)
    cut = kernel.put_tier_keys(file, SLOTS, 20, 20, batch.units, batch.data[:-1], 0, 0, "T", 1, 0)
    assert cut == (2, 2, NOW_MS)
    assert kernel.put_tier_keys(file, SLOTS, 20, 20, batch.units, batch.data, 3, 0, "T", 1, 0) == (0, 0, 0)
    assert kernel.put_tier_keys(file, SLOTS, 20, 20, batch.units, batch.data, 0, 1, "T", 1, 0) == (0, 0, 0)
    with pytest.raises(ValueError, match="smaller than the tier index file"):
        kernel.put_tier_keys(file[:-1], SLOTS, 20, 20, batch.units, batch.data, 0, 0, "T", 1, 0)


def test_records_without_keys_need_no_file_and_are_covered_all_the_same() -> None:
    access = SimulatedFileAccess()
    table = table_with(access, 20)
    batch = batch_of([{"keys": [], "unique": "", "ms": NOW_MS, "broken": False, "v6": False}] * 3, 0)
    assert table.put_batch(batch, "T", 1, 3) is PutOutcome.SUCCESS
    assert table.entries() == ()
    assert table.coverage.queues["T", 3].end == len(batch.data)


def test_an_index_that_is_shut_takes_nothing_of_a_batch() -> None:
    table = table_with(SimulatedFileAccess(), 20)
    table.refuse_puts()
    batch = batch_of([{"keys": ["a"], "unique": "", "ms": NOW_MS, "broken": False, "v6": False}], 0)
    assert table.put_batch(batch, "T", 1, 3) is PutOutcome.SHUTDOWN
    assert table.coverage.queues == {}
