"""What a client of ours promises."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from remoting.peers import ECHO, LATER, make_server, serving
from tiermq.errors import BadConfig, PeerGone, RequestTimedOut
from tiermq.remoting.access import ANY_ACCOUNT
from tiermq.remoting.client import Address, BlockingClient, RemotingClient, parse_name_servers
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.tls import TlsSettings, trusting_client_context


def test_without_a_listener_the_error_reports_where() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(PeerGone, match=f"127.0.0.1:{port}"):
            BlockingClient("127.0.0.1", port)


def test_requests_of_many_threads_get_their_own_answers() -> None:
    with serving(make_server()) as running, BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
        later = [client.request_later(RemotingCommand(ECHO, ext={"n": str(n)})) for n in range(200)]
        assert [each.result().ext["n"] for each in later] == [str(n) for n in range(200)]


def test_a_client_works_on_the_caller_s_loop() -> None:
    async def talk(port: int) -> list[bytes]:
        client = await RemotingClient.connect("127.0.0.1", port, header_type=HeaderType.ROCKETMQ, timeout_s=60)
        asked = (client.request(RemotingCommand(ECHO, body=bytes([n])), timeout_s=60) for n in range(5))
        answers = await asyncio.gather(*asked)
        was_open = client.is_open
        await client.close()
        assert (was_open, client.is_open) == (True, False)
        with pytest.raises(PeerGone):
            await client.request(RemotingCommand(ECHO))
        return [bytes(answer.body) for answer in answers]

    with serving(make_server()) as running:
        assert asyncio.run(talk(running.port)) == [bytes([n]) for n in range(5)]


def test_an_answer_that_does_not_come_is_an_error_and_the_client_goes_on() -> None:
    server = make_server()
    server.register(LATER, lambda connection, command: None, ANY_ACCOUNT)
    with serving(server) as running, BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
        with pytest.raises(RequestTimedOut, match=f"request {LATER}"):
            client.request(RemotingCommand(LATER), timeout_s=0.001)
        assert client.request(RemotingCommand(ECHO)).code == 0


def test_a_server_that_goes_away_ends_what_was_asked() -> None:
    server = make_server()
    server.register(LATER, lambda connection, command: connection.abort(), ANY_ACCOUNT)
    with serving(server) as running, BlockingClient("127.0.0.1", running.port, timeout_s=600) as client:
        closed = rf"^127.0.0.1:{running.port}: expected an answer, found the connection closed\."
        with pytest.raises(PeerGone, match=closed):
            client.request(RemotingCommand(LATER))
        client.close()
        client.close()


def test_notices_reach_their_handler() -> None:
    server = make_server()
    heard = threading.Event()

    def notify(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        connection.oneway(RemotingCommand(40, ext={"consumerGroup": "g"}))
        return command.respond(0)

    server.register(LATER, notify, ANY_ACCOUNT)
    with serving(server) as running, BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
        client.on_request(40, lambda command: heard.set())
        client.request(RemotingCommand(LATER))
        heard.wait()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("uvloop", ["0", "1"])
def test_a_connection_that_is_made_as_its_time_runs_out_is_not_left_open(
    tls: bool, uvloop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERMQ_UVLOOP", uvloop)
    made: list[RemotingClient] = []

    class Late(RemotingClient):
        """Is given up in the very moment in which it is connected."""

        def opened(self, connection: Connection) -> bool:
            made.append(self)
            task.cancel()
            return super().opened(connection)

    task: asyncio.Task[RemotingClient]

    async def connect(port: int) -> None:
        nonlocal task
        context = trusting_client_context() if tls else None
        task = asyncio.ensure_future(Late.connect("127.0.0.1", port, tls=context, timeout_s=60))
        with pytest.raises(asyncio.CancelledError):
            await task

    thread = LoopThread("late")
    with serving(make_server(tls=TlsSettings())) as running:
        thread.run(connect(running.port))
        assert [client.is_open for client in made] == [False]
        while running.server.connections:
            running.thread.call(lambda: None)
        thread.stop()


def test_a_peer_that_does_not_answer_a_client_is_reported_to_be_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(PeerGone, match="it does not answer"):
        BlockingClient("127.0.0.1", silent.getsockname()[1], tls=trusting_client_context(), timeout_s=0.05)


def test_a_client_that_was_never_connected_reports_so() -> None:
    async def ask() -> None:
        client = RemotingClient()
        await client.close()
        await client.request(RemotingCommand(ECHO))

    with pytest.raises(PeerGone, match="connect"):
        asyncio.run(ask())


def test_a_client_that_is_closed_does_not_wait_for_a_peer_that_takes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = BlockingClient("127.0.0.1", deaf.getsockname()[1], timeout_s=60)
        peer, _ = deaf.accept()
        with peer:
            asked = client.request_later(RemotingCommand(ECHO, body=bytes(15 << 20)))
            client.close()  # More was sent than the kernels hold between them, and it is not read.
            with pytest.raises(PeerGone):
                asked.result()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("a:1", [("a", 1)]),
        (" a:1 ; b:2;", [("a", 1), ("b", 2)]),
        ("a:1,a:1", [("a", 1)]),
        ("[::1]:9876", [("::1", 9876)]),
    ],
)
def test_addresses_of_name_servers_are_read(text: str, found: list[Address]) -> None:
    assert parse_name_servers(text) == found


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a:1;b", "a:²"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="expected name servers as host:port"):
        parse_name_servers(text)


def test_a_port_of_thousands_of_digits_is_refused_in_words() -> None:
    with pytest.raises(BadConfig, match="host:port"):
        parse_name_servers("host:" + "1" * 5000)
