"""The soak: a broker that tiers to an object store, under mixed load for `TIERMQ_SOAK_SECONDS` (an hour by default).

    streams        numbered messages, one queue each, followed hot from their beginning
    cold           readers that begin at offset 0 again and again, from the tier
    later          delay levels, timers, transactions that are committed or rolled back
    at the end     everything came; the bucket is verified, and each of its objects is accounted for

The load is paced, so that two runs do the same work and growth is not the growth of the load.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from campaign.environment import environment
from campaign.part import Finding, Outcome
from campaign.soak.later import TOPIC as LATER_TOPIC
from campaign.soak.later import Later
from campaign.soak.streams import Stream, Tally
from campaign.soak.watch import Watch, growth
from servers.seaweedfs import SeaweedFS
from servers.seaweedfs import missing as missing_server
from servers.serving import Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import SegmentType

TOPIC = "Soak"
QUEUES = 4
BUCKET = "soak"
PER_SECOND = 100.0
"""Of each stream; a fifth of it of later ones."""
SECONDS = 3_600.0
UNITS = SegmentType.CONSUME_QUEUE
UPLOAD_SECONDS_MAX = 600
POLL_S = 0.1
CACHE_BYTES = 32 << 20
"""Full after some minutes, so that what grows later is no cache."""


class SoakPart:
    """See the module."""

    name = "soak"
    title = "an hour of mixed load over a real object store"
    rounds = 1

    def missing(self) -> str:
        no_memory = "" if Path("/proc/self/status").exists() else "memory of a process is read from /proc"
        return missing_server() or no_memory

    def round(self, seed: int, scratch: Path) -> Outcome:
        seconds = float(os.environ.get("TIERMQ_SOAK_SECONDS", str(SECONDS)))
        return soak(seed, scratch, seconds)

    def shrink(self, seed: int, scratch: Path) -> Finding | None:  # noqa: ARG002 - a soak has no shorter form
        return None


def soak(seed: int, scratch: Path, seconds: float, per_second: float = PER_SECOND, **settings: object) -> Outcome:
    """One soak of so many seconds; `settings` are the broker's."""
    reported = {"tiered_storage_level": "FORCE", "tier_cache_bytes": CACHE_BYTES, **settings}
    tally = Tally()
    outcome = Outcome(tally.counts)
    with SeaweedFS(scratch / "s3") as server:
        server.create_bucket(BUCKET)
        tier = f"s3://{BUCKET}/history"
        with environment(server.environment):
            store = scratch / "store"
            _make_topics(store)
            with Serving(store, "--tier", tier, **reported) as broker:
                assert broker.process is not None
                watch = Watch(broker.process.pid)
                _load(broker.port, tally, seconds, per_second, random.Random(seed))
                watch.stop()
                behind = _behind(tier, tally)
                broker.terminate()
            outcome.peaks |= watch.peaks()
            found = [*tally.problems, *growth(watch.samples), *behind, *_bucket(tier, store, tally)]
    outcome.findings += [Finding("nothing is lost, grows or is left over", text, seed) for text in found]
    return outcome


def _make_topics(store: Path) -> None:
    (store / "config").mkdir(parents=True)
    table = {TOPIC: TopicConfig(TOPIC, QUEUES, QUEUES), LATER_TOPIC: TopicConfig(LATER_TOPIC, 1, 1)}
    (store / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))


def paced(per_second: float, ending: threading.Event) -> Callable[[], bool]:
    """True at so many moments of a second, evenly; False once it ends."""
    began = time.monotonic()
    numbers = itertools.count(1)

    def pace() -> bool:
        due = began + next(numbers) / per_second
        return not ending.wait(max(0.0, due - time.monotonic()))

    return pace


def _load(port: int, tally: Tally, seconds: float, per_second: float, chance: random.Random) -> None:
    streams = [Stream(TOPIC, queue, port, tally) for queue in range(QUEUES)]
    later = Later(port, tally, chance)
    produced = threading.Event()

    def hot(stream: Stream) -> None:
        stream.follow(
            "hot", lambda number: bool(tally.problems) or (produced.is_set() and number >= stream.sent), "read_hot"
        )

    def is_through(goal: int, number: int) -> bool:
        return tally.ending.is_set() or number >= goal

    def cold(stream: Stream) -> None:
        while not tally.ending.is_set():
            goal = stream.sent  # What there is by now; then from the beginning again.
            stream.follow("cold", partial(is_through, goal), "read_cold")
            tally.ending.wait(1.0)

    producers: list[Callable[[], None]] = [
        *(lambda s=stream: s.produce(paced(per_second, tally.ending)) for stream in streams),
        lambda: later.produce(paced(per_second / 5, tally.ending)),
    ]
    readers: list[Callable[[], None]] = [
        *(lambda s=stream: hot(s) for stream in streams),
        lambda: cold(streams[0]),
        lambda: later.follow(lambda: bool(tally.problems) or produced.is_set()),
    ]
    threads = [_guarded(work, tally) for work in producers]
    reading = [_guarded(work, tally) for work in readers]
    tally.ending.wait(seconds)
    tally.ending.set()
    for thread in threads:
        thread.join()
    produced.set()
    for thread in reading:
        thread.join()
    tally.count("seconds", int(seconds))


def _guarded(work: Callable[[], None], tally: Tally) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except Exception as error:
            tally.problem(repr(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def _behind(tier: str, tally: Tally) -> list[str]:
    """What the bucket lacks, in words. Waits for it: a broker that ends uploads no more than it has begun with."""
    given_up_at = time.monotonic() + UPLOAD_SECONDS_MAX
    wanted = tally.counts["acknowledged"]
    with closing(open_driver(tier)) as driver:
        while not tally.problems:
            units = [each for each in driver.list_segments() if (each.key.topic, each.key.type) == (TOPIC, UNITS)]
            there = sum(each.size for each in units) // UNIT_BYTES
            if there >= wanted:
                break
            if time.monotonic() >= given_up_at:
                return [f"expected {wanted} messages in the tier, found {there} {UPLOAD_SECONDS_MAX} s after the last"]
            time.sleep(POLL_S)
    return []


def _bucket(tier: str, store: Path, tally: Tally) -> list[str]:
    """What is wrong with the bucket after a clean end, in words: damage, orphans, what is missing."""
    reported = []
    verified = _asked("tier", "verify", tier, "--store", str(store), "--json")
    counts = json.loads(verified.stdout)["counts"] if verified.returncode in (0, 1) else {}
    for name, amount in counts.items():
        tally.count(f"bucket_{name}", amount)
    if verified.returncode != 0:
        reported.append(f"tier verify: {verified.stdout[-2000:]}{verified.stderr[-1000:]}")
    orphans = _asked("tier", "orphans", tier, "--store", str(store), "--broker", "b1", "--grace", "0", "--json")
    if orphans.returncode != 0:
        reported.append(f"tier orphans: {orphans.stdout[-2000:]}{orphans.stderr[-1000:]}")
    return reported


def _asked(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiermq.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


PARTS = [SoakPart()]
