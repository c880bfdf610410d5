"""The batch reader, without Spark."""

from __future__ import annotations

import pytest

from spark.source_world import SourceWorld, batch_reader, rows_of
from tiermq.errors import BadHistory, BadTierUrl
from tiermq.history.scan_values import ScanCounters
from tiermq.spark.source.batch_reader import read_partition


def test_one_key_reads_only_its_messages(filled: SourceWorld) -> None:
    victim = filled.sent["orders", 2][50]
    reader = batch_reader({**filled.both, "subscribe": "orders", "keys": victim.keys[0], "columns": "body"})
    counters = ScanCounters()
    rows = [
        row["body"] for part in reader.partitions() for b in read_partition(part, counters) for row in b.to_pylist()
    ]
    assert rows == [victim.body]
    assert counters.rows_read <= 2  # Its copies, hot and cold; blocks of the tier are read whole, to be compared.
    assert counters.index_files_asked > 0


def test_each_frame_has_a_plan_of_its_own(filled: SourceWorld) -> None:
    before = rows_of(filled.both, subscribe="returns")
    filled.put(3, "returns", 0)
    after = rows_of(filled.both, subscribe="returns")
    assert after[: len(before)] == before
    assert len(after) == len(before) + 3


def test_reading_what_does_not_exist_is_reported_before_any_task(filled: SourceWorld) -> None:
    with pytest.raises(BadHistory, match="no topic 'x'"):
        batch_reader({**filled.both, "subscribe": "x"}).partitions()
    with pytest.raises((BadTierUrl, ValueError)):
        batch_reader({"tier": "ftp://nowhere/x"}).partitions()


def test_what_the_cold_and_the_hot_side_have_alone_is_read_alone(filled: SourceWorld) -> None:
    cold, hot = rows_of(filled.cold), rows_of(filled.hot)
    assert len(cold) == 400
    assert set(cold) | set(hot) == set(filled.wanted())
