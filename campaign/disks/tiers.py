"""The ground of a store with a tier in a directory: what both have, what only the tier has, and what knows of it.

Kinds: of the tier, segments of records, units and keys, manifests, the lease; of the store, the database of the tier's
metadata, the index files that are not in the tier yet, and their record.

A record in the tier has a checksum over its body alone: the one over all of it speaks of the record's place in the log,
which is another one in the tier. So bodies are what no damage may change for a reader; the rest is for `tier verify`.
"""

from __future__ import annotations

import random
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from campaign.disks.ground import Place, Verdict, check_keys, read_queue
from small_store import SIZES
from tiermq import Message
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tiered_store import TieredStore
from tiermq.tier.verify.verify import verify_tier

TOPIC = "orders"
QUEUES = 2
MESSAGES = 160
INDEX_TURNS = 50
SETTINGS: dict[str, Any] = {
    **SIZES,
    "broker_name": "broker-a",
    "tiered_store_commit_log_max_size": 6_000,
    "tiered_store_consume_queue_max_size": 20 * 40,
    "tiered_store_index_file_max_hash_slot_num": 16,
    "tiered_store_index_file_max_index_num": 120,
    "file_reserved_time": 0,
}
LOCAL_PARTS = {
    "tieredStoreMetadata.db": "tier metadata",
    "tier.machine": "machine of the metadata",
    "tier.lock": "tier lock",
    "coverage.tiermq.json": "coverage",
}


class Contents(NamedTuple):
    messages: dict[Place, bytes]
    keys: dict[str, tuple[str, bytes]]


class TierGround:
    """`cold`: the store's own log is cleaned away as far as the tier has it."""

    repaired = frozenset({"tier metadata", "machine of the metadata", "lease", "tier lock", "coverage"})

    unsummed = frozenset({"index of the tier, local"})

    def __init__(self, *, cold: bool) -> None:
        self.cold = cold
        self.name = "cold tier" if cold else "tier beside its store"

    def build(self, root: Path, seed: int) -> Contents:
        chance = random.Random(seed)
        messages: dict[Place, bytes] = {}
        keys: dict[str, tuple[str, bytes]] = {}
        with _opened(root) as store:
            for number in range(MESSAGES):
                queue_id = chance.randrange(QUEUES)
                body = b"%d " % number * chance.choice([5, 30, 60])
                result = store.put(Message(TOPIC, body, queue_id, keys=[f"key-{number}"], tags="a"))
                assert result.ok, result
                keys[f"key-{number}"] = (TOPIC, body)
            store.local.dispatch_now()
            assert store.flush_to_tier(), store.status()
            for queue_id in range(QUEUES):
                offset = 0
                while (page := store.local.get(TOPIC, queue_id, offset)).count:
                    messages |= {(TOPIC, queue_id, each.queue_offset): each.body for each in page.messages}
                    offset = page.next_offset
            if self.cold:
                store.clean_now()
        return Contents(messages, keys)

    def kind_of(self, path: Path) -> str:
        if path.parts[0] == "store":
            if path.name in LOCAL_PARTS:
                return LOCAL_PARTS[path.name]
            return "index of the tier, local" if "tiered_index_file" in path.parts else ""
        if path.name.startswith("."):
            return ""
        if path.name.endswith(".tiermq.json"):
            return path.name.split(".")[0] if path.name[0] in "ml" else "manifest of an index"
        return f"segment {path.parent.name}"

    def judge(self, root: Path, expected: Contents) -> Verdict:
        verdict = Verdict()
        with verdict.telling("tier verify"):
            report = verify_tier(open_driver((root / "tier").as_uri()))
            verdict.reported += [f"tier verify: {each.where}: {each.text}" for each in report.problems]
        with verdict.telling("open"), _opened(root, restore=True) as store:
            found: dict[Place, bytes] = {}
            for queue_id in range(QUEUES):
                found |= read_queue(store, TOPIC, queue_id, verdict, attrgetter("body"))
            verdict.compare(expected.messages, found)
            index = store.tier.index
            for _ in range(INDEX_TURNS):  # As its upkeep does: what it lacks is indexed again.
                if index is None or index.is_complete:
                    break
                index.run_once()
            check_keys(store.query, expected.keys, verdict)
            if index is not None and not index.is_complete:
                verdict.reported.append("the tier's index says that it is not complete")
        return verdict


def _opened(root: Path, *, restore: bool = False) -> TieredStore:
    """`restore`: what an operator asks for when the store has lost what it knew of the tier."""
    tier = (root / "tier").as_uri()
    return TieredStore.open(root / "store", tier=tier, background=False, restore=restore, **SETTINGS)
