"""Where consumers are, where queues begin and end, and what becomes of offsets on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import send_command
from broker.consuming import SIZES, Peer, part, put, running, until
from simulation.manual_clock import ManualClock
from tiermq.broker.group.consumer_offsets import FILE, decode_offsets
from tiermq.broker.group.offset_processor import OffsetProcessor
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode

QUERY, UPDATE = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET


def test_what_was_committed_is_answered_and_survives_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *"1234567", queue_id=1)
        assert peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=1, commitOffset=7).code == 0
        assert peer.ask(QUERY, consumerGroup="G", topic="T", queueId=1).ext == {"offset": "7"}
    with running(tmp_path) as broker, Peer(broker) as peer:
        assert peer.ask(QUERY, consumerGroup="G", topic="T", queueId=1).ext == {"offset": "7"}


def test_commits_are_written_to_disk_now_and_then_without_the_loop_waiting(tmp_path: Path) -> None:
    with running(tmp_path, flush_consumer_offset_interval=20) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, *"12345")
        peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=0, commitOffset=5)
        offsets = broker.parts.offsets
        until(broker, lambda: offsets.data_version.counter > 0)
        # Its version is told last, so the file is whole; nobody reads it while it is being written.
        assert decode_offsets((tmp_path / "config" / FILE).read_bytes())[0] == {"T@G": {0: 5}}


def test_a_commit_for_a_group_or_topic_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        answer = peer.ask(UPDATE, consumerGroup="X", topic="T", queueId=0, commitOffset=5)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        peer.join()
        answer = peer.ask(UPDATE, consumerGroup="G", topic="X", queueId=0, commitOffset=5)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert broker.parts.offsets.snapshot() == {}


def test_a_commit_of_minus_one_changes_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        assert peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=0, commitOffset=-1).code == 0
        assert broker.parts.offsets.snapshot() == {}


@pytest.mark.parametrize("offset", [-2, -(2**63)])
def test_a_commit_below_minus_one_is_refused(tmp_path: Path, offset: int) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        answer = peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=0, commitOffset=offset)
        assert (answer.code, str(offset) in str(answer.remark)) == (ResponseCode.INVALID_PARAMETER, True)
        assert peer.pull(0, sysFlag=1, commitOffset=offset).code == ResponseCode.INVALID_PARAMETER
        assert broker.parts.offsets.snapshot() == {}


@pytest.mark.parametrize("offset", [4, 2**63 - 1])
def test_a_commit_beyond_the_end_is_a_commit_of_the_end(tmp_path: Path, offset: int) -> None:
    """As of a consumer that is ahead of a broker which lost its tail: what comes next is not skipped."""
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a", "b", "c")
        answer = peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=0, commitOffset=offset)
        assert (answer.code, answer.remark) == (0, f"committed 3, the end of the queue, and not {offset}")
        assert broker.parts.offsets.snapshot() == {"T@G": {0: 3}}
        peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=0, commitOffset=1)
        peer.pull(offset, sysFlag=1, commitOffset=offset)
        assert broker.parts.offsets.snapshot() == {"T@G": {0: 3}}


def test_a_commit_for_a_queue_that_the_topic_has_not_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a", queue_id=3)
        for queue_id in (-1, 4, 30_000, 2**31 - 1):
            answer = peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=queue_id, commitOffset=0)
            assert (answer.code, "has 4 queues" in str(answer.remark)) == (ResponseCode.INVALID_PARAMETER, True)
        assert broker.parts.offsets.snapshot() == {}
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        answer = peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=3, commitOffset=1)
        assert answer.code == 0, "the topic had it before it got fewer, and it has a message"


@pytest.mark.parametrize("group", ["CID_RMQ_SYS_REVIVE_GROUP", "CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_another"])
def test_no_request_of_a_client_changes_offsets_of_a_broker_s_own_group(tmp_path: Path, group: str) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "a", "b")
        peer.join(group)
        broker.parts.offsets.commit(group, "T", 0, 1)
        peer.join("G")
        peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=0, commitOffset=2)
        before = broker.parts.offsets.snapshot()
        place: dict[str, Any] = {"consumerGroup": group, "topic": "T", "queueId": 0}
        pop: dict[str, Any] = {"maxMsgNums": 1, "invisibleTime": 1000, "pollTime": 0, "initMode": 0}
        reset: dict[str, Any] = {"group": group, "topic": "T", "timestamp": 0, "isForce": "true"}
        shown = {**place, "extraInfo": f"1 {broker.parts.clock.now_ms()} 60000 0 0 b 0 1", "offset": 1}
        many = {"c": group, "t": "T", "r": "0", "q": 0, "so": 1, "pt": 1, "it": 60_000, "rq": 0, "b": "AQ=="}
        size = broker.parts.local.max_physical_offset
        answers = [
            peer.ask(UPDATE, **place, commitOffset=2),
            peer.pull(0, sysFlag=1, commitOffset=2, consumerGroup=group),
            peer.ask(RequestCode.POP_MESSAGE, **place, **pop),
            peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset),
            peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset, queueId=0, offset=2),
            peer.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup=group, topic="T"),
            peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=group, cleanOffset="true"),
            peer.ask(RequestCode.ACK_MESSAGE, **shown),
            peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **shown, invisibleTime=1_000),
            peer.ask(RequestCode.BATCH_ACK_MESSAGE, json.dumps({"acks": [many]}).encode()),
        ]
        assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION] * len(answers)
        assert broker.parts.offsets.snapshot() == before
        assert broker.parts.local.max_physical_offset == size


def test_a_commit_in_ignorance_of_a_reset_does_not_undo_it(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        broker.parts.offsets.reset("G", "T", 0, 3)
        answer = peer.ask(UPDATE, consumerGroup="G", topic="T", queueId=0, commitOffset=9)
        assert (answer.code, answer.remark) == (0, "Offset has been previously reset")
        assert peer.ask(QUERY, consumerGroup="G", topic="T", queueId=0).ext == {"offset": "3"}


def test_a_new_group_begins_at_zero_of_a_young_queue_unless_it_says_otherwise(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        assert peer.ask(QUERY, consumerGroup="G", topic="T", queueId=0).ext == {"offset": "0"}, "it is empty"
        put(broker, "a", "b")
        assert peer.ask(QUERY, consumerGroup="G", topic="T", queueId=0).ext == {"offset": "0"}, "it is young"
        answer = peer.ask(QUERY, consumerGroup="G", topic="T", queueId=0, setZeroIfNotFound="false")
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


def test_a_new_group_chooses_where_to_begin_in_a_queue_that_has_lost_its_beginning(tmp_path: Path) -> None:
    small = {**SIZES, "mapped_file_size_commit_log": 16 * 1024, "file_reserved_time": 0, "delete_when": "00"}
    with running(tmp_path, store=small) as broker, Peer(broker) as peer:
        put(broker, *(f"{number}" * 1000 for number in range(10)))
        put(broker, *("y" * 1000 for _ in range(60)))
        broker.parts.local.flush()
        while broker.parts.local.min_offset("T", 0) == 0:
            broker.parts.local.clean_now()
        answer = peer.ask(QUERY, consumerGroup="G", topic="T", queueId=0)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        lowest = broker.parts.local.min_offset("T", 0)
        assert peer.ask(RequestCode.GET_MIN_OFFSET, topic="T", queueId=0).ext == {"offset": str(lowest)}


def test_a_new_group_chooses_where_to_begin_when_the_beginning_is_far_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        put(broker, "a", "b")
        monkeypatch.setattr(type(broker.parts.local), "memory_window_bytes", property(lambda _self: 10))
        answer = peer.ask(QUERY, consumerGroup="G", topic="T", queueId=0)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


def test_the_ends_and_the_times_of_queues_can_be_asked_for(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        first = manual_clock.now_ms()
        put(broker, "a")
        manual_clock.advance_ms(1000)
        put(broker, "b", "c")
        queue: dict[str, Any] = {"topic": "T", "queueId": 0}
        assert peer.ask(RequestCode.GET_MAX_OFFSET, **queue).ext == {"offset": "3"}
        assert peer.ask(RequestCode.GET_MIN_OFFSET, **queue).ext == {"offset": "0"}
        assert peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue).ext == {"timestamp": str(first)}
        search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        assert peer.ask(search, timestamp=first + 1, **queue).ext == {"offset": "1"}
        assert peer.ask(search, timestamp=first + 1, boundaryType="UPPER", **queue).ext == {"offset": "0"}
        assert peer.ask(search, timestamp=first + 9999, **queue).ext == {"offset": "3"}
        assert peer.ask(RequestCode.GET_MAX_OFFSET, topic="unknown", queueId=9).ext == {"offset": "0"}


def test_the_minimum_of_a_batch_queue_that_never_had_a_message_is_rocketmq_s(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        broker.parts.topics.put(TopicConfig("Inner", 1, 1, attributes={"queue.type": "BatchCQ"}))
        queue: dict[str, Any] = {"topic": "Inner", "queueId": 0}
        assert peer.ask(RequestCode.GET_MIN_OFFSET, **queue).ext == {"offset": "-1"}
        assert peer.ask(RequestCode.GET_MAX_OFFSET, **queue).ext == {"offset": "0"}
        batch = encode_client_batch(BatchElement(0, b"%d" % number, b"") for number in range(3))
        assert peer.client.request(send_command("Inner", batch, batch=True), 60).code == 0
        broker.parts.local.dispatch_now()
        assert peer.ask(RequestCode.GET_MIN_OFFSET, **queue).ext == {"offset": "0"}
        assert peer.ask(RequestCode.GET_MAX_OFFSET, **queue).ext == {"offset": "3"}


@pytest.mark.parametrize("code", [14, 15, 29, 30, 31, 32])
def test_a_request_without_its_fields_is_refused(tmp_path: Path, code: int) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        assert peer.ask(code).code == ResponseCode.SYSTEM_ERROR
        assert peer.ask(code, topic="T", consumerGroup="G", queueId="x").code == ResponseCode.SYSTEM_ERROR
        assert broker.parts.server.handler_errors == 0
        assert part(broker, OffsetProcessor)
