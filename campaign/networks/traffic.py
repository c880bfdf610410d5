"""Producers and consumers that live with any network, and remember what they were promised.

A producer keeps at a message until it is acknowledged; what it sent more than once may be stored more than once. A
consumer goes through its queue from the start and must see every offset once, in order. No client waits by time: each
request ends by its answer, its end or its own timeout, and the observer waits for what has happened since.
"""

from __future__ import annotations

import random
import ssl
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

TOPIC, GROUP = "Traffic", "travellers"
QUEUES = 3
TIMEOUT_S = 0.6
HOLD_MS = 300
BODY_BYTES = (10, 10, 10, 900, 9_000, 300_000)
AGAIN = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR)
Place = tuple[int, int]


@dataclass
class Ledger:
    """What was promised and seen, by all threads; guarded by its lock."""

    lock: threading.Condition = field(default_factory=threading.Condition)
    ending: threading.Event = field(default_factory=threading.Event)
    acknowledged: dict[bytes, Place] = field(default_factory=dict)
    attempts: Counter[bytes] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    """By who: acknowledgements and errors of each, whatever shows that it did not stop."""
    seen: dict[Place, bytes] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def note(self, who: str) -> None:
        with self.lock:
            self.happened[who] += 1
            self.lock.notify_all()

    def fail(self, problem: str) -> None:
        with self.lock:
            self.problems.append(problem)
            self.lock.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until it is so, or something went wrong."""
        with self.lock:
            self.lock.wait_for(lambda: condition() or bool(self.problems))

    def wait_progress(self, who: list[str], count: int) -> None:
        """Until each of them has done so much since now."""
        with self.lock:
            before = dict(self.happened)
        self.wait_for(lambda: all(self.happened[name] >= before.get(name, 0) + count for name in who))


class Traveller:
    """Asks over a network that fails: by a new connection after each failure."""

    def __init__(self, name: str, port: int, ledger: Ledger, tls: ssl.SSLContext | None = None) -> None:
        self.name = name
        self._port = port
        self._ledger = ledger
        self._tls = tls
        self._client: BlockingClient | None = None

    def ask(self, command: RemotingCommand, timeout_s: float = TIMEOUT_S) -> RemotingCommand | None:
        """None when there was no answer: whether it was done is then open."""
        try:
            if self._client is None:
                self._client = BlockingClient("127.0.0.1", self._port, tls=self._tls, timeout_s=TIMEOUT_S)
            return self._client.request(command, timeout_s)
        except (PeerGone, RequestTimedOut) as error:
            with self._ledger.lock:
                self._ledger.errors[type(error).__name__] += 1
            self.close()
            self._ledger.note(self.name)
            return None

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def started(work: Callable[[], None], name: str, ledger: Ledger) -> threading.Thread:
    """A thread whose failure is a problem with its words."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            ledger.fail(f"{name}: {error!r}")

    thread = threading.Thread(target=run, name=name)
    thread.start()
    return thread


def produce(traveller: Traveller, queue: int, ledger: Ledger, chance: random.Random) -> None:
    number = 0
    while not ledger.ending.is_set():
        body = f"{traveller.name}/{number}/".encode().ljust(chance.choice(BODY_BYTES), b"x")
        place = _send(traveller, body, queue, ledger)
        if place is not None:
            with ledger.lock:
                ledger.acknowledged[body] = place
            ledger.note(traveller.name)
        number += 1
    traveller.close()


def _send(traveller: Traveller, body: bytes, queue: int, ledger: Ledger) -> Place | None:
    while True:
        with ledger.lock:
            ledger.attempts[body] += 1
        answer = traveller.ask(send_command(TOPIC, body, queue=queue, properties="WAIT\x01true\x02"))
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            return int(answer.ext["queueId"]), int(answer.ext["queueOffset"])
        if answer is not None and answer.code not in AGAIN:
            raise AssertionError(f"expected a send to be stored or tried again, found {answer}")
        if ledger.ending.is_set():
            return None  # Nothing was promised of it.


def consume(traveller: Traveller, queue: int, ledger: Ledger, end_of: Callable[[int], int | None]) -> None:
    """Until the end of the queue, once `end_of` returns it."""
    offset = 0
    while (end := end_of(queue)) is None or offset < end:
        answer = traveller.ask(pull_command(queue, offset), TIMEOUT_S + HOLD_MS / 1000)
        if answer is None:
            continue
        if answer.code == ResponseCode.SUCCESS:
            for message in decode_records(bytes(answer.body)):
                if message.queue_offset != offset:
                    raise AssertionError(f"queue {queue}: expected offset {offset}, found {message.queue_offset}")
                with ledger.lock:
                    ledger.seen[queue, offset] = message.body
                offset += 1
        elif answer.code not in (ResponseCode.PULL_NOT_FOUND, *AGAIN):
            raise AssertionError(f"queue {queue}, offset {offset}: expected messages or none yet, found {answer}")
        ledger.note(traveller.name)
    traveller.close()


def pull_command(queue: int, offset: int) -> RemotingCommand:
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": queue, "queueOffset": offset, "maxMsgNums": 8, "sysFlag": 6,
        "commitOffset": 0, "suspendTimeoutMillis": HOLD_MS, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext={name: str(value) for name, value in fields.items()})


def judge(ledger: Ledger, stored: dict[Place, bytes], ends: dict[int, int]) -> list[str]:
    """What does not fit between what was promised, what was seen and what is stored.

    Consumers went up to `ends`: a send whose client gave up may arrive later.
    """
    wrong = list(ledger.problems)
    for body, place in ledger.acknowledged.items():
        if stored.get(place) != body:
            wrong.append(f"acknowledged at {place} and not there: {body[:40]!r}")
    copies = Counter(stored.values())
    for body, count in copies.items():
        if count > ledger.attempts[body]:
            wrong.append(f"stored {count} times, sent {ledger.attempts[body]} times: {body[:40]!r}")
    for place, body in ledger.seen.items():
        if stored.get(place) != body:
            wrong.append(f"seen at {place} and not there: {body[:40]!r}")
    missed = [place for place in stored if place not in ledger.seen and place[1] < ends[place[0]]]
    return wrong + [f"stored at {place} and never given to its consumer" for place in missed]
