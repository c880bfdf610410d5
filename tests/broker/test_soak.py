"""Minutes of sending and consuming while the broker is restarted at random, by SIGTERM and by kill -9.

`TIERMQ_SOAK_SECONDS` says for how long (600 in all by default), `TIERMQ_SOAK_SEED` repeats the choices of a run.
"""

from __future__ import annotations

import os
import random
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from broker.soaking import (
    QUEUES,
    TOPIC,
    Ledger,
    committed_offset,
    consume,
    end_offsets,
    guarded,
    produce,
)
from servers.serving import Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(7_200)]

SECONDS = float(os.environ.get("TIERMQ_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("TIERMQ_SOAK_SEED", str(time.time_ns() % 1_000_000)))
PRODUCERS = 4
KINDS = {
    "local": {},
    "sync-flush": {"flush_disk_type": "SYNC_FLUSH"},
    "tier": {},
}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_acknowledged_is_lost_and_nothing_comes_twice_without_a_reason(tmp_path: Path, kind: str) -> None:
    chance = random.Random(f"{SEED} {kind}")
    print(f"TIERMQ_SOAK_SEED={SEED}")
    words = ("--tier", f"file://{tmp_path}/tier") if kind == "tier" else ()
    (tmp_path / "store" / "config").mkdir(parents=True)
    table = {TOPIC: TopicConfig(TOPIC, QUEUES, QUEUES)}
    (tmp_path / "store" / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))
    ledger = Ledger()
    ends: dict[int, int] = {}
    with Serving(tmp_path / "store", *words, **KINDS[kind]) as broker:
        port = broker.port
        ledger.up.set()
        producers = [guarded(partial(produce, name, port, ledger), ledger) for name in range(PRODUCERS)]
        consumers = [guarded(partial(consume, q, port, ledger, ends.get), ledger) for q in range(QUEUES)]
        restarts = _restart_until(time.monotonic() + SECONDS / len(KINDS), broker, ledger, chance)
        _end(producers, consumers, broker, ledger, ends)
    print(f"{len(ledger.acknowledged)} acknowledged, {restarts} restarts, {len(ledger.repeated)} sent more than once")
    _judge(ledger)


def _restart_until(deadline: float, broker: Serving, ledger: Ledger, chance: random.Random) -> dict[str, int]:
    restarts = {"SIGTERM": 0, "kill -9": 0}
    while time.monotonic() < deadline and not ledger.problems:
        ledger.wait_acknowledged(chance.randrange(1, 3_000))
        ledger.up.clear()
        before = dict(ledger.committed)
        cleanly = chance.random() < 0.5
        if cleanly:
            broker.terminate()
        else:
            broker.kill()
        restarts["SIGTERM" if cleanly else "kill -9"] += 1
        broker.start()
        for queue, offset in before.items() if cleanly else ():
            found = committed_offset(queue, broker.port)
            if found < offset:
                ledger.note(f"queue {queue}: {offset} was committed before a clean end, found {found} after it")
        ledger.up.set()
    assert ledger.problems == []
    return restarts


def _end(
    producers: list[threading.Thread],
    consumers: list[threading.Thread],
    broker: Serving,
    ledger: Ledger,
    ends: dict[int, int],
) -> None:
    ledger.ending.set()
    for thread in producers:
        thread.join()
    ends.update(end_offsets(broker.port))
    for thread in consumers:
        thread.join()
    assert ledger.problems == []


def _judge(ledger: Ledger) -> None:
    """Every promise kept, and every message in the store is one that somebody sent as often as it is there."""
    wrong = {body: place for body, place in ledger.acknowledged.items() if ledger.seen.get(place) != body}
    assert wrong == {}, "acknowledged, and not there"
    assert set(ledger.deliveries.values()) == {1}, "a consumer that lives gets no place twice"
    times: dict[bytes, int] = {}
    for body in ledger.seen.values():
        times[body] = times.get(body, 0) + 1
    twice = {body for body, count in times.items() if count > 1}
    assert twice <= ledger.repeated, "stored twice, and sent once"
    assert len(ledger.acknowledged) >= PRODUCERS
