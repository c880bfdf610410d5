"""The client of the commands: routes, masters, errors in the peer's words."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from client.wire_world import filled
from servers.loopback import free_ports
from servers.stranger import stranger_with
from tiermq.client.cluster_client import Access, BlockingCluster, ClusterClient, MasterTable, split_address
from tiermq.errors import BadConfig, PeerGone, RemotingError, RequestRefused, RequestTimedOut
from tiermq.remoting.client import RemotingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
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


def test_a_route_with_more_queues_than_a_topic_can_have_is_refused(tmp_path: Path) -> None:
    with (
        LocalBroker(tmp_path) as broker,
        stranger_with(broker.name_server, "many", 1_000_000),
        pytest.raises(RemotingError, match="at most 65536 queues at stranger, found 1000000"),
    ):
        doing(broker.name_server, lambda cluster: cluster.find_route("many"))


def test_a_route_with_more_queues_in_all_than_a_client_takes_is_refused(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker, ExitStack() as strangers:
        for number in range(5):
            strangers.enter_context(stranger_with(broker.name_server, "many", 1 << 16, f"stranger-{number}"))
        with pytest.raises(RemotingError, match="at most 262144 queues in all, found more"):
            doing(broker.name_server, lambda cluster: cluster.find_route("many"))


def test_the_second_name_server_is_asked_when_the_first_is_gone(tmp_path: Path) -> None:
    [absent] = free_ports(1)
    with LocalBroker(tmp_path) as broker:
        both = f"127.0.0.1:{absent};{broker.name_server}"
        assert doing(both, lambda cluster: cluster.find_route("TBW102")) is not None
        doing(both, lambda cluster: cluster.tell_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO))
    with pytest.raises(RemotingError, match="no name server can be reached"):
        doing(f"127.0.0.1:{absent}", lambda cluster: cluster.find_route("T"))


def test_many_questions_at_once_share_one_connection_and_an_error_has_the_peer_s_words(tmp_path: Path) -> None:
    async def ask(cluster: ClusterClient) -> Any:
        clients = await asyncio.gather(*(cluster.at(broker.address) for _ in range(10)))
        assert len(set(map(id, clients))) == 1
        return await cluster.ask(broker.address, RequestCode.PULL_MESSAGE)

    with LocalBroker(tmp_path) as broker, pytest.raises(RequestRefused, match="refuses") as raised:
        doing(broker.name_server, ask)
    assert raised.value.code != ResponseCode.SUCCESS


def test_a_connection_that_is_made_while_its_client_ends_is_closed(tmp_path: Path) -> None:
    async def leave() -> None:
        async with ClusterClient(broker.name_server) as cluster:
            late = asyncio.ensure_future(cluster.at(broker.address))
            await asyncio.sleep(
                0
            )  # It begins to connect, and is left alone with that: as a gather leaves it that fails.
        with pytest.raises(PeerGone, match="closed"):
            await late
        with pytest.raises(PeerGone, match="closed"):
            await cluster.at(broker.address)

    with LocalBroker(tmp_path) as broker:
        asyncio.run(leave())
    gc.collect()  # What was left open complains here.


def test_a_connection_that_closes_slowly_is_ended_when_another_takes_its_place() -> None:
    async def replace(cluster: ClusterClient) -> None:
        address = "{}:{}".format(*deaf.getsockname())
        slow = await cluster.at(address)
        slow.oneway(RemotingCommand(RequestCode.HEART_BEAT, body=bytes(15 << 20)))  # Nobody ever takes all of it.
        assert slow.connection is not None
        slow.connection.close()
        assert await cluster.at(address) is not slow

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        doing("127.0.0.1:1", replace)
    gc.collect()


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(BadConfig):
        ClusterClient("nowhere")


def test_a_name_server_that_does_not_answer_is_passed_over_and_asked_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ClusterClient.ask
    with LocalBroker(tmp_path) as broker, socket.create_server(("127.0.0.1", 0)) as silent:
        without_answers = f"127.0.0.1:{silent.getsockname()[1]}"
        both = f"{without_answers};{broker.name_server}"

        async def impatient(cluster: ClusterClient, address: str, code: RequestCode, **fields: Any) -> RemotingCommand:
            timeout_s = 0.1 if address == without_answers else 60.0
            return await ask(cluster, address, code, **{"timeout_s": timeout_s, **fields})

        monkeypatch.setattr(ClusterClient, "ask", impatient)

        async def ask_twice(cluster: ClusterClient) -> None:
            for _ in range(2):
                assert await cluster.find_route("TBW102") is not None
            await cluster.tell_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO)

        doing(both, ask_twice)
        silent.setblocking(False)
        silent.accept()[0].close()  # By the first question.
        silent.accept()[0].close()  # By what is told to all: the second question did not come here.
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_a_connection_that_leaves_a_request_without_an_answer_gets_no_new_ones() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        async def ask(cluster: ClusterClient) -> None:
            slow = asyncio.ensure_future(cluster.ask(address, RequestCode.GET_MAX_OFFSET, timeout_s=60))
            first = await cluster.at(address)
            with pytest.raises(RequestTimedOut):
                await cluster.ask(address, RequestCode.GET_MAX_OFFSET, timeout_s=0.05)
            second = await cluster.at(address)
            assert second is not first
            assert first.is_open, "what was asked before may still be answered"
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
            with pytest.raises(RequestTimedOut):
                await cluster.ask(address, RequestCode.GET_MAX_OFFSET, timeout_s=0.05)
            assert not second.is_open

        doing(address, ask)


def test_an_address_that_lets_nobody_connect_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting = asyncio.Event()
    connect = RemotingClient.connect

    async def slowly(host: str, port: int, **options: Any) -> Any:
        if port == 1:
            connecting.set()
            await asyncio.Event().wait()
        return await connect(host, port, **options)

    monkeypatch.setattr(RemotingClient, "connect", slowly)
    with LocalBroker(tmp_path) as broker:

        async def ask(cluster: ClusterClient) -> None:
            stuck = asyncio.ensure_future(cluster.at("127.0.0.1:1"))
            await connecting.wait()
            assert await cluster.find_route("TBW102") is not None
            stuck.cancel()
            await asyncio.gather(stuck, return_exceptions=True)

        doing(broker.name_server, ask)


def test_half_of_the_credentials_is_an_error() -> None:
    with pytest.raises(BadConfig, match="ROCKETMQ_SECRET_KEY"):
        Access("127.0.0.1:1", access_key="key").client()


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_ACCESS_KEY", raising=False)
    monkeypatch.delenv("ROCKETMQ_SECRET_KEY", raising=False)
    assert Access.of_environment("a:1") == Access("a:1")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "key")
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "word")
    assert Access.of_environment("a:1", tls=True) == Access("a:1", "key", "word", tls=True)


def test_work_is_done_now_or_later_and_nothing_after_the_end(tmp_path: Path) -> None:
    with filled(tmp_path) as (_, cluster):
        assert cluster.run(cluster.client.route("orders")).topic == "orders"
        assert cluster.call(lambda: cluster.client) is cluster.client
        cluster.close()
        cluster.close()
        with pytest.raises(RemotingError, match="stopped"):
            cluster.run(cluster.client.route("orders"))


def test_an_access_that_cannot_be_leaves_no_thread_behind() -> None:
    with pytest.raises(BadConfig):
        BlockingCluster(Access("no address"))


def test_a_broker_name_of_two_clusters_has_the_address_of_one_and_bad_entries_stay_alone() -> None:
    table = MasterTable.of(
        {
            "clusterAddrTable": {"c1": ["a", "b"], "c2": ["a", "odd", "slave"]},
            "brokerAddrTable": {
                "a": {"cluster": "c2", "brokerAddrs": {"0": "h:1"}},
                "b": {"cluster": "c1", "brokerAddrs": {"0": "h:2"}},
                "odd": {"brokerAddrs": ["h:3"]},
                "slave": {"brokerAddrs": {"1": "h:4"}},
            },
        }
    )
    assert table.addresses == {("c2", "a"): "h:1", ("c1", "b"): "h:2"}
    assert table.problems.keys() == {("c1", "a"), ("c2", "odd")}
    assert table.shared == {"a"}


@pytest.mark.parametrize("address", ["nonsense", "h:", ":1", "h:0", "h:99999", "h:\u0661"])
def test_an_address_that_no_server_can_have_is_like_a_server_that_is_gone(address: str) -> None:
    with pytest.raises(PeerGone, match="host:port"):
        split_address(address)
