"""Recall handles: RocketMQ's text, and nothing else taken for one."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.broker.delay_rewrite import Place
from tiermq.broker.recall_handle import RecallHandle, decode_recall_handle, recall_handle_of, with_recall_handle
from tiermq.errors import RequestRefused
from tiermq.kernel import send_answer
from tiermq.message.properties import encode_properties
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.frame import decode_frame

WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


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
        return recall_handle_of(Place("rmq_sys_wheel_timer", 0, properties), "b1", key)

    assert decode_recall_handle(of("T")) == RecallHandle("T", "b1", 1_001, "K")
    assert of("%RETRY%G") == ""
    assert of("T", key="") == ""
    assert recall_handle_of(Place("rmq_sys_wheel_timer", 0, b""), "b1", "K") == ""


@pytest.mark.parametrize("header_type", [0, 1])
def test_an_answer_with_a_handle_says_everything_else_as_before(header_type: int) -> None:
    answer = send_answer(header_type, 77, 0, 475, "ID", 3, 9, "K", "R", "true", None)
    with_handle = decode_frame(with_recall_handle(answer, "HANDLE"))
    without = decode_frame(answer)
    assert with_handle.ext == {**without.ext, "recallHandle": "HANDLE"}
    assert (with_handle.opaque, with_handle.code, with_handle.header_type, with_handle.flag) == (77, 0, header_type, 1)
