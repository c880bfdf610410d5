"""Checks of a send as values."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.brokers import broker_config
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.send.send_checks import (
    Destination,
    broker_properties,
    check_topic,
    completed,
    delay_level,
    delayed,
    group_of_retry,
    half_destination,
    is_prepared,
    is_used_up,
    no_such_group,
    no_such_topic,
    queue_of,
    stored_destination,
    sys_flag_of,
    without_delay,
)
from tiermq.errors import RequestRefused
from tiermq.kernel import SendRequest
from tiermq.message.properties import (
    CLUSTER,
    GIVEN_BACK,
    INNER_MULTI_QUEUE_OFFSET,
    MSG_REGION,
    POP_CK,
    TRACE_ON,
    decode_properties,
    encode_properties,
)
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import ResponseCode

ADDED = broker_properties(broker_config(region_id="R"))


def request(**values: Any) -> SendRequest:
    defaults: dict[str, Any] = {
        "producer_group": "PG",
        "topic": "T",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_ms": 0,
        "flag": 0,
        "version": 479,
    }
    return SendRequest(310, 1, **{**defaults, **values})


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), min_size=1, max_size=6)


BROKER_S = dict.fromkeys((POP_CK, GIVEN_BACK, MSG_REGION, TRACE_ON, CLUSTER, INNER_MULTI_QUEUE_OFFSET), "forged")
"""Properties that only a broker sets: of a client's message they are dropped, as RocketMQ drops POP_CK."""


@example(found={POP_CK: "0"}, key=None, forged={})
@example(found={}, key="K", forged=BROKER_S)
@given(
    st.dictionaries(TEXT | st.sampled_from(sorted(BROKER_S)), TEXT, max_size=4),
    st.none() | TEXT,
    st.dictionaries(st.sampled_from(sorted(BROKER_S)), TEXT),
)
def test_a_client_s_properties_stay_and_the_broker_s_come_once(
    found: dict[str, str], key: str | None, forged: dict[str, str]
) -> None:
    kept = {name: value for name, value in found.items() if name not in {*BROKER_S, "UNIQ_KEY"}}
    sent = {**found, **forged} if key is None else {**found, "UNIQ_KEY": key, **forged}
    expected_key = sent.get("UNIQ_KEY", "made")
    properties, key = completed(encode_properties(sent), ADDED, lambda: "made")
    assert key == expected_key
    assert decode_properties(properties) == {
        **kept,
        "UNIQ_KEY": key,
        "MSG_REGION": "R",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    assert completed(properties, ADDED, lambda: "another") == (properties, key)


def test_a_batch_s_envelope_gets_no_key() -> None:
    assert completed(b"", ADDED, None) == (ADDED, "")


def test_properties_without_their_last_separator_stay_apart_from_the_broker_s() -> None:
    properties, _ = completed(b"UNIQ_KEY\x01K\x02A\x01b", ADDED, None)
    assert decode_properties(properties)["A"] == "b"


@pytest.mark.parametrize(("queue", "code"), [(0, None), (7, None), (8, 29), (2**31 - 1, 29)])
def test_a_queue_must_be_one_that_can_be_read_or_written(queue: int, code: int | None) -> None:
    config = TopicConfig("T", 8, 4)
    if code is None:
        assert queue_of(request(queue_id=queue), config, random.Random(1)) == queue
    else:
        with pytest.raises(RequestRefused) as refused:
            queue_of(request(queue_id=queue), config, random.Random(1))
        assert refused.value.code == code


def test_a_topic_without_queues_to_write_takes_nothing() -> None:
    with pytest.raises(RequestRefused):
        queue_of(request(queue_id=-1), TopicConfig("T", 4, 0), random.Random(1))


@pytest.mark.parametrize(
    ("tried", "reported", "version", "locked", "used_up"),
    [
        (16, -1, 479, False, False),
        (17, -1, 479, False, True),
        (4, 3, 479, False, True),
        (3, 3, 479, False, False),
        (4, 3, 100, False, False),  # Too old to say so: the group's own number counts.
        (1, 0, 479, False, True),
        (0, -1, 479, True, True),
    ],
)
def test_how_often_a_message_may_be_tried(tried: int, reported: int, version: int, locked: bool, used_up: bool) -> None:
    given_back = request(reconsume_times=tried, max_reconsume_times=reported, version=version)
    assert is_used_up(given_back, SubscriptionGroup("G"), locked) == used_up


def test_names_of_a_group_s_topics() -> None:
    assert group_of_retry("%RETRY%G") == "G"
    assert no_such_group("%RETRY%G").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert no_such_topic(request()).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("properties", "sys_flag", "topic"),
    [
        ({}, 0, "T"),
        ({"DELAY": "0"}, 0, "T"),
        ({"DELAY": "2"}, 0, "SCHEDULE_TOPIC_XXXX"),
        ({"DELAY": "2"}, 8, "SCHEDULE_TOPIC_XXXX"),
        ({"DELAY": "2"}, 4, "T"),  # Half a transaction is delayed once it is whole.
        ({"DELAY": "2", "TIMER_DELAY_SEC": "1"}, 0, "SCHEDULE_TOPIC_XXXX"),
        ({"TIMER_OUT_MS": "1", "TIMER_DELAY_SEC": "1"}, 0, "T"),
    ],
)
def test_where_a_message_is_stored_now(properties: dict[str, str], sys_flag: int, topic: str) -> None:
    assert stored_destination(Destination("T", 0, encode_properties(properties)), sys_flag, 18).topic == topic


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"])
def test_a_message_for_a_time_of_its_own_is_refused_without_a_wheel(name: str) -> None:
    with pytest.raises(RequestRefused, match="arbitrary time") as refused:
        stored_destination(Destination("T", 0, encode_properties({name: "1"})), 0, 18)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert without_delay(encode_properties({"DELAY": "1", "A": "b"})) == encode_properties({"A": "b"})


def test_a_delay_level_overrules_a_time_of_its_own() -> None:
    asked = {"DELAY": "2", "TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1", "A": "b"}
    place = stored_destination(Destination("T", 3, encode_properties(asked)), 0, 18)
    assert decode_properties(place.properties) == {"DELAY": "2", "A": "b", "REAL_TOPIC": "T", "REAL_QID": "3"}


@pytest.mark.parametrize(
    ("properties", "tried", "expected"),
    [
        ({"TRAN_MSG": "true"}, 0, True),
        ({"TRAN_MSG": "TRUE"}, 3, True),
        ({"TRAN_MSG": "false"}, 0, False),
        ({}, 0, False),
        ({"TRAN_MSG": "true", "DELAY": "3"}, 0, True),
        ({"TRAN_MSG": "true", "DELAY": "3"}, 1, False),  # What an old client gives back is an ordinary message.
    ],
)
def test_what_is_half_of_a_transaction(properties: dict[str, str], tried: int, expected: bool) -> None:
    assert is_prepared(request(reconsume_times=tried), encode_properties(properties)) is expected


def test_half_of_a_transaction_goes_to_the_half_queue_and_is_delayed_when_it_is_whole() -> None:
    properties = encode_properties({"TRAN_MSG": "true", "UNIQ_KEY": "K", "DELAY": "3"})
    place = half_destination(Destination("T", 2, properties), broker_config(), 18)
    assert (place.topic, place.queue_id) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert decode_properties(place.properties).items() >= {"REAL_TOPIC": "T", "REAL_QID": "2", "DELAY": "3"}.items()


def test_half_of_a_transaction_that_could_not_be_committed_is_refused() -> None:
    with pytest.raises(RequestRefused) as refused:
        half_destination(Destination("T", 0, encode_properties({"DELAY": "soon"})), broker_config(), 18)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_a_broker_may_take_no_halves_of_transactions() -> None:
    with pytest.raises(RequestRefused, match="rejectTransactionMessage") as refused:
        half_destination(Destination("T", 0, b""), broker_config(reject_transaction_message=True), 18)
    assert refused.value.code == ResponseCode.NO_PERMISSION


def test_a_topic_of_many_tags_marks_its_messages() -> None:
    assert sys_flag_of(request(sys_flag=1), TopicConfig("T", filter_type="MULTI_TAG")) == 3
    assert sys_flag_of(request(sys_flag=1), TopicConfig("T")) == 1


def test_a_known_topic_needs_no_legal_name() -> None:
    check_topic("old name", broker_config(), TopicConfig("old name"))
    with pytest.raises(RequestRefused):
        check_topic("old name", broker_config(), None)


@given(st.integers(1, 100), st.integers(1, 20), st.integers(0, 9))
def test_a_level_has_its_queue_and_those_beyond_the_last_are_the_last(level: int, levels: int, queue_id: int) -> None:
    place = delayed(Destination("T", queue_id, b"KEYS\x01k\x02DELAY\x01%d\x02" % level), level, levels)
    kept = min(level, levels)
    assert (place.topic, place.queue_id) == ("SCHEDULE_TOPIC_XXXX", kept - 1)
    assert decode_properties(place.properties) == {
        "KEYS": "k",
        "DELAY": str(kept),
        "REAL_TOPIC": "T",
        "REAL_QID": str(queue_id),
    }


@pytest.mark.parametrize(("value", "level"), [(None, 0), ("0", 0), ("3", 3), ("-1", -1), ("18", 18)])
def test_the_level_is_read_from_the_properties(value: str | None, level: int) -> None:
    properties = b"A\x01b\x02" if value is None else b"A\x01b\x02DELAY\x01%b\x02" % value.encode()
    assert delay_level(properties) == level


@pytest.mark.parametrize("value", [b"x", b"1.5", b"-", b"99999999999", b"\xff"])
def test_a_level_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(RequestRefused, match="delay level") as refused:
        delay_level(b"DELAY\x01%b\x02" % value)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
