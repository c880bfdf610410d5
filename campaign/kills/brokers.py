"""Brokers that are killed: `tiermq serve`, alone or with a tier in SeaweedFS, which is killed as well.

Producers keep at a message until it is acknowledged, consumers keep their places while they live (`broker.soaking` of
the tests). A killed broker is started again, at once or a few acknowledgements later. At the end everything
acknowledged was read, once, in order, at its place; with a tier, `tier verify` is clean, and a broker whose disk is
lost reads all of it from the tier alone.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from broker.soaking import QUEUES, TOPIC, Ledger, consume, end_offsets, guarded, produce
from campaign.environment import environment
from campaign.part import Finding, Outcome
from servers.seaweedfs import SeaweedFS
from servers.seaweedfs import missing as missing_server
from servers.serving import SIZES, Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.cli.main import cli
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig
from tiermq.tier.tiered_store import TieredStore

KILLS = 6
ACKNOWLEDGEMENTS_MAX = 400
PRODUCERS = 4
BUCKET = "kills"
EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))
SMALL_TIER = {
    "mapped_file_size_commit_log": 256 * 1024,
    "tiered_store_commit_log_max_size": 100_000,
    "tiered_store_consume_queue_max_size": 20 * 300,
    "tiered_store_index_file_max_hash_slot_num": 64,
    "tiered_store_index_file_max_index_num": 1_000,
    "tiered_store_group_commit_timeout": 100,
}
EVICTING = {
    "file_reserved_time": 0,
    "delete_when": EVERY_HOUR,
    "clean_resource_interval": 300,
    "delete_commit_log_files_interval": 0,
}
"""What the tier has goes from the disk at once, so that consumers read from both."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill of a round."""

    after: int
    """How many more messages were acknowledged."""
    victim: str
    away: int
    """How many more before an object store is started again; a broker is at once."""

    def __str__(self) -> str:
        return f"kill the {self.victim} after {self.after} more acknowledgements"


class BrokerKills:
    """Without a tier, or with one in SeaweedFS."""

    def __init__(self, *, tiered: bool) -> None:
        self.tiered = tiered
        self.name = "kills-tier" if tiered else "kills"
        self.title = "a broker and its object store are killed" if tiered else "a broker is killed"
        self.title += " under load, again and again"
        self.rounds = 60

    def missing(self) -> str:
        return missing_server() if self.tiered else ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        return self._run(seed, scratch, KILLS)

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """The fewest first kills of the round after which it is found."""
        for count in range(1, KILLS + 1):
            place = scratch / f"{count}-kills"
            place.mkdir()
            outcome = self._run(seed, place, count)
            if outcome.findings:
                return outcome.findings[0]
        return None

    def _run(self, seed: int, scratch: Path, count: int) -> Outcome:
        chance = random.Random(seed)
        settings = {"flush_disk_type": chance.choice(["SYNC_FLUSH", "ASYNC_FLUSH"])}
        victims = ["broker", "broker", "object store"] if self.tiered else ["broker"]
        kills = [
            Kill(chance.randrange(1, ACKNOWLEDGEMENTS_MAX), chance.choice(victims), chance.randrange(1, 200))
            for _ in range(count)
        ]
        outcome = Outcome()
        problems = Round(scratch, settings, self.tiered).run(kills, outcome)
        steps = (str(settings), *map(str, kills))
        outcome.findings += [Finding(promise, found, seed, steps) for promise, found in problems]
        return outcome


class Round:
    """The processes of one round. Used by one thread."""

    def __init__(self, scratch: Path, settings: Mapping[str, object], tiered: bool) -> None:
        self.scratch = scratch
        self.store = scratch / "store"
        self.tier = f"s3://{BUCKET}/round" if tiered else ""
        self.settings = {**settings, **({**SMALL_TIER, **EVICTING} if tiered else {})}
        self.server = SeaweedFS(scratch / "s3") if tiered else None
        self.ledger = Ledger()

    def run(self, kills: list[Kill], outcome: Outcome) -> list[tuple[str, str]]:
        """(promise, what was found) of everything that did not hold."""
        with ExitStack() as stack:
            if self.server is not None:
                stack.enter_context(self.server)
                self.server.create_bucket(BUCKET)
                stack.enter_context(environment(self.server.environment))
            self._make_topic()
            with self._serving() as broker:
                self._load(broker, kills, outcome)
            problems = [("Consumers and producers are served.", found) for found in self.ledger.problems]
            problems = problems or judged(self.ledger)
            outcome.counts["messages_acknowledged"] += len(self.ledger.acknowledged)
            outcome.counts["messages_checked"] += len(self.ledger.seen)
            if self.tier and not problems:
                problems = self._judge_tier(outcome)
        return problems

    def _serving(self) -> Serving:
        words = ("--tier", self.tier) if self.tier else ()
        return Serving(self.store, *words, **self.settings)

    def _make_topic(self) -> None:
        (self.store / "config").mkdir(parents=True)
        table = {TOPIC: TopicConfig(TOPIC, QUEUES, QUEUES)}
        (self.store / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))

    def _load(self, broker: Serving, kills: list[Kill], outcome: Outcome) -> None:
        ledger, ends = self.ledger, dict[int, int]()
        port = broker.port
        ledger.up.set()
        producers = [guarded(lambda name=name: produce(name, port, ledger), ledger) for name in range(PRODUCERS)]  # type: ignore[misc]
        consumers = [guarded(lambda q=q: consume(q, port, ledger, ends.get), ledger) for q in range(QUEUES)]  # type: ignore[misc]
        try:
            for kill in kills:
                ledger.wait_acknowledged(kill.after)
                self._kill(kill, broker)
                outcome.counts["kills"] += 1
            ledger.ending.set()
            for thread in producers:
                thread.join()
            ends.update(end_offsets(port))
        except BaseException as error:
            ledger.note(f"the round was given up: {error}")
            raise
        finally:
            ledger.up.set()
            for thread in [*producers, *consumers]:
                thread.join()

    def _kill(self, kill: Kill, broker: Serving) -> None:
        if kill.victim == "broker":
            self.ledger.up.clear()
            broker.kill()
            broker.start()
            self.ledger.up.set()
        elif self.server is not None:
            self.server.kill()
            self.ledger.wait_acknowledged(kill.away)
            self.server.start()

    def _judge_tier(self, outcome: Outcome) -> list[tuple[str, str]]:
        """After the broker's clean end: all of it in the tier, the tier sound, and enough for a lost disk."""
        settings = {name: value for name, value in {**SIZES, **self.settings}.items() if name not in EVICTING}
        settings |= {"broker_name": "b1"}
        with TieredStore.open(self.store, tier=self.tier, **settings) as store:
            if not store.flush_to_tier(120):
                return [("A tier is caught up with.", f"it was not: {store.status()}")]
        reported = CliRunner().invoke(cli, ["tier", "verify", self.tier])
        if reported.exit_code:
            return [("A tier agrees with itself.", reported.output[-2_000:])]
        shutil.rmtree(self.store)
        with TieredStore.open(self.store, tier=self.tier, restore=True, **settings) as store:
            found = dict(itertools.chain.from_iterable(_read(store, queue) for queue in range(QUEUES)))
        outcome.counts["messages_checked"] += len(found)
        wrong = {place for place, body in self.ledger.seen.items() if found.get(place) != body}
        if wrong or len(found) != len(self.ledger.seen):
            text = f"{len(wrong)} of {len(self.ledger.seen)} are not as they were, such as {sorted(wrong)[:3]}"
            return [("A lost disk is restored from the tier.", text)]
        return []


def judged(ledger: Ledger) -> list[tuple[str, str]]:
    reported = []
    lost = {body: place for body, place in ledger.acknowledged.items() if ledger.seen.get(place) != body}
    if lost:
        text = f"{len(lost)} of {len(ledger.acknowledged)} are not at their place, such as {list(lost.values())[:3]}"
        reported.append(("An acknowledged message survives kill -9.", text))
    if again := [place for place, count in ledger.deliveries.items() if count != 1]:
        reported.append(("A consumer that lives gets no place twice.", f"it did: {again[:3]}"))
    bodies = list(ledger.seen.values())
    twice = {body for body in bodies if bodies.count(body) > 1} if len(set(bodies)) < len(bodies) else set()
    if unasked := twice - ledger.repeated:
        reported.append(("What was sent once is stored once.", f"{len(unasked)} are there twice: {list(unasked)[:2]}"))
    return reported


def _read(store: TieredStore, queue_id: int) -> Iterator[tuple[tuple[int, int], bytes]]:
    offset = max(0, store.min_offset(TOPIC, queue_id))
    while offset < store.max_offset(TOPIC, queue_id):
        page = store.get(TOPIC, queue_id, offset)
        for message in page.messages:
            yield (queue_id, message.queue_offset), message.body
        offset = max(page.next_offset, offset + 1)
