"""One directory with everything in flight: a broker of RocketMQ and ours take turns, after a stop and after a kill.

The first broker is given messages of every kind, by the wire: plain ones with keys, a batch, delayed ones, timers, an
open transaction, popped ones of which some are acknowledged, ordered pops, and a group's offset. The second one must
have all of it, and finish what the first one began.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from broker.brokers import send_command
from broker.consuming import messages_of, pull_fields
from broker.delivery.transaction_peer import COMMIT, TransactionPeer
from broker.pop.pop_peer import Got, got_of, pop_fields, receipt_fields
from interop.rocketmq import BROKER_NAME, SMALL_FILES, Cluster, Unavailable, fetch, python_names
from servers.serving import Serving
from tiermq.broker.group.consumer_offsets import decode_offsets
from tiermq.broker.pop.order_infos import decode_order_infos
from tiermq.errors import RequestRefused
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode as Code
from tiermq.remoting.command import RemotingCommand
from waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]  # A real broker compares its whole wheel each second.

VERSIONS = ("5.3.3", "5.5.0")
REAL = {**SMALL_FILES, "timerWheelEnable": True}
TOPICS = ("normal", "batch", "delayed", "timed", "halves", "popped", "ordered", "left")
INVISIBLE_MS = 45_000
SETTLED_MS = 15_000
"""After which what was due has come, and what has not will not."""
POPPED, ACKED, ACKED_LATER = 10, (0, 4, 5), 7
REVIVE_QUEUES = 8
LEFT = REVIVE_QUEUES + 4
"""One is popped and acknowledged for each revive queue; then the others are popped, and left."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Wire:
    """One connection to either broker."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.client = BlockingClient(host, int(port), timeout_s=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.client.close()

    def ask(self, code: int, **ext: object) -> RemotingCommand:
        fields = {name: str(value) for name, value in ext.items()}
        return self.client.request(RemotingCommand(code, ext=fields), 60)

    def make(self, topic: str) -> None:
        fields = {"defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": "false"}
        assert self.ask(Code.UPDATE_AND_CREATE_TOPIC, topic=topic, topicFilterType="SINGLE_TAG", **fields).code == 0

    def send(self, topic: str, body: str, **properties: object) -> RemotingCommand:
        reported = {"UNIQ_KEY": f"U-{topic}-{body}", "WAIT": "true", **properties}
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in reported.items())
        answer = self.client.request(send_command(topic, body.encode(), properties=encoded), 60)
        assert answer.code == 0, answer
        return answer

    def end_of(self, topic: str) -> int:
        return int(self.ask(Code.GET_MAX_OFFSET, topic=topic, queueId=0).ext["offset"])

    def read(self, topic: str) -> list[str]:
        found: list[str] = []
        while len(found) < self.end_of(topic):
            fields = {**pull_fields(len(found)), "topic": topic, "consumerGroup": "G", "sysFlag": 4}
            answer = self.ask(Code.PULL_MESSAGE, **{**fields, "subscription": "*", "suspendTimeoutMillis": 0})
            found += [each.body.decode() for each in messages_of(answer)] if answer.code == 0 else []
        return found

    def keyed(self, topic: str, key: str) -> set[str]:
        answer = self.ask(Code.QUERY_MESSAGE, topic=topic, key=key, maxNum=32, beginTimestamp=0, endTimestamp=2**62)
        return {each.body.decode() for each in messages_of(answer)} if answer.code == 0 else set()

    def pop(self, topic: str, **changes: object) -> tuple[list[Got], dict[str, str]]:
        fields = {**pop_fields(), "topic": topic, "queueId": 0, "invisibleTime": INVISIBLE_MS}
        answer = self.ask(Code.POP_MESSAGE, **{**fields, **changes})
        return (got_of(answer, BROKER_NAME), answer.ext) if answer.code == 0 else ([], {})

    def ack(self, topic: str, got: Got) -> None:
        assert self.ask(Code.ACK_MESSAGE, **{**receipt_fields(got), "topic": topic}).code == 0


@dataclass(slots=True)
class Begun:
    """What the first broker was given, and when it is due."""

    popped: list[Got]
    left: list[Got]
    ordered: list[Got]
    half: RemotingCommand
    timers: dict[str, int]


def due_ms(got: Got) -> int:
    """When a message is given out again."""
    return int(got.receipt.split(" ")[1]) + INVISIBLE_MS


def begin(wire: Wire, store: Path, *, is_ours: bool) -> Begun:
    for topic in TOPICS:
        wire.make(topic)
    for number in range(5):
        wire.send("normal", f"n{number}", KEYS=f"key{number % 2}")
    elements = [BatchElement(0, b"b%d" % n, b"KEYS\x01bk%d\x02UNIQ_KEY\x01U-b%d\x02" % (n, n)) for n in range(4)]
    command = send_command("batch", encode_client_batch(elements), code=Code.SEND_BATCH_MESSAGE, batch=True)
    assert wire.client.request(command, 60).code == 0
    timers = {f"t{number}": now_ms() + INVISIBLE_MS + number * 700 for number in range(5)}
    for name, due_ms in timers.items():
        wire.send("timed", name, TIMER_DELIVER_MS=due_ms)
    for number in range(3):
        wire.send("delayed", f"d{number}", DELAY=4)
    with TransactionPeer(wire.address, now_ms=now_ms) as peer:
        half = peer.prepare("half", topic="halves", queue=0)

    def ends_at(topic: str, count: int) -> bool:
        return wire.end_of(topic) == count

    for topic, count in (("popped", POPPED), ("ordered", POPPED), ("left", LEFT)):
        for number in range(count):
            wire.send(topic, f"{topic}{number}")
        until(partial(ends_at, topic, count))
    for _ in range(REVIVE_QUEUES):
        wire.ack("left", wire.pop("left", maxMsgNums=1)[0][0])
    if is_ours:  # A broker that skips the first record behind what is done would skip what is popped next.
        until(lambda: len(offsets_in(store).get("rmq_sys_REVIVE_LOG_DefaultCluster@CID_RMQ_SYS_REVIVE_GROUP", {})) == 8)
    left, _ = wire.pop("left")
    assert len(left) == LEFT - REVIVE_QUEUES
    popped, _ = wire.pop("popped")
    ordered, _ = wire.pop("ordered", order="true", maxMsgNums=4)
    for number in ACKED:
        wire.ack("popped", popped[number])
    for got in ordered[:2]:
        wire.ack("ordered", got)
    commit = {"consumerGroup": "G", "topic": "normal", "queueId": 0, "commitOffset": 3}
    assert wire.ask(Code.UPDATE_CONSUMER_OFFSET, **commit).code == 0
    return Begun(popped, left, ordered, half, timers)


def offsets_in(store: Path) -> dict[str, dict[int, int]]:
    """What the offsets' file says; nothing while it is put in the place of an older one."""
    with suppress(FileNotFoundError, RequestRefused):
        return decode_offsets((store / "config" / "consumerOffset.json").read_bytes())[0]
    return {}


def await_written(store: Path) -> None:
    """Offsets and orders are written now and then: until what a kill would lose is in their files."""
    wanted = {"popped@G": {0: POPPED}, "left@G": {0: LEFT}, "ordered@G": {0: 2}, "normal@G": {0: 3}}

    def is_written() -> bool:
        with suppress(FileNotFoundError, RequestRefused):
            orders = decode_order_infos((store / "config" / "consumerOrderInfo.json").read_bytes())
            info = orders.get(("ordered", "G", 0))
            return wanted.items() <= offsets_in(store).items() and info is not None and len(info.acked) == 2
        return False

    until(is_written)


def finish(wire: Wire, begun: Begun) -> None:
    wire.ack("popped", begun.popped[ACKED_LATER])
    is_late = now_ms() >= due_ms(begun.popped[ACKED_LATER])  # On a busy machine: then it comes, or does not.
    assert wire.read("normal") == [f"n{number}" for number in range(5)]
    assert wire.keyed("normal", "key0") == {"n0", "n2", "n4"}
    assert wire.keyed("batch", "bk1") == {"b1"}
    assert wire.read("batch") == [f"b{number}" for number in range(4)]
    asked = {"consumerGroup": "G", "topic": "normal", "queueId": 0}
    assert wire.ask(Code.QUERY_CONSUMER_OFFSET, **asked).ext["offset"] == "3"
    with TransactionPeer(wire.address, now_ms=now_ms) as peer:
        assert peer.end(begun.half, COMMIT, topic="halves").code == 0
    until(lambda: wire.end_of("halves") == 1)
    back = {number for number in range(POPPED) if number not in {*ACKED, ACKED_LATER}}
    expected = {
        "popped": {f"popped{number}" for number in back},
        "left": {f"left{number}" for number in range(REVIVE_QUEUES, LEFT)},
        "ordered": {f"ordered{number}" for number in range(2, POPPED)},
    }
    came, counts = come_back(wire, begun, expected)
    either = {f"popped{ACKED_LATER}"} if is_late else set()
    assert sorted(set(came["popped"]) - either) == sorted(expected["popped"])
    assert len(came["popped"]) == len(set(came["popped"])), "it came twice"
    assert sorted(came["left"]) == sorted(expected["left"])
    assert came["ordered"] == [f"ordered{number}" for number in range(2, POPPED)]
    assert {"0 qo0%2 1", "0 qo0%3 1"} <= set(counts.split(";")), "those that were given out before are counted"
    until(lambda: wire.end_of("timed") >= 5 and wire.end_of("delayed") >= 3)
    assert sorted(wire.read("timed")) == sorted(begun.timers)
    assert sorted(wire.read("delayed")) == ["d0", "d1", "d2"]


def come_back(wire: Wire, begun: Begun, expected: dict[str, set[str]]) -> tuple[dict[str, list[str]], str]:
    """What is given out again, until all of it is and nothing more can come; and what is said of ordered ones."""
    came: dict[str, list[str]] = {topic: [] for topic in expected}
    counts = ""
    due = {topic: due_ms(getattr(begun, topic)[0]) for topic in came}
    settled_ms = max(now_ms(), *due.values()) + SETTLED_MS
    while now_ms() < settled_ms or any(bodies - set(came[topic]) for topic, bodies in expected.items()):
        for topic, found in came.items():
            got, ext = wire.pop(topic, order=str(topic == "ordered").lower())
            assert not got or now_ms() >= due[topic], f"{topic}: given out again before its time"
            assert topic == "ordered" or {each.message.reconsume_times for each in got} <= {1}
            for each in got:
                found.append(each.body)
                wire.ack(topic, each)
            counts = counts or ext.get("orderCountInfo", "")
        time.sleep(0.2)
    return came, counts


@contextmanager
def real_broker(version: str, store: Path, home: Path, end: str) -> Iterator[Wire]:
    try:
        distribution = fetch(version)
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ {version} here: {reason}")
    with Cluster(distribution, store, home, REAL) as cluster:
        with Wire(cluster.broker_address) as wire:
            yield wire
        if end == "killed":
            cluster.crash()


@contextmanager
def our_broker(store: Path, end: str) -> Iterator[Wire]:
    with Serving(store, **python_names(SMALL_FILES), broker_name=BROKER_NAME) as served:
        with Wire(served.address) as wire:
            yield wire
        if end == "killed":
            served.kill()


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_rocketmq_began_ours_finishes(version: str, end: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with real_broker(version, store, tmp_path / "home", end) as wire:
        begun = begin(wire, store, is_ours=False)
        await_written(store)
    with our_broker(store, "stopped") as wire:
        finish(wire, begun)


@pytest.mark.parametrize("end", ["stopped", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_ours_began_rocketmq_finishes(version: str, end: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with our_broker(store, end) as wire:
        begun = begin(wire, store, is_ours=True)
        await_written(store)
    with real_broker(version, store, tmp_path / "home", "stopped") as wire:
        finish(wire, begun)
