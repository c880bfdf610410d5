"""Makes `tests/golden/`: small store directories written by the real RocketMQ, with a manifest of what was sent.

    .venv/bin/python tests/interop/make_golden.py [NAME ...]

Files are never trimmed or touched after the broker is gone. Each directory holds

    store/            the broker's store directory
    settings.json     release, how the broker ended, the store settings it ran with, the topics it was given
    manifest.jsonl    one line per fact, by `kind`:
                      sent       what the client asked for, and the send result
                      stored     a message as RocketMQ's own consumer read it back, before the broker ended
                      query      the offset ids that RocketMQ's own query by key found
                      offset_at  the queue offset that RocketMQ's own search by time found
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from interop import workload
from interop.peer import Described, Peer
from interop.rocketmq import Cluster, Distribution, fetch

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

TINY_FILES: Mapping[str, object] = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 16,
    "mapperFileSizeBatchConsumeQueue": 46 * 8,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
    "maxMessageSize": 32 * 1024,
}

Topics = Sequence[tuple[str, int, Mapping[str, str]]]
Facts = list[Described]

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATION_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one golden directory is made."""

    name: str
    topics: Topics
    send: Callable[[Peer], Facts]
    extra_queues: Sequence[tuple[str, int]] = ()  # queues of system topics that are read back too
    more_settings: Mapping[str, object] = field(default_factory=dict)
    crash: bool = False
    trim: bool = False
    host: str = "127.0.0.1"


def sent(message: Described, result: Described, **more: object) -> Described:
    return {"kind": "sent", **workload.manifest_line(message), "result": result, **more}


def send_plain(count: int, seed: int) -> Callable[[Peer], Facts]:
    def send(peer: Peer) -> Facts:
        topics = [("orders", 4), ("payments", 1)]
        return [sent(message, peer.send(message)) for message in workload.messages(topics, count, seed)]

    return send


def send_batches_and_delays(peer: Peer) -> Facts:
    facts: Facts = []
    for topic, seed in (("parcels", 31), ("bulk", 32)):
        numbered = list(workload.messages([(topic, 1)], 60, seed, large_every=1000))
        unique_ids = workload.UniqueIds(seed + 1000)
        start = 0
        for size in (1, 2, 3, 5, 8, 13, 28):
            batch, start = numbered[start : start + size], start + size
            queue, batch_id = size % 2, unique_ids.next()
            result = peer.send_batch(batch, queue, batch_id)
            facts += [
                sent({**message, "queue": queue}, result, batch_id=batch_id, batch_index=index, batch_count=size)
                for index, message in enumerate(batch)
            ]
    for message in workload.messages([("bulk", 2)], 6, 33):
        facts.append(sent(message, peer.send(message)))
    for number, message in enumerate(workload.messages([("later", 2)], 12, 34, large_every=6)):
        delayed = {**message, "delay_level": (1, 17, 18)[number % 3]}
        facts.append(sent(delayed, peer.send(delayed)))
    for number, message in enumerate(workload.messages([("ledger", 2)], 6, 35)):
        decision = ("commit", "rollback", "unknown")[number % 3]
        facts.append(sent(message, peer.send_transaction(message, decision), decision=decision))
    await_messages(peer, [("later", 2), ("ledger", 2)], 4 + 2)
    await_messages(peer, [(OPERATION_TOPIC, 1)], 1)
    return facts


def send_with_property_crc(peer: Peer) -> Facts:
    facts = send_plain(60, 41)(peer)
    batch = list(workload.messages([("payments", 1)], 9, 42, large_every=1000))
    result = peer.send_batch(batch, 0, workload.UniqueIds(1042).next())
    for index, message in enumerate(batch):
        facts.append(sent({**message, "queue": 0}, result, batch_index=index, batch_count=len(batch)))
    return facts


def send_to_long_topics(peer: Peer) -> Facts:
    topics = [(topic, queues) for topic, queues, _ in ADDRESS_TOPICS]
    facts = [sent(message, peer.send(message)) for message in workload.messages(topics, 40, 51)]
    for group in LONG_GROUPS:
        for offset in range(3):
            peer.send_back("orders", 0, offset, group, delay_level=1)
        await_messages(peer, [(f"%RETRY%{group}", 1)], 3)
    return facts


def send_to_light_queues(peer: Peer) -> Facts:
    """Messages of one topic that also count in queues of their own, one of them in two, some in none."""
    listed = ("%LMQ%first", "%LMQ%first,%LMQ%second", "", "%LMQ%second")
    facts: Facts = []
    for number, message in enumerate(workload.messages([("orders", 2)], 40, 61)):
        names = listed[number % len(listed)]
        if names:
            message["properties"]["INNER_MULTI_DISPATCH"] = names
        facts.append(sent(message, peer.send(message)))
    return facts


def await_messages(peer: Peer, queues: Sequence[tuple[str, int]], count: int) -> None:
    """The broker moves delayed and committed messages on its own time; reading again is how a client notices."""
    while sum(len(peer.read(topic, queue)) for topic, number in queues for queue in range(number)) < count:
        pass


PLAIN_TOPICS: Topics = (("orders", 4, {}), ("payments", 1, {}))
BATCH_TOPICS: Topics = (
    ("parcels", 2, {}),
    ("bulk", 2, {"queue.type": "BatchCQ"}),
    ("later", 2, {}),
    ("ledger", 2, {}),
)

# Records of version 2 exist only for topics above 127 bytes, and a broker takes such a topic only as the retry topic of
# a long group name.
ADDRESS_TOPICS: Topics = (("orders", 2, {}), ("t" * 127, 1, {}))
LONG_GROUPS = ("g" * 121, "g" * 200)

RECIPES = (
    Recipe("clean", PLAIN_TOPICS, send_plain(200, 11)),
    Recipe("crashed", PLAIN_TOPICS, send_plain(150, 21), crash=True),
    Recipe(
        "batches",
        BATCH_TOPICS,
        send_batches_and_delays,
        extra_queues=[
            (SCHEDULE_TOPIC, 0),
            (SCHEDULE_TOPIC, 16),
            (SCHEDULE_TOPIC, 17),
            (HALF_TOPIC, 0),
            (OPERATION_TOPIC, 0),
        ],
    ),
    Recipe(
        "property-crc",
        PLAIN_TOPICS,
        send_with_property_crc,
        more_settings={"enabledAppendPropCRC": True, "forceVerifyPropCRC": True},
    ),
    Recipe(
        "ipv6-long-topics",
        ADDRESS_TOPICS,
        send_to_long_topics,
        extra_queues=[(SCHEDULE_TOPIC, 0), *((f"%RETRY%{group}", 0) for group in LONG_GROUPS)],
        host="::1",
    ),
    Recipe(
        "ext-units",
        PLAIN_TOPICS,
        send_plain(130, 71),
        more_settings={"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 1024},
    ),
    Recipe(
        "light-queues",
        (("orders", 2, {}),),
        send_to_light_queues,
        more_settings={"enableLmq": True, "enableMultiDispatch": True},
    ),
    Recipe("trimmed", PLAIN_TOPICS, send_plain(200, 81), more_settings={"fileReservedTime": 0}, trim=True),
)


def make(recipe: Recipe, distribution: Distribution, scratch: Path) -> None:
    store = scratch / "store"
    store_settings = {**TINY_FILES, **recipe.more_settings}
    with Cluster(distribution, store, scratch / "run", store_settings, recipe.host) as cluster:
        peer = cluster.peer()
        for topic, queues, attributes in recipe.topics:
            peer.create_topic(topic, queues, attributes)
        facts = recipe.send(peer)
        if recipe.trim:
            facts = trim(peer, recipe, facts)
        stored = read_back(peer, recipe)
        facts += stored + query_every_key(peer, facts) + search_by_time(peer, stored)
        if recipe.crash:
            cluster.crash()
    keep(recipe, recipe.name, distribution, store, facts)
    if recipe.trim:
        # What does RocketMQ make of a log that does not start at 0 when it has no queues and no index?
        for part in ("consumequeue", "index"):
            shutil.rmtree(store / part)
        with Cluster(distribution, store, scratch / "rebuild", TINY_FILES, recipe.host) as cluster:
            stored = read_back(cluster.peer(), recipe)
        keep(recipe, f"{recipe.name}-rebuilt", distribution, store, stored)


def trim(peer: Peer, recipe: Recipe, facts: Facts) -> Facts:
    """Have every log file but the last deleted, and wait for it; returns what was sent of the rest."""
    queues = [(topic, queue) for topic, number, _ in recipe.topics for queue in range(number)]
    peer.delete_expired()
    while not all(peer.bounds(topic, queue)[0] for topic, queue in queues):
        time.sleep(1)
    kept_ids = {message["offset_id"] for topic, queue in queues for message in peer.read(topic, queue)}
    return [fact for fact in facts if fact["result"]["offset_id"] in kept_ids]


def keep(recipe: Recipe, name: str, distribution: Distribution, store: Path, facts: Facts) -> None:
    target = GOLDEN / f"rocketmq-{distribution.version}-{name}"
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(store, target / "store")
    settings = {
        "version": distribution.version,
        "ended": "crash" if recipe.crash else "clean",
        "trimmed": recipe.trim,
        "store": {**TINY_FILES, **recipe.more_settings},
        "topics": {topic: {"queues": queues, "attributes": dict(named)} for topic, queues, named in recipe.topics},
    }
    (target / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")
    lines = (json.dumps(fact, ensure_ascii=False, sort_keys=True) + "\n" for fact in facts)
    (target / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")


def read_back(peer: Peer, recipe: Recipe) -> Facts:
    queues = [(topic, queue) for topic, number, _ in recipe.topics for queue in range(number)]
    return [
        {"kind": "stored", **workload.manifest_line(message)}
        for topic, queue in [*queues, *recipe.extra_queues]
        for message in peer.read(topic, queue)
    ]


def query_every_key(peer: Peer, facts: Facts) -> Facts:
    """Each key once per topic, each unique id too, and one key that nothing has."""
    asked: dict[tuple[str, str, bool], None] = {}
    for fact in facts:
        if fact["kind"] == "sent":
            asked.update({(fact["topic"], key, False): None for key in [*fact["keys"], "nobody-has-it"]})
            asked[fact["topic"], fact["unique_id"], True] = None
            if "batch_id" in fact:
                asked[fact["topic"], fact["batch_id"], True] = None
    return [
        {
            "kind": "query",
            "topic": topic,
            "key": key,
            "unique": unique,
            "offset_ids": sorted(message["offset_id"] for message in peer.query(topic, key, unique=unique)),
        }
        for topic, key, unique in asked
    ]


def search_by_time(peer: Peer, stored: Facts) -> Facts:
    """Before the first, at and just after every fifth, and after the last message of each queue."""
    times: dict[tuple[str, int], list[int]] = {}
    for fact in stored:
        times.setdefault((fact["topic"], fact["queue"]), []).append(fact["store_timestamp"])
    found = []
    for (topic, queue), all_ms in times.items():
        asked_ms = {all_ms[0] - 1, all_ms[-1] + 1, *all_ms[::5], *(time_ms + 1 for time_ms in all_ms[::5])}
        for time_ms in sorted(asked_ms):
            offset = peer.offset_at(topic, queue, time_ms)
            found.append({"kind": "offset_at", "topic": topic, "queue": queue, "timestamp": time_ms, "offset": offset})
    return found


def main(names: Sequence[str]) -> None:
    distribution = fetch()
    for recipe in RECIPES:
        if not names or recipe.name in names:
            with tempfile.TemporaryDirectory(prefix="tiermq-golden-") as scratch:
                make(recipe, distribution, Path(scratch))
            print(f"made {recipe.name}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
