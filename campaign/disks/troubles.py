"""A real broker on a real file system in trouble under load: no room, failing calls, read-only all at once.

Producers keep at a message until it is acknowledged. Trouble comes after some acknowledgements, and lasts until some
sends were refused, or the broker has ended. Then it is over: there is room again, calls work, the file system was
checked and mounted again; the broker is killed and started where its promise asks for that. In the end everything
acknowledged is there, once, at its place, and consumers could read it.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker.soaking import QUEUES, TOPIC, Ledger, consume, end_offsets, guarded, produce
from campaign.disks.preload import Calls, Faults, missing_compiler
from campaign.environment import environment
from campaign.kills.brokers import PRODUCERS, judged
from campaign.part import Finding, Outcome
from campaign.power_cuts.machine import Machine, missing_tools, run
from servers.serving import Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand

TROUBLES = 3
ACKNOWLEDGEMENTS_MAX = 200
REFUSALS = 3
assert REFUSALS < PRODUCERS
DISK_BYTES = 96 << 20
SMALL = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 500,
    "clean_file_forcibly_enable": False,  # Or the oldest files go, as RocketMQ's do.
}
PROMISE = "What was acknowledged under SYNC_FLUSH is there after trouble with the disk."
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong, and after how many more acknowledgements."""

    kind: str
    after: int

    def __str__(self) -> str:
        return f"{self.kind} after {self.after} more acknowledgements"


FAULTS = {
    "syncs fail": (Calls.SYNC, errno.EIO, 1),
    "every third sync fails": (Calls.SYNC, errno.EIO, 3),
    "writes fail": (Calls.WRITE, errno.EIO, 2),
    "writes are short": (Calls.SHORT, 0, 1),
    "blocks cannot be had": (Calls.RESERVE, errno.ENOSPC, 1),
}


class TroublePart:
    """`kinds` of trouble on one sort of file system."""

    def __init__(self, name: str, title: str, kinds: list[str], rounds: int = 30) -> None:
        self.name = name
        self.title = title
        self.rounds = rounds
        self.kinds = kinds

    def missing(self) -> str:
        return missing_tools() or (missing_compiler() if set(self.kinds) & FAULTS.keys() else "")

    def round(self, seed: int, scratch: Path) -> Outcome:
        return self._run(seed, scratch, TROUBLES)

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """The fewest first troubles after which it is found."""
        for count in range(1, TROUBLES + 1):
            place = scratch / f"{count}-troubles"
            place.mkdir()
            if found := self._run(seed, place, count).findings:
                return found[0]
        return None

    def _run(self, seed: int, scratch: Path, count: int) -> Outcome:
        chance = random.Random(seed)
        troubles = [Trouble(chance.choice(self.kinds), chance.randrange(1, ACKNOWLEDGEMENTS_MAX)) for _ in range(count)]
        outcome = Outcome()
        problems = Round(scratch).run(troubles, outcome)
        steps = tuple(map(str, troubles))
        outcome.findings += [Finding(promise, found, seed, steps) for promise, found in problems]
        return outcome


class Round:
    def __init__(self, scratch: Path) -> None:
        self.machine = Machine(scratch, image_bytes=DISK_BYTES)
        self.faults = Faults(scratch, self.machine.root)
        self.ledger = Ledger()
        self.problems: list[tuple[str, str]] = []
        self.last_synced: set[bytes] = set()

    def run(self, troubles: list[Trouble], outcome: Outcome) -> list[tuple[str, str]]:
        ledger, ends = self.ledger, dict[int, int]()
        with self.machine.running(), ExitStack() as stack:
            self._make_topic()
            stack.enter_context(environment(self.faults.environment))
            broker = Serving(self.machine.root / "store", flush_disk_type="SYNC_FLUSH", **SMALL)
            run("sync", "--file-system", self.machine.root)  # What is ours of it, and not the broker's.
            stack.enter_context(_ended(broker))
            broker.start()
            port = broker.port
            ledger.up.set()
            producers = [guarded(lambda name=name: produce(name, port, ledger), ledger) for name in range(PRODUCERS)]  # type: ignore[misc]
            try:
                for trouble in troubles:
                    ledger.wait_acknowledged(trouble.after)
                    self._suffer(trouble, broker)
                    outcome.counts["troubles"] += 1
                ledger.wait_acknowledged(10)
            except BaseException as error:
                ledger.note(f"the round was given up: {error}")
                raise
            finally:
                ledger.ending.set()
                ledger.up.set()
                for thread in producers:
                    thread.join()
            ends.update(end_offsets(port))
            consumers = [guarded(lambda q=q: consume(q, port, ledger, ends.get), ledger) for q in range(QUEUES)]  # type: ignore[misc]
            for thread in consumers:
                thread.join()
        self._excuse(outcome)
        outcome.counts["faults_injected"] += self.faults.happened
        outcome.counts["messages_acknowledged"] += len(ledger.acknowledged)
        outcome.counts["messages_checked"] += len(ledger.seen)
        return [
            *self.problems,
            *(("Producers and consumers are served.", found) for found in ledger.problems),
        ] or judged(ledger)

    def _excuse(self, outcome: Outcome) -> None:
        """ext4 loses what it has said to be synced right before it aborts (see docs/guarantees.md, not promised)."""
        ledger = self.ledger
        lost = [body for body in self.last_synced if ledger.seen.get(ledger.acknowledged[body]) != body]
        for body in lost:
            del ledger.acknowledged[body]
        outcome.counts["lost_by_the_file_system"] += len(lost)

    def _make_topic(self) -> None:
        config = self.machine.root / "store" / "config"
        config.mkdir(parents=True)
        table = {TOPIC: TopicConfig(TOPIC, QUEUES, QUEUES)}
        (config / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))

    def _suffer(self, trouble: Trouble, broker: Serving) -> None:
        if trouble.kind == "no room":
            self._fill(broker)
        elif trouble.kind == "read-only":
            self._break(broker)
        else:
            self._fail(trouble.kind, broker)

    def _refused(self, broker: Serving, before: int) -> None:
        """Until some more sends than before were not acknowledged at once, or the broker has ended.

        A producer keeps at one message: there are never more refused ones than producers.
        """
        assert broker.process is not None
        while len(self.ledger.repeated) < before + REFUSALS and broker.process.poll() is None:
            time.sleep(_POLL_S)

    def _fill(self, broker: Serving) -> None:
        """Every block that is left, taken, and given back."""
        before = len(self.ledger.repeated)
        ballast = self.machine.root / "ballast"
        with ballast.open("wb") as file:
            step, size = 1 << 20, 0
            while step >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
                except OSError:
                    step //= 2
        self._refused(broker, before)
        ballast.unlink()
        self._must_live("a full disk", broker)

    def _fail(self, kind: str, broker: Serving) -> None:
        calls, error, every = FAULTS[kind]
        happened, refused = self.faults.happened, len(self.ledger.repeated)
        self.faults.fail(calls, error, every)
        if calls is Calls.SYNC:
            self._refused(broker, refused)  # For good: nothing is trusted after a failed sync.
        else:
            while self.faults.happened == happened and len(self.ledger.repeated) == refused:
                if calls is not Calls.RESERVE:
                    self._make_it_write(broker)
                time.sleep(_POLL_S)
        self.faults.heal()
        self._must_live(kind, broker)
        if calls is Calls.SYNC or calls is Calls.RESERVE or calls is Calls.WRITE:
            self._restart(broker)

    def _make_it_write(self, broker: Serving) -> None:
        """Messages go by the map; settings are written. Whether a topic can be made is open while writes fail."""
        queues = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        fields = {"topic": f"made-{self.faults.happened}", "defaultTopic": "TBW102", **queues}
        with BlockingClient("127.0.0.1", broker.port, timeout_s=30.0) as client:
            client.request(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields))

    def _break(self, broker: Serving) -> None:
        """As the kernel does when it meets an error in the file system. The broker may end: its maps are gone."""
        before = len(self.ledger.repeated)
        self.machine.remount_broken()
        self._refused(broker, before)
        self.ledger.up.clear()
        broker.kill()
        newest = {place[0]: body for body, place in self.ledger.acknowledged.items()}
        self.last_synced.update(newest.values())  # One of each producer: a queue is one producer's.
        self.machine.repaired()
        broker.start()
        self.ledger.up.set()

    def _restart(self, broker: Serving) -> None:
        self.ledger.up.clear()
        broker.kill()
        broker.start()
        self.ledger.up.set()

    def _must_live(self, what: str, broker: Serving) -> None:
        assert broker.process is not None
        if (code := broker.process.poll()) is not None:
            self.problems.append((f"A broker outlives {what}.", f"it ended with {code}: {broker.log()[-1_500:]}"))
            self.ledger.up.clear()
            broker.kill()
            broker.start()
            self.ledger.up.set()


@contextmanager
def _ended(broker: Serving) -> Iterator[None]:
    try:
        yield
    finally:
        broker.kill()
