"""A directory with a tier's metadata and no message yet, and delays as the broker has them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import until
from spark.source_world import SourceWorld, batch_reader, rows_of
from tiermq import Message
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.errors import BadOption, StoreDamaged
from tiermq.history.scan_values import ScanCounters
from tiermq.spark.source.batch_reader import read_partition
from tiermq.store.local_store import LocalStore
from tiermq.tier.tier_identity import open_new_metadata


def test_the_directory_that_an_import_makes_is_read_beside_its_tier(filled: SourceWorld, tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    open_new_metadata(imported).close()
    both = {"tier": filled.url, "store": str(imported), "brokerName": "broker-a"}
    assert rows_of(both) == rows_of(filled.cold)
    with pytest.raises(StoreDamaged, match="expected a store directory"):
        rows_of({"store": str(imported)})


def delay_of(store: Path, **options: str) -> dt.timedelta:
    reader = batch_reader({"store": str(store), "columns": "storeTimestamp,deliverTime", **options})
    (row,) = [
        row
        for part in reader.partitions()
        for batch in read_partition(part, ScanCounters())
        for row in batch.to_pylist()
    ]
    delay: dt.timedelta = row["deliverTime"] - row["storeTimestamp"]
    return delay


def test_the_deliver_time_goes_by_the_option(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
        store.put(Message("SCHEDULE_TOPIC_XXXX", b"x", 1, properties={"DELAY": "2"}))
    assert delay_of(tmp_path / "store") == dt.timedelta(seconds=5)
    assert delay_of(tmp_path / "store", messageDelayLevel="1s 7m") == dt.timedelta(minutes=7)
    with pytest.raises(BadOption, match="expected delays such as 1s 5m 2h 1d"):
        batch_reader({"store": "x", "messageDelayLevel": "soon"})


def test_the_deliver_time_goes_by_the_levels_of_the_broker_that_wrote_the_store(tmp_path: Path) -> None:
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0)
    settings: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 20, "message_delay_level": "1s 9m"}
    with Broker.open(tmp_path / "store", config=config, **settings) as broker:
        broker.parts.local.put(Message("SCHEDULE_TOPIC_XXXX", b"x", 1, properties={"DELAY": "2"}))
        until(broker, lambda: broker.delivery.delay_levels.running)
    assert delay_of(tmp_path / "store") == dt.timedelta(minutes=9)
