"""What a broker takes before and besides its work: memory when idle and under load, time to its first message.

Both brokers read the same `broker.conf`, register at the same name server (RocketMQ's) and have RocketMQ's own file
sizes and defaults, the timer wheel among them. Every round starts a process of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import official_load, process_tree
from benchmarks.broker_side import QUEUES, THREADS, TOPIC
from benchmarks.compare.broker_process import (
    BrokerProcess,
    Resident,
    forget_peak,
    make_topics,
    name_server,
    settled,
)
from benchmarks.compare.peer_process import PeerFailed, distribution
from benchmarks.compare.work import ROCKETMQ, TIERMQ, Goal, Kind, Place, Sides, Work
from benchmarks.report import Round

GROUP = "process"
HALF = Goal(0.5, at_most=True)
LOAD_MESSAGES = 100_000
BODY_BYTES = 1024
USED_STORE_BYTES = 1 << 30
_MB = 1_000_000

Notes = dict[str, object]
NOTES: Notes = {
    "jvm": "-Xmx2g, collector and compiler as the JVM chooses",
    "name server": "RocketMQ's, one for both, started before",
    "modules": "TierMQ runs from compiled modules, as installed",
    "settings": "one broker.conf for both; RocketMQ's file sizes and defaults, asynchronous flush",
}


def _parts(memory: Resident) -> dict[str, float]:
    """Where memory lies, in megabytes, for a reader."""
    return {
        "whole": round(memory.whole / _MB, 1),
        "anonymous": round(memory.anonymous / _MB, 1),
        "files on disk": round(memory.files / _MB, 1),
        "files in memory": round(memory.shared / _MB, 1),
    }


def _both(place: Place, stack: ExitStack, of: Callable[[str, Any, str, Notes], Callable[[], Round]]) -> Sides:
    jars = distribution()
    address = name_server(stack, jars, place.directory)
    notes: Notes = dict(NOTES)
    return Sides({side: of(side, jars, address, notes) for side in (TIERMQ, ROCKETMQ)}, notes=notes)


# Memory


def open_idle(place: Place, stack: ExitStack) -> Sides:
    """Bytes of a round: resident memory of a broker that is registered, has one message and has come to rest."""

    def of(side: str, jars: Any, address: str, notes: Notes) -> Callable[[], Round]:
        def run() -> Round:
            with BrokerProcess(side, jars, place.directory, address) as broker:
                seconds = broker.start()
                broker.await_registered()
                memory = settled(broker.pid)
                spent = process_tree.cpu_seconds(broker.pid)
                broker.kill()
            shutil.rmtree(broker.store)
            notes[f"{side} megabytes"] = _parts(memory)
            return Round(1, memory.whole, seconds, spent)

        return run

    return _both(place, stack, of)


def open_load(place: Place, stack: ExitStack) -> Sides:
    """Bytes of a round: the most memory that was resident while the official Producer sent to a fresh broker."""
    messages = place.amount(LOAD_MESSAGES)

    def of(side: str, jars: Any, address: str, notes: Notes) -> Callable[[], Round]:
        def run() -> Round:
            with BrokerProcess(side, jars, place.directory, address) as broker:
                broker.start()
                broker.await_registered()
                forget_peak(broker.pid)
                spent = -process_tree.cpu_seconds(broker.pid)
                reported = _send(jars, broker, messages)
                spent += process_tree.cpu_seconds(broker.pid)
                rest = settled(broker.pid)
                broker.await_messages(messages + 1)
                broker.kill()
            shutil.rmtree(broker.store)
            notes[f"{side} megabytes at rest afterwards"] = _parts(rest)
            return Round(messages, rest.peak, reported["seconds"], spent)

        return run

    made = _both(place, stack, of)
    made.notes |= {"messages": messages, "threads": THREADS, "body bytes": BODY_BYTES}
    made.notes["load"] = official_load.describe(distribution())
    return made


def _send(jars: Any, broker: BrokerProcess, messages: int) -> dict[str, Any]:
    with official_load.loading(jars, broker.name_server, broker.address[1], QUEUES, broker.home) as load:
        reported = load(kind="send", topic=TOPIC, threads=THREADS, messages=messages, bytes=BODY_BYTES)
    if reported["failed"]:
        raise PeerFailed(f"{broker.name}: {reported['failed']} of {messages} messages failed")
    return reported


# Starts


def open_start(place: Place, stack: ExitStack) -> Sides:
    """Seconds of a round: from the start of the process to the first accepted message, on an empty store."""

    def of(side: str, jars: Any, address: str, notes: Notes) -> Callable[[], Round]:
        del notes

        def run() -> Round:
            with BrokerProcess(side, jars, place.directory, address) as broker:
                seconds = broker.start()
                spent = process_tree.cpu_seconds(broker.pid)
                broker.kill()
            shutil.rmtree(broker.store)
            return Round(1, 0, seconds, spent)

        return run

    return _both(place, stack, of)


def open_start_used(place: Place, stack: ExitStack) -> Sides:
    """The same on a store with history that was closed cleanly, by the broker that opens it again."""
    messages = USED_STORE_BYTES // BODY_BYTES // (10 if place.quick else 1)
    filled = place.directory / "used"
    _fill(filled, messages)

    def of(side: str, jars: Any, address: str, notes: Notes) -> Callable[[], Round]:
        del notes
        store = place.directory / f"used-{side}"
        shutil.copytree(filled, store)
        starts = 0

        def run() -> Round:
            nonlocal starts
            with BrokerProcess(side, jars, place.directory, address, store) as broker:
                seconds = broker.start()
                spent = process_tree.cpu_seconds(broker.pid)
                starts += 1
                broker.await_messages(messages + starts)
            return Round(1, 0, seconds, spent)

        run()  # Opened and closed by itself once, so that what it leaves for its next start is its own.
        return run

    made = _both(place, stack, of)
    shutil.rmtree(filled)
    made.notes |= {"messages in the store": messages, "body bytes": BODY_BYTES}
    return made


def _fill(store: Path, messages: int) -> None:
    from tiermq import Message
    from tiermq.store.local_store import LocalStore

    make_topics(store)
    body = b"u" * BODY_BYTES
    with LocalStore.open(store) as filled:
        for start in range(0, messages, 1_000):
            end = min(messages, start + 1_000)
            filled.put_many(Message(TOPIC, body, number % QUEUES) for number in range(start, end))


WORKS = [
    Work(
        "memory_idle",
        GROUP,
        "Resident memory of an idle broker",
        open_idle,
        kind=Kind.BYTES,
        goal=HALF,
        grows=False,
        rounds_max=5,
        needs_warmup=False,
    ),
    Work(
        "memory_load",
        GROUP,
        "Peak resident memory under the official Producer, 64 threads, 1 KiB",
        open_load,
        kind=Kind.BYTES,
        goal=HALF,
        rounds_max=3,
        growth_part=8,
        needs_warmup=False,
    ),
    Work(
        "start_first_message",
        GROUP,
        "Start to the first accepted message, empty store",
        open_start,
        kind=Kind.SECONDS,
        goal=HALF,
        grows=False,
        rounds_max=7,
        needs_warmup=False,
    ),
    Work(
        "start_first_message_used",
        GROUP,
        "Start to the first accepted message, store of 1 GiB closed cleanly",
        open_start_used,
        kind=Kind.SECONDS,
        goal=HALF,
        grows=False,
        rounds_max=5,
        needs_warmup=False,
    ),
]
