"""TierMQ's sides of the tier's works, each in a process of its own (`peer_process.serve`).

Uploads        what waits in a local store goes to a new tier, by the engine's own threads
Reads          whole queues, pages anywhere, or messages by key, from the tier alone (`tieredStorageLevel` FORCE)
Rearrangement  a full index file, compacted into a file, as the first step of its upload does it
"""

from __future__ import annotations

import gc
import logging
import shutil
from pathlib import Path
from typing import Any

from benchmarks.compare import tier_data
from benchmarks.compare.tier_data import BROKER, CLUSTER, RECORD_BYTES, Chance
from tiermq.files.os_file_access import OsFileAccess
from tiermq.status import GetStatus
from tiermq.tier.index.compacted_index import IndexState
from tiermq.tier.index.index_recovery import COMPACTING_DIRECTORY
from tiermq.tier.index.index_write_file import IndexWriteFile
from tiermq.tier.tiered_store import TieredStore

Parameters = dict[str, str]
GROUP = "bench-group"


def begin_tier(parameters: Parameters) -> TieredStore:
    """The local store with a new tier above it: nothing of an earlier one is left, and nothing is uploaded yet."""
    logging.getLogger("tiermq").setLevel(logging.ERROR)
    directory, tier = Path(parameters["store"]), Path(parameters["tier"])
    for gone in (tier, directory / "config" / "tier", directory / "tiered_index_file"):
        shutil.rmtree(gone, ignore_errors=True)
    for metadata in (directory / "config").glob("*.db*"):
        metadata.unlink()
    return TieredStore.open(
        directory,
        tier=tier.as_uri(),
        background=False,
        broker_name=BROKER,
        broker_cluster_name=CLUSTER,
        tiered_storage_level="FORCE",
        tiered_store_index_file_max_hash_slot_num=int(parameters["slots"]),
        tiered_store_index_file_max_index_num=int(parameters["capacity"]),
        tier_evict_on_proof=False,
        **tier_data.local_settings(),
    )


def upload_all(store: TieredStore, messages: int) -> None:
    """Raises RuntimeError unless every message is in the tier."""
    done = store.flush_to_tier()
    found = sum(max(0, file.commit_offset) for file in store.tier.files)
    if not done or found != messages:
        raise RuntimeError(f"expected {messages} messages in the tier, found {found}: {store.tier.engine.status()}")


class Uploads:
    """Served; `java/rocketmq/TierUpload.java` is the other side."""

    def __init__(self) -> None:
        self._settings: Parameters = {}
        self._store: TieredStore | None = None

    def prepare(self, parameters: Parameters) -> dict[str, Any]:
        self._settings = parameters
        return {}

    def reset(self, _parameters: Parameters) -> None:
        self.close()
        self._store = begin_tier(self._settings)
        gc.collect()

    def run(self, _parameters: Parameters) -> tuple[int, int]:
        assert self._store is not None
        messages = int(self._settings["messages"])
        self._store.tier.engine.start()
        upload_all(self._store, messages)
        return messages, int(self._settings["bytes"])

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


class Reads:
    """Served; `java/rocketmq/TierRead.java` is the other side."""

    def __init__(self) -> None:
        self._store: TieredStore | None = None
        self._messages = 0

    def prepare(self, parameters: Parameters) -> dict[str, Any]:
        self._messages = int(parameters["messages"])
        self._store = store = begin_tier(parameters)
        upload_all(store, self._messages)
        index = store.tier.index
        assert index is not None
        index.seal()
        while index.run_once() == 0.0:
            continue
        states = [state for _, state in index.states()]
        if states != [IndexState.UPLOAD]:
            raise RuntimeError(f"expected one index file in the tier, found {states}")
        (index_file,) = (path for path in Path(parameters["tier"]).rglob("INDEX/*") if len(path.name) == 28)
        return {"index_file": str(index_file)}

    def reset(self, _parameters: Parameters) -> None:
        assert self._store is not None
        for file in self._store.tier.files:
            self._store.tier.fetcher.forget(file)
        gc.collect()

    def run(self, parameters: Parameters) -> tuple[int, int]:
        how = {"sequential": self._sequential, "random": self._random, "keys": self._keys}[parameters["how"]]
        return how(parameters)

    def _sequential(self, parameters: Parameters) -> tuple[int, int]:
        assert self._store is not None
        get, page_count = self._store.get, int(parameters["page"])
        per_queue = self._messages // tier_data.QUEUE_COUNT
        count = size = 0
        for number in range(tier_data.QUEUE_COUNT):
            topic, queue_id = tier_data.place_of(number)
            offset = 0
            while offset < per_queue:
                page = get(topic, queue_id, offset, page_count, group=GROUP)
                if page.status is not GetStatus.FOUND:
                    raise RuntimeError(f"expected FOUND at {offset}, found {page.status}")
                offset = page.next_offset
                count += page.count
                size += len(page.data)
        if count != self._messages or size != count * RECORD_BYTES:
            raise RuntimeError(f"expected {self._messages} messages, found {count} in {size} bytes")
        return count, size

    def _random(self, parameters: Parameters) -> tuple[int, int]:
        assert self._store is not None
        get, page_count = self._store.get, int(parameters["page"])
        wanted, chance = int(parameters["count"]), Chance(int(parameters["seed"]))
        last = self._messages // tier_data.QUEUE_COUNT - page_count
        count = size = 0
        for _ in range(wanted):
            topic, queue_id = tier_data.TOPICS[chance.below(len(tier_data.TOPICS))], chance.below(tier_data.QUEUES)
            offset = chance.below(last)
            end = offset + page_count
            while offset < end:  # A page may end early, where a window does; then the rest is asked for.
                page = get(topic, queue_id, offset, end - offset, group=GROUP)
                if page.count == 0:
                    raise RuntimeError(f"expected messages at {offset}, found {page.status}")
                offset = page.next_offset
                count += page.count
                size += len(page.data)
        if count != wanted * page_count:
            raise RuntimeError(f"expected {wanted * page_count} messages, found {count}")
        return count, size

    def _keys(self, parameters: Parameters) -> tuple[int, int]:
        assert self._store is not None
        query, chance = self._store.query, Chance(int(parameters["seed"]))
        wanted, size = int(parameters["count"]), 0
        for _ in range(wanted):
            number = chance.below(self._messages)
            (found,) = query(tier_data.place_of(number)[0], tier_data.key_of(number), max_messages=32).messages
            size += found.size
        return wanted, size

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


class Rearrangement:
    """Served; `java/rocketmq/TierRearrange.java` is the other side."""

    def __init__(self) -> None:
        self._file: IndexWriteFile | None = None
        self._access = OsFileAccess()
        self._compacted = Path()

    def prepare(self, parameters: Parameters) -> dict[str, Any]:
        directory = str(Path(parameters["store"]) / "tiered_index_file")
        shape = int(parameters["slots"]), int(parameters["capacity"])
        self._file = IndexWriteFile.adopt(self._access, directory, parameters["begin"], *shape)
        self._compacted = Path(directory, COMPACTING_DIRECTORY, parameters["begin"])
        return {}

    def reset(self, _parameters: Parameters) -> None:
        shutil.rmtree(self._compacted.parent, ignore_errors=True)

    def run(self, _parameters: Parameters) -> tuple[int, int]:
        assert self._file is not None
        data = self._file.compact()
        region = self._access.create(str(self._compacted), len(data))
        try:
            region.reserve(0, len(data))
            region.write(0, data)
        finally:
            region.close()
        return self._file.header.item_count, len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
