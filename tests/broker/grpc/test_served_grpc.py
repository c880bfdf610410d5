"""gRPC of a broker that a settings file alone makes, and of one with a tier."""

from __future__ import annotations

import json
from pathlib import Path

from broker.brokers import SMALL
from broker.consuming import until
from broker.grpc.grpc_peer import GrpcPeer
from present import present
from servers.loopback import free_ports
from servers.preloaded import Preloaded
from tiermq.grpc.messages import Code
from tiermq.testing import LocalBroker

YEAR_S = 365 * 86_400


def test_a_settings_file_alone_makes_a_broker_serve_grpc(tmp_path: Path) -> None:
    port, name_server = free_ports(2)
    (tmp_path / "broker.conf").write_text(f"grpcServerPort={port}\n")
    words = ["serve", str(tmp_path / "store"), "-c", str(tmp_path / "broker.conf"), "--json"]
    process = Preloaded([*words, "--port", "0", "--namesrv-port", str(name_server)])
    try:
        assert json.loads(process.stdout.readline())["grpc"] == f"127.0.0.1:{port}"
        with GrpcPeer(port) as peer:
            assert peer.send(peer.message("T", b"by the file")).status.code == Code.OK
            assert [each.body for each in peer.receive("T")] == [b"by the file"]
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0


def test_with_a_tier_a_delay_is_longer_than_timers_of_the_store_and_comes_when_it_is_due(tmp_path: Path) -> None:
    [port] = free_ports(1)
    tier = (tmp_path / "tier").as_uri()
    settings = {**SMALL, "timer_max_delay_sec": 3_600, "timer_flush_interval_ms": 50, "grpc_server_port": port}
    with LocalBroker(tmp_path / "store", tier=tier, **settings) as broker, GrpcPeer(port) as peer:
        broker.create_topic("T", queues=1)
        sent = peer.send(peer.message("T", b"next year", delivery_s=broker.clock.now_ms() // 1000 + YEAR_S))
        assert sent.status.code == Code.OK
        timers = present(broker.broker.delivery.tiered_timers).timers
        until(broker.broker, lambda: timers.kept_count == 1)
        broker.advance(hours=24 * 364)
        assert broker.messages("T") == []
        broker.advance(hours=25)
        until(broker.broker, lambda: broker.messages("T"))
        assert [each.body for each in peer.receive("T")] == [b"next year"]
