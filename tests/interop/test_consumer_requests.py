"""The same requests of a consumer to RocketMQ's broker and to ours: the same codes, the same fields, the same messages.

Then they exchange their store directory: offsets, groups and delayed messages of one go on at the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer, bodies_of, heartbeat, pull_fields
from interop.conftest import StartBroker
from interop.rocketmq import SMALL_FILES, python_names
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.command import RemotingCommand

pytestmark = pytest.mark.interop

SETTINGS = {**SMALL_FILES, "enablePropertyFilter": True, "fileReservedTime": 720}
STORE = python_names({**SMALL_FILES, "fileReservedTime": 720})
VARYING = frozenset({"indexLastUpdateTimestamp", "timestamp", "topicSysFlag", "groupSysFlag", "forbiddenType"})
"""Fields that tell a moment, or that only some releases send."""


class Consumer(Peer):
    """A peer that is given an address instead of a broker of ours."""

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.client = BlockingClient(host, int(port))

    def send(self, body: str, queue_id: int = 0, tags: str = "", number: int = 0, level: int = 0) -> RemotingCommand:
        properties = {"UNIQ_KEY": f"U{queue_id}-{body}", "WAIT": "true", "n": str(number), "KEYS": "k"}
        properties |= {"TAGS": tags} if tags else {}
        properties |= {"DELAY": str(level)} if level else {}
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        fields = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_700_000_000_000, "h": 0}
        answer = self.ask(310, body.encode(), **fields, i=text, j=0, k="false", m="false")
        assert answer.code == 0, answer
        return answer

    def make_topic(self) -> None:
        fields: dict[str, Any] = {
            "topic": "T",
            "defaultTopic": "TBW102",
            "readQueueNums": 4,
            "writeQueueNums": 4,
            "perm": 6,
        }
        assert self.ask(17, **fields, topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false").code == 0


def our_broker(path: Path) -> Broker:
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="broker-a")
    broker = Broker.open(path, config=config, **STORE)
    if broker.parts.topics.get("T") is None:
        broker.parts.topics.put(TopicConfig("T", 4, 4))
    return broker


def pulls() -> Iterator[dict[str, Any]]:
    for offset in (0, 3, 6, 7, -1, 2**40):
        yield {"queueOffset": offset}
    for offset in (0, 5):
        yield {"queueId": 1, "queueOffset": offset}
    yield {"queueId": 4}
    yield {"queueId": -1}
    yield {"topic": "unknown"}
    yield {"consumerGroup": "nobody"}
    yield {"topic": "BenchmarkTest"}
    yield {"subVersion": 2}
    yield {"maxMsgNums": 1}
    for expression in ("*", "A", "B || C", "none"):
        yield {"sysFlag": 4, "subscription": expression}
    # Not one that is none: the original then gives every message out, and we refuse the pull.
    for expression in ("n > 2", "n BETWEEN 1 AND 3 AND TAGS = 'A'", "n IS NULL"):
        yield {"sysFlag": 4, "subscription": expression, "expressionType": "SQL92"}


def reported(answer: RemotingCommand) -> Any:
    """What must be the same."""
    ext = {name: value for name, value in answer.ext.items() if name not in VARYING}
    return int(answer.code), ext


def conversation(peer: Consumer) -> Iterator[tuple[str, Any]]:
    """What is asked, and what is answered."""
    queue: dict[str, Any] = {"topic": "T", "queueId": 0}
    group: dict[str, Any] = {"consumerGroup": "G", **queue}
    yield "nobody is there", reported(peer.ask(38, consumerGroup="G"))
    yield "heartbeat", reported(peer.ask(34, heartbeat()))
    members = peer.ask(38, consumerGroup="G")
    yield "members", (reported(members), json.loads(bytes(members.body)))
    for number in range(6):
        peer.send(f"m{number}", tags="AB"[number % 2], number=number)
    _wait_for_six(peer)
    yield "new group", reported(peer.ask(14, **group))
    yield "new group without zero", reported(peer.ask(14, **group, setZeroIfNotFound="false"))
    yield "commit", reported(peer.ask(15, **group, commitOffset=3))
    yield "committed", reported(peer.ask(14, **group))
    yield "commit of an unknown group", reported(peer.ask(15, **{**group, "consumerGroup": "X"}, commitOffset=3))
    yield "commit of an unknown topic", reported(peer.ask(15, **{**group, "topic": "X"}, commitOffset=3))
    for code in (30, 31):
        yield f"{code}", reported(peer.ask(code, **queue))
        yield f"{code} of an unknown queue", reported(peer.ask(code, topic="T", queueId=3))
    for time_ms in (0, 2**42):
        yield f"offset at {time_ms}", reported(peer.ask(29, **queue, timestamp=time_ms))
    yield "earliest time", reported(peer.ask(32, **queue))
    for changes in pulls():
        answer = peer.ask(11, **{**pull_fields(), **changes})
        yield f"pull {changes}", (reported(answer), bodies_of(answer))
    yield "lite pull", reported(peer.ask(361, **{**pull_fields(), "sysFlag": 0x14, "subscription": "*"}))
    mine = {"clientId": "c1", "consumerGroup": "G", "mqSet": [{"brokerName": "broker-a", **queue}]}
    for client_id in ("c1", "c2", "c1"):
        locked = peer.ask(41, {**mine, "clientId": client_id})
        yield f"lock by {client_id}", (reported(locked), json.loads(bytes(locked.body)))
    yield "unlock", reported(peer.ask(42, mine))
    for kind, expression in (("TAG", "A"), ("SQL92", "n > 1"), ("SQL92", "n >")):
        data = {"topic": "T", "subString": expression, "expressionType": kind}
        yield f"check {expression}", reported(peer.ask(46, {"clientId": "c", "group": "G", "subscriptionData": data}))
    found = peer.ask(12, topic="T", key="k", maxNum=64, beginTimestamp=0, endTimestamp=2**62)
    yield "query", (reported(found)[0], sorted(bodies_of(found)))
    yield "query of nothing", reported(peer.ask(12, topic="T", key="x", maxNum=9, beginTimestamp=0, endTimestamp=9))[0]
    yield "view", bodies_of(peer.ask(33, offset=0))
    yield "view of nothing", reported(peer.ask(33, offset=10**9))
    back: dict[str, Any] = {"group": "G", "delayLevel": 0, "originTopic": "T", "maxReconsumeTimes": 16}
    yield "send back", reported(peer.ask(36, offset=0, originMsgId="U0-m0", **back))
    yield "send back of nothing", reported(peer.ask(36, offset=10**9, originMsgId="x", **back))
    yield "leave", reported(peer.ask(35, clientID="c1", consumerGroup="G"))
    yield "pull after leaving", reported(peer.ask(11, **pull_fields()))


def _wait_for_six(peer: Consumer) -> None:
    """A queue's end moves when its messages are dispatched; a key is found when it is indexed."""
    while peer.ask(30, topic="T", queueId=0).ext["offset"] != "6":
        pass
    query: dict[str, Any] = {"topic": "T", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**62}
    while len(bodies_of(peer.ask(12, **query))) < 6:
        pass


def test_both_brokers_answer_a_consumer_alike(start_broker: StartBroker, tmp_path: Path) -> None:
    with our_broker(tmp_path / "ours") as broker, Consumer(broker.address) as peer:
        ours = list(conversation(peer))
    cluster = start_broker(tmp_path / "theirs", SETTINGS)
    with Consumer(cluster.broker_address) as peer:
        peer.make_topic()
        theirs = list(conversation(peer))
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    different = {name: (our, their) for (name, our), (_, their) in zip(ours, theirs, strict=True) if our != their}
    assert different == {}, "(ours, theirs)"


def test_our_consumers_state_goes_on_at_the_real_broker(start_broker: StartBroker, tmp_path: Path) -> None:
    store = tmp_path / "store"
    group: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    with our_broker(store) as broker, Consumer(broker.address) as peer:
        peer.join()
        peer.send("plain")
        peer.send("delayed", queue_id=2, level=2)
        assert peer.ask(15, **group, commitOffset=1).code == 0
    cluster = start_broker(store, SETTINGS)
    with Consumer(cluster.broker_address) as peer:
        assert peer.ask(14, **group).ext["offset"] == "1"
        peer.join()
        held = peer.ask(11, **{**pull_fields(), "queueId": 2, "sysFlag": 2, "suspendTimeoutMillis": 30_000})
        assert bodies_of(held) == ["delayed"]
        assert peer.ask(15, **group, commitOffset=7).code == 0
        peer.send("later", queue_id=3, level=2)
    cluster.stop()
    with our_broker(store) as broker, Consumer(broker.address) as peer:
        assert peer.ask(14, **group).ext["offset"] == "7"
        assert broker.parts.groups.get("G") is not None
        peer.join()
        held = peer.ask(11, **{**pull_fields(), "queueId": 3, "sysFlag": 2, "suspendTimeoutMillis": 30_000})
        assert bodies_of(held) == ["later"]
        again = peer.ask(11, **{**pull_fields(), "queueId": 2})
        assert bodies_of(again) == ["delayed"], "what was delivered before is not delivered again"
