"""Which broker a consumer is sent to, by master and slave."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import Producer
from broker.replication.pairs import ask, caught_up, master, slave, synced, until
from tiermq.broker.broker import Broker
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.message.record import decode_records
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

FAR_BEHIND = {"access_message_in_memory_max_ratio": 0}
"""Every message counts as not in memory."""


def pull_ext(offset: int = 0, flags: int = 6) -> dict[str, Any]:
    fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 2}
    more = {"commitOffset": 0, "suspendTimeoutMillis": 600_000, "subVersion": 0, "subscription": "*", "sysFlag": flags}
    return {name: str(value) for name, value in {**fields, **more}.items()}


def pull(broker: Broker, offset: int = 0, *, flags: int = 6) -> RemotingCommand:
    return ask(broker, RequestCode.PULL_MESSAGE, **pull_ext(offset, flags))


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


SMALL: dict[str, Any] = {"mapped_file_size_commit_log": 256 * 1024, "mapped_file_size_consume_queue": 20 * 1_000}
NOT_HELD = 4
"""Flags of a pull that is answered at once."""


def send_several_files(first: Broker) -> None:
    with Producer(first) as producer:
        for number in range(700):
            assert producer.send(body=b"%03d" % number + b"." * 1_000).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("checks", [False, True], ids=["by default", "offsetCheckInSlave"])
def test_a_slave_whose_log_begins_later_moves_no_consumer_forward(tmp_path: Path, checks: bool) -> None:
    with master(tmp_path, store={**SMALL, **FAR_BEHIND}, slave_read_enable=True, sync_from_last_file=True) as first:
        send_several_files(first)
        store = {**SMALL, "offset_check_in_slave": checks}
        with slave(tmp_path, first, store=store, slave_read_enable=True) as copy:
            caught_up(copy, first)
            synced(copy)
            low = copy.parts.local.min_offset("T", 0)
            assert 0 < low < 700
            answer = pull(copy)
            if checks:
                moved = (ResponseCode.PULL_OFFSET_MOVED, str(low))
                assert (answer.code, answer.ext["nextBeginOffset"]) == moved, "as its user asked for"
                return
            assert suggested(answer) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "0")
            assert answer.ext["nextBeginOffset"] == "0"
            assert suggested(pull(copy, low)) == (ResponseCode.SUCCESS, "0")
            offset, at_slave = 0, 0
            seen: list[bytes] = []
            brokers = {"0": first, "1": copy}
            at = "0"
            while len(seen) < 20:  # As a client does: each second pull is refused, and each other one gets further.
                answer = pull(brokers[at], offset)
                seen += [each.body[:3] for each in decode_records(answer.body)]
                at_slave += at == "1"
                assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
                offset, at = int(answer.ext["nextBeginOffset"]), answer.ext["suggestWhichBrokerId"]
            assert seen[:20] == [b"%03d" % number for number in range(20)]
            assert 0 < at_slave <= len(seen) // 2


def test_while_the_master_is_away_a_slave_lets_a_consumer_wait_for_what_it_lacks(tmp_path: Path) -> None:
    with ExitStack() as masters:
        first = masters.enter_context(master(tmp_path, store=SMALL, slave_read_enable=True, sync_from_last_file=True))
        send_several_files(first)
        with slave(tmp_path, first, store=SMALL, slave_read_enable=True) as copy:
            caught_up(copy, first)
            synced(copy)
            masters.close()
            until(lambda: copy.replication.slave is not None and not copy.replication.slave.is_connected)
            answer = pull(copy, flags=NOT_HELD)
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
            pulls = next(each for each in copy.processors if isinstance(each, PullProcessor))
            with BlockingClient("127.0.0.1", copy.port, timeout_s=30.0) as client:
                waiting = client.request_later(RemotingCommand(RequestCode.PULL_MESSAGE, ext=pull_ext()))
                until(lambda: pulls.long_polling.held == 1)
                assert not waiting.done(), "it does not come back at once"
