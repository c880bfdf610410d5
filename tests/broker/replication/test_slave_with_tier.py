"""A slave with a tier: it serves what its log does not have from the bucket, and never writes there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker.brokers import Producer
from broker.replication.pairs import ask, caught_up, master, slave, synced, until
from tiermq.broker.broker import Broker
from tiermq.message.record import decode_records
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.tier.tiered_store import TieredStore

COUNT = 2_500
QUICK: dict[str, Any] = {
    "tiered_store_group_commit_timeout": 50,
    "tier_dispatch_interval": 50,
    "tier_follow_interval": 50,
    "file_reserved_time": 0,
}


def send(broker: Broker, first: int, count: int) -> None:
    with Producer(broker) as producer:
        for number in range(first, first + count):
            answer = producer.send(body=b"%06d" % number + b"." * 1000)
            while answer.code == ResponseCode.SYSTEM_BUSY:
                answer = producer.send(body=b"%06d" % number + b"." * 1000)
            assert answer.code == ResponseCode.SUCCESS


def pulled(broker: Broker, offset: int) -> list[int]:
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 8, "sysFlag": 4}
    more = {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}
    ext: dict[str, Any] = {name: str(value) for name, value in {**fields, **more}.items()}
    answer = ask(broker, RequestCode.PULL_MESSAGE, **ext)
    return [int(each.body[:6]) for each in decode_records(answer.body)] if answer.code == ResponseCode.SUCCESS else []


def tiered(broker: Broker) -> TieredStore:
    found = broker.parts.tiered
    assert found is not None
    return found


def evict(broker: Broker) -> None:
    """Until the broker's log begins later than it did."""
    before = broker.parts.local.min_physical_offset
    until(lambda: tiered(broker).clean_now() and broker.parts.local.min_physical_offset > before)


def test_a_slave_serves_cold_history_and_cleans_only_what_the_tier_has(tmp_path: Path) -> None:
    store = {**QUICK, "tier": (tmp_path / "tier").as_uri()}
    with master(tmp_path, store=store) as first:
        send(first, 0, COUNT)
        until(lambda: tiered(first).flush_to_tier(60))
        evict(first)
        with slave(tmp_path, first, store=store, slave_read_enable=True) as copy:
            caught_up(copy, first)
            synced(copy)
            until(lambda: tiered(copy).tier_end("T", 0) == COUNT)
            assert copy.parts.local.min_offset("T", 0) > 0
            assert pulled(copy, 0) == list(range(8)), "from the tier"
            assert pulled(copy, COUNT - 8) == list(range(COUNT - 8, COUNT)), "from its log"
            assert tiered(copy).only_reads
            assert not tiered(copy).tier.lease.is_held
            assert tiered(first).tier.engine.pause(60)
            send(first, COUNT, COUNT)
            caught_up(copy, first)
            while tiered(copy).clean_now().log_files:
                pass
            assert tiered(copy).clean_now().vetoed
            low = copy.parts.local.min_offset("T", 0)
            assert 0 < low <= COUNT, "what the tier lacks stays, although it is due"
            tiered(first).tier.engine.resume()
            until(lambda: tiered(copy).tier_end("T", 0) == 2 * COUNT)
            evict(copy)
            assert pulled(copy, low) == list(range(low, low + 8)), "now from the tier"
        with slave(tmp_path, first, store=store, slave_read_enable=True) as copy:
            caught_up(copy, first)
            until(lambda: tiered(copy).tier_end("T", 0) == 2 * COUNT)
            assert pulled(copy, 0) == list(range(8)), "after a restart, too"
