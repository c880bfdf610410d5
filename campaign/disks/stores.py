"""The ground of a local store: commit log, consume queues, ext files, batch queues, index, checkpoint, marker."""

from __future__ import annotations

import random
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from campaign.disks.ground import Place, Verdict, check_keys, identity, read_queue
from small_store import SIZES
from tiermq import Message
from tiermq.kernel.get_page import GetPage
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.message_filter import TagFilter
from tiermq.message.stored_message import StoredMessage
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.check import check_store

QUEUES = (("orders", 0), ("orders", 1), ("refunds", 0))
BATCHES = ("batches", 0)
SETTINGS: dict[str, Any] = {**SIZES, "enabled_append_prop_crc": True}
"""With a checksum over the whole record: without one, a topic's or a property's bytes may go bad unnoticed."""
MESSAGES = 150
TAG = "a"
OLDEST = f"{0:020d}"


class Contents(NamedTuple):
    messages: dict[Place, tuple[Any, ...]]
    keys: dict[str, tuple[str, bytes]]


class StoreGround:
    """Closed in order, or as a killed process leaves it."""

    repaired = frozenset({"checkpoint", "marker", "lock", "abort"})
    unsummed = frozenset[str]()

    def __init__(self, *, killed: bool, strict: bool = True, ext: bool = False) -> None:
        """Ext: queues have ext files, whose units hold tags, times and filters' bits again.

        Strict: nothing of a message may change but by one bit of the name of its own checksum. Where more goes bad
        than a few bits, that name may go with what it speaks of, and bodies are all that is promised.
        """
        self.killed = killed
        self.identity: Callable[[StoredMessage], Any] = identity if strict else attrgetter("body")
        self.name = ("killed store" if killed else "closed store") + (" with ext files" if ext else "")
        self._settings = {**SETTINGS, "enable_consume_queue_ext": ext}

    def build(self, root: Path, seed: int) -> Contents:
        chance = random.Random(seed)
        store = LocalStore.open(root / "store", background=False, batch_topics=[BATCHES[0]], **self._settings)
        keys: dict[str, tuple[str, bytes]] = {}
        for number in range(MESSAGES):
            topic, queue_id = chance.choice(QUEUES)
            body = b"%d " % number * chance.choice([1, 20, 60])
            result = store.put(Message(topic, body, queue_id, keys=[f"key-{number}"], tags=TAG))
            assert result.ok, result
            keys[f"key-{number}"] = (topic, body)
        for number in range(10):
            elements = [BatchElement(0, b"b%d-%d " % (number, each) * 5, b"") for each in range(4)]
            store.put_batch(Message("plain", encode_client_batch(elements), 0))
            store.put(Message(*BATCHES[:1], b"single %d " % number, BATCHES[1]))
        store.dispatch_now()
        messages = {
            (message.topic, message.queue_id, message.queue_offset): self.identity(message)
            for topic, queue_ids in store.topics().items()
            for queue_id in queue_ids
            for message in _all(store, topic, queue_id)
        }
        if self.killed:
            store.flush()
            store.flush_queues()
            abandon(store)
        else:
            store.close()
        return Contents(messages, keys)

    def kind_of(self, path: Path) -> str:
        part = path.parts[1]
        if path.name == OLDEST and part == "commitlog":
            return "oldest log file"
        return {"tiermq.clean": "marker", "batchconsumequeue": "batch queue", "consumequeue": "queue"}.get(part, part)

    def judge(self, root: Path, expected: Contents) -> Verdict:
        verdict = Verdict()
        with verdict.telling("store check"):
            report = check_store(root / "store", slot_count=SETTINGS["max_hash_slot_num"])
            verdict.reported += [f"store check: {each.where}: {each.text}" for each in report.problems]
        with (
            verdict.telling("open"),
            LocalStore.open(root / "store", background=False, batch_topics=[BATCHES[0]], **self._settings) as store,
        ):
            store.dispatch_now()
            if store.recovered is not None and store.recovered.lost_durable:
                verdict.reported.append("recovery: records that were on disk are gone")
            found: dict[Place, tuple[Any, ...]] = {}
            for topic, queue_id in sorted({place[:2] for place in expected.messages}):
                found |= read_queue(store, topic, queue_id, verdict, self.identity)
            verdict.compare(expected.messages, found)
            check_keys(store.query, expected.keys, verdict)
            tagged: dict[Place, tuple[Any, ...]] = {}
            for queue in QUEUES:
                tagged |= read_queue(_ByTag(store), *queue, verdict, self.identity)
            verdict.lost += [f"{place} by its tag" for place in found if place[:2] in QUEUES and place not in tagged]
        return verdict


class _ByTag:
    """A store as a consumer of one tag sees it."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.min_offset, self.max_offset = store.min_offset, store.max_offset

    def get(self, topic: str, queue_id: int, offset: int) -> GetPage:
        return self._store.get(topic, queue_id, offset, message_filter=TagFilter(TAG))


def _all(store: LocalStore, topic: str, queue_id: int) -> Any:
    offset = store.min_offset(topic, queue_id)
    while (page := store.get(topic, queue_id, offset)).count:
        yield from page.messages
        offset = page.next_offset


def abandon(store: LocalStore) -> None:
    """As if its process had been killed: nothing is written any more, nothing is said."""
    store._parts.allocator.shutdown()
    store._unmap()
    store._lock.release()
