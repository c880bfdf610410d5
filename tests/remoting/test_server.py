"""What a server answers, and what it does not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import struct
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator

import pytest

from campaign.networks.proxy import Proxy
from remoting.peers import (
    BIG,
    BROKEN,
    ECHO,
    ECHO_BLOCKING,
    LATER,
    Gate,
    RawPeer,
    ServerThread,
    make_server,
    serve_sends,
    serving,
)
from simulation.manual_clock import ManualClock
from tiermq.broker.http_endpoint import HttpEndpoint
from tiermq.errors import BadConfig, RemotingError, RequestRefused
from tiermq.kernel import KERNEL, SendRequest, send_answer
from tiermq.remoting.access import ANY_ACCOUNT, serves
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, HeaderType, RemotingCommand
from tiermq.remoting.connection import UNKNOWN_PEER, AnyFrame, Connection
from tiermq.remoting.frame import encode_frame
from tiermq.remoting.limits import INLINE_BODY_BYTES, ServerLimits
from tiermq.remoting.server import TURNS_UNTIL_SERVED, RemotingServer, close_listener
from waiting import until

SEND_EXT = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
TURNS = range(TURNS_UNTIL_SERVED + 2)
Stop = Callable[[], Awaitable[object]]


@pytest.fixture(scope="module")
def running() -> Iterator[ServerThread]:
    with serving(make_server()) as started:
        yield started


@pytest.mark.parametrize("header_type", HeaderType)
@pytest.mark.parametrize("code", [ECHO, ECHO_BLOCKING])
def test_a_request_is_answered_in_its_own_header_type(running: ServerThread, code: int, header_type: int) -> None:
    with BlockingClient("127.0.0.1", running.port, header_type=header_type, timeout_s=60) as client:
        answer = client.request(RemotingCommand(code, ext={"a": "é"}, body=b"body"))
    assert (answer.code, answer.ext, answer.body, answer.header_type) == (0, {"a": "é"}, b"body", header_type)


def test_requests_that_are_sent_together_are_all_answered_by_their_opaque(running: ServerThread) -> None:
    with RawPeer(running.port) as peer:
        codes = [ECHO, ECHO_BLOCKING] * 50
        peer.send(*(RemotingCommand(code, opaque=n, ext={"n": str(n)}) for n, code in enumerate(codes)))
        answers = [peer.read() for _ in codes]
    assert {answer.opaque: answer.ext["n"] for answer in answers} == {n: str(n) for n in range(len(codes))}


def test_an_unknown_code_is_not_supported(running: ServerThread) -> None:
    with BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
        assert client.request(RemotingCommand(31_999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_handler_s_mistake_is_answered_and_logged(running: ServerThread, caplog: pytest.LogCaptureFixture) -> None:
    with BlockingClient("127.0.0.1", running.port, timeout_s=60) as client, caplog.at_level(logging.ERROR):
        answer = client.request(RemotingCommand(BROKEN))
        assert (answer.code, "ZeroDivisionError" in str(answer.remark)) == (1, True)
        assert "no reason" not in str(answer.remark), "it may quote what was read"
        assert client.request(RemotingCommand(ECHO)).code == 0
    assert "failed" in caplog.text
    assert "no reason" in caplog.text


def test_a_one_way_request_is_never_answered_not_even_with_an_error(running: ServerThread) -> None:
    with RawPeer(running.port) as peer:
        peer.send(*(RemotingCommand(code, flag=FLAG_ONEWAY, opaque=1) for code in (ECHO, BROKEN, 31_999)))
        peer.send(RemotingCommand(ECHO, opaque=2))
        assert peer.read().opaque == 2


def test_a_refusal_has_its_code_and_its_remark() -> None:
    server = make_server()

    def refuse(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        raise RequestRefused("no such topic", ResponseCode.TOPIC_NOT_EXIST)

    server.register(LATER, refuse, ANY_ACCOUNT)
    with serving(server) as started, BlockingClient("127.0.0.1", started.port, timeout_s=60) as client:
        answer = client.request(RemotingCommand(LATER))
    assert (answer.code, answer.remark) == (17, "no such topic")
    assert server.handler_errors == 0


def test_a_handler_may_answer_later_and_from_another_thread() -> None:
    server = make_server()

    def later(connection: Connection, command: RemotingCommand) -> None:
        answer = command.respond(0, "later")
        threading.Thread(target=server.call_threadsafe, args=(connection.send, answer)).start()

    server.register(LATER, later, ANY_ACCOUNT)
    with serving(server) as started, BlockingClient("127.0.0.1", started.port, timeout_s=60) as client:
        assert client.request(RemotingCommand(LATER)).remark == "later"


def test_a_full_line_of_blocking_requests_is_answered_busy() -> None:
    gate = Gate()
    server = make_server(limits=ServerLimits(blocking_threads=1, blocking_line_max=2))
    server.register(LATER, gate, ANY_ACCOUNT, in_pool=True)
    with serving(server) as started, RawPeer(started.port) as peer:
        peer.send(*(RemotingCommand(LATER, opaque=n) for n in range(3)), RemotingCommand(ECHO, opaque=3))
        busy, echoed = peer.read(), peer.read()
        assert (busy.opaque, busy.code, echoed.opaque) == (2, ResponseCode.SYSTEM_BUSY, 3)
        gate.opened.set()
        assert {peer.read().opaque, peer.read().opaque} == {0, 1}


def test_sends_come_parsed_and_their_answer_goes_out_as_it_is() -> None:
    server = make_server()
    seen: list[SendRequest] = []

    def take(connection: Connection, request: SendRequest) -> bytes:
        seen.append(request)
        if request.topic == "refused":
            raise RequestRefused("no", ResponseCode.MESSAGE_ILLEGAL)
        return send_answer(request.header_type, request.opaque, 0, 479, "ID", request.queue_id, 7, "", "R", "true")

    serve_sends(server, take)
    with serving(server) as started:
        for header_type in HeaderType:
            with BlockingClient("127.0.0.1", started.port, header_type=header_type, timeout_s=60) as client:
                answer = client.request(RemotingCommand(310, ext=SEND_EXT, body=b"body"))
                assert (answer.code, answer.ext["queueOffset"]) == (0, "7")
                unusual = client.request(RemotingCommand(310, ext={**SEND_EXT, "e": "+3"}))
                assert unusual.ext["queueId"] == "3"
                assert client.request(RemotingCommand(310, ext={"b": "T"})).code == 1
                assert client.request(RemotingCommand(310, ext={**SEND_EXT, "b": "refused"})).code == 13
                client.oneway(RemotingCommand(310, ext={**SEND_EXT, "b": "one-way"}))
                assert client.request(RemotingCommand(310, ext=SEND_EXT)).code == 0
    assert [send.topic for send in seen] == ["T", "T", "refused", "one-way", "T"] * 2
    assert seen[0].body == b"body"


@pytest.mark.skipif(KERNEL == "pure", reason="it parses sends when they are handled")
def test_of_a_read_those_sends_reach_the_handler_that_were_not_taken_before() -> None:
    server = make_server()
    handled: list[int] = []
    reads: list[list[int]] = []

    def take(connection: Connection, request: SendRequest) -> bytes:
        connection.born_host = b"\x7f\0\0\1\0\0\0\1"
        handled.append(request.opaque)
        return send_answer(request.header_type, request.opaque, 0, 479, "ID", 0, 7, "", "R", "true")

    def take_two(connection: Connection, frames: list[AnyFrame]) -> int:
        reads.append([frame.opaque for frame in frames if isinstance(frame, SendRequest)])
        for opaque in reads[-1][:2]:
            server.loop.call_soon(connection.send, RemotingCommand(0, opaque=opaque, flag=1, remark="later"))
        return len(reads[-1][:2])

    serve_sends(server, take)
    server.take_sends_by(take_two)
    with serving(server) as started, RawPeer(started.port) as peer:
        peer.send(RemotingCommand(310, ext=SEND_EXT, opaque=1))
        assert (peer.read().opaque, reads) == (1, [])  # Where its messages are born was not known yet.
        peer.send(*(RemotingCommand(310, ext=SEND_EXT, opaque=opaque) for opaque in range(2, 6)))
        answers = [peer.read() for _ in range(4)]
    assert sorted(each.opaque for each in answers if each.remark == "later") == reads[0][:2]
    assert (reads, handled) == ([[2, 3, 4, 5]], [1, 4, 5])


def test_without_a_handler_for_sends_they_are_commands_like_others() -> None:
    server = make_server()
    server.register(310, lambda connection, command: command.respond(0, ext={"topic": command.ext["b"]}), ANY_ACCOUNT)
    with serving(server) as started, BlockingClient("127.0.0.1", started.port, timeout_s=60) as client:
        assert client.request(RemotingCommand(310, ext=SEND_EXT)).ext == {"topic": "T"}


def test_a_client_can_be_asked_by_the_server() -> None:
    server = make_server()

    def ask_back(connection: Connection, command: RemotingCommand) -> None:
        asked = connection.request(RemotingCommand(307, ext={"who": "you"}), timeout_s=30)
        asked.add_done_callback(lambda done: connection.send(command.respond(0, done.result().remark)))

    server.register(LATER, ask_back, ANY_ACCOUNT)
    with serving(server) as started, BlockingClient("127.0.0.1", started.port, timeout_s=60) as client:
        assert client.request(RemotingCommand(LATER)).remark == "this client does not do that"
        client.on_request(307, lambda command: command.respond(0, command.ext["who"]))
        assert client.request(RemotingCommand(LATER)).remark == "you"


def test_idle_peers_are_closed_and_busy_ones_are_not(manual_clock: ManualClock) -> None:
    server = make_server(clock=manual_clock)
    with serving(server) as started, RawPeer(started.port) as idle, RawPeer(started.port) as busy:
        for peer in (idle, busy):
            peer.send(RemotingCommand(ECHO))
            peer.read()
        manual_clock.advance_ms(100_000)
        busy.send(RemotingCommand(ECHO))
        busy.read()

        def look_later() -> int:
            """In one turn of the loop, or the server's own look, every ten seconds, may come in between."""
            manual_clock.advance_ms(100_000)
            return server.close_idle()

        assert started.thread.call(look_later) == 1
        assert idle.is_closed_by_server()
        busy.send(RemotingCommand(ECHO))
        assert busy.read().code == 0


def test_a_peer_that_sends_single_bytes_of_a_frame_is_idle(manual_clock: ManualClock) -> None:
    server = make_server(clock=manual_clock)
    with serving(server) as started, RawPeer(started.port) as peer:
        peer.send(RemotingCommand(ECHO))
        peer.read()

        def begun() -> int:
            return sum(each.partial_bytes for each in server.connections)

        peer.socket.sendall(struct.pack(">iI", 1 << 20, 0))
        for count in range(9, 12):
            manual_clock.advance_ms(50_000)
            peer.socket.sendall(b"x")
            until(lambda: not 0 < started.thread.call(begun) < count)  # noqa: B023 - called at once
        started.thread.call(server.close_idle)
        assert peer.is_closed_by_server()


def test_peers_beyond_the_limit_are_closed_and_others_go_on() -> None:
    server = make_server(limits=ServerLimits(connections_max=2))
    with serving(server) as started, RawPeer(started.port) as one, RawPeer(started.port) as other:
        for peer in (one, other):
            peer.send(RemotingCommand(ECHO))
            peer.read()
        with RawPeer(started.port) as third:
            assert third.is_closed_by_server()
        assert server.refused_connections == 1
        one.send(RemotingCommand(ECHO))
        assert one.read().code == 0


def test_callbacks_hear_of_every_beginning_and_end() -> None:
    server = make_server()
    heard: list[str] = []
    ended = threading.Event()
    server.on_open.append(lambda connection: heard.append(f"open {connection.peer[0]}"))
    server.on_close += [lambda connection: heard.append("close"), lambda connection: ended.set()]
    with serving(server) as started:
        with RawPeer(started.port) as peer:
            peer.send(RemotingCommand(ECHO))
            peer.read()
        ended.wait()
    assert heard == ["open 127.0.0.1", "close"]


def test_stopping_lets_requests_finish_and_then_closes() -> None:
    gate = Gate()
    server = make_server()
    server.register(LATER, gate, ANY_ACCOUNT, in_pool=True)
    started = ServerThread(server)
    with RawPeer(started.port) as peer:
        peer.send(RemotingCommand(LATER, opaque=9))
        gate.entered.acquire()
        stopper = threading.Thread(target=started.stop, args=(60.0,))
        stopper.start()
        gate.opened.set()
        assert peer.read().opaque == 9
        assert peer.is_closed_by_server()
        stopper.join()
    started.stop()
    assert server.connections == set()


def test_calls_from_other_threads_all_run_and_a_failing_one_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()
    done = threading.Event()
    seen: list[int] = []
    with serving(server), caplog.at_level(logging.ERROR):
        server.call_threadsafe(lambda: 1 / 0)
        for number in range(100):
            server.call_threadsafe(seen.append, number)
        server.call_threadsafe(done.set)
        done.wait()
    assert seen == list(range(100))
    assert server.handler_errors == 1


def test_a_call_that_comes_after_the_end_is_no_mistake() -> None:
    server = make_server()
    ran: list[int] = []
    with serving(server):
        pass
    server.call_threadsafe(ran.append, 1)
    server.call_threadsafe(ran.append, 2)
    assert (ran, server.loop.is_closed()) == ([], True)


def test_a_server_that_was_not_started_reports_so() -> None:
    with pytest.raises(RemotingError, match="start"):
        _ = RemotingServer().loop


def test_a_big_answer_arrives_whole(running: ServerThread) -> None:
    with BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
        assert len(client.request(RemotingCommand(BIG, ext={"bytes": str(12 << 20)})).body) == 12 << 20


def test_what_a_peer_sent_who_was_gone_before_it_was_taken_is_no_mistake() -> None:
    asked = []
    server = RemotingServer()
    server.register(
        RequestCode.GET_BROKER_RUNTIME_INFO, lambda connection, _request: asked.append(connection.peer), ANY_ACCOUNT
    )

    async def gone() -> None:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as peer:
                peer.sendall(encode_frame(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)))
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.sleep(0)  # The loop takes it after its reset.

    with ServerThread(server) as running:
        running.thread.run(gone())
        with BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
            assert client.request(RemotingCommand(1)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert UNKNOWN_PEER not in asked


@pytest.mark.parametrize("values", [{"connections_max": 0}, {"idle_s": -1.0}, {"write_bytes_max": 5}])
def test_a_limit_that_cannot_be_kept_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(BadConfig, match=next(iter(values))):
        ServerLimits(**values)


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


def where(_command: RemotingCommand) -> str:
    return threading.current_thread().name


class Places:
    """Answers with the threads that decoded and handled a request."""

    @serves(2_001, access=ANY_ACCOUNT)
    def plain(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.respond(remark=where(command))

    @serves(2_002, access=ANY_ACCOUNT, long_in_pool=True)
    def handled(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.respond(remark=where(command))

    @serves(2_003, access=ANY_ACCOUNT, decode=where)
    @serves(2_004, access=ANY_ACCOUNT, decode=where, in_pool=True)
    @serves(2_005, access=ANY_ACCOUNT, decode=where, large_body=True)
    def decoded(self, _connection: Connection, command: RemotingCommand, decoded: str) -> RemotingCommand:
        return command.respond(remark=f"{decoded} {where(command)}")

    @serves(2_006, access=ANY_ACCOUNT, in_pool=True)
    def pooled(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.respond(remark=where(command))

    @serves(2_007, access=ANY_ACCOUNT, large_body=True)
    def unparsed(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.respond(remark=where(command))


SHORT, LONG, LARGE = INLINE_BODY_BYTES, INLINE_BODY_BYTES + 1, ServerLimits().body_bytes_max + 1
LOOP, POOL = "loop", "pool"


@pytest.mark.parametrize(
    ("code", "size", "places"),
    [
        (2_001, SHORT, LOOP), (2_001, LONG, None),
        (2_002, SHORT, LOOP), (2_002, LONG, POOL), (2_002, LARGE, None),
        (2_003, SHORT, f"{LOOP} {LOOP}"), (2_003, LONG, f"{POOL} {LOOP}"), (2_003, LARGE, None),
        (2_004, 0, f"{POOL} {LOOP}"), (2_004, LONG, f"{POOL} {LOOP}"), (2_004, LARGE, None),
        (2_005, SHORT, f"{LOOP} {LOOP}"), (2_005, LARGE, f"{POOL} {LOOP}"),
        (2_006, 0, POOL), (2_006, LONG, POOL), (2_006, LARGE, None),
        (2_007, SHORT, LOOP), (2_007, LARGE, LOOP),
    ],
)  # fmt: skip
def test_long_bodies_are_parsed_in_the_pool_or_refused(code: int, size: int, places: str | None) -> None:
    server = RemotingServer()
    server.serve(Places())
    with serving(server) as started, BlockingClient("127.0.0.1", started.port, timeout_s=60) as client:
        answer = client.request(RemotingCommand(code, body=bytes(size)))
    if places is None:
        assert (answer.code, "expected a body of at most" in str(answer.remark)) == (
            ResponseCode.INVALID_PARAMETER,
            True,
        )
    else:
        named = [LOOP if each == "remoting-loop" else POOL for each in str(answer.remark).split()]
        assert (answer.code, " ".join(named)) == (0, places)


@pytest.mark.parametrize("seam", [0, 3, 8, 30])
@pytest.mark.parametrize("cut", [100, 70_000])
def test_a_body_that_is_too_long_is_refused_before_it_arrives_and_skipped(cut: int, seam: int) -> None:
    """`cut`: bytes of the refused frame that come with its header. The peer sends the rest after the answer.

    `seam`: bytes of the header that are read before the others.
    """
    server = RemotingServer()
    server.serve(Places())
    short = encode_frame(RemotingCommand(2_002, opaque=1, body=b"before"))
    refused = encode_frame(RemotingCommand(2_002, opaque=2, body=bytes(5_000_000)))
    header_end = 8 + int.from_bytes(refused[5:8])
    behind = encode_frame(RemotingCommand(2_002, opaque=3, body=b"behind"))
    with serving(server) as started, RawPeer(started.port) as peer:
        peer.socket.sendall(short + refused[:seam])
        answers = {1: peer.read()}
        peer.socket.sendall(refused[seam : header_end + cut])
        answers[2] = peer.read()
        assert {opaque: answer.code for opaque, answer in answers.items()} == {1: 0, 2: ResponseCode.INVALID_PARAMETER}
        assert "expected a body of at most" in str(answers[2].remark)
        assert max(each._reader.pending_bytes for each in server.connections) == 0
        peer.socket.sendall(refused[header_end + cut :] + behind)
        assert peer.read().opaque == 3
        peer.socket.sendall(short)
        assert peer.read().opaque == 1


def test_a_long_answer_to_nothing_is_skipped_as_it_comes() -> None:
    server = RemotingServer()
    server.serve(Places())
    answer = RemotingCommand(0, opaque=9, flag=FLAG_RESPONSE, body=bytes(5_000_000))
    with serving(server) as started, RawPeer(started.port) as peer:
        peer.socket.sendall(encode_frame(answer)[:4_000_000])
        peer.socket.sendall(bytes(1_000_000))
        until(lambda: sum(each._refused_bytes for each in server.connections) > 0)
        assert max(each._reader.pending_bytes for each in server.connections) == 0
        frame = encode_frame(answer)
        peer.socket.sendall(frame[5_000_000:] + encode_frame(RemotingCommand(2_002, opaque=3)))
        assert peer.read().opaque == 3


@pytest.mark.parametrize("code", [2_005, 2_007])
def test_a_long_body_that_is_wanted_is_taken_however_it_is_cut(code: int) -> None:
    server = RemotingServer()
    server.serve(Places())
    frame = encode_frame(RemotingCommand(code, opaque=7, body=bytes(LARGE)))
    with serving(server) as started, RawPeer(started.port) as peer:
        for begin in range(0, len(frame), 300_001):
            peer.socket.sendall(frame[begin : begin + 300_001])
        assert (answer := peer.read()).opaque == 7
        assert answer.code == 0


class Body:
    """What a body was read into."""


@pytest.mark.parametrize("chained", [False, True])
def test_what_was_read_of_a_refused_body_is_freed_without_a_collection(*, chained: bool) -> None:
    read: list[weakref.ref[Body]] = []

    def refuse(_command: RemotingCommand) -> None:
        body = Body()
        read.append(weakref.ref(body))
        if not chained:
            raise RequestRefused("too long")
        try:
            raise ValueError(body)
        except ValueError as error:
            raise RequestRefused("not read") from error

    class Refusing:
        @serves(2_008, access=ANY_ACCOUNT, decode=refuse, in_pool=True)
        def serve(self, _connection: Connection, command: RemotingCommand, _decoded: None) -> RemotingCommand:
            return command.respond()

    server = RemotingServer()
    server.serve(Refusing())
    gc.disable()
    try:
        with serving(server) as running, BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
            assert client.request(RemotingCommand(2_008)).code == ResponseCode.SYSTEM_ERROR
            until(lambda: read[0]() is None)
    finally:
        gc.enable()


def test_work_in_steps_shares_one_slice_of_the_loop() -> None:
    """Ten requests of two long steps each: no two of them in one turn of the loop."""
    server = RemotingServer()
    turns: list[str] = []

    class Steps:
        @serves(2_010, access=ANY_ACCOUNT)
        def long(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
            def steps() -> Generator[None, None, RemotingCommand]:
                for _ in range(2):
                    turns.append("step")
                    until_s = time.monotonic() + 0.006
                    while time.monotonic() < until_s:
                        pass
                    server.loop.call_soon(turns.append, "turn")
                    yield
                return command.respond()

            return server.in_steps(connection, command, steps())

    server.serve(Steps())
    with serving(server) as started, RawPeer(started.port) as peer:
        peer.send(*(RemotingCommand(2_010, opaque=each) for each in range(10)))
        assert sorted(peer.read().opaque for _ in range(10)) == list(range(10))
    assert turns.count("step") == 20
    assert not any(one == two == "step" for one, two in itertools.pairwise(turns))
