"""Taking a timer back over the wire, and every reason why not."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.brokers import Producer, broker_config, running
from broker.consuming import until
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.send.recall_processor import RecallHandle, decode_recall_handle, recall_handle_of
from tiermq.broker.send.send_checks import Destination
from tiermq.errors import RequestRefused
from tiermq.kernel import send_answer
from tiermq.message.properties import encode_properties
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.frame import decode_frame

WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


@pytest.fixture
def broker(tmp_path: Path, manual_clock: ManualClock) -> Iterator[Broker]:
    with running(tmp_path, clock=manual_clock, config=broker_config(recall_message_enable=True)) as broker:
        yield broker


def properties(delay_ms: int, key: str) -> str:
    return f"UNIQ_KEY\x01{key}\x02TIMER_DELAY_MS\x01{delay_ms}\x02"


def recall(producer: Producer, handle: str, topic: str = "T") -> RemotingCommand:
    ext = {"producerGroup": "PG", "topic": topic, "recallHandle": handle}
    return producer.client.request(RemotingCommand(RequestCode.RECALL_MESSAGE, ext=ext))


def test_a_timer_is_taken_back_by_the_handle_that_its_send_was_answered(
    broker: Broker, manual_clock: ManualClock
) -> None:
    timers = broker.delivery.timers
    assert timers is not None
    with Producer(broker) as producer:
        kept = producer.send(properties=properties(60_000, "KEPT"))
        taken = producer.send(properties=properties(60_000, "TAKEN"))
        assert decode_recall_handle(taken.ext["recallHandle"]).unique_key == "TAKEN"
        assert kept.ext["recallHandle"] != taken.ext["recallHandle"]
        answer = recall(producer, taken.ext["recallHandle"])
        assert (answer.code, answer.ext["msgId"]) == (ResponseCode.SUCCESS, "TAKEN")
    until(broker, lambda: timers.counts.enqueued == 3)
    manual_clock.advance_ms(60_000)
    until(broker, lambda: broker.parts.local.max_offset("T", 0) == 1)
    # They are of one slot, which is counted before anything of it is put.
    assert (timers.counts.delivered, timers.counts.cancelled) == (1, 1)
    assert broker.parts.local.get("T", 0, 0).messages[0].unique_key == "KEPT"


def test_a_message_that_is_for_no_time_has_no_handle(broker: Broker) -> None:
    with Producer(broker) as producer:
        assert "recallHandle" not in producer.send().ext
        assert "recallHandle" not in producer.send(properties=properties(0, "DUE")).ext


def test_what_cannot_be_taken_back_is_refused_with_rocketmqs_codes(broker: Broker, manual_clock: ManualClock) -> None:
    soon_ms = manual_clock.now_ms() + 60_000
    with Producer(broker) as producer:
        producer.send()
        cases = {
            RecallHandle("T", "b1", soon_ms, "K").encode()[:-3]: "recall handle is invalid",
            RecallHandle("U", "b1", soon_ms, "K").encode(): "topic not match",
            RecallHandle("T", "b2", soon_ms, "K").encode(): "another broker",
            RecallHandle("T", "b1", manual_clock.now_ms(), "K").encode(): "timestamp invalid",
            RecallHandle("T", "b1", soon_ms + 10**9, "K").encode(): "timestamp invalid",
        }
        for handle, remark in cases.items():
            answer = recall(producer, handle)
            assert answer.code == ResponseCode.ILLEGAL_OPERATION, answer
            assert remark in (answer.remark or "")
        missing = recall(producer, RecallHandle("none", "b1", soon_ms, "K").encode(), topic="none")
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST


def test_taking_back_is_off_unless_it_is_switched_on(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        handle = producer.send(properties=properties(60_000, "K")).ext["recallHandle"]
        assert recall(producer, handle).code == ResponseCode.NO_PERMISSION


def test_a_broker_without_a_wheel_takes_nothing_back(tmp_path: Path) -> None:
    config = broker_config(recall_message_enable=True, timer_wheel_enable=False)
    with running(tmp_path, config=config) as broker, Producer(broker) as producer:
        producer.send()
        assert recall(producer, "x").code == ResponseCode.SERVICE_NOT_AVAILABLE
        refused = producer.send(properties=properties(60_000, "K"))
        assert refused.code == ResponseCode.SYSTEM_ERROR


def test_a_cancellation_names_a_timer_of_the_topic_that_it_is_sent_to(broker: Broker) -> None:
    """Who may send to one topic takes back nothing of another."""
    with Producer(broker) as producer:
        producer.send("U", properties=properties(60_000, "K"))
        cancels = f"{properties(60_000, 'C')}TIMER_DEL_UNIQKEY\x01U+K\x02"
        refused = producer.send("T", properties=cancels)
        assert (refused.code, "expected a timer of T" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert producer.send("U", properties=cancels).code == ResponseCode.SUCCESS


def test_a_handle_is_the_text_that_rocketmq_makes() -> None:
    assert RecallHandle("T", "b", 123, "KEY").encode() == "djEgVCBiIDEyMyBLRVk="
    assert decode_recall_handle("djEgVCBiIDEyMyBLRVk=") == RecallHandle("T", "b", 123, "KEY")


@given(WORD, WORD, st.integers(0, 10**17), WORD)
def test_a_handle_comes_back_as_it_was(topic: str, broker: str, time_ms: int, key: str) -> None:
    handle = RecallHandle(topic, broker, time_ms, key)
    assert decode_recall_handle(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "ä",
        "djEgVCBiIDEyMyBLRVk",
        *(base64.urlsafe_b64encode(each).decode() for each in (b"v2 T b 1 K", b"v1 T b x K", b"v1 T b 1", b"\xff\xfe")),
    ],
)
def test_what_no_broker_gave_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused, match="recall handle is invalid") as refused:
        decode_recall_handle(text)
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION


@given(st.text(max_size=60))
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    with contextlib.suppress(RequestRefused):
        assert decode_recall_handle(decode_recall_handle(text).encode())


def test_a_timer_that_waits_has_a_handle_and_a_retry_has_none() -> None:
    def of(topic: str, key: str = "K") -> str:
        properties = encode_properties({"REAL_TOPIC": topic, "TIMER_OUT_MS": "1000"})
        return recall_handle_of(Destination("rmq_sys_wheel_timer", 0, properties), "b1", key)

    assert decode_recall_handle(of("T")) == RecallHandle("T", "b1", 1_001, "K")
    assert of("%RETRY%G") == ""
    assert of("T", key="") == ""
    assert recall_handle_of(Destination("rmq_sys_wheel_timer", 0, b""), "b1", "K") == ""


@pytest.mark.parametrize("header_type", [0, 1])
def test_an_answer_with_a_handle_reports_everything_else_as_before(header_type: int) -> None:
    fields = (header_type, 77, 0, 475, "ID", 3, 9, "K", "R", "true", None)
    with_handle = decode_frame(send_answer(*fields, "HANDLE"))
    without = decode_frame(send_answer(*fields))
    assert with_handle.ext == {**without.ext, "recallHandle": "HANDLE"}
    assert (with_handle.opaque, with_handle.code, with_handle.header_type, with_handle.flag) == (77, 0, header_type, 1)
