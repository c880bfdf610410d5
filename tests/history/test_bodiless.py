"""Bodies that are not wanted are not read, and everything else of the record is as it was."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from history.history_world import HistoryWorld
from tier.tier_world import record
from tiermq.consumequeue.unit import UNIT
from tiermq.history.arrow_batch import decode_run
from tiermq.history.cold_reading import read_around_bodies
from tiermq.history.planning import plan_scan
from tiermq.history.reading import read_task
from tiermq.history.scan_values import ScanCounters, ScanRequest
from tiermq.tier.queue.unit_array import decode_units

COLUMNS = ["queueOffset", "keys", "tags", "storeSize", "bodyCrc", "_corrupt"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HistoryWorld]:
    sizes = {"tiered_store_commit_log_max_size": 64 << 20, "mapped_file_size_commit_log": 64 << 20}
    made = HistoryWorld(tmp_path, **sizes)
    made.open()
    yield made
    made.bury()


@pytest.mark.parametrize(("size", "expected"), [(100, 1.0), (300 << 10, 0.01)])
def test_only_large_bodies_are_left_out_and_the_rows_are_the_same(
    world: HistoryWorld, size: int, expected: float
) -> None:
    world.put(12, size=size)
    world.flush_to_tier()
    catalog = world.catalog(store=False)
    rows, read = [], []
    for include_body in (True, False):
        request = ScanRequest(include_body=include_body)
        counters = ScanCounters()
        batches = [
            batch
            for task in plan_scan(catalog, request).tasks
            for run in read_task(catalog.history, task, counters)
            for batch in decode_run(run, COLUMNS, request)
        ]
        rows.append([row for batch in batches for row in batch.to_pylist()])
        read.append(counters.bytes_read)
    assert rows[0] == rows[1]
    assert len(rows[0]) == 12
    assert not any(row["_corrupt"] for row in rows[0])
    assert read[1] <= read[0] * expected


@pytest.mark.parametrize("damage", [None, 84, 39])
def test_a_record_that_makes_no_sense_is_left_as_it_was_found(damage: int | None) -> None:
    data = bytearray(record("orders", 0, 0, 7, size=5000))
    if damage is not None:
        struct.pack_into(">B", data, damage, 0xFF)
    units = decode_units(UNIT.pack(100, len(data), 0), 0)
    found = read_around_bodies(lambda at, length: memoryview(data)[at : at + length], units, 100, 100 + len(data), 100)
    assert len(found) == len(data)
    assert found[:88] == data[:88]
    if damage is None:
        assert found[88 + 5000 :] == data[88 + 5000 :]
        assert not any(found[200:5000])


def test_an_end_mark_before_the_record_moves_everything_by_its_length() -> None:
    one = record("orders", 0, 0, 7, size=5000)
    data = struct.pack(">iiq", 16, 0xCBD43194 - (1 << 32), 7) + one
    units = decode_units(UNIT.pack(0, len(one), 0), 0)
    found = read_around_bodies(lambda at, length: memoryview(data)[at : at + length], units, 0, len(data), 0)
    assert found[:104] == data[:104]
    assert found[104 + 5000 :] == data[104 + 5000 :]
