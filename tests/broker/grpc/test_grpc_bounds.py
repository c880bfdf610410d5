"""What one call may cost: its length, its lists, what it holds, and how long it has the loop."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from broker.grpc import test_http2
from broker.grpc.grpc_peer import GrpcPeer
from present import present
from tiermq.broker.broker import Broker
from tiermq.broker.grpc import grpc_clients
from tiermq.broker.grpc.grpc_clients import GrpcClient
from tiermq.broker.grpc.grpc_message import SHORT_BYTES_MAX
from tiermq.broker.grpc.send_calls import SENDS_MAX
from tiermq.grpc.call import framed
from tiermq.grpc.http2 import DATA, END_HEADERS, HEADERS, RST_STREAM
from tiermq.grpc.messages import (
    BESIDE_BYTES_MAX,
    FIELDS_MAX,
    SERVICE,
    Code,
    Encoding,
    TelemetryCommand,
    answer_class,
    bytes_beside,
    request_class,
)
from tiermq.namesrv.topic_config import TopicConfig
from waiting import until

raw = test_http2.raw
MESSAGES, TOPIC, PROPERTIES, SYSTEM, BODY = 1, 1, 2, 3, 4
KEYS = 2
"""Numbers of fields."""


def field(number: int, content: bytes) -> bytes:
    length, head = len(content), bytearray([number << 3 | 2])
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes((*head, length)) + content


def call_bytes(peer: GrpcPeer, method: str, data: bytes) -> Any:
    stub = peer.channel.unary_unary(SERVICE + method, bytes, answer_class(method).FromString)
    return stub(data, metadata=peer.metadata, timeout=60.0)


def test_a_long_body_does_not_count_and_all_else_does() -> None:
    body = b"x" * 1_000_000
    one = field(TOPIC, field(2, b"T")) + field(SYSTEM, field(KEYS, b"k") * 3) + field(BODY, body)
    data = field(MESSAGES, one) * 3
    assert bytes_beside(data, MESSAGES, BODY) == len(data) - 3 * len(body)
    assert bytes_beside(data + b"\x08\xff", MESSAGES, BODY) == len(data) + 2 - 3 * len(body)
    assert bytes_beside(data[:-1], MESSAGES, BODY) >= len(one)
    assert bytes_beside(b"\xff" * 100, MESSAGES, BODY) == 100
    hidden = field(MESSAGES, field(PROPERTIES, b"") * FIELDS_MAX + field(BODY, body))
    assert bytes_beside(hidden, MESSAGES, BODY) == len(hidden)


@pytest.mark.parametrize(
    "data",
    [
        field(MESSAGES, b"") * 3_000_000,
        field(MESSAGES, field(SYSTEM, field(KEYS, b"") * 3_000_000)),
        field(MESSAGES, field(PROPERTIES, b"") * 3_000_000),
    ],
    ids=["messages", "keys", "properties"],
)
def test_a_send_that_would_take_long_to_parse_is_refused_before_it_is_parsed(peer: GrpcPeer, data: bytes) -> None:
    answer = call_bytes(peer, "SendMessage", data)
    assert answer.status.code == Code.BAD_REQUEST
    assert f"at most {BESIDE_BYTES_MAX} bytes" in answer.status.message


def test_messages_with_long_bodies_are_sent_in_one_call(broker: Broker, peer: GrpcPeer) -> None:
    body = b"x" * (BESIDE_BYTES_MAX + 1)
    answer = peer.send(*(peer.message("T", body) for _ in range(3)))
    assert [each.status.code for each in answer.entries] == [Code.OK] * 3


def test_a_call_with_too_many_messages_stores_none_of_them(broker: Broker, peer: GrpcPeer) -> None:
    answer = peer.send(*(peer.message("T", b"x") for _ in range(SENDS_MAX + 1)))
    assert answer.status.code == Code.BAD_REQUEST
    assert broker.parts.topics.get("T") is None


def test_other_calls_are_short(peer: GrpcPeer) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call_bytes(peer, "AckMessage", field(3, b"") * BESIDE_BYTES_MAX)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_client_may_send_a_long_dump_of_its_threads_and_no_long_settings(peer: GrpcPeer) -> None:
    settings = {"client_type": 1, "publishing": {"topics": [{"name": "T"}]}}
    assert peer.settle(**settings).status.code == Code.OK
    trace = TelemetryCommand()
    trace.thread_stack_trace.thread_stack_trace = "x" * 900_000
    peer.tell(trace)
    peer.tell(TelemetryCommand(settings=settings))
    assert next(peer.telemetry).status.code == Code.OK
    many = {"client_type": 1, "publishing": {"topics": [{"name": f"T{each}"} for each in range(40_000)]}}
    peer.tell(TelemetryCommand(settings=many))
    with pytest.raises(grpc.RpcError, match="beside what may be long"):
        next(peer.telemetry)


def test_settings_of_all_clients_are_bounded_together(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_clients, "SETTINGS_TOTAL_BYTES_MAX", 15_000)
    settings = {"client_type": 1, "publishing": {"topics": [{"name": "T" * 100}] * 10}}

    def peer(name: str) -> GrpcPeer:
        return GrpcPeer(broker.config.grpc_server_port, client_id=name)

    with peer("one") as one, peer("two") as two:
        for _ in range(3):  # The same client again takes its own place.
            assert one.settle(**settings).status.code == Code.OK
        with pytest.raises(grpc.RpcError, match="of all clients"):
            two.settle(**settings)
        assert one.call("NotifyClientTermination").status.code == Code.OK
        assert two.settle(**settings).status.code == Code.OK


def test_addresses_that_each_queue_of_a_route_would_repeat_are_few(peer: GrpcPeer) -> None:
    asked = {"scheme": 1, "addresses": [{"host": f"10.0.0.{each}", "port": 1} for each in range(200)]}
    for method in ("QueryRoute", "QueryAssignment"):
        request = request_class(method)(topic={"name": "T"}, endpoints=asked)
        if method == "QueryAssignment":
            request.group.name = "G"
        answer = peer.call(method, request)
        assert answer.status.code == Code.BAD_REQUEST
        assert "endpoints" in answer.status.message


def test_calls_with_long_lists_let_others_be_served_between_entries(
    broker: Broker, peer: GrpcPeer, given_way: list[int]
) -> None:
    assert peer.send(*(peer.message("T", b"x") for _ in range(50))).status.code == Code.OK
    assert len(given_way) >= 50
    received: list[Any] = []
    while len(received) < 50:
        received += peer.receive("T")
    given_way.clear()
    assert peer.acknowledge("T", *received).status.code == Code.OK
    assert len(given_way) >= 50
    given_way.clear()
    broker.parts.topics.put(TopicConfig("wide", 300, 300))
    assert len(peer.call("QueryRoute", topic={"name": "wide"}).message_queues) == 300
    assert len(given_way) >= 300


def test_a_call_that_has_given_way_goes_on_and_ends_when_its_client_is_gone(
    broker: Broker, peer: GrpcPeer, given_way: list[int]
) -> None:
    broker.parts.topics.put(TopicConfig("wide", 60_000, 60_000))
    stub = peer.channel.unary_unary(SERVICE + "QueryRoute", bytes, answer_class("QueryRoute").FromString)
    asked = request_class("QueryRoute")(topic={"name": "wide"}).SerializeToString()
    call = stub.future(asked, metadata=peer.metadata)
    until(lambda: len(given_way) > 10)
    call.cancel()
    assert peer.call("QueryRoute", topic={"name": "T"}).status.code == Code.OK
    until(lambda: broker.parts.server._stepped.is_empty)
    assert len(given_way) < 60_000


def test_bodies_that_are_long_when_decompressed_are_worked_on_in_the_pool(
    broker: Broker, peer: GrpcPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, threads = broker.parts.server, []
    run = server.run_in_pool

    def counted(work: Callable[[], Any], done: Callable[[Any, Exception | None], None]) -> None:
        threads.append(work)
        run(work, done)

    peer.send(peer.message("T"))  # Topics are created in the pool, too.
    assert [each.body for each in peer.receive("T")] == [b"hello"]
    monkeypatch.setattr(server, "run_in_pool", counted)
    plain = bytes(SHORT_BYTES_MAX * 40)
    message = peer.message("T", gzip.compress(plain), body_encoding=Encoding.GZIP)
    assert peer.send(message).status.code == Code.OK
    assert len(threads) == 1
    [received] = peer.receive("T")
    assert gzip.decompress(received.body) == plain
    assert len(threads) == 2
    threads.clear()
    assert peer.send(peer.message("T", gzip.compress(b"short"), body_encoding=Encoding.GZIP)).status.code == Code.OK
    assert not threads
    broken = peer.message("T", gzip.compress(plain)[:-9], body_encoding=Encoding.GZIP)
    assert peer.send(broken).status.code == Code.MESSAGE_CORRUPTED


def test_a_request_that_is_compressed_as_a_whole_is_short(peer: GrpcPeer) -> None:
    stub = peer.channel.unary_unary(SERVICE + "SendMessage", bytes, answer_class("SendMessage").FromString)

    def send(length: int) -> Any:
        request = request_class("SendMessage")(messages=[peer.message("T", bytes(length))]).SerializeToString()
        return stub(request, metadata=peer.metadata, compression=grpc.Compression.Gzip)

    assert send(300_000).status.code == Code.OK
    with pytest.raises(grpc.RpcError) as caught:
        send(1_500_000)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_calls_hold_is_counted_until_they_end(broker: Broker, raw: test_http2.RawPeer) -> None:
    long = {"authorization": "x" * 6_000, "ignored": "x" * 6_000}
    for stream in (1, 3, 5):
        raw.send(HEADERS, END_HEADERS, stream, raw.headers(**long))
    until(lambda: [each.partial_bytes > 18_000 for each in broker.parts.server.connections] == [True])
    [connection] = broker.parts.server.connections
    assert connection.partial_bytes < 24_000, "a header that nothing reads is not kept"
    asked = request_class("ReceiveMessage")(
        group={"name": "G"}, message_queue={"topic": {"name": "T"}}, attempt_id="x" * 20_000
    )
    asked.invisible_duration.seconds, asked.long_polling_timeout.seconds = 60, 20
    raw.send(HEADERS, END_HEADERS, 7, raw.headers(**{":path": SERVICE + "ReceiveMessage"}))
    before = connection.partial_bytes
    data = framed(asked.SerializeToString())
    raw.send(DATA, 0, 7, data[:16_000])
    raw.send(DATA, 1, 7, data[16_000:])
    until(lambda: connection.partial_bytes > before + 20_000)
    for stream in (1, 3, 5, 7):
        raw.send(RST_STREAM, 0, stream, bytes(4))
    until(lambda: connection.partial_bytes == 0)


def test_of_settings_that_come_at_once_the_newest_count(
    broker: Broker, raw: test_http2.RawPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame has room for a thousand, each of which would be a registration."""
    clients = present(broker.grpc).clients
    register, registered = clients.register, []

    async def counted(client: GrpcClient, language: str) -> None:
        registered.append(client.topics)
        await register(client, language)

    monkeypatch.setattr(clients, "register", counted)
    sent = [
        framed(TelemetryCommand(settings={"publishing": {"topics": [{"name": f"T{at}"}]}}).SerializeToString())
        for at in range(500)
    ]
    raw.send(HEADERS, END_HEADERS, 1, raw.headers(**{":path": SERVICE + "Telemetry"}))
    raw.send(DATA, 0, 1, b"".join(sent))
    until(lambda: ("T499",) in registered)
    assert len(registered) < 10
    assert registered[-1] == ("T499",)
