"""Whatever a consumer sends, it is answered with a code, nothing breaks, and others go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.consuming import Peer, bodies_of, heartbeat, pull_fields, put, running
from examples import examples
from tiermq.broker.broker import Broker
from tiermq.remoting.codes import ResponseCode

CODES = (11, 361, 12, 14, 15, 29, 30, 31, 32, 33, 34, 35, 36, 38, 41, 42, 46)
KNOWN = frozenset(int(code) for code in ResponseCode)
FIELDS = (
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis",
    "subscription", "subVersion", "expressionType", "group", "offset", "delayLevel", "originMsgId", "originTopic",
    "maxReconsumeTimes", "key", "maxNum", "beginTimestamp", "endTimestamp", "timestamp", "boundaryType", "clientID",
    "producerGroup", "setZeroIfNotFound", "committed", "_UNIQUE_KEY_QUERY",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        ["T", "G", "0", "1", "-1", "32", "4", "5", "*", "A || B", "SQL92", "TAG", "a > 1", "true", "", "X"]
    ),
    st.integers(-(2**64), 2**64).map(str),
    st.text(alphabet="aZ0%|-_ .äß\x00\x01\x02'\"{}", max_size=40),
)
EXT = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=12)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["clientID", "clientId", "consumerGroup", "consumerDataSet", "producerDataSet", "mqSet",
                             "groupName", "subscriptionDataSet", "topic", "subString", "subVersion", "queueId",
                             "subscriptionData", "expressionType", "codeSet", "tagsSet", "heartbeatFingerprint"]),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)  # fmt: skip
BODIES = st.one_of(st.just(b""), st.binary(max_size=60), JSON.map(lambda value: json.dumps(value).encode()))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("fuzz"), auto_create_subscription_group=False) as running_broker:
        put(running_broker, "a", "b", tags="A", keys=["X"])
        yield running_broker


@pytest.fixture(scope="module")
def peer(broker: Broker) -> Iterator[Peer]:
    with Peer(broker) as connected:
        yield connected


def ask(broker: Broker, peer: Peer, code: int, body: bytes, ext: dict[str, str]) -> None:
    without_waiting = {**ext, "suspendTimeoutMillis": "1"} if "suspendTimeoutMillis" in ext else ext
    answer = peer.ask(code, body, **without_waiting)
    assert int(answer.code) in KNOWN
    assert broker.parts.server.handler_errors == 0, answer


@examples(60)
@given(st.sampled_from(CODES), BODIES, EXT)
def test_any_request_is_answered_with_a_known_code(
    broker: Broker, peer: Peer, code: int, body: bytes, ext: dict[str, str]
) -> None:
    ask(broker, peer, code, body, ext)


@examples(60)
@given(st.data())
def test_a_pull_with_any_field_changed_is_answered_with_a_known_code(
    broker: Broker, peer: Peer, data: st.DataObject
) -> None:
    fields = {name: str(value) for name, value in pull_fields().items()}
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(fields)), VALUES, max_size=4))
    ask(broker, peer, 11, b"", {**fields, **changes, "sysFlag": data.draw(st.sampled_from(["4", "6", "0", "1"]))})


@examples(50)
@given(st.data())
def test_a_heartbeat_with_any_part_changed_is_answered_with_a_known_code(
    broker: Broker, peer: Peer, data: st.DataObject
) -> None:
    beat: dict[str, Any] = heartbeat()
    target = data.draw(
        st.sampled_from([beat, beat["consumerDataSet"][0], beat["consumerDataSet"][0]["subscriptionDataSet"][0]])
    )
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
    ask(broker, peer, 34, json.dumps(beat).encode(), {})


def test_the_broker_is_whole_afterwards(broker: Broker) -> None:
    with Peer(broker) as another:
        assert bodies_of(another.pull(sysFlag=4, consumerGroup="TOOLS_CONSUMER")) == ["a", "b"]
