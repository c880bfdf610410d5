"""Brokers under an open loop of RocketMQ's client (`kind` open of `Load.java`), in four conditions.

    async   ASYNC_FLUSH, the store in memory
    sync    SYNC_FLUSH, the store on the disk
    tier    ASYNC_FLUSH, the store in memory, a POSIX tier on the disk, into which a backlog is uploaded meanwhile
    cold    ASYNC_FLUSH, and a consumer beside that reads history from a POSIX tier as fast as it gets it
    topics  ASYNC_FLUSH, the messages in turn to 4,000 topics of 4 queues, and no consumer

An open loop sends each message at its intended time, whether or not those before were answered, and times are counted
from there: a broker that stands still for a second is charged for all that was due in it.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import broker_side, harness, official_load, process_tree
from benchmarks.broker_side import HISTORY, QUEUES, TOPIC, Loaded
from benchmarks.compare.network_works import PATIENT
from tiermq import LocalStore, Message
from tiermq.tier.tiered_store import TieredStore

GROUP = "open-loop"
BODY_BYTES = 1024
BACKLOG_BODY_BYTES = 16 * 1024
TOPIC_QUEUES = 4
WARMUP_MESSAGES = 204_800
WARMUP_RATE = 10_000
QUANTILES = ("p50", "p99", "p999", "max")
LOOK_S = 0.05
GROWING_S, BEGINS_S = 3.0, 90.0
"""Within these an upload stores more, and begins after a start: RocketMQ's 20 s after it."""
"""An upload that goes on shows within this: both brokers write some chunks a second."""
ROCKETMQ_TIER = {
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
    "tieredMetadataServiceProvider": "org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore",
    "tieredStorageLevel": "NOT_IN_DISK",
}


@dataclass(frozen=True, slots=True)
class Amounts:
    """How long rounds are, how many of them, and how much there is beside."""

    seconds: float
    rounds: int
    warmup_messages: int
    beside_bytes: int
    """Of the backlog, and of the history."""
    topics: int
    disk: Path
    """Where tiers are."""


@dataclass(frozen=True, slots=True)
class Row:
    """One broker at one rate in one condition: milliseconds from the intended time, by quantile. `end_to_end` is empty
    where nothing consumes.
    """

    condition: str
    side: str
    rate: int
    send: dict[str, float]
    end_to_end: dict[str, float]
    late_p99_ms: float
    """How late the client's own call was: part of all other times."""
    cpu_us: float
    """Processor time of the broker for a message, sent and received."""
    beside_mb: float = 0.0
    """What went into the tier meanwhile, or what the cold reader got."""
    beside_ended: bool = False
    """The backlog was in the tier before the last round was over: the times are not all of a broker that uploads."""

    @property
    def name(self) -> str:
        return f"{self.side}_{self.condition}_{self.rate}"


Beside = Callable[[], float]
"""Megabytes so far."""


def measure_round(
    side: Loaded, rate: int, seconds: float, condition: str, beside: Beside = lambda: 0.0, topics: int = 0
) -> Row:
    """One open loop. Ends the program when a message failed."""
    messages = int(rate * seconds)
    spent, before = -process_tree.cpu_seconds(side.pid), beside()
    job = {"kind": "open", "topic": TOPIC, "threads": 1, "bytes": BODY_BYTES, "rate": rate, "group": GROUP}
    reported = side.load(**job, messages=messages, **({"topics": topics} if topics else {}))
    spent += process_tree.cpu_seconds(side.pid)
    if reported["failed"]:
        raise SystemExit(f"{side.name}: {reported['failed']} of {messages} messages failed")
    late = reported["late"]["p99"]
    received = reported.get("endToEnd", {})
    return Row(condition, side.name, rate, reported["send"], received, late, 1e6 * spent / messages, beside() - before)


def middle(rows: Sequence[Row]) -> Row:
    """Medians of rounds that differ in nothing else; of the greatest times the greatest."""

    def of(kind: Callable[[Row], dict[str, float]]) -> dict[str, float]:
        found = {name: statistics.median(kind(row)[name] for row in rows) for name in kind(rows[0])}
        return found | {name: max(kind(row)[name] for row in rows) for name in found if name == "max"}

    return Row(
        rows[0].condition,
        rows[0].side,
        rows[0].rate,
        of(lambda row: row.send),
        of(lambda row: row.end_to_end),
        statistics.median(row.late_p99_ms for row in rows),
        statistics.median(row.cpu_us for row in rows),
        statistics.median(row.beside_mb for row in rows),
        any(row.beside_ended for row in rows),
    )


def begin(side: Loaded) -> None:
    """Where the consumer of a new broker starts: loops after the first one go on where that ended."""
    official_load.begin_at_the_beginning(side.port, GROUP, TOPIC, QUEUES)


def warm(side: Loaded, amounts: Amounts) -> None:
    """Both brokers get as many messages before; then the loop itself, whose virtual machine is another one."""
    job = {"kind": "send", "topic": broker_side.BATCH_TOPIC, "threads": broker_side.THREADS, "bytes": BODY_BYTES}
    side.round(**job, messages=amounts.warmup_messages)
    begin(side)
    measure_round(side, WARMUP_RATE, amounts.seconds / 2, "warmup")


# Conditions


def plain(
    jars: Any, place: Path, rates: Sequence[int], amounts: Amounts, *, condition: str, flush: str
) -> Iterator[Row]:
    """Both brokers run, and take turns."""
    with (
        broker_side.tiermq(jars, place, flush_disk_type=flush) as ours,
        broker_side.rocketmq(jars, place, **PATIENT, flushDiskType=flush) as theirs,
    ):
        for side in (ours, theirs):
            warm(side, amounts)
        for rate in rates:
            rounds = [
                [measure_round(side, rate, amounts.seconds, condition) for side in (ours, theirs)]
                for _ in range(amounts.rounds)
            ]
            yield from (middle(rows) for rows in zip(*rounds, strict=True))


def many_topics(jars: Any, place: Path, rates: Sequence[int], amounts: Amounts) -> Iterator[Row]:
    """Every queue has got a message before the first loop; the rest is as in `plain`."""
    topics = {f"{TOPIC}-{number}": TOPIC_QUEUES for number in range(amounts.topics)}
    for name in ("tiermq", "rocketmq"):
        broker_side.make_topics(place / f"{name}-store", topics)
    with broker_side.tiermq(jars, place) as ours, broker_side.rocketmq(jars, place, **PATIENT) as theirs:
        for side in (ours, theirs):
            warm(side, amounts)
            measure_round(side, min(rates), amounts.seconds, "warmup", topics=amounts.topics)  # Queues are made in it.
        for rate in rates:
            rounds = [
                [measure_round(side, rate, amounts.seconds, "topics", topics=amounts.topics) for side in (ours, theirs)]
                for _ in range(amounts.rounds)
            ]
            yield from (middle(rows) for rows in zip(*rounds, strict=True))


def tiering(jars: Any, place: Path, rates: Sequence[int], amounts: Amounts) -> Iterator[Row]:
    """A backlog of our broker is uploaded within seconds, so each round has a broker that has just started and a client
    that was warmed elsewhere. RocketMQ's upload begins 20 s after its start and lasts: one broker is enough.
    """
    with contextlib.ExitStack() as elsewhere:
        (place / "elsewhere").mkdir()
        client = elsewhere.enter_context(broker_side.tiermq(jars, place / "elsewhere"))
        warm(client, amounts)
        for rate in rates:
            rounds = [fresh_beside_upload(client, jars, place, rate, amounts) for _ in range(amounts.rounds)]
            yield middle(rounds)
    with rocketmq_uploading(jars, place, amounts) as (side, tier):
        warm(side, amounts)
        require_growing(tier)
        for rate in rates:
            yield middle([beside_upload(side, rate, amounts, tier) for _ in range(amounts.rounds)])


@contextlib.contextmanager
def rocketmq_uploading(jars: Any, place: Path, amounts: Amounts) -> Iterator[tuple[Loaded, Path]]:
    """RocketMQ's broker with a backlog, and the directory of its tier."""
    tier = amounts.disk / "rocketmq-tier"
    _fill(place / "rocketmq-store", amounts.beside_bytes)
    settings = {**PATIENT, **ROCKETMQ_TIER, "tieredStoreFilePath": tier}
    with broker_side.rocketmq(jars, place, **settings) as side:
        yield side, tier


def fresh_beside_upload(client: Loaded, jars: Any, place: Path, rate: int, amounts: Amounts) -> Row:
    """A round of a broker of ours that has just started with a backlog; `client` has the virtual machine that loads."""
    with harness.part_directory(place) as directory, harness.part_directory(amounts.disk) as disk:
        tier = disk / "tier"
        _fill(directory / "tiermq-store", amounts.beside_bytes)
        with broker_side.tiermq(jars, directory, "--tier", f"file://{tier}") as fresh:
            begin(fresh)
            side = replace(fresh, load=partial(client.load, nameServer=fresh.name_server))
            return beside_upload(side, rate, amounts, tier)


def beside_upload(side: Loaded, rate: int, amounts: Amounts, tier: Path) -> Row:
    """A round while a backlog goes into that directory."""
    row = measure_round(side, rate, amounts.seconds, "tier", lambda: stored_mb(tier))
    return replace(row, beside_ended=not is_growing(tier, GROWING_S))


def require_growing(tier: Path) -> None:
    """Wait until more comes into the tier. Raises RuntimeError where nothing does: a round that begins then is not one
    beside an upload.
    """
    if not is_growing(tier, BEGINS_S):
        raise RuntimeError(
            f"expected a broker that uploads its backlog, found {stored_mb(tier):.0f} MB in its tier and nothing more "
            f"in {BEGINS_S} s: the backlog was uploaded before this round; make it larger"
        )


def is_growing(tier: Path, within_s: float) -> bool:
    """Whether more comes into it."""
    before, until_s = stored_mb(tier), time.monotonic() + within_s
    while stored_mb(tier) <= before:
        if time.monotonic() > until_s:
            return False
        time.sleep(LOOK_S)
    return True


def stored_mb(directory: Path) -> float:
    """Megabytes of the disk below it."""
    found = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # It was renamed or removed meanwhile.
            found += path.stat().st_blocks * 512
    return found / 1e6


def _fill(store: Path, size: int) -> None:
    broker_side.make_topics(store)
    body = b"b" * BACKLOG_BODY_BYTES
    with LocalStore.open(store) as filled:
        for start in range(0, max(QUEUES, size // BACKLOG_BODY_BYTES), QUEUES):
            filled.put_many(Message(HISTORY, body, (start + number) % QUEUES) for number in range(QUEUES))


def cold(jars: Any, place: Path, rates: Sequence[int], amounts: Amounts) -> Iterator[Row]:
    """History is in the tier alone: the store is made again from it. RocketMQ's broker is not measured so."""
    tier = broker_side.make_history(place, max(1_000, amounts.beside_bytes // broker_side.HISTORY_BODY_BYTES))
    shutil.rmtree(place / "tiermq-store")
    with TieredStore.open(place / "tiermq-store", tier=tier, broker_name="b1", restore=True):
        pass
    with broker_side.tiermq(jars, place, "--tier", tier, "--metrics-port", "0") as side:
        warm(side, amounts)
        for rate in rates:
            yield middle([_beside_cold_reader(side, rate, amounts) for _ in range(amounts.rounds)])


def _beside_cold_reader(side: Loaded, rate: int, amounts: Amounts) -> Row:
    def given_mb() -> float:
        return side.cold_messages() * broker_side.HISTORY_BODY_BYTES / 1e6

    with broker_side.cold_consumer(side.name_server):
        return measure_round(side, rate, amounts.seconds, "cold", given_mb)
