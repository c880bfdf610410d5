"""A cluster as a history: which queues, how far, and what a time or a name that is not there means."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from client.wire_world import EACH, fill, filled
from tiermq.client.wire_history import WireCatalog, WireHistory, WirePlace, catalog_of, open_place, worker_place
from tiermq.errors import BadHistory
from tiermq.history.open_history import OpenHistory
from tiermq.history.planning import plan_scan
from tiermq.history.scan_values import HistoryPlace, ScanRequest, StorePlace
from tiermq.tier.names import QueueKey


def test_the_catalogue_has_every_queue_and_follows_it(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, _), open_place(WirePlace(name_servers=broker.name_server)) as history:
        catalog = catalog_of(history, ScanRequest(topics=frozenset({"orders"})))
        assert isinstance(catalog, WireCatalog)
        assert [(queue.key, queue.min_offset, queue.max_offset) for queue in catalog.queues()] == [
            (QueueKey("DefaultCluster", "broker-a", "orders", queue_id), 0, EACH) for queue_id in range(2)
        ]
        assert catalog.queues()[0].hot_record_bytes == broker.messages("orders", 0)[EACH // 2].size
        fill(broker, each=5, first=EACH)
        catalog.refresh()
        assert [queue.max_offset for queue in catalog.queues()] == [EACH + 5] * 2
        assert catalog.brokers == [("DefaultCluster", "broker-a")]
        everything = catalog_of(history)
        assert "orders" in everything.topics()
        assert not {"TBW102", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"} & set(everything.topics())


def test_a_time_narrows_what_is_planned(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, _):
        broker.advance(hours=1)
        fill(broker, each=10, first=EACH)
        newer = broker.messages("orders", 0)[EACH].store_timestamp_ms
        with open_place(WirePlace(name_servers=broker.name_server)) as history:
            late = ScanRequest(topics=frozenset({"orders"}), begin_ms=newer - 1000)
            assert [(t.from_offset, t.to_offset) for t in plan_scan(catalog_of(history, late), late).tasks] == [
                (EACH, EACH + 10)
            ] * 2
            early = ScanRequest(topics=frozenset({"orders"}), end_ms=newer - 1000)
            ends = [task.to_offset for task in plan_scan(catalog_of(history, early), early).tasks]
            assert all(EACH <= end <= EACH + 1 for end in ends)
            catalog = catalog_of(history, late)
            assert isinstance(catalog, WireCatalog)
            assert catalog.offset_at(catalog.queues()[0], newer - 1000) == EACH
            assert catalog.offset_at(catalog.queues()[0], newer + 10**9) == EACH + 10


def test_a_queue_that_nobody_has_is_named(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, _), open_place(WirePlace(name_servers=broker.name_server)) as history:
        assert isinstance(history, WireHistory)
        with pytest.raises(BadHistory, match="queue 9 of topic 'orders'"):
            history.queue(QueueKey("DefaultCluster", "broker-a", "orders", 9))


def test_a_place_travels_and_a_worker_keeps_one_history_of_it(tmp_path: Path) -> None:
    place = WirePlace(name_servers="127.0.0.1:1", tls=True)
    again = pickle.loads(pickle.dumps(place))
    assert again == place
    assert worker_place(place) is worker_place(again)
    files = HistoryPlace(None, (StorePlace(str(tmp_path)),))
    assert type(worker_place(files)) is OpenHistory
