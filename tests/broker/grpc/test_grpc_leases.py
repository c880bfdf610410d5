"""What a push consumer has popped stays its own while it lives, and goes to another when it is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.brokers import broker_config, running
from broker.grpc.grpc_peer import GrpcPeer
from servers.loopback import free_ports
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.pop.order_infos import OrderInfos
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.grpc.messages import Code
from tiermq.namesrv.topic_config import TopicConfig

PUSH: dict[str, Any] = {
    "client_type": 2,
    "subscription": {"group": {"name": "G"}, "subscriptions": [{"topic": {"name": "T"}}]},
}


def pops_of(broker: Broker) -> PopProcessor:
    return next(each for each in broker.processors if isinstance(each, PopProcessor))


def on_loop(broker: Broker, peer: GrpcPeer, call: Any) -> None:
    """Run it on the broker's loop, and wait for it."""
    done: list[bool] = []

    def run() -> None:
        call()
        done.append(True)

    broker.parts.server.call_threadsafe(run)
    while not done:
        peer.call("QueryRoute", topic={"name": "T"})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_push_consumer_keeps_a_message_for_longer_than_its_first_time(tmp_path: Path, clock: ManualClock) -> None:
    [port] = free_ports(1)
    with running(tmp_path, config=broker_config(grpc_server_port=port), clock=clock) as broker, GrpcPeer(port) as peer:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        assert broker.grpc is not None
        peer.settle(**PUSH)
        peer.send(peer.message("T", b"long work"))
        [found] = peer.receive("T", auto_renew=True)
        for _ in range(6):
            clock.advance_ms(50_000)
            on_loop(broker, peer, broker.grpc.leases.renew)
        assert broker.grpc.leases.renewed_count == 6
        pops_of(broker).revive.run_once()
        assert broker.parts.local.max_offset("%RETRY%G_T", 0) <= 0
        assert peer.acknowledge("T", found).status.code == Code.OK  # With its first receipt, five minutes later.
        assert len(pops_of(broker).log.points) == 0


def test_what_a_client_had_goes_to_another_when_it_ends(tmp_path: Path, clock: ManualClock) -> None:
    [port] = free_ports(1)
    with running(tmp_path, config=broker_config(grpc_server_port=port), clock=clock) as broker, GrpcPeer(port) as peer:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        peer.settle(**PUSH)
        peer.send(peer.message("T", b"left"))
        assert len(peer.receive("T", auto_renew=True)) == 1
        assert peer.call("NotifyClientTermination", group={"name": "G"}).status.code == Code.OK
        clock.advance_ms(2_000)
        pops_of(broker).revive.run_once()
        with GrpcPeer(port) as other:
            [found] = other.receive("T")
            assert (found.body, found.system_properties.delivery_attempt) == (b"left", 2)


def test_a_lease_outlives_the_broker_and_so_does_the_receipt(tmp_path: Path, clock: ManualClock) -> None:
    [port] = free_ports(1)
    config = broker_config(grpc_server_port=port)
    with running(tmp_path, config=config, clock=clock) as broker, GrpcPeer(port, client_id="one") as peer:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        peer.settle(**PUSH)
        peer.send(peer.message("T", b"1"), peer.message("T", b"2"))
        first, found = peer.receive("T", auto_renew=True)
        assert peer.acknowledge("T", first).status.code == Code.OK
        clock.advance_ms(50_000)
        assert broker.grpc is not None
        on_loop(broker, peer, broker.grpc.leases.renew)
    with running(tmp_path, config=config, clock=clock) as broker, GrpcPeer(port, client_id="one") as peer:
        [point] = pops_of(broker).log.points.leased()
        assert point.lease == ("one", "")
        assert len(point.open) == 1
        peer.settle(**PUSH)
        clock.advance_ms(50_000)
        assert broker.grpc is not None
        on_loop(broker, peer, broker.grpc.leases.renew)
        clock.advance_ms(50_000)
        pops_of(broker).revive.run_once()
        assert peer.acknowledge("T", found).status.code == Code.OK
        assert len(pops_of(broker).log.points) == 0
        assert broker.parts.local.max_offset("%RETRY%G_T", 0) <= 0


def test_the_lease_of_messages_in_order_is_kept_in_their_file(tmp_path: Path, clock: ManualClock) -> None:
    orders, queue = OrderInfos(str(tmp_path), clock), ("T", "G", 0)
    now_ms = clock.now_ms()
    orders.popped(queue, (4, 5), now_ms, 60_000, "attempt", ("one", "key"))
    orders.flush()
    [(found, lease, pop_ms, until_ms)] = OrderInfos(str(tmp_path), clock).leased()
    assert (found, lease, pop_ms, until_ms) == (queue, ("one", "key"), now_ms, now_ms + 60_000)
    orders.extend(queue, now_ms, now_ms + 120_000, lease)
    clock.advance_ms(100_000)
    assert orders.blocked_until_ms(queue) == now_ms + 120_000
    orders.extend(queue, now_ms - 1, now_ms, None)  # Of an older pop: nothing changes.
    assert orders.blocked_until_ms(queue) == now_ms + 120_000
    orders.acknowledge(queue, 4, now_ms)
    orders.acknowledge(queue, 5, now_ms)
    assert orders.leased() == []
