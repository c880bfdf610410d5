"""Stores and tiers that the real RocketMQ wrote are read as they lie there, without taking anything over."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from golden import reading as golden_stores
from golden import tier_reading as golden_tiers
from history.history_world import read_all
from tiermq.errors import BadHistory
from tiermq.history.arrow_batch import decode_run
from tiermq.history.catalog import read_catalog
from tiermq.history.open_history import open_history
from tiermq.history.planning import plan_scan
from tiermq.history.reading import read_task
from tiermq.history.scan_values import HistoryPlace, ScanCounters, ScanRequest, StorePlace
from tiermq.message.topic_name import is_light_queue


@pytest.mark.parametrize("name", golden_tiers.ALL_NAMES)
def test_a_tier_of_rocketmq_is_read_from_its_files_alone(name: str) -> None:
    written = golden_tiers.WrittenTier.golden(name)
    with open_history(HistoryPlace(written.tier.absolute().as_uri())) as history:
        found = read_all(read_catalog(history))
    places = {
        (topic, queue_id, message.queue_offset): message
        for (topic, queue_id), messages in found.items()
        for message in messages
    }
    assert places.keys() >= written.stored.keys()
    for place, fact in written.stored.items():
        message = places[place]
        assert (message.body_crc, message.born_timestamp_ms) == (fact["body_crc"], fact["born_timestamp"])
    for messages in found.values():
        offsets = [message.queue_offset for message in messages]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


@pytest.mark.parametrize("name", golden_tiers.NAMES)
def test_a_key_in_a_tier_of_rocketmq_is_found_though_its_index_reports_not_what_it_covers(name: str) -> None:
    written = golden_tiers.WrittenTier.golden(name)
    with open_history(HistoryPlace(written.tier.absolute().as_uri())) as history:
        catalog = read_catalog(history)
        for fact in written.of_kind("query")[:5]:
            request = ScanRequest(topics=frozenset({fact["topic"]}), keys=frozenset({fact["key"]}))
            rows = [message for messages in read_all(catalog, request).values() for message in messages]
            hits = {row.unique_key for row in rows if fact["key"] in (*row.keys, row.unique_key)}
            there = {row["properties"]["UNIQ_KEY"] for row in written.stored.values()}
            assert hits >= there & set(fact["unique_ids"])


@pytest.mark.parametrize("name", golden_stores.NAMES)
def test_a_store_of_rocketmq_is_read_as_its_queues_have_it(name: str, tmp_path: Path) -> None:
    golden = golden_stores.golden(name)
    store = golden.copy_store(tmp_path / "store")
    batch_topics = {path.parent.name for path in (store / "batchconsumequeue").glob("*/*")}
    with open_history(HistoryPlace(None, (StorePlace(str(store)),))) as history:
        request = ScanRequest(topics=frozenset(read_catalog(history).topics()))
        found = read_all(read_catalog(history, request), request)
    offsets = {
        (topic, queue_id): [message.queue_offset for message in messages]
        for (topic, queue_id), messages in found.items()
    }
    for fact in golden.stored:
        topic = fact["topic"]
        if topic not in batch_topics and not is_light_queue(topic):
            assert fact["offset"] in offsets[topic, fact["queue"]]
    shutil.rmtree(store)


def test_a_light_queue_that_is_named_gives_the_messages_that_it_points_at(tmp_path: Path) -> None:
    store = golden_stores.golden("rocketmq-5.3.3-light-queues").copy_store(tmp_path / "store")
    names = sorted(path.name for path in (store / "consumequeue").iterdir() if is_light_queue(path.name))
    assert names
    with open_history(HistoryPlace(None, (StorePlace(str(store)),))) as history:
        assert not any(is_light_queue(topic) for topic in read_catalog(history).topics())
        request = ScanRequest(topics=frozenset(names))
        catalog = read_catalog(history, request)
        assert catalog.topics() == names
        rows = [
            row
            for task in plan_scan(catalog, request).tasks
            for run in read_task(history, task, ScanCounters())
            for batch in decode_run(run, ["topic", "queueOffset", "_corrupt"], request)
            for row in batch.to_pylist()
        ]
    assert not any(row["_corrupt"] for row in rows)
    for name in names:
        offsets = [row["queueOffset"] for row in rows if row["topic"] == name]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) == catalog.find(name, 0).max_offset


def test_a_topic_in_batch_queues_is_an_error_and_never_left_out_in_silence(tmp_path: Path) -> None:
    store = golden_stores.golden("rocketmq-5.3.3-batches").copy_store(tmp_path / "store")
    with open_history(HistoryPlace(None, (StorePlace(str(store)),))) as history:
        for request in (ScanRequest(), ScanRequest(topics=frozenset({"bulk"})), ScanRequest(topic_pattern="b.*")):
            with pytest.raises(BadHistory, match="topic 'bulk' in .* batch queues"):
                plan_scan(read_catalog(history, request), request)
        others = ScanRequest(topics=frozenset({"ledger"}))
        assert plan_scan(read_catalog(history, others), others).tasks
