"""HTTP/2 as peers may speak it, well and badly: frames by hand, against a broker's gRPC port."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any, Self

import pytest
from hpack import Decoder, Encoder

from broker.grpc.grpc_peer import GrpcPeer
from tiermq.broker.broker import Broker
from tiermq.grpc import http2
from tiermq.grpc.call import Call, framed, timeout_in
from tiermq.grpc.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_BYTES,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from tiermq.grpc.messages import Code, answer_class, request_class
from tiermq.namesrv.topic_config import TopicConfig

PATH = "/apache.rocketmq.v2.MessagingService/QueryRoute"
Frame = tuple[int, int, int, bytes]


class RawPeer:
    """A socket that speaks frames."""

    def __init__(
        self, port: int, preface: bytes = PREFACE, *, before: bytes = b"", tls: ssl.SSLContext | None = None
    ) -> None:
        """`before`: what a load balancer sends first. `tls`: what trusts the server."""
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(before)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket)
        self.encoder, self.decoder = Encoder(), Decoder()
        self._read = b""
        self.socket.sendall(preface)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()

    def send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        length = len(payload)
        self.socket.sendall(HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload)

    def headers(self, **more: str) -> bytes:
        fields = {
            ":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "b", "te": "trailers",
            "content-type": "application/grpc", "x-mq-client-id": "raw",
        }  # fmt: skip
        return bytes(self.encoder.encode(list((fields | more).items())))

    def frames(self) -> Iterator[Frame]:
        """What comes, until the connection ends."""
        while True:
            if len(self._read) >= HEAD_BYTES:
                high, low, kind, flags, stream = HEAD.unpack_from(self._read)
                end = HEAD_BYTES + (high << 8 | low)
                if len(self._read) >= end:
                    payload, self._read = self._read[HEAD_BYTES:end], self._read[end:]
                    yield kind, flags, stream, payload
                    continue
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return
            if not data:
                return
            self._read += data

    def answer(self, stream: int) -> tuple[bytes, dict[str, str]]:
        """The data of a stream, and its trailers."""
        data = b""
        for kind, flags, number, payload in self.frames():
            assert kind != GOAWAY, payload
            if number != stream:
                continue
            if kind == DATA:
                data += payload
            elif kind == HEADERS and flags & END_STREAM:
                return data, {str(name): str(value) for name, value in self.decoder.decode(payload)}
            elif kind == HEADERS:
                self.decoder.decode(payload)
        raise AssertionError("the connection ended before the answer")

    def goodbye(self) -> tuple[int, str]:
        """Code and text of the server's GOAWAY, after which nothing comes."""
        code, text = -1, ""
        for kind, _, _, payload in self.frames():
            if kind == GOAWAY:
                code, text = int.from_bytes(payload[4:8], "big"), payload[8:].decode()
        return code, text


ROUTE = framed(request_class("QueryRoute")(topic={"name": "T"}).SerializeToString())


@pytest.fixture
def raw(broker: Broker) -> Iterator[RawPeer]:
    made = RawPeer(broker.config.grpc_server_port)
    made.send(SETTINGS, 0, 0)
    yield made
    made.socket.close()


def route_in(data: bytes) -> int:
    return int(answer_class("QueryRoute").FromString(data[5:]).status.code)


def test_a_header_block_in_parts_and_padded_data_make_a_call(raw: RawPeer) -> None:
    block = raw.headers()
    raw.send(HEADERS, 0, 1, block[:10])
    raw.send(CONTINUATION, 0, 1, block[10:20])
    raw.send(CONTINUATION, END_HEADERS, 1, block[20:])
    raw.send(DATA, PADDED, 1, bytes((3,)) + ROUTE[:4] + b"\0\0\0")
    raw.send(DATA, END_STREAM, 1, ROUTE[4:])
    data, trailers = raw.answer(1)
    assert (route_in(data), trailers) == (Code.OK, {"grpc-status": "0"})


def test_bytes_that_come_one_by_one_make_a_call(broker: Broker) -> None:
    raw = RawPeer(broker.config.grpc_server_port, b"")
    raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    block = raw.headers()
    whole = PREFACE + HEAD.pack(0, 0, SETTINGS, 0, 0) + HEAD.pack(0, len(block), HEADERS, END_HEADERS, 1) + block
    whole += HEAD.pack(0, len(ROUTE), DATA, END_STREAM, 1) + ROUTE
    for at in range(len(whole)):
        raw.socket.sendall(whole[at : at + 1])
    assert route_in(raw.answer(1)[0]) == Code.OK
    raw.socket.close()


def test_data_waits_for_the_windows_of_its_peer(broker: Broker, raw: RawPeer) -> None:
    with GrpcPeer(broker.config.grpc_server_port) as peer:
        peer.send(peer.message("T", b"x" * 200_000))
        raw.send(SETTINGS, 0, 0, struct.pack(">HI", http2.SET_WINDOW, 1_000))
        path = PATH.replace("QueryRoute", "ReceiveMessage")
        raw.send(HEADERS, END_HEADERS, 1, raw.headers(**{":path": path}))
        request = request_class("ReceiveMessage")(
            group={"name": "G"}, message_queue={"topic": {"name": "T"}, "id": -1}, batch_size=1
        )
        request.invisible_duration.seconds = 60
        raw.send(DATA, END_STREAM, 1, framed(request.SerializeToString()))
        got, window = 0, 1_000
        for kind, flags, number, payload in raw.frames():
            if number == 1 and kind == DATA:
                got += len(payload)
                assert got <= window
                if got == window:  # Otherwise more is on its way.
                    window += 50_000
                    raw.send(WINDOW_UPDATE, 0, 1, (50_000).to_bytes(4, "big"))
                    raw.send(WINDOW_UPDATE, 0, 0, (50_000).to_bytes(4, "big"))
            if number == 1 and kind == HEADERS and flags & END_STREAM:
                break
        assert got > 200_000


@pytest.mark.parametrize("step", [1, 1_000])
def test_an_answer_that_leaves_in_small_steps_is_held_as_far_as_it_counts(
    broker: Broker, raw: RawPeer, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    copied: list[int] = []

    class Counted(bytes):
        """Counts what is copied of it."""

        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            copied.append(len(found))
            return Counted(found)

    add = http2.Http2Connection._add

    def counted(connection: http2.Http2Connection, call: Call, data: bytes) -> None:
        add(connection, call, Counted(data))

    monkeypatch.setattr(http2.Http2Connection, "_add", counted)
    raw.send(SETTINGS, 0, 0, struct.pack(">HI", http2.SET_WINDOW, 0))
    raw.send(HEADERS, END_HEADERS, 1, raw.headers())
    broker.parts.topics.put(TopicConfig("T", 100, 100))
    raw.send(DATA, END_STREAM, 1, ROUTE)
    got, steps = b"", 0
    for kind, flags, number, payload in raw.frames():
        if number == 1 and kind == DATA:
            got += payload
        if number == 1 and kind == HEADERS and flags & END_STREAM:
            break
        if (number == 1 and kind == DATA) or not steps:
            steps += 1
            raw.send(WINDOW_UPDATE, 0, 1, step.to_bytes(4, "big"))
    assert len(answer_class("QueryRoute").FromString(got[5:]).message_queues) == 100
    assert steps >= len(got) // step
    assert sum(copied) < 4 * len(got)


def test_a_ping_is_answered_with_its_bytes(raw: RawPeer) -> None:
    raw.send(PING, 0, 0, b"12345678")
    assert next(payload for kind, flags, _, payload in raw.frames() if kind == PING and flags & ACK) == b"12345678"


def test_a_call_of_another_kind_of_content_is_no_grpc(raw: RawPeer) -> None:
    raw.send(HEADERS, END_HEADERS | END_STREAM, 1, raw.headers(**{"content-type": "text/html"}))
    assert raw.answer(1)[1] == {":status": "415"}


@pytest.mark.parametrize(
    ("kind", "flags", "stream", "payload", "code"),
    [
        (HEADERS, END_HEADERS, 2, b"\x88", http2.PROTOCOL_ERROR),
        (HEADERS, END_HEADERS, 1, b"\xff\xff\xff", http2.COMPRESSION_ERROR),
        (CONTINUATION, END_HEADERS, 1, b"", http2.PROTOCOL_ERROR),
        (DATA, 0, 0, b"x", http2.PROTOCOL_ERROR),
        (DATA, 0, 9, b"x", http2.PROTOCOL_ERROR),
        (SETTINGS, 0, 0, b"12345", http2.FRAME_SIZE_ERROR),
        (SETTINGS, 0, 0, struct.pack(">HI", http2.SET_WINDOW, 1 << 31), http2.FLOW_CONTROL_ERROR),
        (WINDOW_UPDATE, 0, 0, bytes(4), http2.PROTOCOL_ERROR),
        (WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff", http2.FLOW_CONTROL_ERROR),
        (PING, 0, 0, b"short", http2.FRAME_SIZE_ERROR),
        (http2.PUSH_PROMISE, 0, 1, b"", http2.PROTOCOL_ERROR),
        (DATA, 0, 1, b"x" * 16_385, http2.FRAME_SIZE_ERROR),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_refused_and_closed(
    raw: RawPeer, kind: int, flags: int, stream: int, payload: bytes, code: int
) -> None:
    raw.send(kind, flags, stream, payload)
    assert raw.goodbye()[0] == code


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x14\0\0\0\x10 remoting, not this", b"PRI * HTTP/1"]
)
def test_a_peer_of_another_protocol_is_closed(broker: Broker, first: bytes) -> None:
    raw = RawPeer(broker.config.grpc_server_port, first)
    assert raw.goodbye()[0] == http2.PROTOCOL_ERROR
    raw.socket.close()


def test_floods_of_frames_that_ask_for_nothing_end_the_connection(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "CONTROL_FRAMES_MAX", 100)
    monkeypatch.setattr(http2, "CONTROL_PERIOD_S", 3600.0)
    empty = HEAD.pack(0, 8, PING, 0, 0) + bytes(8)
    reset = HEAD.pack(0, 4, RST_STREAM, 0, 1) + bytes(4)
    window = HEAD.pack(0, 4, WINDOW_UPDATE, 0, 0) + (1).to_bytes(4, "big")
    for flood in (
        empty,
        reset,
        window,
        HEAD.pack(0, 0, SETTINGS, 0, 0),
        HEAD.pack(0, 5, http2.PRIORITY, 0, 1) + bytes(5),
    ):
        raw = RawPeer(broker.config.grpc_server_port)
        raw.socket.sendall(flood * 101)
        assert raw.goodbye()[0] == http2.ENHANCE_YOUR_CALM
        raw.socket.close()


def test_a_window_that_a_frame_of_settings_repeats_is_applied_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    class Counted(Call):
        """Counts how often its window was set."""

        __slots__ = ("_own_window",)

        @property
        def window(self) -> int:
            return self._own_window

        @window.setter
        def window(self, window: int) -> None:
            nonlocal steps
            steps, self._own_window = steps + 1, window

    monkeypatch.setattr(http2, "Call", Counted)
    raw = RawPeer(broker.config.grpc_server_port)
    for stream in range(1, 101, 2):
        raw.send(HEADERS, END_HEADERS, stream, raw.headers())
    raw.send(SETTINGS, 0, 0, b"".join(struct.pack(">HI", http2.SET_WINDOW, 4_000 + at) for at in range(2_730)))
    raw.send(DATA, END_STREAM, 1, ROUTE)
    assert route_in(raw.answer(1)[0]) == Code.OK
    assert steps <= 102  # A call is made, and changed once; one answer is sent.
    raw.socket.close()


def test_settings_count_by_what_they_cost(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "CONTROL_FRAMES_MAX", 1_000)
    monkeypatch.setattr(http2, "CONTROL_PERIOD_S", 3600.0)
    raw = RawPeer(broker.config.grpc_server_port)
    for stream in range(1, 129, 2):
        raw.send(HEADERS, END_HEADERS, stream, raw.headers())
    head = HEAD.pack(0, 6, SETTINGS, 0, 0)  # Each counts as six with 64 open calls.
    raw.socket.sendall(b"".join(head + struct.pack(">HI", http2.SET_WINDOW, 4_000 + at) for at in range(200)))
    assert raw.goodbye()[0] == http2.ENHANCE_YOUR_CALM
    raw.socket.close()
    raw = RawPeer(broker.config.grpc_server_port)
    raw.send(SETTINGS, 0, 0, struct.pack(">HI", 0x99, 1) * 1_001)
    assert raw.goodbye()[0] == http2.ENHANCE_YOUR_CALM
    raw.socket.close()


def test_a_header_block_without_an_end_ends_the_connection(raw: RawPeer) -> None:
    raw.send(HEADERS, 0, 1, raw.headers())
    for _ in range(3):
        raw.send(CONTINUATION, 0, 1, b"\x00" * 16_000)
    assert raw.goodbye()[0] == http2.ENHANCE_YOUR_CALM


def test_more_calls_at_once_than_there_may_be_are_refused_one_by_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "STREAMS_MAX", 2)
    raw = RawPeer(broker.config.grpc_server_port)
    for stream in (1, 3, 5):
        raw.send(HEADERS, END_HEADERS, stream, raw.headers())
    assert next(number for kind, _, number, _ in raw.frames() if kind == RST_STREAM) == 5
    raw.send(DATA, END_STREAM, 1, ROUTE)
    assert route_in(raw.answer(1)[0]) == Code.OK
    raw.socket.close()


def test_a_message_that_is_too_long_or_no_message_fails_its_call_alone(raw: RawPeer) -> None:
    raw.send(HEADERS, END_HEADERS, 1, raw.headers())
    raw.send(DATA, 0, 1, b"\0\xff\xff\xff\xff")
    assert raw.answer(1)[1]["grpc-status"] == "8"
    raw.send(HEADERS, END_HEADERS, 3, raw.headers())
    raw.send(DATA, END_STREAM, 3, framed(b"\xff\xff\xff"))
    assert raw.answer(3)[1]["grpc-status"] == "13"
    raw.send(HEADERS, END_HEADERS, 5, raw.headers(**{"grpc-encoding": "snappy"}))
    raw.send(DATA, END_STREAM, 5, b"\1" + ROUTE[1:])
    assert raw.answer(5)[1]["grpc-status"] == "12"
    raw.send(HEADERS, END_HEADERS, 7, raw.headers())
    raw.send(DATA, END_STREAM, 7, ROUTE)
    assert route_in(raw.answer(7)[0]) == Code.OK


def test_what_a_connection_holds_of_messages_that_are_not_whole_is_given_back(broker: Broker, raw: RawPeer) -> None:
    raw.send(HEADERS, END_HEADERS, 1, raw.headers())
    raw.send(DATA, 0, 1, b"\0\0\0\xff\xff" + b"x" * 10_000)
    raw.send(RST_STREAM, 0, 1, bytes(4))
    raw.send(HEADERS, END_HEADERS, 3, raw.headers())
    raw.send(DATA, END_STREAM, 3, ROUTE)
    assert route_in(raw.answer(3)[0]) == Code.OK
    [connection] = broker.parts.server.connections
    assert connection.partial_bytes == 0


def test_a_timeout_has_a_number_and_a_unit() -> None:
    assert [timeout_in(text) for text in ("5S", "1500m", "2M", "", "m", "5", "123456789S")] == [
        5.0, 1.5, 120.0, None, None, None, None,
    ]  # fmt: skip
