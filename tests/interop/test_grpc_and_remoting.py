"""One topic, both protocols: RocketMQ's Java clients of remoting and of gRPC read what the other sent."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from broker.grpc.grpc_peer import GrpcPeer
from clients.conftest import available
from clients.environments import GRPC_JAVA
from clients.test_grpc_clients import LONG_BODY, SETTINGS, GrpcServing
from clients.test_grpc_clients import bodies as bodies_of_grpc
from interop.java_client import JavaClient, bodies
from interop.rocketmq import Distribution
from tiermq.grpc.messages import Code, Encoding

pytestmark = pytest.mark.interop

SENT = sorted(["short", LONG_BODY])


def test_java_clients_of_both_protocols_read_what_the_other_sent(distribution: Distribution, tmp_path: Path) -> None:
    newer = available(GRPC_JAVA)
    with GrpcServing(tmp_path / "store", **SETTINGS) as broker:
        older = JavaClient(distribution, broker.name_server, tmp_path)
        place = {"endpoints": broker.endpoints, "topic": "Both"}
        newer.run(tmp_path, **place, group="unused", bodies=SENT)
        assert sorted(bodies(older.run(topic="Both", group="remoting", receive=2))) == SENT
        assert sorted(bodies_of_grpc(newer.run(tmp_path, **place, group="grpc", receive=2))) == SENT
        older.run(topic="Both", group="producers", bodies=SENT)
        assert sorted(bodies_of_grpc(newer.run(tmp_path, **place, group="grpc", receive=2))) == SENT
        with GrpcPeer(broker.grpc_port) as peer:
            plain = "by gzip, " * 1_000
            packed = peer.message("Both", gzip.compress(plain.encode()), body_encoding=Encoding.GZIP)
            assert peer.send(packed).status.code == Code.OK
            assert sorted(bodies(older.run(topic="Both", group="remoting", receive=3))) == sorted([*SENT, plain])
            [given] = peer.receive("Both", "grpc")
            assert given.system_properties.body_encoding == Encoding.GZIP
            assert gzip.decompress(given.body).decode() == plain
