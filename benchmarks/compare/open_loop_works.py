"""Open loops: latency and processor time where operators look, both brokers under `Load.java` (`latency_side`).

An open loop sends each message at its intended time, and counts from there. Brokers, settings, stores and warming are
those of `bench latency`; here rounds of both sides alternate. While TierMQ's round is measured, RocketMQ's broker that
uploads is stopped (SIGSTOP), since its upload would go on beside; before its own round it continues until it uploads.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from benchmarks import broker_side, latency_side
from benchmarks.broker_side import THREADS, TOPIC, Loaded
from benchmarks.compare import peer_process
from benchmarks.compare.network_works import PATIENCE_MS, PATIENT, telling
from benchmarks.compare.work import ROCKETMQ, TIERMQ, TUNED, Goal, Kind, Place, Sides, Work
from benchmarks.harness import GIB, Side
from benchmarks.latency_side import BODY_BYTES, TOPIC_QUEUES, WARMUP_MESSAGES, Amounts, Row
from benchmarks.report import Round

GROUP = "open-loop"
SECONDS, SECONDS_QUICK = 10.0, 1.0
TIER_SECONDS = 5.0
BACKLOG_BYTES = 4 * GIB
TOPICS = 4_000
TOPICS_MESSAGES = 131_072
QUICK_DIVISOR = 32


def _amounts(place: Place, seconds: float) -> Amounts:
    divisor = QUICK_DIVISOR if place.quick else 1
    return Amounts(
        SECONDS_QUICK if place.quick else seconds,
        1,
        WARMUP_MESSAGES // divisor,
        BACKLOG_BYTES // divisor,
        TOPICS // divisor,
        place.disk,
    )


def _notes(rate: int, amounts: Amounts, jars: object) -> dict[str, object]:
    return {
        "messages": int(rate * amounts.seconds),
        "a second": rate,
        "body bytes": BODY_BYTES,
        "load": "Load.java with RocketMQ's client, an open loop with intended start times",
        "rocketmq": getattr(jars, "version", ""),
        "rocketmq_settings": PATIENT,
    }


def _round_of(row: Row, amounts: Amounts, quantile: str) -> Round:
    """Its seconds are a quantile of the sends."""
    messages = int(row.rate * amounts.seconds)
    return Round(messages, messages * BODY_BYTES, row.send[quantile] / 1e3, row.cpu_us * messages / 1e6)


def _brokers(place: Place, stack: ExitStack) -> dict[str, Loaded]:
    jars = peer_process.distribution()
    return {
        TIERMQ: stack.enter_context(broker_side.tiermq(jars, place.directory)),
        ROCKETMQ: stack.enter_context(broker_side.rocketmq(jars, place.directory, **PATIENT)),
        TUNED: stack.enter_context(broker_side.rocketmq_tuned(jars, place.directory, **PATIENT)),
    }


def _sides(
    place: Place, brokers: dict[str, Loaded], making: Callable[[Loaded], Side], notes: dict[str, object]
) -> Sides:
    errors = place.directory / "client.errors"
    rounds = {name: telling(making(side), errors) for name, side in brokers.items()}
    return Sides(rounds, {name: side.pid for name, side in brokers.items()}, notes)


def open_plain(rate: int, place: Place, stack: ExitStack) -> Sides:
    """A consumer beside."""
    amounts = _amounts(place, SECONDS)

    def making(side: Loaded) -> Side:
        latency_side.warm(side, amounts)
        return lambda: _round_of(latency_side.measure_round(side, rate, amounts.seconds, "async"), amounts, "p99")

    notes = _notes(rate, amounts, peer_process.distribution())
    return _sides(place, _brokers(place, stack), making, notes)


# Many topics


def _with_topics(place: Place, amounts: Amounts) -> None:
    topics = {f"{TOPIC}-{number}": TOPIC_QUEUES for number in range(amounts.topics)}
    for store in ("tiermq-store", "rocketmq-store", f"{broker_side.TUNED_PLACE}/rocketmq-store"):
        broker_side.make_topics(place.directory / store, topics)


def open_topics(rate: int, quantile: str, place: Place, stack: ExitStack) -> Sides:
    """Every queue has a message before; nothing consumes."""
    amounts = _amounts(place, SECONDS)
    _with_topics(place, amounts)

    def making(side: Loaded) -> Side:
        def measured() -> Row:
            return latency_side.measure_round(side, rate, amounts.seconds, "topics", topics=amounts.topics)

        latency_side.warm(side, amounts)
        measured()  # Queues are made in it.
        return lambda: _round_of(measured(), amounts, quantile)

    notes = {**_notes(rate, amounts, peer_process.distribution()), "topics": amounts.topics}
    return _sides(place, _brokers(place, stack), making, notes)


def open_topics_closed(place: Place, stack: ExitStack) -> Sides:
    """64 threads, each sends when it was answered; the messages go to the topics in turn."""
    amounts = _amounts(place, SECONDS)
    _with_topics(place, amounts)
    messages = place.amount(TOPICS_MESSAGES, QUICK_DIVISOR)
    job = {"kind": "send", "topic": TOPIC, "threads": THREADS, "bytes": BODY_BYTES, "topics": amounts.topics}
    job["timeoutMs"] = PATIENCE_MS

    def making(side: Loaded) -> Side:
        side.round(**job, messages=amounts.warmup_messages)  # Every queue gets a message in it.
        return lambda: side.round(**job, messages=messages)

    notes = _notes(0, amounts, peer_process.distribution())
    notes |= {"messages": messages, "topics": amounts.topics, "a second": "as many as are answered"}
    notes["load"] = f"Load.java with RocketMQ's client, {THREADS} threads"
    return _sides(place, _brokers(place, stack), making, notes)


# While a backlog goes into a tier


def open_tier(rate: int, place: Place, stack: ExitStack) -> Sides:
    """A backlog is uploaded into a POSIX tier on the disk during the whole of a round."""
    amounts = _amounts(place, TIER_SECONDS)
    jars = peer_process.distribution()
    elsewhere = place.directory / "elsewhere"
    elsewhere.mkdir()
    client = stack.enter_context(broker_side.tiermq(jars, elsewhere))
    latency_side.warm(client, amounts)
    theirs, tier = stack.enter_context(latency_side.rocketmq_uploading(jars, place.directory, amounts))
    stack.callback(os.kill, theirs.pid, signal.SIGCONT)
    latency_side.warm(theirs, amounts)
    os.kill(theirs.pid, signal.SIGSTOP)
    uploaded: dict[str, list[int]] = {TIERMQ: [], ROCKETMQ: []}
    ended: dict[str, int] = {TIERMQ: 0, ROCKETMQ: 0}

    def noted(name: str, row: Row) -> Round:
        uploaded[name].append(round(row.beside_mb))
        ended[name] += row.beside_ended
        return _round_of(row, amounts, "p99")

    def our_round() -> Round:
        return noted(TIERMQ, latency_side.fresh_beside_upload(client, jars, place.directory, rate, amounts))

    def their_round() -> Round:
        os.kill(theirs.pid, signal.SIGCONT)
        try:
            latency_side.require_growing(tier)
            return noted(ROCKETMQ, latency_side.beside_upload(theirs, rate, amounts, tier))
        finally:
            os.kill(theirs.pid, signal.SIGSTOP)

    errors = place.directory / "client.errors"
    notes = {
        **_notes(rate, amounts, jars),
        "backlog bytes": amounts.beside_bytes,
        "megabytes uploaded in each round": uploaded,
        "rounds in which the upload ended": ended,
        "starts": "TierMQ's broker is a new one in each round; RocketMQ's is stopped while TierMQ's is measured",
    }
    return Sides({TIERMQ: telling(our_round, errors), ROCKETMQ: telling(their_round, errors)}, {}, notes)


_QUEUES = f"{TOPICS:,} topics of {TOPIC_QUEUES} queues"
WORKS = [
    Work(
        "cpu_2000", GROUP, "Processor time of the broker for a message, 2,000 a second of 1 KiB, a consumer beside",
        partial(open_plain, 2_000), kind=Kind.CPU, goal=Goal(own=100e-6), rounds_max=5, needs_warmup=False, grows=False,
    ),
    Work(
        "tier_send_p99", GROUP, "p99 of sends while a backlog is tiered, 5,000 a second of 1 KiB",
        partial(open_tier, 5_000), kind=Kind.SECONDS, goal=Goal(0.5, at_most=True), rounds_max=5, needs_warmup=False,
        grows=False,
    ),
    Work(
        "topics_send_p99", GROUP, f"p99 of sends to {_QUEUES}, 5,000 a second of 1 KiB",
        partial(open_topics, 5_000, "p99"), kind=Kind.SECONDS, goal=Goal(0.7, at_most=True), rounds_max=5,
        needs_warmup=False, grows=False,
    ),
    Work(
        "topics_send_max", GROUP, f"The longest send to {_QUEUES}, 5,000 a second of 1 KiB",
        partial(open_topics, 5_000, "max"), kind=Kind.SECONDS, goal=Goal(1.0, at_most=True), rounds_max=5,
        needs_warmup=False, grows=False,
    ),
    Work(
        "topics_producer", GROUP, f"64 threads, 1 KiB, to {_QUEUES}",
        open_topics_closed, goal=Goal(1.5), rounds_max=7, warms_alike=True, grows=False,
    ),
]  # fmt: skip
