"""Quiet queues of an offload share objects: chunks of tasks, which count when the driver commits a bundle."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import STORE, OffloadWorld, run_twice
from pipeline.offload.wire_world import wire_world
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.clock import HOUR_MS, SystemClock
from tiermq.errors import BundlesFenced, TierError
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.pipeline import worker_cache
from tiermq.pipeline.compact.job import compact
from tiermq.pipeline.expire.job import expire
from tiermq.pipeline.export.job import export
from tiermq.pipeline.offload import task as offload_task
from tiermq.pipeline.offload.job import OffloadOptions
from tiermq.pipeline.offload.plan import OffloadSettings
from tiermq.pipeline.reindex.job import reindex
from tiermq.pipeline.task_runner import LocalRunner
from tiermq.pipeline.verify.job import verify
from tiermq.store.local_store import LocalStore
from tiermq.tier.dispatch.bundle_step import QUIET_BYTES_MAX
from tiermq.tier.driver import object_store
from tiermq.tier.driver.bundle import decode_directory
from tiermq.tier.driver.contract import ChunkRange, ForwardingDriver
from tiermq.tier.driver.object_requests import ObjectRequests
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.driver.part_log import PartObject, sound_prefix
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import BUNDLES_DIRECTORY, QueueKey, SegmentType, broker_directory
from tiermq.tier.restore.restore import restore
from tiermq.tier.tier_dump import dump_tier, list_tier_files
from tiermq.tier.tiered_store import TieredStore

TOPIC = "quiet"
QUEUES = 12
OBJECTS = "?driver=object"
HOME = broker_directory("c", "b")
DEFAULT = OffloadSettings()
CONFIG = {"tiered_store_index_file_max_hash_slot_num": 50, "tiered_store_index_file_max_index_num": 2_000}


def put_all(store: LocalStore, turn: int, queues: int = QUEUES, body: bytes = b"x" * 100) -> None:
    for queue in range(queues):
        assert store.put(Message(TOPIC, b"%d-%d " % (queue, turn) + body, queue, keys=[f"k-{queue}-{turn}"])).ok
    store.dispatch_now()


class _Kept(ForwardingDriver):
    """A driver that a store does not close."""

    def close(self) -> None:
        """Others go on with it."""


class QuietWorld(OffloadWorld):
    """A store of quiet queues, and a tier of objects in a directory."""

    def __init__(self, root: Path, queues: int = QUEUES) -> None:
        super().__init__(root, OBJECTS)
        self.queues = queues
        self.turn = 0

    def turn_once(self, body: bytes = b"x" * 100, **options: Any) -> Any:
        with LocalStore.open(self.store, background=False, **STORE) as store:
            put_all(store, self.turn, self.queues, body)
        self.turn += 1
        return self.offload(**{"settings": DEFAULT, "config": CONFIG, **options})

    def objects(self, pattern: str) -> list[Path]:
        return sorted((self.root / "t").glob(f"*/b/{pattern}"))

    def segments_by(self, driver: ObjectStoreDriver) -> dict[str, bytes]:
        """What can be read of each segment of messages."""
        found = {}
        for info in driver.list_segments():
            if info.key.topic == TOPIC and not info.damage:
                found[info.key.path] = bytes(driver.read(info.key, 0, info.size))
        return found

    @property
    def chunks(self) -> list[Path]:
        return self.objects(f"{BUNDLES_DIRECTORY}/chunk-*")

    @property
    def bundles(self) -> list[Path]:
        return self.objects(f"{BUNDLES_DIRECTORY}/0*")

    @property
    def parts(self) -> list[Path]:
        return self.objects(f"{TOPIC}/*/*/*.parts/0*")

    def bodies(self) -> dict[int, list[bytes]]:
        """What a broker that was restored from the bucket reads."""
        settings: dict[str, Any] = {"broker_cluster_name": "c", "broker_name": "b", **STORE, **CONFIG}
        into = self.root / f"restored-{random.randrange(1 << 40)}"
        driver = _Kept(worker_cache.driver_of(self.tier))
        with TieredStore.open(
            into, driver=driver, tier_url=self.tier, background=False, restore=True, tier_dispatch_enable=False,
            **settings,
        ) as store:  # fmt: skip
            found: dict[int, list[bytes]] = {}
            for queue in range(self.queues):
                offset = store.min_offset(TOPIC, queue)
                found[queue] = []
                while offset < store.max_offset(TOPIC, queue):
                    page = store.get(TOPIC, queue, offset, 32)
                    assert page.messages, page.status
                    found[queue] += [message.body.partition(b" ")[0] for message in page.messages]
                    offset = page.next_offset
            return found

    def expected(self) -> dict[int, list[bytes]]:
        return {queue: [b"%d-%d" % (queue, turn) for turn in range(self.turn)] for queue in range(self.queues)}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[QuietWorld]:
    made = QuietWorld(tmp_path)
    yield made
    worker_cache._drivers.pop(made.tier, None)


def test_quiet_queues_of_a_wave_share_one_chunk_and_one_bundle_with_the_bytes_of_objects_of_their_own(
    world: QuietWorld, tmp_path: Path
) -> None:
    for _ in range(2):
        assert world.turn_once().problems == []
    assert (len(world.chunks), world.parts) == (2, [])
    assert world.bodies() == world.expected()
    assert verify(None, tier=world.tier).is_clean
    apart = OffloadWorld(tmp_path / "apart", OBJECTS)
    apart.store = world.store.rename(tmp_path / "moved")
    (apart.store / "config" / "tieredStoreMetadata.db").unlink()
    apart.offload(settings=OffloadSettings(packs=False), config=CONFIG)
    assert not list((tmp_path / "apart" / "t").glob(f"*/b/{BUNDLES_DIRECTORY}/*"))
    assert world.segments() == apart.segments()


def test_a_queue_with_more_to_copy_writes_its_own_objects_behind_its_ranges(world: QuietWorld) -> None:
    world.turn_once()
    world.turn_once(body=b"y" * (QUIET_BYTES_MAX + 1))
    world.turn_once()
    assert len(world.chunks) == 2
    assert len(world.parts) == 2 * QUEUES  # Records and units.
    assert world.bodies() == world.expected()


def test_chunks_of_other_attempts_never_count(world: QuietWorld) -> None:
    def fails_once(tasks: Any) -> Any:
        LocalRunner().run(offload_task.run_offload_task, tasks)
        raise TierError("an executor is lost")

    with pytest.raises(TierError, match="an executor is lost"):
        world.turn_once(run=fails_once)
    assert len(world.chunks) == 1
    world.turn_once(run=run_twice)
    assert (len(world.chunks), world.parts) == (3, [])
    assert len({entry.chunk for entry in ranges_of(world)}) == 1
    assert world.bodies() == world.expected()


def ranges_of(world: QuietWorld) -> list[Any]:
    directories = [decode_directory(path.read_bytes(), path.name) for path in world.bundles]
    return [entry for directory in directories for entry in directory.ranges]


def test_a_chunk_that_cannot_be_stored_fails_its_queues_and_the_next_run_copies_them(
    world: QuietWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any) -> str:
        raise TierError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStoreDriver, "put_chunk", refuse)
        report = world.turn_once()
    assert (len(report.problems), report.done["messages"], report.done["keys"]) == (QUEUES, 0, 0)
    report = world.turn_once()
    assert (report.problems, report.done["messages"], report.done["keys"]) == ([], 2 * QUEUES, 2 * QUEUES)
    assert world.bodies() == world.expected()


class Killed(BaseException):
    """The end of the process, as far as a test can have it."""


class DyingRequests(ObjectRequests):
    """Ends the process at the n-th object that is written or deleted, before it or after it."""

    def __init__(self, objects: Any, url: str, dies_at: int, *, after: bool) -> None:
        super().__init__(objects, url)
        self._left, self._after = dies_at, after
        self.is_dead = False

    def _change(self, change: Callable[[], Any]) -> Any:
        if self.is_dead:
            raise Killed  # Also of what runs on the way out: nothing does in a process that was killed.
        self._left -= 1
        self.is_dead = self._left < 0
        if self.is_dead and not self._after:
            raise Killed
        answer = change()
        if self.is_dead:
            raise Killed
        return answer

    def create(self, path: str, data: bytes | memoryview) -> Any:
        return self._change(lambda: super(DyingRequests, self).create(path, data))

    def put(self, path: str, data: bytes, expected: str | None, *, check: bool) -> Any:
        return self._change(lambda: super(DyingRequests, self).put(path, data, expected, check=check))

    def delete(self, paths: Any) -> Any:
        return self._change(lambda: super(DyingRequests, self).delete(paths)) if paths else None


@pytest.mark.crash
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_job_that_is_killed_at_any_request_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """In the wave that is killed bundles are merged, too, and a queue gets objects of its own."""
    monkeypatch.setattr("tiermq.tier.driver.bundle.MERGE_RUN", 3)
    dies_at = 0
    while True:
        world = QuietWorld(tmp_path / str(dies_at), queues=2)
        world.store.parent.mkdir()
        objects = _memory()
        worker_cache._drivers[world.tier] = ObjectStoreDriver(ObjectRequests(objects, world.tier), world.tier)
        world.turn_once(body=b"y" * 40_000)
        world.turn_once(body=b"y" * 30_000)
        dying = DyingRequests(objects, world.tier, dies_at, after=after)
        worker_cache._drivers[world.tier] = ObjectStoreDriver(dying, world.tier)
        try:
            world.turn_once()
        except Killed:
            world.turn -= 1
        world.turn = 3
        worker_cache._drivers[world.tier] = ObjectStoreDriver(ObjectRequests(objects, world.tier), world.tier)
        assert world.turn_once().problems == [], dies_at
        assert world.bodies() == world.expected(), dies_at
        assert verify(None, tier=world.tier).is_clean, dies_at
        worker_cache._drivers.pop(world.tier)
        if not dying.is_dead:
            break
        dies_at += 1
    assert dies_at > 10


def test_a_commit_whose_response_was_lost_is_found_and_not_repeated(world: QuietWorld) -> None:
    world.turn_once()
    driver: Any = open_driver(world.tier)
    chunk = next(iter({entry.chunk for entry in ranges_of(world)}))
    store = driver.inner._bundle_store(HOME)
    store.fence(create=True)
    before = len(world.bundles)
    store.forget()
    store.commit_chunks([entry for entry in ranges_of(world) if entry.chunk == chunk], {})
    assert len(world.bundles) == before


def test_of_two_writers_the_one_that_was_fenced_commits_nothing_and_can_go_on_only_with_the_lease(
    world: QuietWorld,
) -> None:
    def run(tasks: Any) -> Any:
        results = LocalRunner().run(offload_task.run_offload_task, tasks)
        open_driver(world.tier).fence_bundles(HOME, create=True)
        return results

    world.turn_once()
    before = world.segments()
    with pytest.raises(BundlesFenced):
        world.turn_once(run=run)
    assert world.segments() == before
    world.turn_once()
    assert world.bodies() == world.expected()


def test_parts_that_a_stale_writer_leaves_beside_and_behind_a_range_do_not_count() -> None:
    bundled = [PartObject(0, 100, bundle="b"), PartObject(100, 20, bundle="b")]
    stale = [PartObject(100, 50), PartObject(150, 30), PartObject(180, 5)]
    sound = sound_prefix([*bundled, *stale])
    assert (sound.damage, sound.log.end) == (None, 120)
    sound = sound_prefix([*bundled, *stale, PartObject(120, 45)])
    assert (sound.damage, sound.log.end) == (None, 165)
    assert sound_prefix([*bundled, PartObject(150, 30)]).damage is not None


class LyingRequests(ObjectRequests):
    """Listings lack the objects whose name ends with one of these."""

    hidden: tuple[str, ...] = ()

    def list(self, directory: str) -> Any:
        return [stat for stat in super().list(directory) if not (self.hidden and stat.path.endswith(self.hidden))]


def is_reported(world: QuietWorld) -> bool:
    try:
        return bool(world.turn_once().problems)
    except TierError:
        return True


def test_a_listing_that_lacks_bundles_or_chunks_is_an_error_and_never_other_bytes(tmp_path: Path) -> None:
    world, objects = QuietWorld(tmp_path, queues=2), _memory()
    lying = LyingRequests(objects, world.tier)
    worker_cache._drivers[world.tier] = ObjectStoreDriver(lying, world.tier)
    for _ in range(3):
        world.turn_once()
    names = sorted(stat.path for stat in lying.list("") if BUNDLES_DIRECTORY in stat.path)
    bundles = [name for name in names if "chunk" not in name]
    whole = world.segments_by(ObjectStoreDriver(lying, world.tier))
    assert len(whole) == 4
    for hidden in (*bundles[1:], next(name for name in names if "chunk" in name)):
        lying.hidden = (hidden,)
        worker_cache._drivers[world.tier] = ObjectStoreDriver(lying, world.tier)
        assert is_reported(world)
        seen = world.segments_by(ObjectStoreDriver(lying, world.tier))
        assert all(whole[path].startswith(data) or data.startswith(whole[path]) for path, data in seen.items())
        lying.hidden = ()
    worker_cache._drivers[world.tier] = ObjectStoreDriver(lying, world.tier)
    assert world.turn_once().problems == []
    assert world.bodies() == world.expected()
    worker_cache._drivers.pop(world.tier)


class CountedWorld:
    """A continuous job over one broker, whose requests are counted; each wave has new messages in every queue."""

    def __init__(self, root: Path, queues: int, waves: int, *, packs: bool) -> None:
        root.mkdir()
        self.counts: list[Counter[str]] = []
        with wire_world(root) as world:
            world.broker.broker.parts.topics.put(TopicConfig(TOPIC, queues, queues))
            store, tier = world.broker.broker.parts.local, world.tier
            requests = ObjectRequests(_memory(), tier)
            worker_cache._drivers[tier] = ObjectStoreDriver(requests, tier)
            put_all(store, 0, queues)
            store.flush()
            stop, before = world.waiting, Counter[str]()

            def next_wave() -> None:
                nonlocal before
                self.counts.append(Counter(requests.counts) - before)
                before = Counter(requests.counts)
                if len(self.counts) == waves:
                    stop.set()
                put_all(store, len(self.counts), queues)
                store.flush()

            stop.happens = dict.fromkeys(range(1, 20 * waves), next_wave)
            settings = OffloadSettings(packs=packs)
            self.report = world.job(trigger_s=20.0, settings=settings, config=CONFIG).run()
            worker_cache._drivers.pop(tier)


def _memory() -> Any:
    from obstore.store import MemoryStore

    return MemoryStore()


def test_puts_and_lists_of_a_wave_do_not_grow_with_quiet_queues(tmp_path: Path) -> None:
    def last(queues: int, *, packs: bool) -> Counter[str]:
        made = CountedWorld(tmp_path / f"{queues}-{packs}", queues, 4, packs=packs)
        return made.counts[-1]

    few, many = last(5, packs=True), last(40, packs=True)
    assert few["put"] == many["put"] <= 12
    assert few["list"] == many["list"] <= 3
    assert last(40, packs=False)["put"] >= 80


def test_a_job_that_runs_once_costs_fewer_requests_a_quiet_queue_in_bundles_than_without(tmp_path: Path) -> None:
    """A process of its own each time. What grows: what it compares with the broker, and a manifest that it acquires."""

    def last(queues: int, *, packs: bool) -> Counter[str]:
        with wire_world(tmp_path / f"{queues}-{packs}") as world:
            world.broker.broker.parts.topics.put(TopicConfig(TOPIC, queues, queues))
            store, memory = world.broker.broker.parts.local, _memory()
            for turn in range(3):
                requests = ObjectRequests(memory, world.tier)
                worker_cache._drivers[world.tier] = ObjectStoreDriver(requests, world.tier)
                put_all(store, turn, queues)
                store.flush()
                report = world.offload(settings=OffloadSettings(packs=packs), config=CONFIG)
                assert (report.problems, report.done["messages"]) == ([], queues)
            worker_cache._drivers.pop(world.tier)
            return Counter(requests.counts)

    for packs, most in (True, (1, 4, 2, 13)), (False, (4, 2, 0, 10)):
        few, many = last(5, packs=packs), last(40, packs=packs)
        for kind, each in zip(("put", "list", "head", "get"), most, strict=True):
            assert many[kind] - few[kind] <= 35 * each, (packs, kind)


def test_bundles_are_merged_by_a_task_and_chunks_that_no_bundle_names_go_after_six_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiermq.tier.driver.bundle.MERGE_RUN", 4)
    world = QuietWorld(tmp_path)
    for _ in range(6):
        world.turn_once()
    assert any("-" in path.name for path in world.bundles)
    orphan = world.chunks[0].with_name("chunk-" + "0" * 32)
    orphan.write_bytes(b"of a task that was killed")
    kept = len(world.chunks)
    monkeypatch.setattr(object_store, "SUPERSEDED_KEPT_MS", -(10 * HOUR_MS))
    for _ in range(4):
        world.turn_once()
    assert not orphan.exists()
    assert len(world.chunks) < kept
    assert world.bodies() == world.expected()
    assert verify(None, tier=world.tier).is_clean
    worker_cache._drivers.pop(world.tier)


def test_a_queue_that_grows_gets_objects_of_its_own_by_a_task(world: QuietWorld) -> None:
    world.queues = 2
    for _ in range(12):
        world.turn_once(body=b"z" * 9_000)
    assert [path.name for path in world.parts if "-" in path.name]
    world.turn_once()
    assert world.bodies() == world.expected()
    assert verify(None, tier=world.tier).is_clean


def test_space_of_queues_that_expire_is_given_back_and_the_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ObjectStoreDriver(ObjectRequests(_memory(), "memory://expiry"), "memory://expiry")
    driver.fence_bundles(HOME, create=True)
    size, queues = 30_000, 40
    for turn in range(2):
        bodies = [bytes([queue + turn]) * size for queue in range(queues)]
        chunk = driver.put_chunk(HOME, b"".join(bodies))
        ranges = [ChunkRange(log_of(queue), turn * size, size, chunk, queue * size) for queue in range(queues)]
        driver.commit_chunks(HOME, ranges, {})
    assert driver.bundle_upkeep(HOME) is None
    for queue in range(30):
        driver.delete(log_of(queue))
    upkeep = driver.bundle_upkeep(HOME)
    assert upkeep is not None
    monkeypatch.setattr(object_store, "SUPERSEDED_KEPT_MS", -HOUR_MS)
    driver.bundles_tended(HOME, driver.tend_bundles(HOME, upkeep))
    stored = sum(stat.size for stat in driver.requests.list(f"{HOME}/{BUNDLES_DIRECTORY}"))
    assert stored < 2 * size * 12
    for queue in range(queues):
        expected = b"" if queue < 30 else bytes([queue]) * size + bytes([queue + 1]) * size
        assert driver.size(log_of(queue)) == len(expected)
        assert not expected or bytes(driver.read(log_of(queue), 0, len(expected))) == expected


def log_of(queue: int) -> Any:
    return QueueKey("c", "b", TOPIC, queue).segment(SegmentType.COMMIT_LOG, 0)


def test_damaged_bytes_of_a_chunk_are_an_error_of_their_queue_alone_and_are_repaired(world: QuietWorld) -> None:
    world.turn_once()
    entry = next(entry for entry in ranges_of(world) if entry.segment.startswith(f"{TOPIC}/3/COMMIT_LOG"))
    path = world.chunks[0]
    data = bytearray(path.read_bytes())
    data[entry.offset + 60] ^= 0xFF
    path.write_bytes(data)
    report = verify(None, tier=world.tier)
    assert not report.is_clean
    assert all(f"{TOPIC}/3" in text or "queue 3" in text for text in report.problems), report.problems
    assert verify(None, tier=world.tier, store=world.place(), repair=True).is_clean
    assert world.bodies() == world.expected()


def test_a_lost_chunk_is_an_error_of_its_queues_alone_and_is_repaired_from_the_store(world: QuietWorld) -> None:
    world.turn_once()
    world.queues = 6
    world.turn_once()
    first, second = sorted(world.chunks, key=lambda path: path.stat().st_size)[::-1]
    second.unlink()  # Of queues 0 to 5.
    driver = open_driver(world.tier)
    assert driver.size(log_of(8)) > 0
    assert driver.read(log_of(8), 0, 10)
    report = verify(None, tier=world.tier, store=world.place())
    assert not report.is_clean
    assert not [text for text in report.problems if f"{TOPIC}/8" in text]
    refused = world.turn_once().problems
    assert len(refused) == 6, refused
    assert verify(None, tier=world.tier, store=world.place(), repair=True).is_clean
    assert first.exists()
    assert world.offload(settings=DEFAULT, config=CONFIG).problems == []
    world.queues = 6
    assert world.bodies() == world.expected()


def test_every_job_works_over_the_bundles_of_an_offload(world: QuietWorld, tmp_path: Path) -> None:
    for _ in range(3):
        world.turn_once()
    assert compact(None, tier=world.tier).is_clean
    assert reindex(None, tier=world.tier, store=world.place(), slots=50).problems == []
    made = export(None, tier=world.tier, to=f"parquet:{(tmp_path / 'lake').as_uri()}")
    assert (made.done["messages"], made.problems) == (3 * QUEUES, [])
    rows = [row for file in list_tier_files(world.bundles[0].parent) for row in dump_tier(file, file.path.name)]
    assert sum(row["kind"] == "record" for row in rows) == 3 * QUEUES
    assert not [row for row in rows if row["kind"] == "damage"]
    with MetadataStore(IN_MEMORY) as metadata:
        restore(open_driver(world.tier), metadata, cluster="c", broker="b")
        assert [queue.max_offset for queue in metadata.queues() if queue.key.topic == TOPIC] == [3] * QUEUES
    assert verify(None, tier=world.tier, store=world.place(), repair=True).is_clean
    later = ManualClock(SystemClock().now_ms() + 48 * HOUR_MS)
    gone = expire(tier=world.tier, store=world.place(), keep_hours=1, clock=later, orphans=False)
    assert gone.problems == []
    assert gone.done["segments"] > QUEUES
    assert world.turn_once().problems == []


def test_the_option_gives_each_queue_objects_of_its_own(world: QuietWorld) -> None:
    world.turn_once(settings=OffloadSettings(packs=False))
    assert (world.chunks, world.bundles) == ([], [])
    assert len(world.parts) == 2 * QUEUES
    assert OffloadOptions().settings.packs
