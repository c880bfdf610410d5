"""What is asked of a tier's back end, counted: writes per commit, reads per key lookup, objects per sealed segment.

Each count is compared with what is promised, and a wrong one ends the program: a benchmark of a store that asks twice
as often would be the benchmark of another store.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import harness
from benchmarks.tiered_side import CountingDriver, open_tiered
from tiermq import Message
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import SegmentType
from tiermq.tier.tiered_store import TieredStore

BATCHES = 8
BATCH_MESSAGES = 20
SEGMENT_BYTES = 4_000
PROMISED = {"writes_per_commit_batch": 2, "reads_per_index_file": 2, "objects_per_sealed_segment": 1}


def count_requests(directory: Path) -> dict[str, int]:
    """The counts, over the object driver in memory. Raises RuntimeError when one is not as promised."""
    found = {
        "writes_per_commit_batch": _writes_per_batch(directory),
        "reads_per_index_file": _reads_per_index_file(directory),
        "objects_per_sealed_segment": _objects_per_sealed_segment(directory),
    }
    if found != PROMISED:
        raise RuntimeError(f"expected the requests {PROMISED}, found {found}")
    return found


class _World:
    """A small store over a tier in memory, driven by hand."""

    def __init__(self, directory: Path, name: str, **settings: int) -> None:
        inner: TierDriver = open_driver(f"memory://bench-{name}-{id(self)}?driver=object")
        self.driver = CountingDriver(inner)
        self.store: TieredStore = open_tiered(
            directory / "store", directory / "unused", self.driver,
            background=False, tiered_store_index_file_max_hash_slot_num=64,
            tiered_store_index_file_max_index_num=200, **settings,
        )  # fmt: skip

    def put_batch(self, number: int) -> None:
        for each in range(BATCH_MESSAGES):
            self.store.put(Message("bench-requests", b"x" * 100, 0, keys=[f"key-{number}-{each}"]))
        self.store.local.dispatch_now()
        self.store.local.flush()

    def tier(self) -> None:
        self.store.tier.engine.tick()
        if not self.store.tier_now():
            raise RuntimeError(f"expected everything in the tier, found {self.store.tier.engine.status()}")


def _writes_per_batch(directory: Path) -> int:
    with harness.part_directory(directory) as place:
        world = _World(place, "writes")
        with world.store:
            for number in range(BATCHES):
                world.put_batch(number)
                world.tier()
            return world.driver.calls["write"] // BATCHES + (world.driver.calls["write"] % BATCHES > 0)


def _reads_per_index_file(directory: Path) -> int:
    with harness.part_directory(directory) as place:
        world = _World(place, "reads")
        index = world.store.tier.index
        with world.store:
            if index is None:
                raise RuntimeError("expected a tier with a key index, found none")
            world.put_batch(0)
            world.tier()
            index.seal()
            while index.run_once() == 0.0:
                continue
            states = [state.name for _, state in index.states()]
            if states != ["UPLOAD"]:
                raise RuntimeError(f"expected one index file in the tier, found {states}")
            # Reading the message itself, to compare its key, is another request, of the commit log.
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
