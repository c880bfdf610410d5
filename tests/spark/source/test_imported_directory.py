"""A directory with a tier's metadata and no message yet, and delays as the broker has them: both by options."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from spark.source_world import SourceWorld, batch_reader, rows_of
from tiermq import LocalStore, Message
from tiermq.errors import BadOption, StoreDamaged
from tiermq.history.scan_values import ScanCounters
from tiermq.spark.source.scan_partition import read_partition
from tiermq.tier.known_metadata import open_new_metadata


def test_the_directory_that_an_import_makes_is_read_beside_its_tier(filled: SourceWorld, tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    open_new_metadata(imported).close()
    both = {"tier": filled.url, "store": str(imported), "brokerName": "broker-a"}
    assert rows_of(both) == rows_of(filled.cold)
    with pytest.raises(StoreDamaged, match="expected a store directory"):
        rows_of({"store": str(imported)})


def test_the_deliver_time_goes_by_the_brokers_delay_levels(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
        store.put(Message("SCHEDULE_TOPIC_XXXX", b"x", 1, properties={"DELAY": "2"}))
    delays = {}
    for levels in ("", "1s 7m"):
        options = {"store": str(tmp_path / "store"), "columns": "storeTimestamp,deliverTime"}
        reader = batch_reader({**options, **({"messageDelayLevel": levels} if levels else {})})
        (row,) = [
            row
            for part in reader.partitions()
            for batch in read_partition(part, ScanCounters())
            for row in batch.to_pylist()
        ]
        delays[levels] = row["deliverTime"] - row["storeTimestamp"]
    assert delays == {"": dt.timedelta(seconds=5), "1s 7m": dt.timedelta(minutes=7)}
    with pytest.raises(BadOption, match="expected delays such as 1s 5m 2h 1d"):
        batch_reader({"store": "x", "messageDelayLevel": "soon"})
