"""A broker in a nutshell: a real local store with small files, a tier behind a driver that can fail, an engine."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from servers.faulty_driver import FaultyDriver
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import killed, on_simulation, put_all
from tiermq.metrics import Registry
from tiermq.store.clean_service import Cleaned
from tiermq.store.local_store import LocalStore
from tiermq.tier.dispatch.engine import DispatchEngine, EngineSettings
from tiermq.tier.dispatch.local_source import LocalStoreSource
from tiermq.tier.dispatch.plan import DispatchConfig, TopicFilter
from tiermq.tier.dispatch.ready_queue import BackOff
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.index.index_request import IndexRequest, PutOutcome, index_requests
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.manifest import ManifestPolicy
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.queue.records import RecordBatch

UNIT = struct.Struct(">qiq")
CLUSTER, BROKER = "DefaultCluster", "broker-a"


class ListIndex:
    """An index that remembers what it was given, and may refuse."""

    def __init__(self) -> None:
        self.requests: list[IndexRequest] = []
        self.error: Exception | None = None

    def put_batch(self, batch: RecordBatch, topic: str, topic_id: int, queue_id: int) -> PutOutcome:
        if self.error is not None:
            raise self.error
        self.requests += index_requests(batch, topic, topic_id, queue_id)
        return PutOutcome.SUCCESS

    def places(self, topic: str = "T", queue_id: int = 0) -> list[int]:
        return [r.tier_offset for r in self.requests if (r.topic, r.queue_id) == (topic, queue_id)]


class SwitchFilter(TopicFilter):
    """A filter that keeps out further topics while a test says so."""

    def __init__(self, broker: str, cluster: str) -> None:
        super().__init__(broker, cluster)
        self.kept_out: set[str] = set()

    def is_filtered(self, topic: str) -> bool:
        return topic in self.kept_out or super().is_filtered(topic)


class DispatchWorld:
    """Everything by hand: nothing moves unless a test says so. `restart` is the next process over the same disks."""

    def __init__(
        self,
        path: Path,
        driver: TierDriver | None = None,
        *,
        config: DispatchConfig | None = None,
        settings: EngineSettings | None = None,
        log_bytes: int = 1 << 30,
        unit_bytes: int = 1 << 20,
        lease: bool = False,
        owner: str = "this process",
        store_settings: dict[str, Any] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.driver: Any = driver or FaultyDriver(MemoryDriver(clock=self.clock))
        self.access = SimulatedFileAccess()
        self.config = config or DispatchConfig()
        self.settings = settings or EngineSettings(back_off=BackOff(1_000, 60_000))
        self._path = path / "tier.db"
        self._sizes: dict[str, Any] = {"log_segment_bytes": log_bytes, "queue_segment_bytes": unit_bytes}
        self._with_lease, self.owner = lease, owner
        self._store_settings = store_settings or {}
        self.index = ListIndex()
        self.filter = SwitchFilter(BROKER, CLUSTER)
        self._open()

    def _open(self) -> None:
        self.store: LocalStore = on_simulation(self.access, clock=self.clock, **self._store_settings)
        self.metadata = MetadataStore(self._path, clock=self.clock)
        self.open_tier()

    def open_tier(self) -> None:
        """Everything above the local store and the metadata."""
        self.files = FlatFileStore(self.driver, self.metadata, CLUSTER, BROKER, self.clock, **self._sizes)
        self.lease = (
            BrokerLease(self.driver, CLUSTER, BROKER, self.owner, clock=self.clock) if self._with_lease else None
        )
        self.manifests = ManifestStore(self.driver, self.owner, lease=self.lease, clock=self.clock)
        self.writer = QueueWriter(
            self.metadata, self.manifests, lease=self.lease, policy=ManifestPolicy(60_000), clock=self.clock
        )
        self.source = LocalStoreSource(self.store)
        self.registry = Registry()
        self.engine = DispatchEngine(
            self.files, self.source, self.writer, index=self.index, topic_filter=self.filter, config=self.config,
            settings=self.settings, clock=self.clock, registry=self.registry, chance=lambda: 1.0,
        )  # fmt: skip

    def put(self, count: int, topic: str = "T", queue_id: int = 0, **fields: Any) -> None:
        """Put, make readable, make durable."""
        put_all(self.store, count, topic, queue_id, **fields)
        self.store.flush()

    def go(self, ms: int = 0) -> int:
        """Let time pass, then let the engine do everything that is to be done; how many turns that took."""
        self.clock.advance_ms(ms)
        self.engine.tick()
        turns = 0
        while self.engine.step():
            turns += 1
        return turns

    def is_proven(self, end: int) -> bool:
        """Whether a log file that ends there may go, once all has been read back that has to be."""
        proof = self.engine.proof
        return not proof.must_stay(0, end) or (proof.prove() and not proof.must_stay(0, end))

    def clean(self) -> Cleaned:
        """Run the local cleaner, and again when what held it up is proven."""
        cleaned = self.store.clean_now()
        return self.store.clean_now() if cleaned.vetoed and self.engine.proof.prove() else cleaned

    def die(self) -> None:
        """The process is gone; the disks keep every byte that it stored."""
        self.metadata.close()
        self.access = killed(self.access)

    def restart(self, driver: TierDriver | None = None) -> None:
        self.die()
        self.driver = driver or self.driver
        self._open()

    def tier_offsets(self, topic: str = "T", queue_id: int = 0) -> list[int]:
        """The queue offset of every message in the tier, each compared byte for byte with the local one."""
        file = self.files.find(topic, queue_id)
        assert file is not None
        found = []
        for offset in range(file.min_offset, file.commit_offset):
            place, size, code = UNIT.unpack(file.units.read_units(offset, 1))
            if size == 0x7FFFFFFF:
                continue
            data = bytes(file.log.read(place, size))
            assert struct.unpack_from(">qq", data, 20) == (offset, place)
            local = self.store.get(topic, queue_id, offset, 1)
            if local.messages and local.messages[0].queue_offset == offset:
                unit = self.store._parts.queues.find(topic, queue_id).unit_at(offset)  # type: ignore[union-attr]
                record = self.store._parts.log.files.segments.read(unit.physical_offset, unit.size)  # type: ignore[union-attr]
                assert record is not None
                assert (data[:28], data[36:], code) == (record[:28], record[36:], unit.tags_code)  # type: ignore[union-attr]
            found.append(offset)
        return found

    def places(self, topic: str = "T", queue_id: int = 0) -> list[int]:
        """Where each committed message lies in the tier."""
        file = self.files.find(topic, queue_id)
        assert file is not None
        units = [UNIT.unpack(file.units.read_units(n, 1)) for n in range(file.min_offset, file.commit_offset)]
        return [place for place, size, _ in units if size != 0x7FFFFFFF]

    def metric(self, name: str, **labels: str) -> float:
        """The value of one line of the rendered metrics."""
        for line in self.registry.render_prometheus().splitlines():
            if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name} {labels}")
