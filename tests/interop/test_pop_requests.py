"""POP's requests asked of the real broker and of ours: the same codes, the same fields, the same messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from broker.brokers import send_command
from broker.consuming import messages_of
from broker.pop.pop_peer import Got, got_of, pop_fields, receipt_fields
from interop.rocketmq import BROKER_NAME, Cluster, Distribution
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode as Code
from tiermq.remoting.command import RemotingCommand

pytestmark = pytest.mark.interop

VOLATILE = {"popTime", "reviveQid"}
SETTINGS = {"mappedFileSizeCommitLog": 1024 * 1024, "timerWheelEnable": True, "enablePropertyFilter": True}


@dataclass(frozen=True, slots=True)
class Both:
    """The real broker first."""

    clients: tuple[BlockingClient, BlockingClient]

    def ask(self, code: int, body: bytes = b"", **ext: object) -> list[RemotingCommand]:
        reported = {name: str(value) for name, value in ext.items()}
        return [client.request(RemotingCommand(code, ext=reported, body=body), 60) for client in self.clients]

    def same(self, code: int, body: bytes = b"", **ext: object) -> list[RemotingCommand]:
        """What both answer, which is the same code with the same fields."""
        answers = self.ask(code, body, **ext)
        real, ours = ((int(each.code), _steady(each)) for each in answers)
        assert ours == real, (code, ext, [answer.remark for answer in answers])
        return answers

    def pop(self, **changes: Any) -> list[list[Got]]:
        answers = self.same(Code.POP_MESSAGE, **{**pop_fields(), "queueId": 0, **changes})
        bodies = [[message.body for message in messages_of(answer)] for answer in answers]
        assert bodies[0] == bodies[1]
        return [got_of(answer, BROKER_NAME) if answer.code == 0 else [] for answer in answers]

    def show(self, code: int, got: list[Got], **changes: object) -> list[int]:
        """Each its own receipt; the codes, which are the same."""
        codes = []
        for client, each in zip(self.clients, got, strict=True):
            fields = {name: str(value) for name, value in {**receipt_fields(each), **changes}.items()}
            codes.append(int(client.request(RemotingCommand(code, ext=fields), 60).code))
        assert codes[0] == codes[1], (code, changes)
        return codes


def _steady(answer: RemotingCommand) -> dict[str, str]:
    """Fields of an answer with messages; with others the real broker sends some that say nothing."""
    if answer.code != 0:
        return {}
    return {name: value for name, value in answer.ext.items() if name not in VOLATILE}


@pytest.fixture(scope="module")
def both(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    scratch = tmp_path_factory.mktemp("pop-requests")
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name=BROKER_NAME)
    with ExitStack() as running:
        cluster = running.enter_context(Cluster(distribution, scratch / "real", scratch / "home", SETTINGS))
        broker = running.enter_context(Broker.open(scratch / "ours", config=config))
        host, _, port = cluster.broker_address.rpartition(":")
        clients = BlockingClient(host, int(port), timeout_s=60), BlockingClient("127.0.0.1", broker.port, timeout_s=60)
        yield Both((running.enter_context(clients[0]), running.enter_context(clients[1])))


def make(both: Both, topic: str, count: int) -> None:
    fields: dict[str, Any] = {
        "defaultTopic": "TBW102",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "order": "false",
    }
    both.same(Code.UPDATE_AND_CREATE_TOPIC, topic=topic, topicFilterType="SINGLE_TAG", **fields)
    for client in both.clients:
        for number in range(count):
            assert client.request(send_command(topic, b"m%d" % number, queue=0), 60).code == 0
        ended = RemotingCommand(Code.GET_MAX_OFFSET, ext={"topic": topic, "queueId": "0"})
        while int(client.request(ended, 60).ext["offset"]) < count:
            pass


def test_pops_and_acknowledgements_are_answered_alike(both: Both) -> None:
    make(both, "T", 3)
    real, ours = both.pop(maxMsgNums=2)
    assert len(ours) == 2
    pair = [real[0], ours[0]]
    assert both.show(Code.ACK_MESSAGE, pair)[1] == 0
    both.show(Code.ACK_MESSAGE, pair, topic="none")
    both.show(Code.ACK_MESSAGE, pair, queueId=7)
    both.show(Code.ACK_MESSAGE, pair, offset=99)
    assert both.show(Code.CHANGE_MESSAGE_INVISIBLETIME, [real[1], ours[1]], invisibleTime=120_000)[1] == 0
    assert len(both.pop()[1]) == 1
    assert both.pop() == [[], []]
    both.same(Code.POP_MESSAGE, **{**pop_fields(), "topic": "none"})
    both.same(Code.POP_MESSAGE, **{**pop_fields(), "queueId": 9})
    assert both.ask(Code.POP_MESSAGE, **{**pop_fields(), "maxMsgNums": 33})[1].code == 29


def test_ordered_pops_are_answered_alike(both: Both) -> None:
    make(both, "ordered", 4)
    order = {"topic": "ordered", "order": "true"}
    real, ours = both.pop(maxMsgNums=2, **order)
    assert both.pop(**order) == [[], []]
    for pair in zip(real, ours, strict=True):
        assert both.show(Code.ACK_MESSAGE, list(pair), topic="ordered")[1] == 0
    assert len(both.pop(**order)[1]) == 2


def test_many_are_acknowledged_alike(both: Both) -> None:
    make(both, "many", 4)
    popped = both.pop(topic="many")
    for client, got in zip(both.clients, popped, strict=True):
        start, pop_ms, invisible_ms, revive_queue, mark, _, queue_id, _ = got[0].receipt.split(" ")
        entry = {
            "c": "G",
            "t": "many",
            "r": mark,
            "so": int(start),
            "q": int(queue_id),
            "rq": int(revive_queue),
            "pt": int(pop_ms),
            "it": int(invisible_ms),
            "b": base64.b64encode(bytes([0b1011])).decode(),
        }
        body = json.dumps({"brokerName": BROKER_NAME, "acks": [entry]}).encode()
        assert client.request(RemotingCommand(Code.BATCH_ACK_MESSAGE, body=body), 60).code == 0


def test_notifications_are_answered_alike(both: Both) -> None:
    make(both, "noticed", 1)
    fields: dict[str, Any] = {"consumerGroup": "G", "topic": "noticed", "queueId": 0, "pollTime": 0, "bornTime": 0}
    assert both.same(Code.NOTIFICATION, **fields)[1].ext["hasMsg"] == "true"
    both.pop(topic="noticed")
    assert both.same(Code.NOTIFICATION, **fields)[1].ext["hasMsg"] == "false"
