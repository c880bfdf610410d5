"""An offload that stands still before a request, is taken for dead, and sends the request when another one has gone on.

Its process is stopped (SIGSTOP, a suspended machine). An operator ends its lease, another job copies what came
meanwhile, and compacts. Then the first one goes on from where it was, on the driver or in a task.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from pipeline.offload.offload_world import QUEUES
from pipeline.offload.wire_world import CLUSTER, WireWorld, wire_world
from tier.driver.objects import FreezingRequests
from tiermq import Message
from tiermq.errors import TierMQError
from tiermq.pipeline import leased_broker, worker_cache
from tiermq.pipeline.compact.job import compact
from tiermq.pipeline.offload.plan import OffloadSettings
from tiermq.pipeline.verify.job import verify
from tiermq.tier.driver import bundle
from tiermq.tier.driver.object_requests import ObjectRequests
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.names import SegmentType

URL = "memory://frozen-job"


class FrozenJob:
    """A tier of its own for each moment; the broker's history grows."""

    def __init__(self, world: WireWorld, at: int, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self._body, self._monkeypatch = world, body, monkeypatch
        self.store = MemoryStore()
        world.tier = URL
        self.frozen = FreezingRequests(self.store, URL, at, self._meanwhile)
        self.is_frozen = False

    def fill(self) -> None:
        local = self.world.broker.broker.parts.local
        for topic, queue_id in QUEUES:
            number = local.max_offset(topic, queue_id)
            assert local.put(Message(topic, self._body, queue_id, keys=[f"{topic}-{queue_id}-{number}"])).ok
        local.dispatch_now()
        local.flush()

    def as_process(self, name: str, requests: ObjectRequests | None = None) -> None:
        """What follows is of another process."""
        self._monkeypatch.setattr(leased_broker, "_INSTANCE", name)
        worker_cache._drivers[URL] = ObjectStoreDriver(requests or ObjectRequests(self.store, URL), URL)

    def offload(self) -> None:
        report = self.world.offload(settings=OffloadSettings())
        assert not report.problems, report.problems

    def _meanwhile(self) -> None:
        self.is_frozen = True
        stopped = worker_cache._drivers[URL]
        self.as_process("other")
        BrokerLease(worker_cache._drivers[URL], CLUSTER, "broker-0", "an operator").take_over()
        self.fill()
        self.offload()
        compact(None, tier=URL)
        worker_cache._drivers[URL] = stopped

    def run(self) -> bool:
        """Whether the job that stood still was refused or reported problems."""
        self.as_process("first")
        self.fill()
        self.offload()
        self.fill()
        self.as_process("frozen", self.frozen)
        try:
            return bool(self.world.offload(settings=OffloadSettings()).problems)
        except TierMQError:
            return True

    def check(self) -> None:
        self.as_process("last")
        self.fill()
        BrokerLease(worker_cache._drivers[URL], CLUSTER, "broker-0", "an operator").take_over()
        self.offload()
        assert contents(self.store) == self._expected()
        found = verify(None, tier=URL)
        assert found.is_clean, found.problems

    def _expected(self) -> dict[str, bytes]:
        """A tier that one job has made."""
        kept, self.store = self.store, MemoryStore()
        try:
            self.as_process("clean")
            self.offload()
            return contents(self.store)
        finally:
            self.store = kept
            self.as_process("last")


def contents(store: MemoryStore) -> dict[str, bytes]:
    """The bytes of each segment of messages."""
    driver = ObjectStoreDriver(ObjectRequests(store, URL), URL)
    return {
        info.key.path: bytes(driver.read(info.key, 0, info.size))
        for info in driver.list_segments()
        if info.key.type is not SegmentType.INDEX
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 70_000], ids=["quiet", "busy"])
def test_an_offload_that_stood_still_does_no_harm_when_it_goes_on(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MERGE_RUN", 3)
    refused = at = 0
    with wire_world(tmp_path) as world:
        while True:
            at += 1
            frozen = FrozenJob(world, at, b"x" * size, monkeypatch)
            try:
                refused += frozen.run()
                if not frozen.is_frozen:
                    break
                frozen.check()
            except BaseException:
                print(f"stood still before change {at}: {frozen.frozen.changes}")
                raise
            finally:
                worker_cache._drivers.pop(URL, None)
    assert at > 10
    assert refused
