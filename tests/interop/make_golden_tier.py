"""Makes `tests/golden/rocketmq-*-tier*/`: small tiers written by the real RocketMQ, with what it said of them.

    .venv/bin/python tests/interop/make_golden_tier.py [tier] [tier-ipv6]

What a directory holds is in `tests/golden/tier_reading.py`.

tier        Some messages of the first queue are older than the two minutes that RocketMQ looks back when it begins a
            queue in the tier, so that queue does not begin at 0 there. Messages of `later` were delayed, so their
            records were written by the broker itself.
tier-ipv6   Clients have IPv6 addresses, and RocketMQ takes a part of the address for the time of storing.

RocketMQ drops keys when its index files fill up too fast (see `tier_broker.SMALL_SEGMENTS`). A directory is kept only
when it has all of them; try again otherwise.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from golden.tier_reading import BROKER, CLUSTER, HERE, Fact
from interop import local_writer, workload
from interop.make_golden import TINY_FILES
from interop.peer import Described, Peer
from interop.rocketmq import Cluster, Distribution, fetch, python_names
from interop.tier_broker import await_upload, metadata_path, tier_settings
from interop.tier_facts import catch_open_index, counts_of, key_count, query_keys, read_back, search_times, send_all
from interop.topics_file import write_topics
from simulation.manual_clock import ManualClock
from tiermq.store.local_store import LocalStore
from tiermq.tier.restore.rocketmq_json import FILE_NAME

TINY_SEGMENTS: Mapping[str, object] = {
    "tieredStoreCommitLogMaxSize": 16 * 1024,
    "tieredStoreConsumeQueueMaxSize": 20 * 12,
    "tieredStoreIndexFileMaxHashSlotNum": 16,
    "tieredStoreIndexFileMaxIndexNum": 60,
}
TOPICS = [("orders", 3), ("payments", 1)]
DELAYED_TOPIC = ("later", 1)
DELAYED_COUNT = 6
OLD_COUNT = 12
OLD_BY_MS = 600_000


def old_messages() -> Iterator[Described]:
    return workload.messages([("orders", 1)], OLD_COUNT, seed=90)


def put_old_messages(store: Path) -> None:
    clock = ManualClock(time.time_ns() // 1_000_000 - OLD_BY_MS)
    with LocalStore.open(store, clock=clock, **python_names(TINY_FILES)) as local:
        for message in old_messages():
            local_writer.put(local, message)


def send_delayed(peer: Peer) -> list[Fact]:
    """The answer to a delayed message names its place in the schedule's topic, so nothing but `stored` tells of it."""
    for message in workload.messages([DELAYED_TOPIC], DELAYED_COUNT, seed=92):
        peer.send({**message, "delay_level": 1})
    while peer.bounds(DELAYED_TOPIC[0], 0)[1] < DELAYED_COUNT:
        time.sleep(0.1)
    return [{"topic": DELAYED_TOPIC[0], "queue": 0}] * DELAYED_COUNT


def make_tier(distribution: Distribution, scratch: Path) -> None:
    store, tier = scratch / "store", scratch / "tier"
    topics = [*TOPICS, DELAYED_TOPIC]
    put_old_messages(store)
    write_topics(store, topics)
    settings = {**tier_settings(tier, TINY_SEGMENTS), **TINY_FILES}
    with Cluster(distribution, store, scratch / "run", settings) as cluster:
        peer = cluster.peer()
        for topic, queues in topics:
            peer.create_topic(topic, queues)
        sent = send_all(peer, workload.messages(TOPICS, 110, seed=91))
        delayed = send_delayed(peer)
        await_upload(store, counts_of([*sent, *delayed]))
        stored = read_back(peer, topics)
        assert counts_of(stored) == counts_of([*sent, *delayed])
        caught = catch_open_index(store, tier, key_count(stored))
        facts = [*sent, *stored, *query_keys(peer, sent), *search_times(peer, stored)]
    keep(HERE / f"rocketmq-{distribution.version}-tier", distribution.version, store, tier, facts, caught)


def make_ipv6_tier(distribution: Distribution, scratch: Path) -> None:
    store, tier = scratch / "store", scratch / "tier"
    settings = {**tier_settings(tier, TINY_SEGMENTS), **TINY_FILES}
    with Cluster(distribution, store, scratch / "run", settings, host="::1") as cluster:
        peer = cluster.peer()
        peer.create_topic("orders", 2)
        sent = send_all(peer, workload.messages([("orders", 2)], 50, seed=93))
        await_upload(store, counts_of(sent))
        stored = read_back(peer, [("orders", 2)])
        caught = catch_open_index(store, tier, key_count(stored))
        facts = [*sent, *stored, *query_keys(peer, sent), *search_times(peer, stored)]
    keep(HERE / f"rocketmq-{distribution.version}-tier-ipv6", distribution.version, store, tier, facts, caught)


def keep(target: Path, version: str, store: Path, tier: Path, facts: list[Fact], caught: Mapping[int, bytes]) -> None:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(tier, target / "tier")
    shutil.copy(metadata_path(store), target / FILE_NAME)
    (target / "open_index").mkdir()
    for begin_ms, data in caught.items():
        (target / "open_index" / str(begin_ms)).write_bytes(data)
    description = {"version": version, "cluster": CLUSTER, "broker": BROKER, "tier": dict(TINY_SEGMENTS)}
    (target / "tier.json").write_text(json.dumps(description, indent=2) + "\n")
    lines = (json.dumps(fact, ensure_ascii=False, sort_keys=True) + "\n" for fact in facts)
    (target / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")


RECIPES = {"tier": make_tier, "tier-ipv6": make_ipv6_tier}


def main(names: Sequence[str]) -> None:
    for name in names or RECIPES:
        with tempfile.TemporaryDirectory(prefix="tiermq-golden-") as scratch:
            RECIPES[name](fetch(), Path(scratch))
        print(f"made {name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
