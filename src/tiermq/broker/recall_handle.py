"""The handle by which a producer takes a timer back: what the broker tells in the answer to its send.

    url-safe base64 of "v1 <topic> <broker name> <time, ms> <unique key>"

The time is one millisecond into the timer's slot, so that a cancellation for it falls in the same slot, whatever the
precision. A retry has none: whoever gave it back does not wait for an answer.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from tiermq.broker.delay_rewrite import Place
from tiermq.errors import RequestRefused
from tiermq.message.properties import REAL_TOPIC, TIMER_OUT_MS, get_text_property
from tiermq.message.topic_name import is_retry_topic
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.frame import decode_frame, encode_frame

VERSION = "v1"


class RecallHandle(NamedTuple):
    """What a handle says."""

    topic: str
    broker_name: str
    time_ms: int
    unique_key: str

    def encode(self) -> str:
        text = " ".join((VERSION, self.topic, self.broker_name, str(self.time_ms), self.unique_key))
        return base64.urlsafe_b64encode(text.encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Raises RequestRefused for what no broker gave."""
    try:
        pieces = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True).decode().split(" ", 4)
        version, topic, broker_name, time_ms, unique_key = pieces
    except (ValueError, binascii.Error) as error:
        raise _no_handle(text) from error
    if version != VERSION or not (time_ms.isascii() and time_ms.isdigit()) or len(time_ms) > 18:
        raise _no_handle(text)
    return RecallHandle(topic, broker_name, int(time_ms), unique_key)


def _no_handle(text: str) -> RequestRefused:
    return RequestRefused(
        f"recall handle is invalid: expected what a send was answered as recallHandle, found {text[:80]!r}",
        ResponseCode.ILLEGAL_OPERATION,
    )


def recall_handle_of(place: Place, broker_name: str, unique_key: str) -> str:
    """The handle of a timer that waits at a place; empty when it has none."""
    topic = get_text_property(place.properties, REAL_TOPIC)
    out_ms = get_text_property(place.properties, TIMER_OUT_MS)
    if topic is None or out_ms is None or not out_ms.isdigit() or not unique_key or is_retry_topic(topic):
        return ""
    return RecallHandle(topic, broker_name, int(out_ms) + 1, unique_key).encode()


def with_recall_handle(answer: bytes, handle: str) -> bytes:
    """The frame that answers a send, with the handle in it. Few sends are timers: those pay for it."""
    command = decode_frame(answer)
    command.ext["recallHandle"] = handle
    return encode_frame(command)
