"""Ids of rows: unique, and the same hot and cold."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.broker_world import BrokerWorld
from tiermq.errors import BadHistory
from tiermq.history.arrow_batch import decode_run, is_known, known_rows
from tiermq.history.catalog import read_catalog
from tiermq.history.open_history import open_history
from tiermq.history.planning import plan_scan
from tiermq.history.reading import read_task
from tiermq.history.scan_values import HistoryPlace, ScanCounters, ScanRequest, StorePlace

COLUMNS = ["tier", "recordId", "msgId", "offsetMsgId", "uniqKey"]
Row = dict[str, str | None]


def rows_of(world: BrokerWorld, *, cold: bool) -> list[Row]:
    stores = () if cold else (StorePlace(str(world.disk), "DefaultCluster", "broker-a"),)
    place = HistoryPlace("memory://unused" if cold else None, stores)
    with open_history(place, driver=world.driver if cold else None) as history:
        plan = plan_scan(read_catalog(history), ScanRequest())
        return [
            row
            for task in plan.tasks
            for run in read_task(history, task, ScanCounters())
            for batch in decode_run(run, COLUMNS, task.request)
            for row in batch.to_pylist()
        ]


def test_a_message_has_one_id_hot_and_cold(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path)
    world.open()
    for queue_id in range(3):
        world.put(40, "orders", queue_id)
        world.put(10, "returns", queue_id)
    world.store.flush_to_tier()
    hot, cold = rows_of(world, cold=False), rows_of(world, cold=True)
    world.bury()
    assert len(hot) == len(cold) == 150
    for name in ("recordId", "msgId"):
        assert [row[name] for row in hot] == [row[name] for row in cold]
        assert len({row[name] for row in hot}) == 150
    assert {row["tier"] for row in cold} == {"cold"}
    assert {row["offsetMsgId"] for row in cold} == {None}
    assert len({row["offsetMsgId"] for row in hot}) == 150


def test_a_store_of_another_cluster_than_the_chosen_one_is_refused(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path)
    world.open()
    world.put(1, "orders", 0)
    world.store.flush_to_tier()
    stores = (StorePlace(str(world.disk), "DefaultCluster", "broker-a"),)
    with (
        open_history(HistoryPlace(None, stores, cluster="other")) as history,
        pytest.raises(BadHistory, match="expected a store of cluster 'other', found one of 'DefaultCluster'"),
    ):
        read_catalog(history)
    world.bury()


def test_rows_that_are_known_without_reading_are_those_that_reading_gives(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path)
    world.open()
    world.put(90, "orders", 1)
    world.store.flush_to_tier()
    columns = ["topic", "brokerName", "queueId", "queueOffset", "tier", "recordId"]
    with open_history(HistoryPlace("memory://unused"), driver=world.driver) as history:
        tasks = plan_scan(read_catalog(history), ScanRequest(), max_bytes_per_partition=1024).tasks
        for task in tasks:
            assert is_known(columns, task)
            assert not is_known([*columns, "storeTimestamp"], task)
            read = [
                row
                for run in read_task(history, task, ScanCounters())
                for batch in decode_run(run, columns, task.request)
                for row in batch.to_pylist()
            ]
            assert [row for batch in known_rows(task, columns, 7) for row in batch.to_pylist()] == read
        assert len(tasks) > 1
        late = plan_scan(read_catalog(history), ScanRequest(tags=frozenset({"x"}))).tasks
        assert not any(is_known(columns, task) for task in late)
    world.bury()
