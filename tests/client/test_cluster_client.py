"""The client of the commands: routes, masters, errors in the peer's words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from servers.loopback import free_ports
from tiermq.client.cluster_client import ClusterClient
from tiermq.errors import BadConfig, RemotingError, RequestRefused
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.testing import LocalBroker


def doing(name_servers: str, work: Callable[[ClusterClient], Awaitable[Any]]) -> Any:
    async def done() -> Any:
        async with ClusterClient(name_servers) as cluster:
            return await work(cluster)

    return asyncio.run(done())


def test_a_route_has_every_queue_with_its_broker_s_address(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        broker.create_topic("orders", queues=2)
        route = doing(broker.name_server, lambda cluster: cluster.route("orders"))
        assert [(place.address, place.queue_id) for place in route.readable] == [
            (broker.address, 0),
            (broker.address, 1),
        ]
        assert route.writable == route.readable
        assert route.addresses == {"broker-a": broker.address}
        assert doing(broker.name_server, lambda cluster: cluster.find_route("nothing")) is None
        assert doing(broker.name_server, lambda cluster: cluster.masters()) == {"broker-a": broker.address}
        with pytest.raises(RemotingError, match="of cluster nowhere"):
            doing(broker.name_server, lambda cluster: cluster.masters("nowhere"))


def test_the_second_name_server_is_asked_when_the_first_is_gone(tmp_path: Path) -> None:
    [nobody] = free_ports(1)
    with LocalBroker(tmp_path) as broker:
        both = f"127.0.0.1:{nobody};{broker.name_server}"
        assert doing(both, lambda cluster: cluster.find_route("TBW102")) is not None
        doing(both, lambda cluster: cluster.tell_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO))
    with pytest.raises(RemotingError, match="no name server can be reached"):
        doing(f"127.0.0.1:{nobody}", lambda cluster: cluster.find_route("T"))


def test_many_questions_at_once_share_one_connection_and_an_error_has_the_peer_s_words(tmp_path: Path) -> None:
    async def ask(cluster: ClusterClient) -> Any:
        clients = await asyncio.gather(*(cluster.at(broker.address) for _ in range(10)))
        assert len(set(map(id, clients))) == 1
        return await cluster.ask(broker.address, RequestCode.PULL_MESSAGE)

    with LocalBroker(tmp_path) as broker, pytest.raises(RequestRefused, match="refuses") as raised:
        doing(broker.name_server, ask)
    assert raised.value.code != ResponseCode.SUCCESS


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(BadConfig):
        ClusterClient("nowhere")
