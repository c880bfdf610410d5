"""What is asked of a tier's back end, counted: writes per commit, reads per key lookup, objects per sealed segment.

Each count is compared with what is promised, and a wrong one ends the program: a benchmark of a store that asks twice
as often would be the benchmark of another store.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.tiered_side import LOG_FILE_BYTES, CountingDriver, open_tiered
from tiermq import Message
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.index.index_store import IndexStore
from tiermq.tier.names import SegmentType
from tiermq.tier.tiered_store import TieredStore

BATCHES = 8
BATCH_MESSAGES = 20
SEGMENT_BYTES = 4_000
PROMISED = {
    "writes_per_commit_batch": 2,
    "reads_per_index_file": 2,
    "reads_per_index_file_after_restart": 2,
    "objects_per_sealed_segment": 1,
}


def count_requests(directory: Path) -> dict[str, int]:
    """The counts, over the object driver in memory. Raises RuntimeError when one is not as promised."""
    found = {
        "writes_per_commit_batch": _writes_per_batch(directory),
        **_reads_per_index_file(directory),
        "objects_per_sealed_segment": _objects_per_sealed_segment(directory),
    }
    if found != PROMISED:
        raise RuntimeError(f"expected the requests {PROMISED}, found {found}")
    return found


class _World:
    """A small store over a tier in memory, driven by hand."""

    def __init__(self, directory: Path, name: str, **settings: int) -> None:
        self._directory = directory / "store"
        self._url = f"memory://bench-{name}-{id(self)}?driver=object"
        self._settings: dict[str, Any] = {
            "background": False, "tiered_store_index_file_max_hash_slot_num": 64,
            "tiered_store_index_file_max_index_num": 200, **settings,
        }  # fmt: skip
        self.driver = CountingDriver(open_driver(self._url))
        self.store: TieredStore = open_tiered(self._directory, directory / "unused", self.driver, **self._settings)

    def restart(self) -> None:
        """Another life of the same store over the same tier, which remembers nothing."""
        self.store.close()
        self.driver = CountingDriver(open_driver(self._url))
        self.store = TieredStore.open(
            self._directory, tier=self._url, driver=self.driver, mapped_file_size_commit_log=LOG_FILE_BYTES,
            disk_max_used_space_ratio=95, tier_evict_on_proof=False, **self._settings,
        )  # fmt: skip

    def put_batch(self, number: int) -> None:
        for each in range(BATCH_MESSAGES):
            self.store.put(Message("bench-requests", b"x" * 100, 0, keys=[f"key-{number}-{each}"]))
        self.store.local.dispatch_now()
        self.store.local.flush()

    def close(self) -> None:
        self.store.close()

    def tier(self) -> None:
        self.store.tier.engine.tick()
        if not self.store.flush_to_tier():
            raise RuntimeError(f"expected everything in the tier, found {self.store.tier.engine.status()}")


def _writes_per_batch(directory: Path) -> int:
    with harness.part_directory(directory) as place:
        world = _World(place, "writes")
        with world.store:
            for number in range(BATCHES):
                world.put_batch(number)
                world.tier()
            return world.driver.calls["write"] // BATCHES + (world.driver.calls["write"] % BATCHES > 0)


def _reads_per_index_file(directory: Path) -> dict[str, int]:
    """Reads of index files by a key look-up, in the life that uploaded the file and at the beginning of the next."""
    with harness.part_directory(directory) as place, closing(_World(place, "reads")) as world:
        index = _index_of(world.store)
        world.put_batch(0)
        world.tier()
        index.seal()
        while index.run_once() == 0.0:
            continue
        found = {"reads_per_index_file": _reads_of_a_question(world)}
        world.restart()
        return found | {"reads_per_index_file_after_restart": _reads_of_a_question(world)}


def _index_of(store: TieredStore) -> IndexStore:
    if store.tier.index is None:
        raise RuntimeError("expected a tier with a key index, found none")
    return store.tier.index


def _reads_of_a_question(world: _World) -> int:
    """Reading the message itself, to compare its key, is another request, of the commit log."""
    index = _index_of(world.store)
    states = [state.name for _, state in index.states()]
    if states != ["UPLOAD"]:
        raise RuntimeError(f"expected one index file in the tier, found {states}")
    before = world.driver.calls["read INDEX"]
    found = index.query("bench-requests", "key-0-7", 1, 0, 1 << 62)
    if len(found.hits) != 1:
        raise RuntimeError(f"expected one message with the key, found {found}")
    return world.driver.calls["read INDEX"] - before


def _objects_per_sealed_segment(directory: Path) -> int:
    with harness.part_directory(directory) as place:
        world = _World(place, "objects", tiered_store_commit_log_max_size=SEGMENT_BYTES,
                       tiered_store_consume_queue_max_size=20 * 2 * BATCH_MESSAGES)  # fmt: skip
        with world.store:
            for number in range(BATCHES):
                world.put_batch(number)
                world.tier()
            while world.store.tier.engine.step():
                continue
            infos = [info for info in world.driver.list_segments("") if info.sealed]
            kinds = {info.key.type for info in infos}
            if kinds != {SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE}:
                raise RuntimeError(f"expected sealed segments of both kinds, found {kinds}")
            # A sealed segment is its canonical object alone: no part is left.
            return 1 + int(max(info.part_count for info in infos))
