"""Half messages: what is stored of them, and what is made of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.delivery.transactions.half_messages import (
    HalfMessage,
    committed,
    copied,
    discarded,
    half_properties,
    immunity_ms,
    is_half,
    question,
    read_half,
)
from tiermq.errors import CorruptRecord
from tiermq.kernel import PutResult
from tiermq.message.properties import decode_properties, encode_properties
from tiermq.message.record import decode_record, encode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import TransactionType
from tiermq.message.topic_name import HALF_TOPIC
from tiermq.status import PutStatus

SENT = {"UNIQ_KEY": "ID", "PGROUP": "PG", "TRAN_MSG": "true", "TAGS": "A", "KEYS": "k"}


def record(properties: dict[str, str], *, topic: str = HALF_TOPIC, **fields: object) -> StoredMessage:
    values: dict[str, Any] = {
        "queue_offset": 12,
        "physical_offset": 3456,
        "flag": 7,
        "born_timestamp_ms": 5,
        "born_host": "[2001:db8::1]:9",
        "store_timestamp_ms": 8,
        "store_host": "1.2.3.4:10911",
        "reconsume_times": 2,
        "sys_flag": 0x301,
        **fields,
    }
    return decode_record(encode_record(topic=topic, body=b"body", properties=properties, **values))


def half(**more: str) -> HalfMessage:
    return read_half(record({**decode_properties(half_properties(encode_properties(SENT), "T", 3)), **more}))


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("TRUE", True), ("false", False), ("1", False)])
def test_a_message_is_a_half_when_its_producer_says_true(value: str, expected: bool) -> None:
    assert is_half(encode_properties({"TRAN_MSG": value})) is expected
    assert not is_half(b"")


def test_a_half_message_remembers_its_place_and_its_transaction() -> None:
    assert decode_properties(half_properties(encode_properties(SENT), "T", 3)) == {
        **SENT,
        "__transactionId__": "ID",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    assert "__transactionId__" not in decode_properties(half_properties(b"", "T", 3))


def test_a_client_cannot_choose_where_its_half_message_goes() -> None:
    encoded = half_properties(encode_properties({**SENT, "REAL_TOPIC": "other", "REAL_QID": "9"}), "T", 3)
    assert (decode_properties(encoded)["REAL_TOPIC"], decode_properties(encoded)["REAL_QID"]) == ("T", "3")
    assert encoded.count(b"REAL_TOPIC") == 1


def test_a_committed_message_is_the_one_that_was_sent_with_all_its_properties() -> None:
    made = committed(half())
    assert (made.topic, made.queue_id, made.body, made.flag, made.reconsume_times) == ("T", 3, b"body", 7, 2)
    assert made.sys_flag & 0x0C == TransactionType.COMMIT
    assert made.sys_flag & 0x301 == 0x301, "it stays compressed"
    assert made.prepared_transaction_offset == 3456
    assert made.born_timestamp_ms == 5
    assert made.properties == half().record.properties, "RocketMQ keeps REAL_TOPIC, REAL_QID and TRAN_MSG, too"


def test_a_copy_names_its_origin_keeps_the_users_flag_and_counts_questions() -> None:
    """RocketMQ's copies lose the flag, and so does what is committed from them."""
    first = copied(half(), check_times=1)
    assert (first.topic, first.queue_id, first.body, first.flag) == (HALF_TOPIC, 0, b"body", 7)
    assert first.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "12"
    assert first.properties["TRANSACTION_CHECK_TIMES"] == "1"
    again = read_half(record(first.properties, queue_offset=20))
    assert (again.origin, again.check_times) == (12, 1)
    assert copied(again, check_times=2).properties["TRAN_PREPARED_QUEUE_OFFSET"] == "12"
    assert "TRANSACTION_CHECK_TIMES" not in copied(half(), check_times=0).properties


def test_a_discarded_message_is_kept_as_it_was() -> None:
    made = discarded(half())
    assert (made.topic, made.queue_id, made.body) == ("TRANS_CHECK_MAX_TIME_TOPIC", 0, b"body")
    assert made.properties == half().record.properties


def test_a_producer_is_shown_the_copy_as_its_topic_will_have_it() -> None:
    asked = half()
    copy = copied(asked, check_times=1)
    shown = decode_record(question(asked, copy, PutResult(PutStatus.PUT_OK, b"", 9999, 44)))
    assert (shown.topic, shown.queue_id, shown.queue_offset, shown.physical_offset) == ("T", 3, 44, 9999)
    assert (shown.body, shown.flag, shown.born_host) == (b"body", 7, "[2001:db8::1]:9")
    assert shown.properties == copy.properties


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"REAL_TOPIC": ""}, "no topic"),
        ({"REAL_TOPIC": "no topic!"}, "illegal"),
        ({"REAL_QID": "x"}, "queue"),
        ({"REAL_QID": "-1"}, "queue"),
        ({"REAL_QID": str(2**31)}, "queue"),
        ({"REAL_QID": ""}, "queue"),
    ],
)
def test_a_record_without_a_place_to_go_is_no_half_message(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(CorruptRecord, match=reason):
        half(**changes)


def test_a_record_of_another_topic_is_no_half_message() -> None:
    with pytest.raises(CorruptRecord, match="it is in T"):
        read_half(record({**SENT, "REAL_TOPIC": "T", "REAL_QID": "0"}, topic="T"))


@pytest.mark.parametrize(("text", "origin"), [("11", 11), ("12", 12), ("13", 12), ("-1", 12), ("x", 12), ("٣", 12)])
def test_an_origin_that_cannot_be_one_is_not_believed(text: str, origin: int) -> None:
    assert half(TRAN_PREPARED_QUEUE_OFFSET=text).origin == origin


@pytest.mark.parametrize(
    ("text", "expected_ms"), [(None, 6_000), ("10", 10_000), ("2", 6_000), ("-1", 6_000), ("soon", 6_000)]
)
def test_an_immunity_is_at_least_the_transaction_timeout(text: str | None, expected_ms: int) -> None:
    found = half() if text is None else half(CHECK_IMMUNITY_TIME_IN_SECONDS=text)
    assert immunity_ms(found, 6_000) == expected_ms


@given(st.dictionaries(st.text("ABC_é", min_size=1, max_size=6), st.text("xyz0é ", min_size=1, max_size=8), max_size=5))
def test_users_properties_come_through_a_whole_transaction(named: dict[str, str]) -> None:
    stored = record(decode_properties(half_properties(encode_properties({**SENT, **named}), "T", 3)))
    again = record(copied(read_half(stored), check_times=3).properties, queue_offset=99)
    assert committed(read_half(again)).properties.items() >= {**SENT, **named}.items()
