"""What became of a transaction: by a store directory, or by the tier alone when everything else is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import on_loop, part, until
from broker.delivery.transaction_peer import COMMIT, ROLLBACK, TransactionPeer
from delivery.transactions.transaction_world import World
from tiermq import Message
from tiermq.broker.delivery.end_transaction_processor import EndTransactionProcessor
from tiermq.delivery.transactions.half_messages import TransactionRules
from tiermq.delivery.transactions.transaction_fate import Fate, TransactionFate, transaction_fate
from tiermq.history.arrow_batch import decode_run
from tiermq.history.catalog import read_catalog
from tiermq.history.key_lookup import plan_history
from tiermq.history.open_history import OpenHistory, open_history
from tiermq.history.reading import read_task
from tiermq.history.scan_values import HistoryPlace, ScanCounters, ScanRequest, StorePlace
from tiermq.message.topic_name import OPERATION_HALF_TOPIC
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.offload.wire_fleet import FleetScope
from tiermq.testing import LocalBroker
from tiermq.tier.tiered_store import TieredStore


def fate_in(world: World, name: str) -> TransactionFate | None:
    """As the world's directory has it."""
    world.store.flush()
    world.store.dispatch_now()
    with open_history(HistoryPlace(stores=(StorePlace(str(world.path)),))) as history:
        return transaction_fate(history, f"ID-{name}")


def fates(world: World, *names: str) -> list[Fate | None]:
    return [None if (found := fate_in(world, name)) is None else found.fate for name in names]


def test_a_store_directory_reports_what_became_of_each_transaction(world: World) -> None:
    halves = {name: world.half(name) for name in ("committed", "rolled back", "asked", "open")}
    world.commit(halves["committed"])
    world.roll_back(halves["rolled back"])
    assert world.round_after(30) == ["asked", "open"]
    world.commit(world.asked[0], is_answer=True)
    assert fates(world, *halves) == [Fate.COMMITTED, Fate.ROLLED_BACK, Fate.COMMITTED, Fate.OPEN]
    assert fates(world, "unknown") == [None]
    world.rules = TransactionRules(check_max=1)
    world.round_after(30)
    assert fates(world, "open", "asked") == [Fate.GIVEN_UP, Fate.COMMITTED]


def test_a_fate_says_whose_it_was_and_when(world: World) -> None:
    half = world.half("a")
    prepared_ms = world.clock.now_ms()
    world.round_after(30)
    world.clock.advance_ms(1_000)
    world.roll_back(half)
    found = fate_in(world, "a")
    assert found is not None
    assert found.to_dict() == {
        "transaction_id": "ID-a",
        "fate": "rolled back",
        "topic": "T",
        "queue_id": 1,
        "producer_group": "PG",
        "broker": "broker-a",
        "half_offset": 0,
        "born_ms": prepared_ms,
        "prepared_ms": prepared_ms,
        "ended_ms": prepared_ms + 31_000,
        "questions": 1,
    }


def test_a_commit_whose_op_was_lost_is_known_by_its_message(world: World) -> None:
    world.commit(world.half("a"))
    assert world.ops_written() == []
    world.restart()
    assert fates(world, "a") == [Fate.COMMITTED]


def test_an_op_of_rocketmq_reports_that_it_ended_and_its_message_reports_how(world: World) -> None:
    world.half("rolled back")
    world.commit(world.half("committed"))
    world.store.put(Message(OPERATION_HALF_TOPIC, b"0,1,", 0, tags="d"))
    assert fates(world, "rolled back", "committed") == [Fate.ENDED, Fate.COMMITTED]


def test_a_damaged_op_is_passed_over(world: World) -> None:
    half = world.half("a")
    world.store.put(Message(OPERATION_HALF_TOPIC, b"nonsense", 0, tags="d"))
    world.roll_back(half)
    assert fates(world, "a") == [Fate.ROLLED_BACK]


def columns(history: OpenHistory, topic: str) -> list[tuple[object, ...]]:
    """Bodies, and what a scan says of their transactions."""
    request = ScanRequest(topics=frozenset({topic}))
    names = ["body", "transactionState", "preparedTransactionOffset"]
    return [
        tuple(row[name] for name in names)
        for task in plan_history(read_catalog(history, request), request).tasks
        for run in read_task(history, task, ScanCounters())
        for batch in decode_run(run, names, request)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("by", ["the broker", "a job", "a job over the wire"])
def test_the_tier_alone_has_outcomes_when_it_was_asked_to_keep_them(tmp_path: Path, enabled: bool, by: str) -> None:
    by_job = by != "the broker"
    url = (tmp_path / "tier").as_uri()
    settings: dict[str, Any] = {"tier": url, "tier_transactions_enable": enabled, "transaction_check_max": 1}
    with LocalBroker(tmp_path / "store", **settings, tier_dispatch_enable=not by_job) as broker:
        broker.create_topic("T", queues=2)
        processor: EndTransactionProcessor = part(broker.broker, EndTransactionProcessor)
        host, _, port = broker.address.rpartition(":")
        with TransactionPeer((host, int(port)), now_ms=broker.clock.now_ms) as peer:
            halves = {name: peer.prepare(name) for name in ("committed", "rolled back", "asked", "given up")}
            peer.end(halves["committed"], COMMIT)
            peer.end(halves["rolled back"], ROLLBACK)
            for is_first in (True, False):
                broker.broker.parts.local.dispatch_now()
                on_loop(broker.broker, broker.broker.parts.hooks.start_services)
                rounds = processor.check.rounds_count
                broker.advance(seconds=30)
                processor.check.wake()
                until(broker.broker, lambda: processor.check.rounds_count > rounds)  # noqa: B023 - within the round
                if is_first:
                    for _ in range(2):  # Until both questions have come: the next round gives up.
                        peer.asked.get(timeout=60)
                    peer.end(halves["asked"], COMMIT)
            peer.prepare("open")
        processor.ops.write()
        broker.broker.parts.local.dispatch_now()
        store = broker.broker.store
        assert isinstance(store, TieredStore)
        if by_job:
            store.flush()
            if by == "a job":
                config = {"tier_transactions_enable": enabled}
                offload([f"{tmp_path / 'store'}=DefaultCluster/broker-a"], url, config=config)
            else:  # It goes by the broker's own settings.
                assert offload([], url, fleet=FleetScope(broker.name_server)).problems == []
        assert store.flush_to_tier(60)
        place = int(halves["committed"].ext["msgId"][-16:], 16)
    shutil.rmtree(tmp_path / "store")
    with open_history(HistoryPlace(tier=url)) as history:
        assert (b"committed", "commit", place) in columns(history, "T")
        reported = {name: transaction_fate(history, f"ID-{name}") for name in (*halves, "open")}
        if not enabled:
            assert set(reported.values()) == {None}
            assert read_catalog(history).topics() == ["T"]
            return
        assert {name: each.fate for name, each in reported.items() if each is not None} == {
            "committed": Fate.COMMITTED,
            "rolled back": Fate.ROLLED_BACK,
            "asked": Fate.COMMITTED,
            "given up": Fate.GIVEN_UP,
            "open": Fate.OPEN,
        }
