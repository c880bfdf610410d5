"""Calls of gRPC, against a broker: what is answered, and what is in the store afterwards."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.brokers import Producer, broker_config, running
from broker.grpc.grpc_peer import GrpcPeer
from present import present
from servers.loopback import free_ports
from tiermq.broker.broker import Broker
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.group.retry_policy import STEPS_S
from tiermq.broker.grpc.grpc_message import consistent_queue
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.grpc.messages import Code, Encoding, MessageType, QueuePermission, TelemetryCommand, request_class
from tiermq.kernel import Message
from tiermq.message.compression import compress
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import CompressionType
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.status import PutStatus
from waiting import until

PRODUCER = {"client_type": 1, "publishing": {"topics": [{"name": "T"}]}}
CONSUMER = {"client_type": 3, "subscription": {"group": {"name": "G"}, "subscriptions": [{"topic": {"name": "T"}}]}}


@pytest.fixture
def grpc_options() -> dict[str, Any]:
    return {"recall_message_enable": True, "transaction_time_out": 100, "transaction_check_interval": 100}


def stored(broker: Broker, topic: str = "T") -> list[StoredMessage]:
    local = broker.parts.local
    local.dispatch_now()
    found: list[StoredMessage] = []
    for queue in range(broker.parts.topics.queue_count(topic)):
        found += local.get(topic, queue, 0, 32).messages
    return found


def make(broker: Broker, topic: str = "T", **fields: Any) -> None:
    broker.parts.topics.put(TopicConfig(topic, 1, 1, **fields))


# The fast path.


def test_the_fast_path_stores_and_answers_as_the_general_path_does(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    sends, server = present(broker.grpc)._sends, broker.parts.server
    message = peer.message("T", tag="paid", keys=["order-42", "x"], born_host="shop", trace_context="trace")
    message.user_properties["colour"] = "blue"
    message.system_properties.born_timestamp.seconds = 1_700_000_000
    assert peer.send(message).status.code == Code.OK, "the first message of a queue takes the general path"
    answers = []
    for fast_path in (server.checked_fast_path, None):
        server.checked_fast_path = fast_path
        answers.append(peer.send(message))
    first, fast, general = stored(broker)
    assert sends.taken_count == 1
    assert "tiermq_grpc_fast_sends_total 1\n" in broker.render_metrics()
    assert fast.encoded_properties == general.encoded_properties == first.encoded_properties
    assert [each.entries[0].offset for each in answers] == [1, 2]
    answers[0].entries[0].offset = 2
    assert answers[0] == answers[1]
    for one in (fast, general):
        assert (one.body, one.sys_flag, one.flag, one.born_timestamp_ms) == (
            first.body, first.sys_flag, first.flag, first.born_timestamp_ms,
        )  # fmt: skip


@pytest.mark.parametrize("changed", ["type", "deleted", "closed"])
def test_a_topic_that_has_changed_takes_no_message_by_the_fast_path(
    broker: Broker, peer: GrpcPeer, changed: str
) -> None:
    make(broker)
    sends, topics = present(broker.grpc)._sends, broker.parts.topics
    assert peer.send(peer.message("T")).status.code == peer.send(peer.message("T")).status.code == Code.OK
    assert sends.taken_count == 1
    if changed == "type":
        make(broker, attributes={"message.type": "FIFO"})
    elif changed == "deleted":
        topics.delete("T")
    else:
        topics.close("it is being drained")
    answer = peer.send(peer.message("T"))
    assert sends.taken_count == 1
    assert (answer.status.code == Code.OK) == (changed == "deleted"), "a deleted topic is made again"


# Routes.


def test_a_topic_that_a_send_may_create_has_a_route(broker: Broker, peer: GrpcPeer) -> None:
    answer = peer.call("QueryRoute", topic={"name": "New"}, endpoints={"scheme": 1})
    assert answer.status.code == Code.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2, 3]
    assert {queue.permission for queue in answer.message_queues} == {QueuePermission.READ_WRITE}
    assert peer.send(peer.message("New")).status.code == Code.OK
    assert broker.parts.topics.queue_count("New") == 4


def test_a_drained_broker_has_routes_to_read_only_and_refuses_sends(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    broker.parts.topics.close("it is being drained")
    answer = peer.call("QueryRoute", topic={"name": "T"}, endpoints={"scheme": 1})
    assert {queue.permission for queue in answer.message_queues} == {QueuePermission.READ}
    assert peer.send(peer.message("T")).status.code != Code.OK
    broker.parts.topics.close("")
    assert peer.send(peer.message("T")).status.code == Code.OK


def test_a_route_shows_the_address_that_the_client_uses(peer: GrpcPeer) -> None:
    endpoints = {"scheme": 3, "addresses": [{"host": "queues.example", "port": 443}]}
    answer = peer.call("QueryRoute", topic={"name": "T"}, endpoints=endpoints)
    assert answer.message_queues[0].broker.endpoints.addresses[0].host == "queues.example"
    assert answer.message_queues[0].broker.endpoints.addresses[0].port == 443


def test_a_route_has_the_broker_s_port_where_the_client_names_none(broker: Broker, peer: GrpcPeer) -> None:
    answer = peer.call("QueryRoute", topic={"name": "T"}, endpoints={"scheme": 1, "addresses": [{"host": "here"}]})
    [address] = answer.message_queues[0].broker.endpoints.addresses
    assert (address.host, address.port) == ("here", broker.config.grpc_server_port)


def test_a_route_has_this_broker_s_address_where_the_client_names_several_brokers(
    broker: Broker, peer: GrpcPeer
) -> None:
    """A client that names the endpoints of two brokers must come back to the one that gave it a message."""
    port = broker.config.grpc_server_port
    place: dict[str, Any] = {"topic": {"name": "T"}, "group": {"name": "G"}}
    other = {"host": "127.0.0.1", "port": port + 1}
    for addresses in ([other, {"host": "127.0.0.1", "port": port}], [other, {"host": "127.0.0.2", "port": port}]):
        asked = {"scheme": 1, "addresses": addresses}
        queues = list(peer.call("QueryRoute", topic={"name": "T"}, endpoints=asked).message_queues)
        queues += [each.message_queue for each in peer.call("QueryAssignment", endpoints=asked, **place).assignments]
        assert len(queues) == 5
        for queue in queues:
            assert [(each.host, each.port) for each in queue.broker.endpoints.addresses] == [("127.0.0.1", port)]
            assert (queue.broker.name, queue.broker.endpoints.scheme) == ("b1", 1)


@pytest.mark.parametrize("topic", ["", "bad topic", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_anything"])
def test_a_topic_that_is_illegal_or_the_system_s_is_refused_by_every_call(peer: GrpcPeer, topic: str) -> None:
    assert peer.call("QueryRoute", topic={"name": topic}).status.code == Code.ILLEGAL_TOPIC
    assert peer.send(peer.message(topic)).status.code == Code.ILLEGAL_TOPIC
    request = request_class("ReceiveMessage")(group={"name": "G"}, message_queue={"topic": {"name": topic}})
    assert peer.call("ReceiveMessage", request)[0].status.code == Code.ILLEGAL_TOPIC


def test_a_call_without_a_client_id_is_refused(peer: GrpcPeer) -> None:
    peer.client_id = ""
    assert peer.call("QueryRoute", topic={"name": "T"}).status.code == Code.CLIENT_ID_REQUIRED


def test_a_group_that_consumes_in_order_is_assigned_each_queue(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    place: dict[str, Any] = {"topic": {"name": "T"}, "group": {"name": "G"}}
    answer = peer.call("QueryAssignment", **place)
    assert [each.message_queue.id for each in answer.assignments] == [-1]
    group = broker.parts.groups.find_or_make("G")
    assert group is not None
    broker.parts.groups.put(type(group)("G", consume_message_orderly=True))
    answer = peer.call("QueryAssignment", **place)
    assert [each.message_queue.id for each in answer.assignments] == [0]


# Sends.


def test_a_message_is_stored_with_what_its_producer_said(broker: Broker, peer: GrpcPeer) -> None:
    message = peer.message("T", b"body", tag="paid", keys=["k1", "k2"], trace_context="00-1")
    message.user_properties["colour"] = "blue"
    answer = peer.send(message)
    assert answer.status.code == Code.OK
    [entry] = answer.entries
    [found] = stored(broker)
    assert entry.message_id == found.unique_key == message.system_properties.message_id
    assert (found.body, found.tags, found.keys) == (b"body", "paid", ["k1", "k2"])
    assert found.get_property("colour") == "blue"


def test_several_messages_of_a_call_have_a_receipt_each(broker: Broker, peer: GrpcPeer) -> None:
    messages = [peer.message("T", b"%d" % number) for number in range(5)]
    answer = peer.send(*messages)
    assert [entry.message_id for entry in answer.entries] == [each.system_properties.message_id for each in messages]
    assert [entry.offset for entry in answer.entries] == [0, 1, 2, 3, 4]
    assert [found.body for found in stored(broker)] == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_of_one_group_go_to_one_queue(broker: Broker, peer: GrpcPeer) -> None:
    for number in range(6):
        peer.send(peer.message("T", b"%d" % number, message_group="customer-7"))
    assert [found.body for found in stored(broker)] == [b"%d" % number for number in range(6)]
    assert {found.queue_id for found in stored(broker)} == {consistent_queue("customer-7", 4)}


def test_messages_of_several_groups_of_one_call_go_to_the_queues_of_their_groups(
    broker: Broker, peer: GrpcPeer
) -> None:
    groups = ["a", "b", "c", "a"]
    peer.send(*(peer.message("T", each.encode(), message_group=each) for each in groups))
    queues = {each: consistent_queue(each, 4) for each in groups}
    assert len(set(queues.values())) > 1
    assert {found.body.decode(): found.queue_id for found in stored(broker)} == queues


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"body": b""}, Code.MESSAGE_BODY_EMPTY),
        ({"body": b"x" * (4 * 1024 * 1024 + 1)}, Code.MESSAGE_BODY_TOO_LARGE),
        ({"tag": "a|b"}, Code.ILLEGAL_MESSAGE_TAG),
        ({"tag": " "}, Code.ILLEGAL_MESSAGE_TAG),
        ({"keys": ["a\x01b"]}, Code.ILLEGAL_MESSAGE_KEY),
        ({"message_group": "g" * 64}, Code.ILLEGAL_MESSAGE_GROUP),
        ({"message_id": ""}, Code.ILLEGAL_MESSAGE_ID),
        ({"born_host": "h\x02REAL_TOPIC\x01Other"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"trace_context": "t\x01"}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ({"born_s": 2**62}, Code.BAD_REQUEST),
        ({"priority": -1}, Code.BAD_REQUEST),
        ({"message_group": "g", "lite_topic": "x\x02REAL_TOPIC\x01Other"}, Code.ILLEGAL_LITE_TOPIC),
        ({"delivery_s": 1, "lite_topic": "l" * 65}, Code.ILLEGAL_LITE_TOPIC),
        ({"message_type": MessageType.TRANSACTION, "lite_topic": ""}, Code.ILLEGAL_LITE_TOPIC),
    ],
)
def test_a_message_that_breaks_a_rule_is_refused_and_not_stored(
    broker: Broker, peer: GrpcPeer, fields: dict[str, Any], code: Code
) -> None:
    body = fields.pop("body", b"hello")
    assert peer.send(peer.message("T", b"good"), peer.message("T", body, **fields)).status.code == code
    assert stored(broker) == []
    assert broker.parts.server.handler_errors == 0


@pytest.mark.parametrize(
    "name", ["POP_CK", "REAL_TOPIC", "TRAN_MSG", "TIERMQ_SENDER", "INNER_MULTI_DISPATCH", "a\x02b"]
)
def test_a_producer_sets_no_property_of_the_broker(broker: Broker, peer: GrpcPeer, name: str) -> None:
    message = peer.message("T")
    message.user_properties[name] = "value"
    assert peer.send(message).status.code == Code.ILLEGAL_MESSAGE_PROPERTY_KEY
    assert stored(broker) == []


def test_a_topic_takes_messages_of_its_type_alone(broker: Broker, peer: GrpcPeer) -> None:
    make(broker, attributes={"message.type": "NORMAL"})
    answer = peer.send(peer.message("T", message_group="g"))
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert peer.send(peer.message("T")).status.code == Code.OK
    queues = peer.call("QueryRoute", topic={"name": "T"}).message_queues
    assert [list(queue.accept_message_types) for queue in queues] == [[MessageType.NORMAL]]


def test_the_queue_of_a_group_is_the_one_that_rocketmq_s_proxy_chooses() -> None:
    """Guava's consistentHash of Java's hash, with the values of Guava's own tests: one character's hash is its code."""
    golden = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [consistent_queue(chr(code), 100) for code in range(20)] == golden
    assert [consistent_queue(chr(code), 100_001) for code in (2, 2201, 2202)] == [80_343, 22_152, 15_018]
    assert consistent_queue("polygenelubricants", 1) == 0  # The hash is Java's least int.
    moved = [name for name in map(str, range(1000)) if consistent_queue(name, 8) != consistent_queue(name, 9)]
    assert all(consistent_queue(name, 9) == 8 for name in moved)
    assert 60 < len(moved) < 170


@pytest.mark.parametrize("attributes", [{}, {"message.type": "MIXED"}], ids=["none", "mixed"])
def test_a_topic_of_mixed_messages_takes_a_priority_and_does_not_name_it(
    broker: Broker, peer: GrpcPeer, attributes: dict[str, str]
) -> None:
    make(broker, attributes=attributes)
    [queue] = peer.call("QueryRoute", topic={"name": "T"}).message_queues
    assert set(queue.accept_message_types) == set(MessageType) - {MessageType.LITE, MessageType.PRIORITY}
    assert peer.send(peer.message("T", message_type=MessageType.PRIORITY, priority=7)).status.code == Code.OK
    [found] = peer.receive("T")
    assert found.system_properties.priority == 7


def test_messages_of_a_higher_priority_are_received_first(broker: Broker, peer: GrpcPeer) -> None:
    broker.parts.topics.put(TopicConfig("T", 4, 4, attributes={"message.type": "PRIORITY"}))
    for priority in (1, 0, 9, 2, 3):  # From 3 on all have the last queue.
        sent = peer.send(peer.message("T", b"%d" % priority, message_type=MessageType.PRIORITY, priority=priority))
        assert sent.status.code == Code.OK
    assert peer.send(peer.message("T")).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    broker.parts.local.dispatch_now()
    found = peer.receive("T")
    assert [each.body for each in found] == [b"9", b"3", b"2", b"1", b"0"]
    assert [each.system_properties.priority for each in found] == [9, 3, 2, 1, 0]


def test_under_sync_flush_each_message_is_answered_once_it_is_on_disk(tmp_path: Path) -> None:
    [port] = free_ports(1)
    config = broker_config(grpc_server_port=port)
    with running(tmp_path, config=config, flush_disk_type="SYNC_FLUSH") as broker, GrpcPeer(port) as peer:
        for _ in range(2):  # The first creates the topic, the second takes the fast path.
            answer = peer.send(*(peer.message("T", b"%d" % number) for number in range(3)))
            assert [entry.status.code for entry in answer.entries] == [Code.OK] * 3
        assert broker.parts.local.flushed_where >= max(each.physical_offset + each.size for each in stored(broker))


# What remoting clients may have stored.

ODD = {
    "no-utf-8": b"A\x01\xff\xfe\x02UNIQ_KEY\x01k\x02",
    "id": b"UNIQ_KEY\x01\xff\x02",
    "tag": b"TAGS\x01\xff\xfe\x02UNIQ_KEY\x01k\x02",
    "keys": b"KEYS\x01\xff\xfe\x02UNIQ_KEY\x01k\x02",
    "priority": b"_SYS_MSG_PRIORITY_\x0199999999999\x02UNIQ_KEY\x01k\x02",
    "digit": "_SYS_MSG_PRIORITY_\x01²\x02UNIQ_KEY\x01k\x02".encode(),
    "time": b"TIMER_OUT_MS\x0199999999999999999999999\x02UNIQ_KEY\x01k\x02",
    "receipt": b"POP_CK\x01junk\x02UNIQ_KEY\x01k\x02",
    "old-receipt": b"POP_CK\x010 1 60000 0 0 b1 0 0\x02UNIQ_KEY\x01k\x02",
    "none": b"",
}


@pytest.mark.parametrize("name", ODD)
def test_a_message_with_odd_properties_keeps_nothing_from_its_consumers(
    broker: Broker, peer: GrpcPeer, name: str
) -> None:
    make(broker)
    for properties in (ODD[name], b"UNIQ_KEY\x01good\x02"):
        put = broker.parts.local.put(Message("T", b"body", encoded_properties=properties, born_timestamp_ms=-5))
        assert put.status is PutStatus.PUT_OK
    broker.parts.local.dispatch_now()
    got = peer.receive("T")
    assert [each.body for each in got] == [b"body", b"body"]
    assert peer.acknowledge("T", *got).status.code == Code.OK
    pulled = peer.call("PullMessage", group={"name": "G"}, message_queue={"topic": {"name": "T"}}, batch_size=32)
    assert [each.message.body for each in pulled if each.HasField("message")] == [b"body", b"body"]
    held = [point for each in broker.processors if isinstance(each, PopProcessor) for point in each.log.points]
    assert held == []
    assert broker.parts.server.handler_errors == 0


# Compressed bodies.


def test_a_body_by_gzip_is_read_by_remoting_and_by_grpc(broker: Broker, peer: GrpcPeer) -> None:
    plain = b"many words, " * 500
    make(broker)
    peer.send(peer.message("T", gzip.compress(plain), body_encoding=Encoding.GZIP))
    [found] = stored(broker)
    assert found.decompressed_body() == plain
    [message] = peer.receive("T")
    assert message.system_properties.body_encoding == Encoding.GZIP
    assert gzip.decompress(message.body) == plain


def test_a_body_that_remoting_has_compressed_is_read_by_grpc(broker: Broker, peer: GrpcPeer) -> None:
    plain = b"many words, " * 500
    with Producer(broker) as producer:
        assert producer.send("T", zlib.compress(plain), sys_flag=1 | 0x300).code == 0
    [message] = peer.receive("T")
    assert gzip.decompress(message.body) == plain


@pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD], ids=["lz4", "zstd"])
def test_a_body_of_a_kind_that_grpc_does_not_know_is_given_plain(
    broker: Broker, peer: GrpcPeer, kind: CompressionType
) -> None:
    plain = b"many words, " * 500
    with Producer(broker) as producer:
        packed = compress(plain, kind)
        assert len(packed) < len(plain)
        assert producer.send("T", packed, sys_flag=1 | kind << 8).code == 0
    [message] = peer.receive("T")
    assert (message.body, message.system_properties.body_encoding) == (plain, Encoding.IDENTITY)
    assert message.system_properties.body_digest.checksum == hashlib.md5(plain).hexdigest().upper()


def test_a_plain_body_that_is_called_gzip_is_stored_and_given_as_it_is(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    assert peer.send(peer.message("T", b"plain", body_encoding=Encoding.GZIP)).status.code == Code.OK
    assert [(each.body, each.sys_flag & 1) for each in stored(broker)] == [(b"plain", 0)]
    [found] = peer.receive("T")
    assert (found.body, found.system_properties.body_encoding) == (
        b"plain",
        Encoding.GZIP,
    )  # As RocketMQ's test has it.
    assert dict(found.user_properties) == {}


def test_a_body_of_damaged_gzip_is_refused(broker: Broker, peer: GrpcPeer) -> None:
    answer = peer.send(peer.message("T", b"\x1f\x8bnothing", body_encoding=Encoding.GZIP))
    assert answer.status.code == Code.MESSAGE_CORRUPTED
    assert stored(broker) == []


# Receives.


def test_a_message_is_received_with_all_that_it_was_sent_with(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    message = peer.message("T", b"body", tag="paid", keys=["k1", "k2"], message_group="g", priority=3)
    message.user_properties["colour"] = "blue"
    peer.send(message)
    [found] = peer.receive("T")
    system = found.system_properties
    assert (found.topic.name, found.body, dict(found.user_properties)) == ("T", b"body", {"colour": "blue"})
    assert (system.tag, list(system.keys), system.message_group, system.priority) == ("paid", ["k1", "k2"], "g", 3)
    assert (system.message_id, system.delivery_attempt) == (message.system_properties.message_id, 1)
    assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"
    assert len(system.receipt_handle.split(" ")) == 9


def test_a_receive_waits_and_a_send_wakes_it(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    request = request_class("ReceiveMessage")(
        group={"name": "G"}, message_queue={"topic": {"name": "T"}, "id": -1}, batch_size=1
    )
    request.invisible_duration.seconds = request.long_polling_timeout.seconds = 20
    stub = peer.channel.unary_stream("/apache.rocketmq.v2.MessagingService/ReceiveMessage", None, None)
    waiting = stub(request.SerializeToString(), metadata=peer.metadata, timeout=60)
    pops = next(each for each in broker.processors if type(each).__name__ == "PopProcessor")
    while not pops.waiting.held:  # type: ignore[attr-defined]
        peer.call("QueryRoute", topic={"name": "T"})
    peer.send(peer.message("T", b"at last"))
    assert b"at last" in b"".join(waiting)


def test_a_receive_that_its_client_gives_up_is_not_held_any_longer(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    request = request_class("ReceiveMessage")(
        group={"name": "G"}, message_queue={"topic": {"name": "T"}, "id": -1}, batch_size=1
    )
    request.invisible_duration.seconds = request.long_polling_timeout.seconds = 20
    stub = peer.channel.unary_stream("/apache.rocketmq.v2.MessagingService/ReceiveMessage", None, None)
    waiting = stub(request.SerializeToString(), metadata=peer.metadata, timeout=60)
    pops = next(each for each in broker.processors if type(each).__name__ == "PopProcessor")
    while not pops.waiting.held:  # type: ignore[attr-defined]
        peer.call("QueryRoute", topic={"name": "T"})
    waiting.cancel()
    while pops.waiting.held:  # type: ignore[attr-defined]
        peer.call("QueryRoute", topic={"name": "T"})
    peer.send(peer.message("T", b"for another"))
    assert [each.body for each in peer.receive("T")] == [b"for another"]


def test_acknowledged_messages_have_a_status_each(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    peer.send(peer.message("T", b"1"), peer.message("T", b"2"))
    broker.parts.local.dispatch_now()  # A pop gets what is in the queue, and that may be the first one alone.
    one, two = peer.receive("T")
    two.system_properties.receipt_handle = "nonsense"
    answer = peer.acknowledge("T", one, two)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


def test_an_invisible_time_is_changed_and_the_new_handle_acknowledges(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    peer.send(peer.message("T"))
    [found] = peer.receive("T")
    place: dict[str, Any] = {"group": {"name": "G"}, "topic": {"name": "T"}}
    handle = found.system_properties.receipt_handle
    answer = peer.call("ChangeInvisibleDuration", **place, receipt_handle=handle, invisible_duration={"seconds": 30})
    assert answer.status.code == Code.OK
    assert answer.receipt_handle.split(" ")[2] == "30000"
    found.system_properties.receipt_handle = answer.receipt_handle
    assert peer.acknowledge("T", found).status.code == Code.OK
    again = peer.call(
        "ChangeInvisibleDuration", **place, receipt_handle=answer.receipt_handle, invisible_duration={"seconds": 30}
    )
    assert again.status.code == Code.INVALID_RECEIPT_HANDLE


def test_a_message_is_forwarded_to_the_dead_letters_and_not_delivered_again(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    peer.send(peer.message("T", b"poison"))
    [found] = peer.receive("T")
    answer = peer.call(
        "ForwardMessageToDeadLetterQueue",
        group={"name": "G"},
        topic={"name": "T"},
        receipt_handle=found.system_properties.receipt_handle,
        message_id=found.system_properties.message_id,
    )
    assert answer.status.code == Code.OK
    assert [each.body for each in stored(broker, "%DLQ%G")] == [b"poison"]
    pops = next(each for each in broker.processors if type(each).__name__ == "PopProcessor")
    assert len(pops.log.points) == 0  # type: ignore[attr-defined]


def forward(peer: GrpcPeer, handle: str, message_id: str = "m") -> Any:
    return peer.call(
        "ForwardMessageToDeadLetterQueue",
        group={"name": "G"},
        topic={"name": "T"},
        receipt_handle=handle,
        message_id=message_id,
    ).status


@pytest.mark.parametrize("ordered", [False, True], ids=["shared", "ordered"])
@pytest.mark.parametrize("end", ["forwarded", "acknowledged"])
def test_a_message_that_is_done_becomes_no_dead_letter(broker: Broker, peer: GrpcPeer, ordered: bool, end: str) -> None:
    make(broker)
    broker.parts.groups.put(SubscriptionGroup("G", consume_message_orderly=ordered))
    peer.send(peer.message("T", b"done", message_group="g"))
    [found] = peer.receive("T")
    handle = found.system_properties.receipt_handle
    if end == "acknowledged":
        assert peer.acknowledge("T", found).status.code == Code.OK
    else:
        assert forward(peer, handle).code == Code.OK
    assert [forward(peer, handle).code for _ in range(2)] == [Code.INVALID_RECEIPT_HANDLE] * 2
    assert len(stored(broker, "%DLQ%G")) == (end == "forwarded")


def test_calls_that_forward_one_message_at_once_make_one_dead_letter(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    peer.send(peer.message("T", b"poison"))
    [found] = peer.receive("T")
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: forward(peer, found.system_properties.receipt_handle).code, range(8)))
    assert sorted(codes) == [Code.OK] + [Code.INVALID_RECEIPT_HANDLE] * 7
    assert len(stored(broker, "%DLQ%G")) == 1


@pytest.mark.parametrize(
    "words",
    [{1: "1"}, {0: "1"}, {7: "1"}, {3: "999"}, {8: "other"}],
    ids=["time", "first", "offset", "order", "record"],
)
def test_an_invented_receipt_makes_no_dead_letter_and_acknowledges_nothing(
    broker: Broker, peer: GrpcPeer, words: dict[int, str]
) -> None:
    make(broker)
    peer.send(peer.message("T", b"received"))
    [found] = peer.receive("T")
    peer.send(peer.message("T", b"never received"))
    other = stored(broker)[1]
    listed = found.system_properties.receipt_handle.split(" ")
    for at, word in words.items():
        listed[at] = str(other.physical_offset) if word == "other" else word
    handle = " ".join(listed)
    assert forward(peer, handle).code == Code.INVALID_RECEIPT_HANDLE
    assert stored(broker, "%DLQ%G") == []
    if 8 not in words:  # An acknowledgement needs no record.
        found.system_properties.receipt_handle = handle
        assert peer.acknowledge("T", found).status.code == Code.INVALID_RECEIPT_HANDLE
    assert [each.body for each in peer.receive("T")] == [b"never received"]


def test_an_acknowledgement_in_order_that_comes_too_late_says_so(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    broker.parts.groups.put(SubscriptionGroup("G", consume_message_orderly=True))
    peer.send(peer.message("T", message_group="g"))
    [found] = peer.receive("T", attempt_id="one")
    first = found.system_properties.receipt_handle
    [again] = peer.receive("T", attempt_id="one")
    assert first != again.system_properties.receipt_handle
    assert peer.acknowledge("T", found).status.code == Code.INVALID_RECEIPT_HANDLE
    assert peer.acknowledge("T", again).status.code == Code.OK
    assert peer.acknowledge("T", again).status.code == Code.OK, "its first answer may have been lost"


@pytest.mark.parametrize("seconds", [9, 43_201])
def test_an_invisible_time_has_bounds(peer: GrpcPeer, seconds: int) -> None:
    request = request_class("ReceiveMessage")(group={"name": "G"}, message_queue={"topic": {"name": "T"}})
    request.invisible_duration.seconds, request.long_polling_timeout.seconds = seconds, 5
    assert peer.call("ReceiveMessage", request)[0].status.code == Code.ILLEGAL_INVISIBLE_TIME


@pytest.mark.parametrize("poll_s", [0, 20])
def test_a_receive_whose_call_ends_before_the_shortest_wait_is_refused(peer: GrpcPeer, poll_s: int) -> None:
    request = request_class("ReceiveMessage")(group={"name": "G"}, message_queue={"topic": {"name": "T"}})
    request.invisible_duration.seconds, request.long_polling_timeout.seconds = 60, poll_s
    [refused, _] = peer.call("ReceiveMessage", request, timeout_s=4)
    assert refused.status.code == Code.ILLEGAL_POLLING_TIME
    assert "at least 5.0 s" in refused.status.message


def test_a_handle_of_another_broker_is_refused_by_every_call_that_takes_one(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    peer.send(peer.message("T"))
    [found] = peer.receive("T")
    own = found.system_properties.receipt_handle
    found.system_properties.receipt_handle = handle = own.replace(" b1 ", " b2 ")
    place: dict[str, Any] = {"group": {"name": "G"}, "topic": {"name": "T"}, "receipt_handle": handle}
    refused = [
        peer.acknowledge("T", found).entries[0].status,
        peer.call("ChangeInvisibleDuration", invisible_duration={"seconds": 30}, **place).status,
        peer.call("ForwardMessageToDeadLetterQueue", message_id="m", **place).status,
    ]
    assert [each.code for each in refused] == [Code.INVALID_RECEIPT_HANDLE] * 3
    assert {"expected a receipt handle of this broker, b1" in each.message for each in refused} == {True}
    found.system_properties.receipt_handle = own
    assert peer.acknowledge("T", found).status.code == Code.OK


def test_a_handle_without_an_offset_in_the_log_forwards_nothing(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    peer.send(peer.message("T"))
    [found] = peer.receive("T")
    words = found.system_properties.receipt_handle.split(" ")
    place: dict[str, Any] = {"group": {"name": "G"}, "topic": {"name": "T"}, "message_id": "m"}
    for last in ([], ["-1"], ["9" * 30]):
        handle = " ".join(words[:8] + last)
        answer = peer.call("ForwardMessageToDeadLetterQueue", receipt_handle=handle, **place)
        assert answer.status.code == Code.INVALID_RECEIPT_HANDLE
    assert peer.acknowledge("T", found).status.code == Code.OK


def test_an_attempt_of_a_group_in_order_gets_its_messages_again_and_another_waits(
    broker: Broker, peer: GrpcPeer
) -> None:
    make(broker)
    broker.parts.groups.put(SubscriptionGroup("G", consume_message_orderly=True))
    peer.send(*(peer.message("T", b"%d" % number, message_group="g") for number in range(2)))
    broker.parts.local.dispatch_now()
    for _ in range(2):
        assert [each.body for each in peer.receive("T", attempt_id="one")] == [b"0", b"1"]
    assert peer.receive("T", attempt_id="other") == []
    found = peer.receive("T", attempt_id="one")
    assert peer.acknowledge("T", *found).status.code == Code.OK
    peer.send(peer.message("T", b"2", message_group="g"))
    assert [each.body for each in peer.receive("T", attempt_id="other")] == [b"2"]


def test_a_simple_consumer_of_a_group_in_order_gets_what_any_queue_has(broker: Broker, peer: GrpcPeer) -> None:
    """Clients in Python and for Node name a queue of the route by chance, and would wait for that one for 20 s."""
    broker.parts.topics.put(TopicConfig("T", 4, 4))
    broker.parts.groups.put(SubscriptionGroup("G", consume_message_orderly=True))
    peer.send(peer.message("T", b"ordered", message_group="customer-7"))
    broker.parts.local.dispatch_now()
    used = consistent_queue("customer-7", 4)
    fields: dict[str, Any] = {"group": {"name": "G"}, "batch_size": 32}

    def received(queue: int, **more: Any) -> list[Any]:
        asked = {"topic": {"name": "T"}, "id": queue}
        request = request_class("ReceiveMessage")(**fields, message_queue=asked, **more)
        request.long_polling_timeout.seconds = 5
        return [each.message.body for each in peer.call("ReceiveMessage", request) if each.HasField("message")]

    assert received((used + 1) % 4, auto_renew=True) == [], "a push consumer gets what its own queue has"
    assert received((used + 1) % 4, invisible_duration={"seconds": 60}) == [b"ordered"]


def test_a_receive_by_tags_gets_no_message_whose_tag_has_the_same_hash(broker: Broker, peer: GrpcPeer) -> None:
    """Without such a message the records are written in the kernel; with one, it is acknowledged for the client."""
    make(broker)
    wanted = {"type": 1, "expression": "BB || paid"}
    for tags in (("BB", "paid", "other"), ("Aa", "BB", "Aa")):
        peer.send(*(peer.message("T", tag.encode(), tag=tag) for tag in tags))
        broker.parts.local.dispatch_now()
        found = peer.receive("T", filter_expression=wanted)
        assert [each.body.decode() for each in found] == [tag for tag in tags if tag in ("BB", "paid")]
        assert peer.acknowledge("T", *found).status.code == Code.OK
    held = [point for each in broker.processors if isinstance(each, PopProcessor) for point in each.log.points]
    assert held == []


def test_a_filter_that_cannot_be_parsed_is_refused(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    request = request_class("ReceiveMessage")(
        group={"name": "G"},
        message_queue={"topic": {"name": "T"}},
        filter_expression={"type": 2, "expression": "a >"},
    )
    request.invisible_duration.seconds = 60
    assert peer.call("ReceiveMessage", request)[0].status.code == Code.ILLEGAL_FILTER_EXPRESSION


# Transactions, timers.


def test_a_transaction_id_ends_a_transaction_without_a_table(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    for resolution in (1, 2):
        message = peer.message("T", b"%d" % resolution, message_type=MessageType.TRANSACTION)
        [entry] = peer.send(message).entries
        assert stored(broker) == []
        if resolution == 1:
            answer = peer.call("EndTransaction", topic={"name": "T"}, transaction_id=entry.transaction_id, resolution=2)
            assert answer.status.code == Code.OK
        else:
            answer = peer.call("EndTransaction", topic={"name": "T"}, transaction_id=entry.transaction_id, resolution=1)
            assert answer.status.code == Code.OK
    assert [found.body for found in stored(broker)] == [b"2"]


def test_what_cannot_be_ended_is_called_an_invalid_transaction(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    [entry] = peer.send(peer.message("T", b"half", message_type=MessageType.TRANSACTION)).entries
    assert stored(broker) == []

    def end(transaction_id: str, resolution: int) -> Code:
        fields: dict[str, Any] = {"topic": {"name": "T"}, "transaction_id": transaction_id, "resolution": resolution}
        return Code(peer.call("EndTransaction", **fields).status.code)

    assert end(entry.transaction_id, 1) == Code.OK
    assert end(entry.transaction_id, 2) == Code.INVALID_TRANSACTION_ID
    assert end("7fffffff-0-ID", 1) == Code.INVALID_TRANSACTION_ID
    assert [found.body for found in stored(broker)] == [b"half"]


@pytest.mark.parametrize("expression", ["", " ", "a > " + "9" * 5_000], ids=["empty", "blank", "long-number"])
def test_an_sql_expression_that_is_none_is_refused_in_words(broker: Broker, peer: GrpcPeer, expression: str) -> None:
    make(broker)
    request = request_class("ReceiveMessage")(
        group={"name": "G"},
        message_queue={"topic": {"name": "T"}, "id": -1},
        filter_expression={"type": 2, "expression": expression},
    )
    request.invisible_duration.seconds = 60
    refused = peer.call("ReceiveMessage", request)[0].status
    assert refused.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert "expected" in refused.message
    assert "limit" not in refused.message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"client_type": 99}, "expected a client type of 0 to 6, found 99"),
        ({"client_type": 2, "expression": "a >"}, "the subscription to T: expected"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(
    broker: Broker, peer: GrpcPeer, changes: dict[str, Any], expected: str
) -> None:
    make(broker)
    entry = {"topic": {"name": "T"}, "expression": {"type": 2, "expression": changes.get("expression", "a > 1")}}
    with pytest.raises(grpc.RpcError) as refused:
        peer.settle(client_type=changes["client_type"], subscription={"group": {"name": "G"}, "subscriptions": [entry]})
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert expected in refused.value.details()


@pytest.mark.parametrize("transaction_id", [" ", "ID-1", "ffffffffffffffffffff-0-ID"])
def test_a_transaction_id_of_another_making_is_refused(peer: GrpcPeer, transaction_id: str) -> None:
    answer = peer.call("EndTransaction", topic={"name": "T"}, transaction_id=transaction_id, resolution=1)
    assert answer.status.code == Code.INVALID_TRANSACTION_ID


def test_a_producer_is_asked_about_a_transaction_that_it_left_open(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    assert peer.settle(**PRODUCER).status.code == Code.OK
    [entry] = peer.send(peer.message("T", b"open", message_type=MessageType.TRANSACTION)).entries
    asked = next(peer.telemetry).recover_orphaned_transaction_command
    assert (asked.message.topic.name, asked.message.body) == ("T", b"open")
    assert asked.message.system_properties.message_id == entry.message_id
    answer = peer.call(
        "EndTransaction", topic={"name": "T"}, transaction_id=asked.transaction_id, resolution=1, source=2
    )
    assert answer.status.code == Code.OK
    assert [found.body for found in stored(broker)] == [b"open"]


def test_a_message_for_tomorrow_is_taken_back_by_its_recall_handle(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    later_s = broker.parts.clock.now_ms() // 1000 + 2 * 86_400
    [entry] = peer.send(peer.message("T", delivery_s=later_s)).entries
    assert entry.status.code == Code.OK
    answer = peer.call("RecallMessage", topic={"name": "T"}, recall_handle=entry.recall_handle)
    assert (answer.status.code, answer.message_id) == (Code.OK, entry.message_id)
    far = peer.send(peer.message("T", delivery_s=later_s + 365 * 86_400))
    assert far.status.code == Code.ILLEGAL_DELIVERY_TIME  # Beyond timerMaxDelaySec of a broker without a tier.


# Settings.


def test_settings_come_back_with_what_the_broker_says(broker: Broker, peer: GrpcPeer) -> None:
    settings = peer.settle(**CONSUMER).settings
    assert settings.backoff_policy.max_attempts == 17
    assert [each.seconds for each in settings.backoff_policy.customized_backoff.next][:3] == [1, 5, 10]
    assert (settings.subscription.receive_batch_size, settings.subscription.long_polling_timeout.seconds) == (32, 20)
    members = broker.parts.clients.consumers("G")
    assert members is not None
    assert [client.client_id for client in members.clients.values()] == [peer.client_id]
    assert peer.call("Heartbeat", group={"name": "G"}, client_type=3).status.code == Code.OK
    assert peer.call("NotifyClientTermination", group={"name": "G"}).status.code == Code.OK
    assert broker.parts.clients.consumers("G") is None
    assert peer.call("Heartbeat", client_type=3).status.code == Code.UNRECOGNIZED_CLIENT_TYPE


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        ({"type": "EXPONENTIAL"}, (5.0, 7200.0, 2)),
        (
            {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1500, "max": 60000, "multiplier": 3}},
            (1.5, 60.0, 3),
        ),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [2000, 7500]}}, [2.0, 7.5]),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": None}, [float(each) for each in STEPS_S]),
    ],
    ids=["exponential", "exponential-own", "steps", "none"],
)
def test_settings_have_the_retry_policy_of_the_group(
    broker: Broker, peer: GrpcPeer, policy: dict[str, Any], waits: Any
) -> None:
    body = json.dumps({"groupName": "G", "retryMaxTimes": 3, "groupRetryPolicy": policy}).encode()
    with BlockingClient("127.0.0.1", broker.port, timeout_s=60) as operator:
        assert operator.request(RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
    backoff = peer.settle(**CONSUMER).settings.backoff_policy
    assert backoff.max_attempts == 4
    if backoff.WhichOneof("strategy") == "exponential_backoff":
        made = backoff.exponential_backoff
        found: Any = made.initial.ToMilliseconds() / 1000, made.max.ToMilliseconds() / 1000, made.multiplier
    else:
        found = [each.ToMilliseconds() / 1000 for each in backoff.customized_backoff.next]
    assert found == waits


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"type": "LINEAR"}, "expected CUSTOMIZED or EXPONENTIAL, found 'LINEAR'"),
        ({"customizedRetryPolicy": {"next": [1000, -1]}}, "customizedRetryPolicy.next: expected 1 to 43200000 ms"),
        ({"customizedRetryPolicy": {"next": [1000] * 65}}, "expected at most 64 waits, found 65"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 9, "max": 8}}, "found 9 and 8"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 0}}, "multiplier: expected 1 to 1000"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": [1]}, "expected exponentialRetryPolicy to be an object"),
    ],
    ids=["type", "negative", "many", "order", "multiplier", "list"],
)
def test_a_retry_policy_that_no_consumer_could_follow_is_refused(
    broker: Broker, policy: dict[str, Any], words: str
) -> None:
    body = json.dumps({"groupName": "G", "groupRetryPolicy": policy}).encode()
    with BlockingClient("127.0.0.1", broker.port, timeout_s=60) as operator:
        answer = operator.request(RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body))
    assert answer.code != 0
    assert words in str(answer.remark)
    assert broker.parts.groups.get("G") is None


def test_a_retry_policy_of_another_writer_that_is_none_keeps_no_consumer_away(
    broker: Broker, peer: GrpcPeer, caplog: pytest.LogCaptureFixture
) -> None:
    broker.parts.groups.put(SubscriptionGroup("G", group_retry_policy={"type": "LINEAR"}))
    backoff = peer.settle(**CONSUMER).settings.backoff_policy
    assert [each.seconds for each in backoff.customized_backoff.next] == list(STEPS_S)
    assert "group G: its consumers wait by RocketMQ's default policy" in caplog.text


def test_settings_of_neither_kind_end_the_stream(peer: GrpcPeer) -> None:
    with pytest.raises(grpc.RpcError) as found:
        peer.settle(client_type=1)
    assert found.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_operator_s_message_is_consumed_by_the_client_that_is_named(broker: Broker, peer: GrpcPeer) -> None:
    """CONSUME_MESSAGE_DIRECTLY of mqadmin reaches a gRPC consumer, and its answer comes back."""
    make(broker)
    peer.settle(**CONSUMER)
    peer.send(peer.message("T", b"try this"))
    [found] = stored(broker)
    ext = {"consumerGroup": "G", "clientId": peer.client_id, "msgId": found.message_id, "brokerName": "b1"}
    with BlockingClient("127.0.0.1", broker.port, timeout_s=60) as operator, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(operator.request, RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext=ext))
        asked = next(peer.telemetry).verify_message_command
        assert asked.message.body == b"try this"
        peer.tell(TelemetryCommand(status={"code": 20000}, verify_message_result={"nonce": asked.nonce}))
        assert b"CR_SUCCESS" in bytes(answer.result().body)


# Offsets.


def test_a_queue_is_pulled_from_an_offset_that_is_kept(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    peer.send(*(peer.message("T", b"%d" % number) for number in range(5)))
    queue = {"topic": {"name": "T"}, "id": 0}
    broker.parts.local.dispatch_now()
    broker.parts.groups.find_or_make("P")
    answers = peer.call("PullMessage", group={"name": "P"}, message_queue=queue, offset=2, batch_size=2)
    assert [each.message.body for each in answers if each.HasField("message")] == [b"2", b"3"]
    assert answers[-1].next_offset == 4
    assert peer.call("UpdateOffset", group={"name": "P"}, message_queue=queue, offset=4).status.code == Code.OK
    assert peer.call("GetOffset", group={"name": "P"}, message_queue=queue).offset == 4
    ends = [peer.call("QueryOffset", message_queue=queue, query_offset_policy=policy).offset for policy in (0, 1)]
    assert ends == [0, 5]
    behind = peer.call("PullMessage", group={"name": "P"}, message_queue=queue, offset=99, batch_size=2)
    assert [each.status.code for each in behind if each.HasField("status")] == [Code.ILLEGAL_OFFSET]
    assert behind[-1].next_offset == 5


def test_a_pull_waits_for_a_message_and_chooses_by_sql(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    broker.parts.groups.find_or_make("P")
    cheap, dear = peer.message("T", b"cheap"), peer.message("T", b"dear")
    cheap.user_properties["price"], dear.user_properties["price"] = "5", "10"
    request = request_class("PullMessage")(
        group={"name": "P"},
        message_queue={"topic": {"name": "T"}},
        batch_size=32,
        filter_expression={"type": 2, "expression": "price > 7"},
    )
    request.long_polling_timeout.seconds = 20
    pulls = next(each for each in broker.processors if isinstance(each, PullProcessor))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(peer.call, "PullMessage", request)
        until(lambda: pulls.long_polling.held)
        assert peer.send(cheap, dear).status.code == Code.OK
        answers = waiting.result()
    assert [each.message.body for each in answers if each.HasField("message")] == [b"dear"]
    assert answers[-1].next_offset == 2


def test_an_offset_is_found_by_time(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    for number in range(3):
        before_ms = broker.parts.clock.now_ms()
        until(lambda before_ms=before_ms: broker.parts.clock.now_ms() > before_ms)  # type: ignore[misc]
        assert peer.send(peer.message("T", b"%d" % number)).status.code == Code.OK
    times_ms = [each.store_timestamp_ms for each in stored(broker)]
    found = []
    for time_ms in (0, *times_ms, times_ms[-1] + 1):
        request = request_class("QueryOffset")(message_queue={"topic": {"name": "T"}}, query_offset_policy=2)
        request.timestamp.FromMilliseconds(time_ms)
        found.append(peer.call("QueryOffset", request).offset)
    assert found == [0, 0, 1, 2, 3]


def test_what_no_queue_can_have_is_refused_by_its_own_code(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    broker.parts.groups.find_or_make("P")
    here: dict[str, Any] = {"group": {"name": "P"}, "message_queue": {"topic": {"name": "T"}}}
    for offset in (-1, -7):
        assert peer.call("UpdateOffset", **here, offset=offset).status.code == Code.ILLEGAL_OFFSET
        assert peer.call("PullMessage", **here, offset=offset, batch_size=1)[0].status.code == Code.ILLEGAL_OFFSET
    other: dict[str, Any] = {"group": {"name": "P"}, "message_queue": {"topic": {"name": "T"}, "id": 99}}
    assert peer.call("UpdateOffset", **other).status.code == Code.BAD_REQUEST
    early = request_class("QueryOffset")(query_offset_policy=2, message_queue=here["message_queue"])
    early.timestamp.seconds = -5
    assert peer.call("QueryOffset", early).status.code == Code.BAD_REQUEST
    recall = peer.call("RecallMessage", topic={"name": "T"}, recall_handle="junk")
    assert recall.status.code == Code.BAD_REQUEST
    assert "recall handle is invalid" in recall.status.message
    assert broker.parts.server.handler_errors == 0


def test_a_pull_by_tag_gets_no_message_whose_tag_has_the_same_hash(broker: Broker, peer: GrpcPeer) -> None:
    make(broker)
    peer.send(*(peer.message("T", tag.encode(), tag=tag) for tag in ("Aa", "BB", "Aa")))
    broker.parts.local.dispatch_now()
    broker.parts.groups.find_or_make("P")
    fields: dict[str, Any] = {"group": {"name": "P"}, "message_queue": {"topic": {"name": "T"}}, "batch_size": 32}
    answers = peer.call("PullMessage", **fields, filter_expression={"type": 1, "expression": "BB"})
    assert [each.message.body for each in answers if each.HasField("message")] == [b"BB"]
    answers = peer.call("PullMessage", **fields, offset=2, filter_expression={"type": 1, "expression": "BB"})
    assert [each.status.code for each in answers if each.HasField("status")] == [Code.MESSAGE_NOT_FOUND]
    assert answers[-1].next_offset == 3


def test_what_is_no_call_of_the_service_is_unimplemented(peer: GrpcPeer) -> None:
    for path in ("/apache.rocketmq.v2.MessagingService/Unknown", "/other.Service/Call"):
        with pytest.raises(grpc.RpcError) as found:
            peer.channel.unary_unary(path, None, None)(b"", metadata=peer.metadata, timeout=60)
        assert found.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_calls_are_counted_and_the_broker_is_up_under_the_proxy_s_name(broker: Broker, peer: GrpcPeer) -> None:
    peer.send(peer.message("T"))
    page = broker.render_metrics()
    assert 'rocketmq_proxy_up{cluster="DefaultCluster",node_type="proxy",node_id="b1",proxy_mode="local"} 1' in page
    assert 'tiermq_grpc_calls_total{call="SendMessage",code="20000"} 1' in page
    assert 'rocketmq_messages_in_total{cluster="DefaultCluster"' in page
