"""Answers that cannot be, and peers that give none: a member goes on with what it knows, and says what it refused."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiermq
from pipeline.offload.scripted_fleet import Answer, Peer, body, rows
from tiermq import Message
from tiermq.client import cluster_client
from tiermq.client.member import async_consumer, session
from tiermq.client.member.message_queue import MAX_OFFSET
from tiermq.client.member.offset_file import OffsetFile
from tiermq.errors import BadConfig, RemotingError, RequestRefused, RequestTimedOut
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.frame import encode_frame
from waiting import until

HUGE = 1 << 62
Answers = Callable[[dict[str, str]], Answer | None]


class ScriptedCluster(Peer):
    """A name server and broker of one queue of each topic. `answers` replace those to a request code; None: the true
    one. While a code is in `silent`, its requests are not answered.
    """

    def __init__(self) -> None:
        self.answers: dict[int, Answers] = {}
        self.silent: set[int] = set()
        self.speaks = threading.Event()
        self.seen: list[tuple[int, dict[str, str]]] = []
        super().__init__()

    def answer(self, code: int, ext: dict[str, str]) -> Answer:
        self.seen.append((code, ext))
        if code in self.silent:
            self.speaks.wait()
        if code in self.answers and (found := self.answers[code](ext)) is not None:
            return found
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if ext["topic"].startswith("%RETRY%"):
                return ResponseCode.TOPIC_NOT_EXIST, {}, b""
            queue = {"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            broker = {"cluster": "c", "brokerName": "b", "brokerAddrs": {"0": self.address}}
            return body({"queueDatas": [queue], "brokerDatas": [broker]})
        if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return body({"consumerIdList": [self.client_id]})
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            return ResponseCode.QUERY_NOT_FOUND, {}, b""
        if code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
            return 0, {"offset": "0"}, b""
        if code == RequestCode.PULL_MESSAGE:
            return pulled(int(ext["queueOffset"]), b"", code=ResponseCode.PULL_NOT_FOUND)
        if code == RequestCode.SEND_MESSAGE_V2:
            return 0, {"msgId": "m", "queueId": "0", "queueOffset": "1"}, b""
        return 0, {}, b""

    client_id = ""

    def first(self, code: int, answer: Answer) -> None:
        """The first such request has that answer."""
        left = [answer]
        self.answers[code] = lambda _: left.pop() if left else None

    def asked(self, code: int) -> list[dict[str, str]]:
        return [ext for each, ext in self.seen if each == code]

    @property
    def commits(self) -> list[int]:
        return [int(ext["commitOffset"]) for ext in self.asked(RequestCode.UPDATE_CONSUMER_OFFSET)]

    def push(self, code: int, ext: dict[str, str], data: bytes) -> None:
        """A request to the client, by its newest connection."""
        self.connections[-1].sendall(encode_frame(RemotingCommand(code, ext=ext, body=data)))


def pulled(next_offset: int, data: bytes, *, most: int = 100, code: int = 0) -> Answer:
    ext = {"nextBeginOffset": str(next_offset), "minOffset": "0", "maxOffset": str(most), "suggestWhichBrokerId": "0"}
    return code, ext, data


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    made = ScriptedCluster()
    monkeypatch.setattr(session, "make_client_id", lambda _: "member")
    made.client_id = "member"
    yield made
    made.speaks.set()
    made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_client, "NAME_SERVER_S", 0.2)
    monkeypatch.setattr(async_consumer, "REST_S", 0.01)
    monkeypatch.setattr(async_consumer, "UNBALANCED_S", 0.01)


# Name servers that do not answer.


def test_a_silent_name_server_takes_no_longer_than_the_callers_patience(peer: ScriptedCluster) -> None:
    peer.silent.add(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    with tiermq.connect(peer.address) as cluster, cluster.producer("p", patience_s=0.3, timeout_s=0.1) as producer:
        with pytest.raises(RequestTimedOut, match="topic orders: expected its route from a name server within 0.3 s"):
            producer.send(Message("orders", b"x"))
        assert cluster_client.NAME_SERVER_S == 3, "as RocketMQ's clients"


@pytest.mark.usefixtures("impatient")
def test_the_next_name_server_is_asked_after_a_silent_one(peer: ScriptedCluster) -> None:
    silent = ScriptedCluster()
    silent.silent.add(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    try:
        with tiermq.connect(f"{silent.address};{peer.address}") as cluster, cluster.producer("p") as producer:
            for topic in ("orders", "letters"):
                assert producer.send(Message(topic, b"x")).offset == 1
        assert len(silent.asked(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1, "it is tried last from then on"
    finally:
        silent.speaks.set()
        silent.close()


def test_a_known_route_is_used_while_name_servers_are_silent(
    peer: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ROUTE_S", 0.0)  # Each send asks for a newer one.
    with tiermq.connect(peer.address) as cluster, cluster.producer("p", timeout_s=60, patience_s=60) as producer:
        producer.send(Message("orders", b"x"))
        peer.silent.add(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        monkeypatch.setattr(cluster_client, "NAME_SERVER_S", 3600.0)
        assert producer.send(Message("orders", b"x")).offset == 1
        assert not peer.speaks.is_set()


def test_a_junk_route_is_refused_with_the_name_server_and_the_topic(peer: ScriptedCluster) -> None:
    peer.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: body({"queueDatas": [7]})
    expected = f"name server {peer.address}: expected the route of topic orders, found: expected an entry of queueDatas"
    with (
        tiermq.connect(peer.address) as cluster,
        cluster.producer("p") as producer,
        pytest.raises(RemotingError, match=expected),
    ):
        producer.send(Message("orders", b"x"))


# Sends.


@pytest.mark.parametrize(
    "ext",
    [
        {"msgId": "m", "queueId": "0"},
        {"msgId": "m", "queueId": "0", "queueOffset": "x"},
        {"msgId": "m", "queueId": "0", "queueOffset": "-9"},
        {"msgId": "m", "queueId": "-5", "queueOffset": "9"},
    ],
)
def test_a_receipt_without_an_offset_says_that_the_message_may_be_stored(
    peer: ScriptedCluster, ext: dict[str, str]
) -> None:
    peer.answers[RequestCode.SEND_MESSAGE_V2] = lambda _: (0, ext, b"")
    with tiermq.connect(peer.address) as cluster, cluster.producer("p") as producer:
        for send in (producer.send, lambda message: producer.send_later(message).result()):
            with pytest.raises(RemotingError, match="The broker may have stored it"):
                send(Message("orders", b"x"))
    assert len(peer.asked(RequestCode.SEND_MESSAGE_V2)) == 2, "none was sent again"


# Pulls.

ROWS = rows(3)
IMPOSSIBLE = {
    "a next offset among its records": pulled(1, b"".join(ROWS)),
    "a next offset before its records": pulled(0, b"".join(ROWS)),
    "a next offset far beyond the queue's end": pulled(HUGE, b"".join(ROWS)),
    "a next offset far beyond the end, no records": pulled(HUGE, b"", code=ResponseCode.PULL_NOT_FOUND),
    "a next offset far beyond the end, at once": pulled(HUGE, b"", code=ResponseCode.PULL_RETRY_IMMEDIATELY),
    "no maxOffset": (0, {"nextBeginOffset": "3"}, b"".join(ROWS)),
    "records twice": pulled(3, b"".join(ROWS + ROWS)),
    "records in descending order": pulled(3, b"".join(reversed(ROWS))),
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("wrong", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_an_impossible_pull_is_refused_and_asked_for_again(
    peer: ScriptedCluster, wrong: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [pulled(3, b"".join(ROWS)), wrong]
    peer.answers[RequestCode.PULL_MESSAGE] = lambda _: answers.pop() if answers else None
    with caplog.at_level(logging.WARNING), tiermq.connect(peer.address) as cluster:
        with cluster.consumer("g", topic="orders", start="first", idle_s=60) as consumer:
            got = [next(iter(consumer)).offset for _ in ROWS]
            until(lambda: any(ext["queueOffset"] == "3" for ext in peer.asked(RequestCode.PULL_MESSAGE)))
        assert got == [0, 1, 2]
    assert [ext["queueOffset"] for ext in peer.asked(RequestCode.PULL_MESSAGE)][:3] == ["0", "0", "3"]
    assert "cannot be pulled: " in caplog.text
    assert set(peer.commits) <= {0, 3}


def test_a_next_offset_a_little_beyond_a_stale_end_is_taken(peer: ScriptedCluster) -> None:
    """A broker may read more than there was when it looked for the end, and leave out what a filter does not pass."""
    peer.first(RequestCode.PULL_MESSAGE, pulled(40, b"".join(ROWS), most=1))
    with (
        tiermq.connect(peer.address) as cluster,
        cluster.consumer("g", topic="orders", start="first", idle_s=60) as consumer,
    ):
        assert [next(iter(consumer)).offset for _ in ROWS] == [0, 1, 2]
        until(lambda: any(ext["queueOffset"] == "40" for ext in peer.asked(RequestCode.PULL_MESSAGE)))


def test_answers_without_records_that_go_on_by_one_are_asked_for_more_and_more_seldom(
    peer: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    peer.answers[RequestCode.PULL_MESSAGE] = lambda ext: pulled(int(ext["queueOffset"]) + 1, b"", most=10_000)
    with tiermq.connect(peer.address) as cluster:
        consumer = cluster.consumer("g", topic="orders", start="first")
        with consumer:
            monkeypatch.setattr(asyncio, "sleep", noted)
            until(lambda: 1.0 in rests)


# Locks.


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("junk", [[{}], ["x"], [{"topic": "orders", "brokerName": "b", "queueId": "q"}], [7], "x"])
def test_a_lock_answer_that_is_none_is_asked_for_again(
    peer: ScriptedCluster, junk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_consumer, "LOCK_S", 0.01)
    granted = body({"lockOKMQSet": [{"topic": "orders", "brokerName": "b", "queueId": 0}]})
    wrong = body({"lockOKMQSet": junk})
    answers = [granted, wrong, granted, wrong, body({"lockOKMQSet": []})]
    peer.answers[RequestCode.LOCK_BATCH_MQ] = lambda _: answers.pop() if answers else granted
    with (
        tiermq.connect(peer.address) as cluster,
        cluster.consumer("g", topic="orders", start="first", ordered=True) as consumer,
    ):
        until(lambda: not answers and len(consumer.queues) == 1)


@pytest.mark.usefixtures("impatient")
def test_a_lock_of_another_queue_grants_nothing(peer: ScriptedCluster) -> None:
    other = body({"lockOKMQSet": [{"topic": "orders", "brokerName": "b", "queueId": 7}]})
    peer.answers[RequestCode.LOCK_BATCH_MQ] = lambda _: other
    with (
        tiermq.connect(peer.address) as cluster,
        cluster.consumer("g", topic="orders", start="first", ordered=True) as consumer,
    ):
        until(lambda: len(peer.asked(RequestCode.LOCK_BATCH_MQ)) >= 3)
        assert consumer.queues == []


# Offsets.


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("offset", [-5, MAX_OFFSET + 1, (1 << 63) - 1])
def test_a_committed_offset_that_no_queue_has_is_refused(
    peer: ScriptedCluster, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    peer.first(RequestCode.QUERY_CONSUMER_OFFSET, (0, {"offset": str(offset)}, b""))
    with (
        caplog.at_level(logging.WARNING),
        tiermq.connect(peer.address) as cluster,
        cluster.consumer("g", topic="orders", start="first"),
    ):
        until(lambda: peer.asked(RequestCode.PULL_MESSAGE))
    assert f"from 0 to {MAX_OFFSET}, found {offset}" in caplog.text
    assert peer.asked(RequestCode.PULL_MESSAGE)[0]["queueOffset"] == "0"


@pytest.mark.parametrize("offset", ["-5", str(1 << 70), str(MAX_OFFSET + 1), '"x"', "Infinity"])
def test_a_reset_to_an_offset_that_no_queue_has_is_refused(
    peer: ScriptedCluster, offset: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        tiermq.connect(peer.address) as cluster,
        cluster.consumer("g", topic="orders", start="first") as consumer,
    ):
        until(lambda: peer.asked(RequestCode.PULL_MESSAGE))
        for moved in (offset, "7"):
            row = f'{{"offsetTable":{{{{"brokerName":"b","queueId":0,"topic":"orders"}}:{moved}}}}}'
            peer.push(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"topic": "orders", "group": "g"}, row.encode())
        until(lambda: 7 in peer.commits)
        assert len(consumer.queues) == 1
    assert "request 220 failed: expected" in caplog.text
    assert set(peer.commits) <= {0, 7}


@pytest.mark.parametrize(
    "text",
    [
        '{"orders": {"b:0": Infinity}}',
        '{"orders": {"b:0": -1}}',
        f'{{"orders": {{"b:0": {MAX_OFFSET + 1}}}}}',
        '{"orders": {"b:0": true}}',
        '{"orders": {"b:0": 1.5}}',
        '{"orders": [1]}',
        "[" * 200_000,
        "",
    ],
)
def test_an_offset_file_that_is_none_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "offsets").write_text(text)
    with pytest.raises(BadConfig, match="expected a file of a broadcasting consumer's offsets .*Restore it, or remove"):
        OffsetFile(tmp_path / "offsets")


# Requests of brokers, and pops.


def test_a_reply_that_cannot_be_read_is_refused_and_the_connection_goes_on(peer: ScriptedCluster) -> None:
    with tiermq.connect(peer.address) as cluster, cluster.producer("p") as producer:
        producer.send(Message("orders", b"x"))
        count = len(peer.connections)
        data = json.dumps(
            {"code": 326, "opaque": 1, "flag": 0, "extFields": {"topic": "r", "properties": "a\x01\ud800\x02"}}
        ).encode()
        frame = (4 + len(data)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data
        for connection in peer.connections:
            connection.sendall(frame)
        assert producer.send(Message("orders", b"x")).offset == 1
        assert len(peer.connections) == count


@pytest.mark.parametrize("queue", ["x", "-1", "9" * 5000, "\u0664"])
def test_a_pop_with_a_start_of_no_queue_is_refused_in_words(peer: ScriptedCluster, queue: str) -> None:
    ext = {"startOffsetInfo": f"0 {queue} 1", "popTime": "1", "invisibleTime": "1", "reviveQid": "0"}
    peer.answers[RequestCode.POP_MESSAGE] = lambda _: (0, ext, ROWS[0])
    with (
        tiermq.connect(peer.address) as cluster,
        cluster.simple_consumer("g", topic="orders") as consumer,
        pytest.raises(RequestRefused, match="expected a queue's number in startOffsetInfo"),
    ):
        consumer.receive(wait_s=0)
