"""Producers and consumers that live through restarts of their broker, and remember what they were promised.

A producer sends one numbered message after the other and keeps at one until it is acknowledged: what it sent twice for
want of an answer may be stored twice, and nothing else. A consumer keeps its place while it lives, as RocketMQ's do,
and commits it as it goes. Both wait for the broker with an event, never by time.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.brokers import send_command
from tiermq.errors import PeerGone, RequestTimedOut
from tiermq.message.record import decode_records
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

TOPIC = "Soak"
GROUP = "soakers"
QUEUES = 4
AGAIN = (
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.FLUSH_DISK_TIMEOUT,  # Stored, and nobody knows whether durably: a slow disk is no lost message.
)
Place = tuple[int, int]


@dataclass
class Ledger:
    """What was promised and what was seen, by all threads. Its lock guards it."""

    lock: threading.Condition = field(default_factory=threading.Condition)
    up: threading.Event = field(default_factory=threading.Event)
    ending: threading.Event = field(default_factory=threading.Event)
    acknowledged: dict[bytes, Place] = field(default_factory=dict)
    repeated: set[bytes] = field(default_factory=set)
    """Sent more than once, because no answer told what had become of it."""
    seen: dict[Place, bytes] = field(default_factory=dict)
    deliveries: Counter[Place] = field(default_factory=Counter)
    committed: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def note(self, problem: str) -> None:
        with self.lock:
            self.problems.append(problem)
            self.lock.notify_all()

    def wait_acknowledged(self, more: int) -> None:
        """Until so many more messages were acknowledged, or something went wrong."""
        with self.lock:
            goal = len(self.acknowledged) + more
            self.lock.wait_for(lambda: len(self.acknowledged) >= goal or self.problems)


class Caller:
    """Asks a broker that comes and goes."""

    def __init__(self, port: int, ledger: Ledger) -> None:
        self._port = port
        self._ledger = ledger
        self._client: BlockingClient | None = None

    def ask(self, command: RemotingCommand) -> RemotingCommand | None:
        """None when there was no answer: whether it was done is then open."""
        try:
            if self._client is None:
                self._client = BlockingClient("127.0.0.1", self._port, timeout_s=30.0)
            return self._client.request(command)
        except (PeerGone, RequestTimedOut):
            self.close()
            self._ledger.up.wait()
            return None

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def guarded(work: Callable[[], None], ledger: Ledger) -> threading.Thread:
    """A thread whose failure ends the soak with its words."""

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - told to the thread that judges
            ledger.note(f"{threading.current_thread().name}: {error!r}")

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def produce(name: int, port: int, ledger: Ledger) -> None:
    caller = Caller(port, ledger)
    number = 0
    while not ledger.ending.is_set():
        body = b"%d of producer %d " % (number, name) + b"x" * (number * 37 % 900)
        place = _send(caller, body, name % QUEUES, ledger)
        with ledger.lock:
            ledger.acknowledged[body] = place
            ledger.lock.notify_all()
        number += 1
    caller.close()


def _send(caller: Caller, body: bytes, queue: int, ledger: Ledger) -> Place:
    while not ledger.problems:
        answer = caller.ask(send_command(TOPIC, body, queue=queue, properties="WAIT\x01true\x02"))
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            return int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        if answer is not None and answer.code not in AGAIN:
            raise AssertionError(f"expected a send to be stored or to be tried again, found {answer}")
        with ledger.lock:
            ledger.repeated.add(body)
    raise AssertionError("given up, because of what went wrong elsewhere")


def consume(queue: int, port: int, ledger: Ledger, end_of: Callable[[int], int | None]) -> None:
    """Until the queue's end, once `end_of` says where that is."""
    caller = Caller(port, ledger)
    offset = 0
    while not ledger.problems and ((end := end_of(queue)) is None or offset < end):
        answer = caller.ask(_pull(queue, offset))
        if answer is None:
            continue
        if answer.code == ResponseCode.SUCCESS:
            offset = _take(queue, offset, bytes(answer.body), ledger)
            if caller.ask(_commit(queue, offset)) is not None:
                with ledger.lock:
                    ledger.committed[queue] = offset
        elif answer.code not in (ResponseCode.PULL_NOT_FOUND, *AGAIN):
            raise AssertionError(f"queue {queue}, offset {offset}: expected messages or none yet, found {answer}")
    caller.close()


def _take(queue: int, offset: int, body: bytes, ledger: Ledger) -> int:
    for message in decode_records(body):
        if message.queue_offset != offset:
            raise AssertionError(f"queue {queue}: expected offset {offset}, found {message.queue_offset}")
        place = (queue, offset)
        with ledger.lock:
            if ledger.seen.setdefault(place, message.body) != message.body:
                raise AssertionError(f"{place}: expected the message that was there before, found another")
            ledger.deliveries[place] += 1
        offset += 1
    return offset


def _pull(queue: int, offset: int) -> RemotingCommand:
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": queue, "queueOffset": offset, "maxMsgNums": 32, "sysFlag": 6,
        "commitOffset": 0, "suspendTimeoutMillis": 1_000, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext={name: str(value) for name, value in fields.items()})


def _commit(queue: int, offset: int) -> RemotingCommand:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue, "commitOffset": offset}
    return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext={name: str(value) for name, value in fields.items()})


def committed_offset(queue: int, port: int) -> int:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "setZeroIfNotFound": "false"}
    with BlockingClient("127.0.0.1", port, timeout_s=30.0) as client:
        answer = client.request(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext=fields))
    return int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else 0


def end_offsets(port: int) -> dict[int, int]:
    """The end of each queue, once everything that was stored is in its queue: a full disk holds that up."""
    with BlockingClient("127.0.0.1", port, timeout_s=30.0) as client:
        while _behind_bytes(client) > 0:
            pass
        return {queue: _end_offset(queue, client) for queue in range(QUEUES)}


def _behind_bytes(client: BlockingClient) -> int:
    info = json.loads(bytes(client.request(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)).body))
    return int(info["table"]["dispatchBehindBytes"])


def _end_offset(queue: int, client: BlockingClient) -> int:
    fields = {"topic": TOPIC, "queueId": str(queue)}
    return int(client.request(RemotingCommand(RequestCode.GET_MAX_OFFSET, ext=fields)).ext["offset"])
