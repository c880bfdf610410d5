"""Sends over the wire: what is stored, and what is answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import BORN_MS, Producer, broker_config, running, send_command, stored
from remoting.peers import RawPeer
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.group.client_table import MessageQueue
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.send.send_processor import SendCounts, SendProcessor
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.kernel import PutResult
from tiermq.message.client_batch import BatchElement, decode_client_batch, encode_client_batch
from tiermq.message.ids import decode_message_id
from tiermq.message.stored_message import StoredMessage
from tiermq.metrics import Registry
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType
from tiermq.status import PutStatus
from tiermq.testing.local_broker import NEVER_S
from waiting import until


def sending_of(broker: Broker) -> SendProcessor:
    return next(each for each in broker.processors if isinstance(each, SendProcessor))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path) as made:
        made.parts.topics.put(TopicConfig("T", 4, 4))
        yield made


@pytest.mark.parametrize("header_type", list(HeaderType))
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_a_message_is_stored_as_it_was_sent_and_its_place_is_answered(
    broker: Broker, header_type: int, code: int
) -> None:
    with Producer(broker, header_type) as producer:
        producer.send(code=code)  # The first finds its topic, later ones go the short way.
        answer = producer.send(body=b"second", code=code, queue=0)
    first, second = stored(broker)
    assert (first.body, second.body) == (b"hello", b"second")
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext == {
        "msgId": answer.ext["msgId"],
        "queueId": "0",
        "queueOffset": "1",
        "transactionId": "KEY1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    place = decode_message_id(answer.ext["msgId"])
    assert (place.store_host, place.physical_offset) == (broker.address, second.physical_offset)
    for message in (first, second):
        assert message.properties == {
            "UNIQ_KEY": "KEY1",
            "WAIT": "true",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }
        assert (message.flag, message.born_timestamp_ms, message.store_host) == (7, BORN_MS, broker.address)
        assert message.born_host.startswith("127.0.0.1:")


def test_the_short_and_the_long_way_store_the_same_bytes(broker: Broker) -> None:
    plain = "UNIQ_KEY\x01K\x02TAGS\x01a\x02"
    with Producer(broker) as producer:
        for _ in range(3):
            producer.send(properties=plain, queue=1)  # The first of them goes the long way.
    first, *others = stored(broker, queue_id=1)
    for other in others:
        assert other.encoded_properties == first.encoded_properties
        assert (other.sys_flag, other.flag, other.size) == (first.sys_flag, first.flag, first.size)


@pytest.mark.parametrize("properties", ["", "TAGS\x01a", "UNIQ_KEY\x01\x02A\x01b\x02"])
def test_a_message_without_a_unique_key_gets_one(broker: Broker, properties: str) -> None:
    with Producer(broker) as producer:
        key = producer.send(properties=properties).ext["transactionId"]
    (message,) = stored(broker)
    assert len(key) == 32
    assert message.properties["UNIQ_KEY"] == key


def test_what_the_broker_adds_is_there_once_however_often_a_message_comes_by(broker: Broker) -> None:
    with Producer(broker) as producer:
        producer.send()
        (message,) = stored(broker)
        producer.send(properties=message.encoded_properties.decode() + "POP_CK\x01forged\x02")
    _, again = stored(broker)
    assert again.properties == message.properties
    assert again.encoded_properties.count(b"MSG_REGION") == 1


def test_a_queue_below_zero_is_chosen_by_the_broker(broker: Broker) -> None:
    with Producer(broker) as producer:
        queues = {int(producer.send(queue=-1).ext["queueId"]) for _ in range(60)}
    assert queues == {0, 1, 2, 3}


def test_a_topic_is_made_from_the_default_one_with_as_many_queues_as_the_client_wants(broker: Broker) -> None:
    with Producer(broker) as producer:
        assert producer.send("New", queues=3, queue=2).code == ResponseCode.SUCCESS
    assert broker.parts.topics.get("New") == TopicConfig("New", 3, 3, 6)
    assert len(stored(broker, "New", 2)) == 1


def test_sends_that_come_while_their_topic_is_made_are_stored_in_their_order(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [b"%d" % number for number in range(200)]
    all_wait = threading.Event()
    make = broker.parts.topics.for_send

    def make_late(*arguments: Any) -> TopicConfig | None:
        all_wait.wait()
        return make(*arguments)

    monkeypatch.setattr(broker.parts.topics, "for_send", make_late)
    with Producer(broker) as producer:
        sent = [producer.client.request_later(send_command("New", body), NEVER_S) for body in bodies]
        until(lambda: sending_of(broker).waiting >= len(bodies))
        all_wait.set()
        answers = [each.result() for each in sent]
    assert {(answer.code, answer.remark) for answer in answers} == {(ResponseCode.SUCCESS, None)}
    assert [answer.ext["queueOffset"] for answer in answers] == [str(number) for number in range(200)]
    found: list[bytes] = []
    while page := stored(broker, "New", offset=len(found)):
        found += [message.body for message in page]
    assert found == bodies


REFUSED: list[tuple[dict[str, Any], ResponseCode, str]] = [
    ({"topic": "Unknown", "default_topic": "None"}, ResponseCode.TOPIC_NOT_EXIST, "Unknown"),
    ({"topic": "Unknown", "default_topic": "T"}, ResponseCode.TOPIC_NOT_EXIST, "Unknown"),
    ({"topic": "bad topic"}, ResponseCode.INVALID_PARAMETER, "letters"),
    ({"topic": "x" * 128}, ResponseCode.INVALID_PARAMETER, "127"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "SCHEDULE_TOPIC_XXXX"),
    ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION, "clients may not"),
    ({"topic": "SELF_TEST_TOPIC"}, ResponseCode.NO_PERMISSION, "clients may not"),
    ({"queue": 4}, ResponseCode.INVALID_PARAMETER, "below 4"),
    ({"body": b""}, ResponseCode.MESSAGE_ILLEGAL, "illegal"),
    ({"body": bytes(4 * 1024 * 1024 + 1)}, ResponseCode.MESSAGE_ILLEGAL, "maxMessageSize"),
    ({"properties": "A\x01" + "x" * 33_000 + "\x02"}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
    ({"properties": "UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02DELAY\x01x\x02"}, ResponseCode.MESSAGE_ILLEGAL, "delay"),
    ({"properties": "UNIQ_KEY\x01K\x02DELAY\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "delay level"),
    ({"properties": "UNIQ_KEY\x01K\x02TIMER_DELAY_SEC\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "delivery time"),
    ({"topic": "%RETRY%G", "batch": True}, ResponseCode.MESSAGE_ILLEGAL, "batches"),
    ({"batch": True, "body": b""}, ResponseCode.MESSAGE_ILLEGAL, "no body"),
    ({"batch": True, "body": b"no batch"}, ResponseCode.MESSAGE_ILLEGAL, "batch element"),
]


@pytest.mark.parametrize("header_type", list(HeaderType))
@pytest.mark.parametrize(("fields", "code", "word"), REFUSED)
def test_a_send_that_cannot_be_stored_is_refused_with_rocketmq_s_code(
    broker: Broker, header_type: int, fields: dict[str, Any], code: ResponseCode, word: str
) -> None:
    with Producer(broker, header_type) as producer:
        producer.send(queue=3)
        refused = producer.send(**fields)
        assert (refused.code, word in (refused.remark or "")) == (code, True), refused
        assert producer.send(queue=3).ext["queueOffset"] == "1"  # The connection goes on.
    assert broker.parts.local.put_count == 2


def test_without_auto_creation_an_unknown_topic_does_not_exist(tmp_path: Path) -> None:
    with running(tmp_path, config=broker_config(auto_create_topic_enable=False)) as broker, Producer(broker) as client:
        assert client.send().code == ResponseCode.TOPIC_NOT_EXIST
        assert broker.parts.topics.get("T") is None


def test_an_ordered_topic_of_a_broker_that_may_not_write_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, config=broker_config(broker_permission=4)) as broker, Producer(broker) as client:
        broker.parts.topics.put(TopicConfig("Ordered", order=True))
        assert client.send("Ordered").code == ResponseCode.NO_PERMISSION
        assert client.send("Plain").code == ResponseCode.SUCCESS


def test_a_compacted_topic_takes_messages_with_keys_only(broker: Broker) -> None:
    broker.parts.topics.put(TopicConfig("Compacted", 1, 1, attributes={"cleanup.policy": "COMPACTION"}))
    with Producer(broker) as producer:
        assert producer.send("Compacted").code == ResponseCode.MESSAGE_ILLEGAL
        assert producer.send("Compacted", properties="UNIQ_KEY\x01K\x02KEYS\x01k\x02").code == ResponseCode.SUCCESS


def test_a_topic_that_has_changed_is_looked_at_again(broker: Broker) -> None:
    with Producer(broker) as producer:
        producer.send(queue=3)
        producer.send(queue=3)
        broker.parts.topics.put(TopicConfig("T", 2, 2))
        assert producer.send(queue=3).code == ResponseCode.INVALID_PARAMETER


def test_a_one_way_send_is_stored_and_never_answered(broker: Broker) -> None:
    with Producer(broker) as producer:
        producer.client.oneway(send_command())
        producer.client.oneway(send_command(queue=99))
        producer.client.oneway(send_command("New"))
        assert producer.send().ext["queueOffset"] == "1"


# Batches.


def batch_of(count: int) -> bytes:
    return encode_client_batch(BatchElement(1, b"%d" % n, b"KEYS\x01k%d\x02" % n) for n in range(count))


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_each_message_of_a_batch_is_a_message_of_the_queue(broker: Broker, code: int) -> None:
    with Producer(broker, HeaderType.ROCKETMQ) as producer:
        producer.send(queue=2)
        answer = producer.send(body=batch_of(40), code=code, batch=True, properties="WAIT\x01true\x02", queue=2)
    messages = stored(broker, queue_id=2, offset=1) + stored(broker, queue_id=2, offset=33)
    ids = answer.ext["msgId"].split(",")
    assert [decode_message_id(each).physical_offset for each in ids] == [each.physical_offset for each in messages]
    assert (answer.ext["queueOffset"], len(ids)) == ("1", 40)
    for number, message in enumerate(messages):
        assert message.body == b"%d" % number
        assert (message.properties["KEYS"], message.properties["CLUSTER"]) == (f"k{number}", "DefaultCluster")


def test_ids_are_right_whatever_came_first(broker: Broker) -> None:
    with Producer(broker) as producer:
        producer.send(queue=99)
        answers = [producer.send(body=batch_of(2), batch=True), producer.send(), producer.send(), producer.send()]
    ids = [each for answer in answers for each in answer.ext["msgId"].split(",")]
    assert [str(decode_message_id(each)) for each in ids] == ids
    assert [(found.store_host, found.physical_offset) for found in map(decode_message_id, ids)] == [
        (broker.address, message.physical_offset) for message in stored(broker)
    ]


def test_a_batch_for_a_topic_of_batch_queues_is_one_record(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        broker.parts.topics.put(TopicConfig("Inner", 1, 1, attributes={"queue.type": "BatchCQ"}))
        answers = [producer.send("Inner", batch_of(3), batch=True) for _ in range(2)]
        assert [answer.ext["queueOffset"] for answer in answers] == ["0", "3"]
        assert {answer.ext["batchUniqId"] for answer in answers} == {"KEY1"}, "clients give it one id by this"
        assert broker.parts.local.put_count == 2


FORGED = b"POP_CK\x010 0 1 0 0 b1 0 0\x02CLUSTER\x01evil\x02MSG_REGION\x01evil\x02TRACE_ON\x01evil\x02K\x01v"


@pytest.mark.parametrize("kind", ["SimpleCQ", "BatchCQ"])
def test_no_message_of_a_batch_carries_what_only_a_broker_sets(tmp_path: Path, kind: str) -> None:
    body = encode_client_batch([BatchElement(0, b"plain", b"A\x01b\x02"), BatchElement(7, b"POP_CK\x01", FORGED)])
    with running(tmp_path) as broker, Producer(broker) as producer:
        attributes = {"queue.type": kind} if kind == "BatchCQ" else {}
        broker.parts.topics.put(TopicConfig("B", 1, 1, attributes=attributes))
        for _ in range(3):  # The second one of a plain topic would go by the fast path.
            assert producer.send("B", body, batch=True).code == ResponseCode.SUCCESS
        found = stored(broker, "B")
        parts = [each for message in found for each in parts_of(message)]
    kept = [each.encoded_properties for each in parts]
    assert [each.body for each in parts] == [b"plain", b"POP_CK\x01"] * 3
    assert not any(b"evil" in each or b"POP_CK" in each for each in kept)
    assert all(each.startswith((b"A\x01b", b"K\x01v")) for each in kept)


def parts_of(message: StoredMessage) -> Sequence[BatchElement | StoredMessage]:
    return decode_client_batch(message.body) if message.sys_flag & 0x80 else [message]


LATER = "DELAY\x013\x02", f"TIMER_DELIVER_MS\x01{BORN_MS * 2}\x02", "TIMER_DELAY_SEC\x015\x02", "TRAN_MSG\x01true\x02"


@pytest.mark.parametrize("kind", ["SimpleCQ", "BatchCQ"])
def test_a_batch_for_later_or_of_a_transaction_is_refused_and_nothing_is_stored(tmp_path: Path, kind: str) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        attributes = {"queue.type": kind} if kind == "BatchCQ" else {}
        broker.parts.topics.put(TopicConfig("B", 1, 1, attributes=attributes))
        assert producer.send("B", batch_of(2), batch=True).code == ResponseCode.SUCCESS
        count = broker.parts.local.put_count
        answers = [producer.send("B", batch_of(2), batch=True, sys_flag=flag) for flag in (4, 8, 12)]
        for wish in LATER:
            of_one = encode_client_batch([BatchElement(0, b"x", b""), BatchElement(0, b"y", wish.encode())])
            answers.append(producer.send("B", batch_of(2), batch=True, properties=f"UNIQ_KEY\x01K\x02{wish}"))
            answers.append(producer.send("B", of_one, batch=True))
        assert {answer.code for answer in answers} == {ResponseCode.MESSAGE_ILLEGAL}
        assert all("send such messages alone" in str(answer.remark) for answer in answers)
        assert broker.parts.local.put_count == count


def test_each_message_of_a_batch_for_a_compacted_topic_needs_a_key(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        broker.parts.topics.put(TopicConfig("Newest", 1, 1, attributes={"cleanup.policy": "COMPACTION"}))
        assert producer.send("Newest", batch_of(2), batch=True).code == ResponseCode.SUCCESS
        keyless = encode_client_batch([BatchElement(0, b"x", b"KEYS\x01k\x02"), BatchElement(0, b"y", b"")])
        assert producer.send("Newest", keyless, batch=True).code == ResponseCode.MESSAGE_ILLEGAL


# Delays, retries, dead letters.


@pytest.mark.parametrize(("level", "queue", "kept"), [(3, 2, "3"), (18, 17, "18"), (99, 17, "18")])
def test_a_delayed_message_waits_in_the_queue_of_its_level(broker: Broker, level: int, queue: int, kept: str) -> None:
    with Producer(broker) as producer:
        answer = producer.send(properties=f"UNIQ_KEY\x01K\x02DELAY\x01{level}\x02", queue=3)
    (message,) = stored(broker, "SCHEDULE_TOPIC_XXXX", queue)
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("3", "0")
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "3")
    assert message.properties["DELAY"] == kept


@pytest.mark.parametrize(
    ("reconsume", "most", "dead"), [(16, None, False), (17, None, True), (2, 3, False), (4, 3, True), (1, 0, True)]
)
def test_a_message_that_was_tried_too_often_is_a_dead_letter(
    broker: Broker, reconsume: int, most: int | None, dead: bool
) -> None:
    properties = "UNIQ_KEY\x01K\x02DELAY\x013\x02" if dead else "UNIQ_KEY\x01K\x02"
    with Producer(broker) as producer:
        answer = producer.send("%RETRY%G", reconsume=reconsume, max_reconsume=most, properties=properties)
    assert answer.code == ResponseCode.SUCCESS
    (message,) = stored(broker, "%DLQ%G" if dead else "%RETRY%G")
    assert (message.reconsume_times, "DELAY" in message.properties) == (reconsume, False)
    assert (broker.parts.topics.get("%DLQ%G") == TopicConfig("%DLQ%G", 1, 1)) == dead


def test_a_retry_that_becomes_a_dead_letter_names_no_light_queues(broker: Broker) -> None:
    properties = "UNIQ_KEY\x01K\x02INNER_MULTI_DISPATCH\x01%LMQ%$T$x\x02x\x01y\x02"
    with Producer(broker) as producer:
        assert producer.send("%RETRY%G", reconsume=17, properties=properties).code == 0
    (message,) = stored(broker, "%DLQ%G")
    assert (message.properties["x"], "INNER_MULTI_DISPATCH" in message.properties) == ("y", False)


def test_what_a_group_that_consumes_in_order_sends_back_is_a_dead_letter(broker: Broker) -> None:
    broker.parts.clients.locks.lock("G", "client", [MessageQueue("%RETRY%G", "b1", 0)])
    with Producer(broker) as producer:
        producer.send("%RETRY%G")
        producer.send("%RETRY%H")
    assert len(stored(broker, "%DLQ%G")) == len(stored(broker, "%RETRY%H")) == 1


def test_the_retry_topic_of_a_group_that_may_not_be_made_is_refused(tmp_path: Path) -> None:
    config = broker_config(auto_create_subscription_group=False)
    with running(tmp_path, config=config) as broker, Producer(broker) as producer:
        assert producer.send("%RETRY%G").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        broker.parts.groups.put(SubscriptionGroup("G"))
        assert producer.send("%RETRY%G").code == ResponseCode.SUCCESS


# When the store does not take them.


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.SERVICE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE),
        (PutStatus.OS_PAGE_CACHE_BUSY, ResponseCode.SYSTEM_BUSY),
        (PutStatus.CREATE_MAPPED_FILE_FAILED, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_store_that_takes_nothing_is_shown_by_its_code(
    broker: Broker, status: PutStatus, code: ResponseCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A store cannot be made busy at will.
    monkeypatch.setattr(sending_of(broker), "_append", lambda _message: PutResult(status))
    with Producer(broker) as producer:
        assert [producer.send().code for _ in range(2)] == [code, code]
        assert sending_of(broker).counts.refused == 2


def test_a_closed_gate_of_the_store_is_service_not_available(broker: Broker) -> None:
    with Producer(broker) as producer:
        producer.send()
        broker.parts.local._parts.log.set_writeable(False)
        assert producer.send().code == ResponseCode.SERVICE_NOT_AVAILABLE
        broker.parts.local._parts.log.set_writeable(True)
        assert producer.send().ext["queueOffset"] == "1"


# SYNC_FLUSH.


def test_under_sync_flush_an_answer_reports_that_the_message_is_durable(tmp_path: Path) -> None:
    with running(tmp_path, flush_disk_type="SYNC_FLUSH") as broker, Producer(broker) as producer:
        for number in range(20):
            answer = producer.send()
            assert answer.code == ResponseCode.SUCCESS
            place = decode_message_id(answer.ext["msgId"]).physical_offset
            assert broker.parts.local.flushed_where > place, number
        batch = producer.send(body=batch_of(3), batch=True)
        assert broker.parts.local.flushed_where == broker.parts.local.max_physical_offset
        assert batch.code == ResponseCode.SUCCESS


def test_under_sync_flush_a_producer_that_does_not_wait_is_answered_at_once(tmp_path: Path) -> None:
    with running(tmp_path, flush_disk_type="SYNC_FLUSH") as broker, Producer(broker) as producer:
        producer.send()
        flusher = broker.parts.local._parts.flusher
        with flusher._flush_lock:  # Nothing can be flushed now.
            answer = producer.send(properties="UNIQ_KEY\x01K\x02WAIT\x01false\x02")
        assert answer.code == ResponseCode.SUCCESS
        assert len(stored(broker)) == 2


def test_a_flush_that_takes_too_long_is_reported_and_the_message_has_its_place(tmp_path: Path) -> None:
    clock = ManualClock()
    settings: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout": 5_000}
    with running(tmp_path, **settings, clock=clock) as broker, Producer(broker) as producer:
        producer.send()
        with broker.parts.local._parts.flusher._flush_lock:
            waiting = producer.client.request_later(send_command())
            until(lambda: sending_of(broker).waiting == 1)
            clock.advance_ms(6_000)
            answer = waiting.result()
        assert (answer.code, answer.ext["queueOffset"]) == (ResponseCode.FLUSH_DISK_TIMEOUT, "1")


def test_sends_that_one_flush_covers_are_answered_together_and_not_before_it(tmp_path: Path) -> None:
    with running(tmp_path, flush_disk_type="SYNC_FLUSH") as broker, Producer(broker) as producer:
        producer.send()
        flusher = broker.parts.local._parts.flusher
        with flusher._flush_lock:
            waiting = [producer.client.request_later(send_command()) for _ in range(50)]
            until(lambda: sending_of(broker).waiting == 50)
            assert not any(each.done() for each in waiting)
            flushes = flusher.flush_count
        answers = [each.result() for each in waiting]
        assert flusher.flush_count == flushes + 1
    assert [(each.code, each.ext["queueOffset"]) for each in answers] == [(0, str(1 + number)) for number in range(50)]


def test_a_late_answer_is_the_same_whichever_way_a_message_was_stored(tmp_path: Path) -> None:
    clock = ManualClock()
    settings: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout": 5_000}
    with running(tmp_path, **settings, clock=clock) as broker, Producer(broker) as producer:
        producer.send()
        late = []
        for is_open in (True, False):
            sending_of(broker).fast_path.is_open = is_open
            with broker.parts.local._parts.flusher._flush_lock:
                waiting = [producer.client.request_later(send_command(queue=0)) for _ in range(3)]
                until(lambda: sending_of(broker).waiting == 3)
                clock.advance_ms(6_000)
                late.append([each.result() for each in waiting])
        assert sending_of(broker).durable.timed_out == 6
        assert "tiermq_sends_answered_late_total 6\n" in broker.render_metrics()
    quick, general = ([(each.code, each.remark, {**each.ext, "msgId": ""}) for each in answers] for answers in late)
    assert quick == [(code, remark, {**ext, "queueOffset": str(n)}) for n, (code, remark, ext) in enumerate(general, 1)]
    places = [decode_message_id(each.ext["msgId"]).physical_offset for answers in late for each in answers]
    assert places == sorted(set(places))


def test_too_many_sends_that_wait_for_the_disk_find_the_broker_busy_and_nothing_stored(tmp_path: Path) -> None:
    config = broker_config(send_thread_pool_queue_capacity=5)
    with running(tmp_path, config=config, flush_disk_type="SYNC_FLUSH") as broker, Producer(broker) as producer:
        producer.send()
        with broker.parts.local._parts.flusher._flush_lock:
            waiting = [producer.client.request_later(send_command()) for _ in range(5)]
            until(lambda: sending_of(broker).waiting == 5)
            assert producer.send().code == ResponseCode.SYSTEM_BUSY
        assert {each.result().code for each in waiting} == {ResponseCode.SUCCESS}
        assert broker.parts.local.put_count == 6


def test_of_a_read_with_more_sends_than_may_wait_the_rest_find_the_broker_busy(tmp_path: Path) -> None:
    config = broker_config(send_thread_pool_queue_capacity=5)
    with running(tmp_path, config=config, flush_disk_type="SYNC_FLUSH") as broker, Producer(broker) as producer:
        producer.send()
        with broker.parts.local._parts.flusher._flush_lock, RawPeer(broker.port) as peer:
            peer.send(send_command())
            until(lambda: sending_of(broker).waiting == 1)  # Where its messages are born is known now.
            peer.send(*(send_command() for _ in range(8)))
            codes = [peer.read().code for _ in range(4)]
        assert codes == [ResponseCode.SYSTEM_BUSY] * 4
        assert broker.parts.local.put_count == 6


def test_a_broker_that_stops_answers_sends_that_wait_for_the_disk(tmp_path: Path) -> None:
    with running(tmp_path, flush_disk_type="SYNC_FLUSH") as broker, Producer(broker) as producer:
        producer.send()
        lock = broker.parts.local._parts.flusher._flush_lock
        lock.acquire()
        waiting = producer.client.request_later(send_command())
        until(lambda: sending_of(broker).waiting == 1)
        stopping = threading.Thread(target=broker.stop, args=(60.0,))
        stopping.start()
        lock.release()
        assert waiting.result().code == ResponseCode.SUCCESS
        stopping.join()


def test_counts_are_reported_under_rocketmq_s_names_and_only_grow(tmp_path: Path) -> None:
    registry, config = Registry(), broker_config()
    counts = SendCounts(registry, config, TopicTable(str(tmp_path), config, ManualClock()))
    counts.add("T", 100)
    counts.add("T", 60, 3)
    labels = (
        'cluster="DefaultCluster",node_type="broker",node_id="b1",topic="T",message_type="normal",is_system="false"'
    )
    for more in (0, 5):
        counts.add("T", 10 * more, more)
        text = registry.render_prometheus()
        assert f"rocketmq_messages_in_total{{{labels}}} {4 + more}\n" in text
        assert f"rocketmq_throughput_in_total{{{labels}}} {160 + 10 * more}\n" in text
    counts.add("BenchmarkTest", 1)
    assert 'topic="BenchmarkTest",message_type="normal",is_system="true"} 1' in registry.render_prometheus()
    assert (counts.of("T"), counts.of("nobody")) == ((9, 210), (0, 0))


def test_refused_sends_are_counted(tmp_path: Path) -> None:
    registry, config = Registry(), broker_config()
    counts = SendCounts(registry, config, TopicTable(str(tmp_path), config, ManualClock()))
    counts.refused += 2
    assert "tiermq_sends_refused_total 2\n" in registry.render_prometheus()


@pytest.mark.parametrize(
    ("properties", "queue"),
    [
        ({"_SYS_MSG_PRIORITY_": "2"}, 2),
        ({"_SYS_MSG_PRIORITY_": "9"}, 3),
        ({"_SYS_MSG_PRIORITY_": "9" * 40}, 3),
        ({"_SYS_MSG_PRIORITY_": "-1"}, 1),
        ({}, 1),
    ],
)
def test_the_queue_of_a_message_with_a_priority_is_its_priority(
    broker: Broker, properties: dict[str, str], queue: int
) -> None:
    broker.parts.topics.put(TopicConfig("Ranked", 4, 4, attributes={"message.type": "PRIORITY"}))
    text = "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": "K", **properties}.items())
    with Producer(broker) as producer:
        answer = producer.send("Ranked", properties=text, queue=1)
    assert (answer.code, answer.ext["queueId"]) == (0, str(queue))
