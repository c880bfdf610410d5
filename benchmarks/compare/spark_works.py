"""Group 5, end to end: from the first byte that is produced to the moment when Spark has counted all of them.

Both brokers are loaded by the official Producer, with a topic of its own per round. What follows is what a user does:

    TierMQ     Spark reads the broker's tier and its store directory as one table, while the broker runs
    RocketMQ   its Spark connector ends at Spark 2.3, so a consumer (`java/rocketmq/ExportTopic.java`) follows the topic
               from the first message on and writes JSON lines; Spark reads these when the file is whole

Seconds are those of the Producer, from its first message to its last, and those from its end to the answer of Spark,
which must have every message and every byte of them. Starting brokers, clients and Spark is never in the time.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import broker_side, official_load
from benchmarks.broker_side import QUEUES, THREADS, Loaded
from benchmarks.compare import peer_process
from benchmarks.compare.network_works import PATIENT, telling
from benchmarks.compare.peer_process import Peer
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Place, Sides, Work
from benchmarks.report import Round

GROUP = "spark"
MESSAGES, QUICK_MESSAGES = 32_768, 4_096
BODY_BYTES = 1024
BROKER_NAME = "b1"  # Of `Serving`.
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One side: its broker, what follows the producer in the background, and what Spark reads."""

    broker: Loaded
    spark: Peer
    messages: int
    follow: Callable[[str], object]
    """Given the topic before anything is sent; returns when Spark can begin. Runs in a thread."""
    reading: Callable[[str], dict[str, object]]
    give_up: Callable[[], None] = lambda: None
    """Ends what follows, when the messages that it waits for will not come."""

    def round(self) -> Round:
        """Produce into a new topic, and ask Spark until it has everything."""
        topic = f"Queryable{next(_numbers)}"
        make_topic(self.broker.name_server, topic)
        job = {"kind": "send", "topic": topic, "threads": THREADS, "bytes": BODY_BYTES, "messages": self.messages}
        with ThreadPoolExecutor(1, "follower") as threads:
            following = threads.submit(self.follow, topic)
            try:
                sent = self.broker.round(**job)
            except BaseException:
                self.give_up()
                raise
            sent_at = time.perf_counter()
            following.result()
            asked = self.spark.run(messages=sent.messages, bytes=sent.bytes, **self.reading(topic))
            seconds = sent.seconds + time.perf_counter() - sent_at
        return Round(asked.messages, asked.bytes, seconds, sent.cpu_seconds)


def make_topic(name_server: str, topic: str) -> None:
    """A topic that clients find when this returns, by the command that operators use for both brokers."""
    from tiermq.cli.main import cli

    with contextlib.redirect_stdout(io.StringIO()):
        cli(["topic", "create", topic, "-n", name_server, "--queues", str(QUEUES)], standalone_mode=False)


def _follow_nothing(_topic: str) -> None:
    """TierMQ's store is what Spark reads."""


def _open(place: Place, stack: ExitStack) -> Sides:
    jars = peer_process.distribution()
    messages = place.amount(MESSAGES, MESSAGES // QUICK_MESSAGES)
    tier = (place.directory / "tier").as_uri()
    ours = stack.enter_context(broker_side.tiermq(jars, place.directory, "--tier", tier))
    theirs = stack.enter_context(broker_side.rocketmq(jars, place.directory, **PATIENT))
    spark = peer_process.start_tiermq(stack, "spark_peer", "Queries")
    parquet = place.directory / "parquet"
    reported = spark.prepare(messages=messages, body_bytes=BODY_BYTES, parquet=parquet)
    exporter = peer_process.start_rocketmq(stack, "ExportTopic", place.directory / "exporter")
    exporter.prepare(nameServer=theirs.name_server)
    store = place.directory / "tiermq-store"
    table = {"kind": "tiermq", "tier": tier, "store": store, "brokerName": BROKER_NAME}
    files = place.directory / "exported"
    files.mkdir()
    sides: dict[str, Callable[[], Round]] = {
        TIERMQ: Pipeline(ours, spark, messages, _follow_nothing, lambda topic: {**table, "topic": topic}).round,
        ROCKETMQ: Pipeline(
            theirs, spark, messages, partial(_export, exporter, messages, files),
            lambda topic: {"kind": "rocketmq", "files": files / f"{topic}.json"}, exporter.kill,
        ).round,
        LIMIT: partial(spark.run, kind="limit", messages=messages, bytes=messages * BODY_BYTES, parquet=parquet),
    }  # fmt: skip
    rounds = {name: telling(side, place.directory / "official.errors") for name, side in sides.items()}
    return Sides(rounds, {TIERMQ: ours.pid, ROCKETMQ: theirs.pid}, _notes(jars, messages, reported))


def _export(exporter: Peer, messages: int, files: Path, topic: str) -> None:
    for old in files.iterdir():
        old.unlink()
    exporter.run(topic=topic, messages=messages, file=files / f"{topic}.json")


def _notes(jars: Any, messages: int, reported: dict[str, Any]) -> dict[str, object]:
    return {
        "load": official_load.describe(jars),
        "messages": messages,
        "body_bytes": BODY_BYTES,
        "rocketmq": jars.version,
        "spark": f"{reported['spark']} on {reported['master']}, one session for all sides",
        "tiermq_does": "official Producer; then format('tiermq') over tier and store directory, column body",
        "rocketmq_does": "official Producer with a pull consumer beside it that writes JSON lines with bodies in "
        "base64; then spark.read.json with a schema. RocketMQ's own Spark connector ends at Spark 2.3",
        "memory": "brokers alone; the consumer's JVM and Spark are not in it; processor time is the brokers', too",
    }


WORKS = [
    Work(
        "spark_queryable", GROUP, "first byte produced to every byte counted by Spark, 1 KiB", _open,
        limit="Spark reading the same bodies from Parquet files that lie there already, uncompressed", rounds_max=5,
    ),
]  # fmt: skip
