"""A broker with a gRPC port, and a peer of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import broker_config, running
from broker.grpc.grpc_peer import GrpcPeer
from servers.loopback import free_ports
from tiermq.broker.broker import Broker
from tiermq.broker.grpc import grpc_service


@pytest.fixture
def grpc_options() -> dict[str, Any]:
    """Settings of the broker; a module that needs others overrides this."""
    return {}


@pytest.fixture
def broker(tmp_path: Path, grpc_options: dict[str, Any]) -> Iterator[Broker]:
    [port] = free_ports(1)
    with running(tmp_path, config=broker_config(grpc_server_port=port, **grpc_options)) as made:
        yield made


@pytest.fixture
def peer(broker: Broker) -> Iterator[GrpcPeer]:
    with GrpcPeer(broker.config.grpc_server_port) as made:
        yield made


@pytest.fixture
def given_way(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often calls gave way to others, each after no time at all."""
    monkeypatch.setattr(grpc_service, "SLICE_S", 0.0)
    server, found = broker.parts.server, []
    give_way = server.give_way

    def counted(resume: Callable[[], None]) -> None:
        found.append(1)
        give_way(resume)

    monkeypatch.setattr(server, "give_way", counted)
    return found
