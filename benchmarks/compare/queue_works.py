"""Many queues: 4,000 topics of 4, as an operator's broker has them. What they cost at a start, at rest, on the disk.

Each broker makes its queues itself, by a send to each, and runs as in `process_works`. A start is timed as there: from
the process to the first accepted message. Before a start after SIGKILL every queue gets a message, so that units of
all of them may be missing.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import process_tree
from benchmarks.compare.broker_process import (
    RETRY_S,
    BrokerProcess,
    ask,
    make_topics,
    name_server,
    send_of,
    topic_end,
)
from benchmarks.compare.network_works import PATIENT
from benchmarks.compare.peer_process import PeerFailed, distribution
from benchmarks.compare.process_works import NOTES, Notes
from benchmarks.compare.work import ROCKETMQ, TIERMQ, Goal, Kind, Place, Sides, Work
from benchmarks.report import Round
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import RemotingCommand

GROUP = "queues"
TOPICS, TOPIC_QUEUES = 4_000, 4
QUICK_TOPICS = 100
OPEN_MAX = 64
PATIENCE_S = 60.0
REST_S, LOOK_S = 15.0, 20.0
"""A broker that has just started rests so long before it is looked at, and is looked at so long."""
QUICK_S = 1.0
QUEUE_DIRECTORY = "consumequeue"


class ManyQueues:
    """One broker over a store with many queues."""

    def __init__(self, side: str, place: Path, address: str, topics: int) -> None:
        self.side = side
        self.queues = [(f"Many-{number % topics}", number // topics) for number in range(topics * TOPIC_QUEUES)]
        self.store = place / f"many-{side}"
        make_topics(self.store, dict.fromkeys((topic for topic, _ in self.queues), TOPIC_QUEUES))
        self._place, self._address = place, address
        with self.started() as broker:
            self.send_to_all(broker)

    def _new(self) -> BrokerProcess:
        patience = PATIENT if self.side == ROCKETMQ else {}
        return BrokerProcess(self.side, distribution(), self._place, self._address, self.store, **patience)

    def started(self) -> BrokerProcess:
        """Once it has accepted a message."""
        broker = self._new()
        broker.start()
        return broker

    def timed_start(self) -> tuple[BrokerProcess, Round]:
        broker = self._new()
        seconds = broker.start()
        return broker, Round(1, 0, seconds, process_tree.cpu_seconds(broker.pid))

    def send_to_all(self, broker: BrokerProcess) -> None:
        """A message to each queue; afterwards each of them can be read, and counts one more."""
        topic, _ = self.queues[-1]
        wanted = 1 + topic_end(broker.address, topic, TOPIC_QUEUES) // TOPIC_QUEUES
        waiting: deque[Future[RemotingCommand]] = deque()
        with BlockingClient(*broker.address, timeout_s=PATIENCE_S) as client:
            for name, queue_id in self.queues:
                waiting.append(client.request_later(send_of(name, b"m" * 128, queue_id), timeout_s=PATIENCE_S))
                if len(waiting) >= OPEN_MAX:
                    _require(broker, waiting.popleft().result())
            for each in waiting:
                _require(broker, each.result())
        deadline_s = time.monotonic() + PATIENCE_S
        while topic_end(broker.address, topic, TOPIC_QUEUES) < wanted * TOPIC_QUEUES:
            if time.monotonic() > deadline_s:
                raise PeerFailed(f"{broker.name}: expected {wanted} messages in each queue of {topic}, found less")
            time.sleep(RETRY_S)

    def require_whole(self, broker: BrokerProcess, each: int) -> None:
        """Raises PeerFailed unless some queues, from the first to the last, hold so many messages at least."""
        for topic, _ in self.queues[:: max(1, len(self.queues) // 16)]:
            found = topic_end(broker.address, topic, TOPIC_QUEUES)
            if found < each * TOPIC_QUEUES:
                raise PeerFailed(f"{broker.name}: expected {each * TOPIC_QUEUES} messages in {topic}, found {found}")


def _require(broker: BrokerProcess, answer: RemotingCommand) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise PeerFailed(f"{broker.name}: expected a message to be taken, found {answer.code}: {answer.remark}")


def _both(
    place: Place, directory: Path, stack: ExitStack, of: Callable[[ManyQueues, Notes], Callable[[], Round]]
) -> Sides:
    address = name_server(stack, distribution(), directory)
    topics = QUICK_TOPICS if place.quick else TOPICS
    notes: Notes = {**NOTES, "topics": topics, "queues of each": TOPIC_QUEUES}
    sides = (TIERMQ, ROCKETMQ)
    return Sides({side: of(ManyQueues(side, directory, address, topics), notes) for side in sides}, notes=notes)


def open_start_clean(place: Place, stack: ExitStack) -> Sides:
    """Seconds of a round: the start of a broker that was stopped."""

    def of(many: ManyQueues, _notes: Notes) -> Callable[[], Round]:
        def run() -> Round:
            broker, done = many.timed_start()
            with broker:
                many.require_whole(broker, 1)
            return done

        return run

    return _both(place, place.directory, stack, of)


def open_start_killed(place: Place, stack: ExitStack) -> Sides:
    """Seconds of a round: the start of a broker that was killed after a message to each of its queues."""

    def of(many: ManyQueues, _notes: Notes) -> Callable[[], Round]:
        counts = itertools.count(2)

        def run() -> Round:
            broker = many.started()
            many.send_to_all(broker)
            broker.kill()
            broker, done = many.timed_start()
            with broker:
                many.require_whole(broker, next(counts))
            return done

        return run

    return _both(place, place.directory, stack, of)


def open_idle(a_second: int, place: Place, stack: ExitStack) -> Sides:
    """Processor time of a round: a broker that has been up for a while, and gets so many messages a second."""
    rest_s, look_s = (QUICK_S, QUICK_S) if place.quick else (REST_S, LOOK_S)

    def of(many: ManyQueues, _notes: Notes) -> Callable[[], Round]:
        broker = stack.enter_context(many.started())
        time.sleep(rest_s)
        queues = itertools.cycle(many.queues)

        def run() -> Round:
            spent, began_s = process_tree.cpu_seconds(broker.pid), time.monotonic()
            for second in itertools.count(1):
                for topic, queue_id in itertools.islice(queues, a_second):
                    _require(broker, ask(broker.address, send_of(topic, b"t", queue_id)))
                time.sleep(max(0.0, began_s + second - time.monotonic()))
                if second >= look_s:
                    break
            return Round(1, 0, time.monotonic() - began_s, process_tree.cpu_seconds(broker.pid) - spent)

        return run

    return _both(place, place.directory, stack, of)


def open_disk(place: Place, stack: ExitStack) -> Sides:
    """Bytes of a round: blocks of the queues' files, which a file system on a disk has. Those of directories, of which
    RocketMQ's layout needs one for each queue, are in the notes.
    """

    def of(many: ManyQueues, notes: Notes) -> Callable[[], Round]:
        def run() -> Round:
            began_s = time.monotonic()
            files, directories = blocks_below(many.store / QUEUE_DIRECTORY)
            notes[f"{many.side} bytes of directories, of a queue"] = directories // len(many.queues)
            return Round(len(many.queues), files, time.monotonic() - began_s, 0.0)

        return run

    return _both(place, place.disk, stack, of)


def blocks_below(directory: Path) -> tuple[int, int]:
    """Bytes of the blocks of all files below, and of all directories."""
    files = directories = 0
    for parent, _, names in os.walk(directory):
        directories += os.stat(parent).st_blocks * 512
        files += sum(os.stat(os.path.join(parent, name)).st_blocks * 512 for name in names)
    return files, directories


_SIZE = f"{TOPICS:,} topics of {TOPIC_QUEUES} queues"
WORKS = [
    Work(
        "queues_start_clean", GROUP, f"Start to the first accepted message, {_SIZE}, closed cleanly",
        open_start_clean, kind=Kind.SECONDS, goal=Goal(own=1.0), grows=False, rounds_max=5, needs_warmup=False,
    ),
    Work(
        "queues_start_killed", GROUP, f"Start to the first accepted message, {_SIZE}, after SIGKILL",
        open_start_killed, kind=Kind.SECONDS, goal=Goal(own=2.0), grows=False, rounds_max=5, needs_warmup=False,
    ),
    Work(
        "queues_idle", GROUP, f"Processor time of a broker with {_SIZE} that gets nothing",
        partial(open_idle, 0), kind=Kind.PERCENT, goal=Goal(own=1.0), grows=False,
        rounds_max=3, needs_warmup=False,
    ),
    Work(
        "queues_trickle", GROUP, f"Processor time of a broker with {_SIZE} that gets a message a second",
        partial(open_idle, 1), kind=Kind.PERCENT, goal=Goal(own=1.0), grows=False,
        rounds_max=3, needs_warmup=False,
    ),
    Work(
        "queues_disk", GROUP, f"Disk of a queue with one message, {_SIZE}",
        open_disk, kind=Kind.DISK, goal=Goal(own=8192), grows=False, rounds_max=1, needs_warmup=False,
    ),
]  # fmt: skip
