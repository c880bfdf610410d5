"""A listener that ends leaves no connection behind, in whatever moment of its making it is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Awaitable, Callable

import pytest

from campaign.networks.proxy import Proxy
from tiermq.broker.http_endpoint import HttpEndpoint
from tiermq.remoting.listener_end import TURNS_UNTIL_SERVED, close_listener
from tiermq.remoting.server import RemotingServer

TURNS = range(TURNS_UNTIL_SERVED + 2)
Stop = Callable[[], Awaitable[object]]


async def plain() -> tuple[int, Stop]:
    class Peer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    listener = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", 0)
    return listener.sockets[0].getsockname()[1], lambda: close_listener(listener)


async def remoting() -> tuple[int, Stop]:
    server = RemotingServer()
    await server.start()
    return server.port, server.stop


async def http() -> tuple[int, Stop]:
    endpoint = HttpEndpoint("127.0.0.1", 0, {})
    await endpoint.open()
    return endpoint.port, endpoint.close


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("start", [plain, remoting, http])
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_connection_that_is_being_taken_is_closed_with_its_listener(
    start: Callable[[], Awaitable[tuple[int, Stop]]], turns: int
) -> None:
    async def scenario() -> socket.socket:
        port, stop = await start()
        peer = socket.create_connection(("127.0.0.1", port))
        for _ in range(turns):
            await asyncio.sleep(0)
        await stop()
        return peer

    peer = asyncio.run(scenario())
    with peer:
        peer.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
    gc.collect()


@pytest.mark.parametrize("turns", TURNS)
def test_a_proxy_that_is_closed_keeps_no_connection_that_is_being_taken(turns: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as target, Proxy(*target.getsockname()) as proxy:

        async def taken() -> socket.socket:
            peer = socket.create_connection((proxy.host, proxy.port))
            for _ in range(turns):
                await asyncio.sleep(0)
            await proxy._end()
            return peer

        with proxy._thread.run(taken()) as peer:
            peer.settimeout(10)
            with pytest.raises(ConnectionResetError):
                peer.recv(1)
    gc.collect()
