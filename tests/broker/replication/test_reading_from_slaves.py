"""Which broker a consumer is sent to, by master and slave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker.brokers import Producer
from broker.replication.pairs import ask, caught_up, master, slave, synced, until
from tiermq.broker.broker import Broker
from tiermq.message.record import decode_records
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

FAR_BEHIND = {"access_message_in_memory_max_ratio": 0}
"""Every message counts as not in memory."""


def pull(broker: Broker, offset: int = 0) -> RemotingCommand:
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 2, "sysFlag": 6}
    more = {"commitOffset": 0, "suspendTimeoutMillis": 600_000, "subVersion": 0, "subscription": "*"}
    ext: dict[str, Any] = {name: str(value) for name, value in {**fields, **more}.items()}
    return ask(broker, RequestCode.PULL_MESSAGE, **ext)


def suggested(answer: RemotingCommand) -> tuple[int, str]:
    return answer.code, answer.ext["suggestWhichBrokerId"]


def test_a_consumer_that_is_far_behind_is_sent_to_the_slave_and_back(tmp_path: Path) -> None:
    with master(tmp_path, store=FAR_BEHIND, slave_read_enable=True) as first:
        with Producer(first) as producer:
            for number in range(5):
                producer.send(body=b"%d" % number)
        with slave(tmp_path, first, slave_read_enable=True) as copy:
            caught_up(copy, first)
            synced(copy)
            until(lambda: first.parts.local.max_offset("T", 0) == 5)
            assert suggested(pull(first)) == (ResponseCode.SUCCESS, "1")
            answer = pull(copy)
            assert [each.body for each in decode_records(answer.body)] == [b"0", b"1"]
            assert suggested(answer) == (ResponseCode.SUCCESS, "0"), "in the slave's memory: back to the master"
            until(lambda: copy.replication.slave is not None and copy.replication.slave.is_connected)
            assert suggested(pull(copy, 5)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0"), "not held"


def test_without_the_setting_a_master_suggests_itself_and_a_slave_sends_consumers_away(tmp_path: Path) -> None:
    with master(tmp_path, store=FAR_BEHIND) as first:
        with Producer(first) as producer:
            for _ in range(5):
                producer.send()
        with slave(tmp_path, first) as copy:
            caught_up(copy, first)
            synced(copy)
            until(lambda: first.parts.local.max_offset("T", 0) == 5)
            assert suggested(pull(first)) == (ResponseCode.SUCCESS, "0")
            answer = pull(copy)
            assert suggested(answer) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
            assert not answer.body
