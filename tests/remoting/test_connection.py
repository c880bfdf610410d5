"""Slow readers, floods, garbage: a connection stays within its bounds and hurts no other."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import struct
import threading
from asyncio import Future

import pytest

from remoting.peers import BIG, ECHO, ECHO_BLOCKING, LATER, RawPeer, ServerThread, begun_send, make_server, serving
from tiermq.errors import PeerGone, RequestTimedOut
from tiermq.remoting.access import ANY_ACCOUNT
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.command import FLAG_RESPONSE, RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.frame import encode_frame
from tiermq.remoting.limits import ServerLimits

MIB = 1 << 20


def still_serves(running: ServerThread) -> bool:
    with BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
        return client.request(RemotingCommand(ECHO)).code == 0


def test_a_peer_that_does_not_read_its_answers_is_not_read_from_and_gets_them_all_later() -> None:
    server = make_server(limits=ServerLimits(write_high_bytes=MIB))
    handled = 0
    most_unsent = 0

    def count(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        nonlocal handled, most_unsent
        handled += 1
        most_unsent = max(most_unsent, connection.unsent_bytes)
        return command.respond(0, body=bytes(256 * 1024))

    server.register(LATER, count, ANY_ACCOUNT)
    with serving(server) as running, RawPeer(running.port, receive_bytes=64 * 1024) as peer:
        peer.send(*(RemotingCommand(LATER, opaque=n) for n in range(200)))
        assert still_serves(running)
        assert [peer.read().opaque for _ in range(200)] == list(range(200))
    assert handled == 200
    assert most_unsent <= 2 * MIB, "answers of 50 MiB were asked for in one read"


def test_a_peer_that_never_takes_what_is_pushed_to_it_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(limits=ServerLimits(write_high_bytes=MIB, write_bytes_max=4 * MIB))
    gone = threading.Event()
    server.on_close.append(lambda connection: gone.set())

    def push(connection: Connection, command: RemotingCommand) -> None:
        for _ in range(64):
            connection.oneway(RemotingCommand(40, body=bytes(MIB)))

    server.register(LATER, push, ANY_ACCOUNT)
    with serving(server) as running, caplog.at_level(logging.WARNING):
        with RawPeer(running.port, receive_bytes=64 * 1024) as peer:
            peer.send(RemotingCommand(LATER))
            gone.wait()
        assert still_serves(running)
    assert "bytes of answers are unread" in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        struct.pack(">iI", 17 * MIB, 0),
        struct.pack(">iI", 8, 4) + b"{no}",
        struct.pack(">iI", 8, 1 << 24 | 4) + b"{no}",
        b"\xff" * 100,
    ],
)
def test_garbage_closes_its_connection_and_no_other(garbage: bytes) -> None:
    with serving(make_server()) as running, RawPeer(running.port) as peer:
        peer.socket.sendall(garbage)
        assert peer.is_closed_by_server()
        assert still_serves(running)


def test_requests_before_garbage_are_answered() -> None:
    with serving(make_server()) as running, RawPeer(running.port) as peer:
        peer.socket.sendall(encode_frame(RemotingCommand(ECHO, opaque=3)) * 2 + b"GET / HTTP/1.1\r\n")
        assert [peer.read().opaque, peer.read().opaque] == [3, 3]
        assert peer.is_closed_by_server()


def test_random_bytes_from_many_peers_never_stop_the_server() -> None:
    chance = random.Random(5)
    frame = encode_frame(RemotingCommand(ECHO, ext={"a": "b"}, body=b"x" * 50))
    with serving(make_server()) as running:
        for _ in range(100):
            with RawPeer(running.port) as peer:
                damaged = bytearray(frame * 3)
                for _ in range(chance.randrange(1, 6)):
                    damaged[chance.randrange(len(damaged))] = chance.randrange(256)
                try:
                    peer.socket.sendall(bytes(damaged) if chance.random() < 0.8 else chance.randbytes(200))
                except (BrokenPipeError, ConnectionResetError):
                    continue  # The server closed already.
        assert still_serves(running)
        assert running.server.handler_errors == 0


def test_frames_that_are_never_completed_are_bounded_over_all_peers(caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(limits=ServerLimits(partial_bytes_max=3 * MIB))
    opened: list[object] = []
    server.on_open.append(opened.append)
    with serving(server) as running, caplog.at_level(logging.WARNING):
        peers = [RawPeer(running.port) for _ in range(8)]
        for peer in peers:
            with contextlib.suppress(OSError):  # It may be closed while it sends.
                peer.socket.sendall(begun_send(16 * MIB, MIB))
        # Three of them fit under the limit; one that was not accepted yet is none of them.
        while len(opened) < len(peers) or len(server.connections) > 3:
            assert still_serves(running)
        for peer in peers:
            peer.close()
        assert still_serves(running)
    assert "frames begun" in caplog.text


def test_peers_that_hold_the_most_make_room_for_a_client_with_a_large_request() -> None:
    """Not the one that came last is closed: it may be the only honest one."""
    server = make_server(limits=ServerLimits(partial_bytes_max=8 * MIB))
    with serving(server) as running:
        peers = [RawPeer(running.port) for _ in range(4)]
        for peer in peers:
            peer.socket.sendall(begun_send(16 * MIB, 2 * MIB))
        while running.thread.call(lambda: sum(each.partial_bytes for each in server.connections)) < 8 * MIB:
            assert still_serves(running)
        with BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
            for _ in range(3):
                assert client.request(RemotingCommand(ECHO_BLOCKING, body=bytes(MIB))).code == 0
        for peer in peers:
            peer.close()


def test_answers_that_are_not_taken_are_bounded_over_all_peers(caplog: pytest.LogCaptureFixture) -> None:
    limits = ServerLimits(write_high_bytes=MIB, write_bytes_max=64 * MIB, write_bytes_total_max=32 * MIB)
    server = make_server(limits=limits)

    def unsent() -> int:
        return sum(each.unsent_bytes for each in server.connections)

    with serving(server) as running, caplog.at_level(logging.WARNING):
        peers = [RawPeer(running.port, receive_bytes=64 * 1024) for _ in range(8)]
        for peer in peers:
            peer.send(RemotingCommand(BIG, ext={"bytes": str(12 * MIB)}))
        while running.thread.call(lambda: len(server.connections)) > 4 or running.thread.call(unsent) > 32 * MIB:
            assert still_serves(running)
        for peer in peers:
            peer.close()
    assert "answers not taken" in caplog.text


def test_requests_that_were_read_at_once_let_other_peers_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of no time at all: each request of a flood is one, and another peer gets its own among them."""
    monkeypatch.setattr("tiermq.remoting.connection.SLICE_S", 0.0)
    server = make_server()
    flooded, both_sent = 0, threading.Event()
    seen: list[int] = []

    def flood(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        nonlocal flooded
        both_sent.wait()  # The other peer's request is on its way before the second of the flood is served.
        flooded += 1
        return command.respond(0)

    def look(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        seen.append(flooded)
        return command.respond(0)

    server.register(LATER, flood, ANY_ACCOUNT)
    server.register(BIG, look, ANY_ACCOUNT)
    with serving(server) as running, RawPeer(running.port) as flooder, RawPeer(running.port) as other:
        for peer in (flooder, other):
            peer.send(RemotingCommand(ECHO))
            peer.read()
        flooder.send(*(RemotingCommand(LATER, opaque=n) for n in range(1_000)))
        other.send(RemotingCommand(BIG))
        both_sent.set()
        assert other.read().code == 0
        assert [flooder.read().opaque for _ in range(1_000)] == list(range(1_000))
    assert seen[0] < 500, f"it was served after {seen[0]} requests of the flood"


def test_a_frame_that_arrives_byte_by_byte_is_one_frame() -> None:
    with serving(make_server()) as running, RawPeer(running.port) as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in encode_frame(RemotingCommand(ECHO, opaque=11, body=b"abc")):
            peer.socket.sendall(bytes([byte]))
        answer = peer.read()
    assert (answer.opaque, bytes(answer.body)) == (11, b"abc")


def test_an_answer_that_is_not_waited_for_is_dropped() -> None:
    with serving(make_server()) as running, RawPeer(running.port) as peer:
        peer.send(RemotingCommand(0, opaque=77, flag=FLAG_RESPONSE), RemotingCommand(ECHO, opaque=1))
        assert peer.read().opaque == 1


def test_a_request_to_a_peer_that_reports_nothing_times_out_and_one_to_a_peer_that_left_fails() -> None:
    server = make_server()
    outcomes: list[BaseException | None] = []
    done = threading.Event()
    waiting = threading.Event()

    def note(found: Future[RemotingCommand]) -> None:
        outcomes.append(found.exception())
        done.set()

    def ask(connection: Connection, command: RemotingCommand) -> None:
        timeout_s = float(command.ext["timeout"])
        future = connection.request(RemotingCommand(307), timeout_s=timeout_s)
        future.add_done_callback(note)
        waiting.set()

    server.register(LATER, ask, ANY_ACCOUNT)
    with serving(server) as running:
        with RawPeer(running.port) as peer:
            peer.send(RemotingCommand(LATER, ext={"timeout": "0.001"}))
            done.wait()
            done.clear()
            waiting.clear()
            peer.send(RemotingCommand(LATER, ext={"timeout": "600"}))
            waiting.wait()
        done.wait()
    assert [type(outcome) for outcome in outcomes] == [RequestTimedOut, PeerGone]


def test_what_follows_an_end_is_called_once_each_and_a_mistake_there_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = make_server()
    ended = threading.Event()

    def fail(gone: Connection) -> None:
        raise ZeroDivisionError

    def watch(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        connection.attributes["seen"] = True
        connection.on_close += [fail, lambda gone: ended.set()]
        return command.respond(0, repr(connection))

    server.register(LATER, watch, ANY_ACCOUNT)
    with serving(server) as running, caplog.at_level(logging.ERROR):
        with BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
            assert "127.0.0.1" in (client.request(RemotingCommand(LATER)).remark or "")
        ended.wait()
    assert "a close callback failed" in caplog.text


def test_a_closed_connection_takes_no_more_and_asks_no_peer() -> None:
    server = make_server()
    kept: list[Connection] = []
    ended = threading.Event()

    def keep(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        kept.append(connection)
        connection.on_close.append(lambda gone: ended.set())
        return command.respond(0)

    server.register(LATER, keep, ANY_ACCOUNT)
    with serving(server) as running:
        with BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
            client.request(RemotingCommand(LATER))
        ended.wait()
        running.thread.call(kept[0].send, RemotingCommand(1))

        async def ask() -> RemotingCommand:
            return await kept[0].request(RemotingCommand(307))

        with pytest.raises(PeerGone):
            running.thread.run(ask())
    server.call_threadsafe(kept[0].send, RemotingCommand(1))  # The loop is gone too: nothing is sent, nothing raised.


@pytest.mark.parametrize("size", [100, 300_000, 5_000_000])
@pytest.mark.parametrize("uvloop", ["0", "1"])
def test_an_answer_of_many_parts_is_one_frame(size: int, uvloop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERMQ_UVLOOP", uvloop)
    server = make_server()
    body = random.Random(size).randbytes(size)

    def parts(connection: Connection, command: RemotingCommand) -> None:
        whole = encode_frame(command.respond(0, body=body))
        connection.send_bytes(whole[:10], memoryview(whole)[10:50], whole[50:])

    server.register(LATER, parts, ANY_ACCOUNT)
    with serving(server) as running, BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
        assert client.request(RemotingCommand(LATER)).body == body
        assert len(client.request(RemotingCommand(BIG, ext={"bytes": "7"})).body) == 7
