"""Numbered streams of messages that are checked as they come: constant memory, however long it lasts.

A producer owns a queue and numbers what it sends from 0; it sends a message again until it is acknowledged. A reader
follows the queue: numbers come in order, none is missing, and one comes again only if it was sent again.
"""

from __future__ import annotations

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

AGAIN = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR)
PULL_COUNT = 32
HOLD_MS = 1_000


@dataclass
class Tally:
    """What all threads did and found. Its lock guards it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ending: threading.Event = field(default_factory=threading.Event)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def count(self, what: str, amount: int = 1) -> None:
        with self.lock:
            self.counts[what] += amount

    def problem(self, text: str) -> None:
        with self.lock:
            self.problems.append(text)
        self.ending.set()


class Caller:
    """Asks one broker, on a connection that is made again when it was lost. Used by one thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client: BlockingClient | None = None

    def ask(self, command: RemotingCommand) -> RemotingCommand | None:
        """None when there was no answer: whether it was done is then open."""
        try:
            if self._client is None:
                self._client = BlockingClient("127.0.0.1", self._port, timeout_s=60.0)
            return self._client.request(command)
        except (PeerGone, RequestTimedOut):
            self.close()
            return None

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def send_until_stored(caller: Caller, command: RemotingCommand) -> tuple[RemotingCommand, bool]:
    """The answer, and whether the message was sent more than once. Raises AssertionError when it is refused."""
    again = False
    while True:
        answer = caller.ask(command)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            return answer, again
        if answer is not None and answer.code not in AGAIN:
            raise AssertionError(f"expected a send to be stored or tried again, found {answer}")
        again = True


def body_of(number: int, again: bool = False) -> bytes:
    """A number, and bytes enough to be a message: 100 to 2,000 of them."""
    return b"%d %d " % (number, again) + b"x" * (100 + number * 977 % 1_900)


class Stream:
    """One queue's producer and reader."""

    def __init__(self, topic: str, queue: int, port: int, tally: Tally) -> None:
        self.topic, self.queue = topic, queue
        self.sent = 0
        self._port = port
        self._tally = tally

    def produce(self, pace: Callable[[], bool]) -> None:
        """One message each time `pace` returns True, until it returns False."""
        caller = Caller(self._port)
        while pace():
            keys = f"KEYS\x01{self.topic}-{self.queue}-{self.sent}\x02"
            command = send_command(
                self.topic, body_of(self.sent), queue=self.queue, properties=f"{keys}WAIT\x01true\x02"
            )
            _, again = send_until_stored(caller, command)
            self._tally.count("sent_again", again)
            self._tally.count("acknowledged")
            self.sent += 1
        caller.close()

    def follow(self, group: str, is_end: Callable[[int], bool], counted: str) -> None:
        """Read from offset 0 until `is_end(next number)`; every number must come, in order."""
        caller = Caller(self._port)
        offset = number = 0
        while not is_end(number):
            answer = caller.ask(pull_command(group, self.topic, self.queue, offset))
            if answer is None or answer.code in (ResponseCode.PULL_NOT_FOUND, *AGAIN):
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise AssertionError(f"{self.topic} {self.queue} at {offset}: expected messages, found {answer}")
            for message in decode_records(bytes(answer.body)):
                found = int(message.body.split(b" ", 1)[0])
                if message.queue_offset != offset or found not in (number, number - 1):
                    raise AssertionError(
                        f"{self.topic} {self.queue}: expected number {number} at {offset}, found {found} at "
                        f"{message.queue_offset}"
                    )
                offset += 1
                number = max(number, found + 1)
                self._tally.count(counted)
        caller.close()


def pull_command(group: str, topic: str, queue: int, offset: int) -> RemotingCommand:
    """A pull that waits a second for news."""
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": queue, "queueOffset": offset, "maxMsgNums": PULL_COUNT,
        "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": HOLD_MS, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext={name: str(value) for name, value in fields.items()})
