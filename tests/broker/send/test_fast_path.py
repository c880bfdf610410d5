"""The fast path against the general path: the same records, the same answers, over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.brokers import Producer, broker_config, running, send_command, stored
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.send.send_processor import SendProcessor
from tiermq.errors import RequestRefused
from tiermq.kernel import KERNEL
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.ids import decode_message_id
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import HeaderType, RemotingCommand

NOW_MS = 1_700_000_000_000
NAMES = st.sampled_from(
    ["UNIQ_KEY", "WAIT", "TAGS", "KEYS", "DELAY", "POP_CK", "CLUSTER", "TRACE_ON", "TRAN_MSG", "MSG_REGION",
     "TIMER_DELAY_MS", "INNER_NUM", "__CRC32#", "TIMER", "é", "", "REAL_TOPIC", "REAL_QID", "__transactionId__",
     "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "TIERMQ_SENDER"]
)  # fmt: skip
VALUES = st.sampled_from(["true", "false", "K1", "a b", "", "0", "3", "é", 'q"', "\\", "\x7f", "x\x01y", "x" * 600])
DEFERRING = st.tuples(
    st.sampled_from(["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TRAN_MSG"]),
    st.sampled_from(
        ["1", "2", "3", "99", "0", "01", "+1", "-1", "259200", "259201", "259200000", "259200001", "999999999999",
         f"{NOW_MS}", f"{NOW_MS + 1}", f"{NOW_MS + 1000}", f"{NOW_MS + 259_200_000}", f"{NOW_MS + 259_200_001}",
         "9999999999999999", "true", "True", "false"]
    ),
)  # fmt: skip
PROPERTIES = st.lists(DEFERRING | st.tuples(NAMES, VALUES), max_size=5).map(
    lambda pairs: "UNIQ_KEY\x01KEY1\x02" + "".join(f"{name}\x01{value}\x02" for name, value in pairs)
) | st.text("\x01\x02abUNIQ_KEY", max_size=30)
SENDS = st.fixed_dictionaries(
    {},
    optional={
        "properties": PROPERTIES,
        "queue": st.sampled_from([0, 1, 3, 4]),
        "body": st.sampled_from([b"", b"x", b"x" * 5000]),
        "sys_flag": st.sampled_from([0, 1, 2, 0x30, 4, 8]),
        "reconsume": st.sampled_from([0, 3, -1]),
        "code": st.sampled_from([RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2]),
    },
)


@pytest.fixture(scope="module", params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that delivers nothing that waits: its puts are counted."""
    config = broker_config(timer_stop_dequeue=True, message_delay_level="1h 2h 3h")
    store = {"flush_disk_type": request.param, "clock": ManualClock(NOW_MS)}
    with running(tmp_path_factory.mktemp("fast"), config=config, **store) as made:
        made.parts.topics.put(TopicConfig("T", 4, 4))
        yield made


def fast_path_of(broker: Broker) -> Any:
    return next(each for each in broker.processors if isinstance(each, SendProcessor)).fast_path


def outcome(broker: Broker, producer: Producer, command: RemotingCommand) -> tuple[Any, ...]:
    """What was answered, without what differs from one message to the next, and the record that was stored."""
    puts = broker.parts.local.put_count
    answer = producer.client.request(command)
    ext = dict(answer.ext)
    if (place := ext.pop("msgId", None)) is None:
        assert broker.parts.local.put_count == puts
        return answer.code, answer.remark, ext
    assert broker.parts.local.put_count == puts + 1
    record = broker.parts.local.message_at(decode_message_id(place).physical_offset)
    assert record is not None
    if record.topic == "T":
        assert ext.pop("queueOffset") == str(record.queue_offset)
    ext.pop("queueOffset", None)
    properties = dict(record.properties)  # In their order: it is compared below.
    if ext["transactionId"] not in command.ext.get("i", "") + command.ext.get("properties", ""):  # The broker's own.
        assert ext.pop("transactionId") == properties.pop("UNIQ_KEY")
    values = (record.topic, record.queue_id, record.body, record.flag, record.sys_flag, record.born_timestamp_ms)
    others = (record.born_host, record.reconsume_times, record.size)
    return answer.code, answer.remark, ext, values, list(properties.items()), others


@pytest.mark.parametrize("header_type", list(HeaderType))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SENDS, min_size=1, max_size=3))
def test_a_send_that_the_fast_path_takes_is_stored_and_answered_as_the_general_path_does(
    broker: Broker, header_type: int, sends: list[dict[str, Any]]
) -> None:
    fast_path = fast_path_of(broker)
    with Producer(broker, header_type) as producer:
        for queue in range(4):
            producer.send(queue=queue)
        for fields in sends:
            quick = outcome(broker, producer, send_command(**fields))
            fast_path.is_open = False
            try:
                assert outcome(broker, producer, send_command(**fields)) == quick
            finally:
                fast_path.is_open = True


@pytest.mark.skipif(KERNEL == "pure", reason="its frames reach the fast path by the handler")
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_plain_send_takes_the_fast_path_and_the_broker_counts_it(tmp_path: Path, flush: str) -> None:
    seen: list[object] = []
    with running(tmp_path, flush_disk_type=flush) as broker, Producer(broker) as producer:
        processor = next(each for each in broker.processors if isinstance(each, SendProcessor))
        producer.send()
        before = processor.counts.of("T")
        handler, broker.parts.server._send_handler = broker.parts.server._send_handler, lambda *call: seen.append(call)
        try:
            assert producer.send().ext["transactionId"] == "KEY1"
        finally:
            broker.parts.server._send_handler = handler
        size = stored(broker)[-1].size
    assert seen == []
    assert processor.counts.of("T") == (before[0] + 1, before[1] + size)


def test_a_half_takes_the_fast_path_after_its_producer_s_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stored by the general path from the first heartbeat on, also where no broker has accounts."""
    half: dict[str, Any] = {"properties": "TRAN_MSG\x01true\x02UNIQ_KEY\x01KEY1\x02PGROUP\x01PG\x02", "sys_flag": 4}

    def refuse(*_call: object) -> None:
        raise RequestRefused("expected the fast path, found the general path")

    with running(tmp_path) as broker, Producer(broker) as producer:
        processor = next(each for each in broker.processors if isinstance(each, SendProcessor))
        beat = json.dumps({"clientID": "c1", "producerDataSet": [{"groupName": "PG"}], "consumerDataSet": []})
        producer.client.request(RemotingCommand(RequestCode.HEART_BEAT, body=beat.encode()))
        assert [producer.send().code, *(producer.send(**half).code for _ in range(2))] == [0, 0, 0]
        broker.parts.server.fast_path = None  # As behind another request of its read: a send comes to the handler.
        monkeypatch.setattr(processor, "_send_otherwise", refuse)
        answer = producer.send(**half)
    assert (answer.code, answer.remark) == (0, None)


def test_a_topic_with_fewer_queues_refuses_what_it_took_before(broker: Broker) -> None:
    broker.parts.topics.put(TopicConfig("Shrinks", 4, 4))
    with Producer(broker) as producer:
        assert [producer.send("Shrinks", queue=3).code for _ in range(3)] == [0, 0, 0]
        broker.parts.topics.put(TopicConfig("Shrinks", 2, 2))
        assert producer.send("Shrinks", queue=3).code == 29
        broker.parts.topics.delete(["Shrinks"])
        assert producer.send("Shrinks", queue=0, default_topic="None").code == 17


ELEMENTS = st.builds(
    BatchElement,
    flag=st.integers(-5, 5),
    body=st.binary(max_size=40),
    encoded_properties=PROPERTIES.map(str.encode).filter(lambda properties: len(properties) < 2_000),
)


@pytest.mark.parametrize("header_type", list(HeaderType))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(ELEMENTS, max_size=4).map(encode_client_batch) | st.just(b"no batch"),
    PROPERTIES,
    st.sampled_from([0, 3, 4]),
    st.sampled_from([0, 1, 4]),
)
def test_a_batch_that_the_fast_path_takes_is_stored_and_answered_as_the_general_path_does(
    broker: Broker, header_type: int, body: bytes, properties: str, queue: int, sys_flag: int
) -> None:
    fast_path, local = fast_path_of(broker), broker.parts.local

    def sent() -> tuple[Any, ...]:
        puts = local.put_count
        fields: dict[str, Any] = {
            "body": body,
            "properties": properties,
            "queue": queue,
            "sys_flag": sys_flag,
            "batch": True,
        }
        answer = producer.client.request(send_command(**fields))
        ext = dict(answer.ext)
        places = ext.pop("msgId", "").split(",")
        first = int(ext.pop("queueOffset", "0"))
        records = [local.message_at(decode_message_id(place).physical_offset) for place in places if place]
        assert local.put_count == puts + len(records)
        values = [
            (each.topic, each.queue_id, each.queue_offset - first, each.body, each.flag, each.sys_flag, each.size)
            for each in records
            if each is not None
        ]
        kept = [each.encoded_properties for each in records if each is not None]
        return answer.code, answer.remark, ext, values, kept, len(records)

    with Producer(broker, header_type) as producer:
        for each in range(4):
            producer.send(queue=each)
        quick = sent()
        fast_path.is_open = False
        try:
            assert sent() == quick
        finally:
            fast_path.is_open = True


def test_plain_batches_take_the_fast_path_and_are_counted(tmp_path: Path) -> None:
    body = encode_client_batch(BatchElement(0, b"%d" % number, b"") for number in range(16))
    with running(tmp_path) as broker, Producer(broker) as producer:
        broker.parts.topics.put(TopicConfig("T", 4, 4))
        processor = next(each for each in broker.processors if isinstance(each, SendProcessor))
        fields: dict[str, Any] = {"body": body, "batch": True, "properties": "UNIQ_KEY\x01K\x02WAIT\x01true\x02"}
        assert producer.send("T", **fields).code == 0
        processor._send_batch = None  # type: ignore[method-assign,assignment]
        assert producer.send("T", **fields).code == 0
        assert processor.counts.of("T")[0] == 32
        assert broker.parts.local.put_count == 32
