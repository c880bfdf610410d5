"""A broker that tiers by itself lends its lease to jobs, follows them, and takes the lease back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import BrokerWorld
from servers.faulty_driver import Fault
from tier.tiered_world import bodies, opened, sent
from tiermq import Message
from tiermq.errors import StaleWriter, StoreLocked, TierError
from tiermq.pipeline import worker_cache
from tiermq.pipeline.compact.job import compact
from tiermq.pipeline.expire.job import expire
from tiermq.pipeline.leased_broker import Home, LeasedBroker, homes_of, lease_broker
from tiermq.pipeline.reindex.job import reindex
from tiermq.pipeline.verify.job import verify
from tiermq.tier.metadata.broker_lease import LENT_MS, BrokerLease, LeaseHeld, lease_name
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_values import SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentType, index_queue

PLACE = ("DefaultCluster", "broker-a")
HOME = Home(*PLACE)
INDEX = index_queue(*PLACE)


@pytest.fixture
def lending(world: BrokerWorld) -> Iterator[BrokerWorld]:
    """A broker with uploaded messages and index files, whose reads come from the tier."""
    world.open(tiered_storage_level="FORCE", tiered_store_index_file_max_index_num=40)
    for _ in range(4):
        world.put(30)
        world.store.flush_to_tier()
        round_of_index(world)
        world.clock.advance_ms(1_000)
    worker_cache._drivers["memory://lent"] = world.driver
    yield world
    worker_cache._drivers.pop("memory://lent", None)


def round_of_index(world: BrokerWorld) -> None:
    assert world.store.tier.index is not None
    while world.store.tier.index.run_once() == 0.0:
        continue


def tending(world: BrokerWorld, *, then: Callable[[], object] = lambda: None) -> Callable[[float], None]:
    """The wait of a job, in which the broker goes on; `then` after each time."""

    def wait(seconds: float) -> None:
        world.clock.advance_ms(int(seconds * 1000))
        world.store.tend_lease()
        then()

    return wait


def borrowed(world: BrokerWorld, job: str = "test") -> Any:
    return lease_broker(world.driver, HOME, job, clock=world.clock, wait=tending(world))


def taken_back(world: BrokerWorld) -> None:
    assert not world.store.tend_lease()
    assert world.store.tier.writer.may_write()


def require_equal_metadata(world: BrokerWorld, *, left_over: Collection[int] = ()) -> None:
    """What the store's metadata have of each queue and of the index is what the bucket has. `left_over`: index files of
    these bases may be in the bucket only, since a job died between merging and removing them.
    """
    metadata, reader = world.store.tier.metadata, ManifestStore(world.driver, "a test")
    assert world.store.tier.engine.write_manifests()
    for queue in metadata.queues():
        if queue.key.topic == INDEX_TOPIC:
            continue
        manifest = reader.read(queue.key)
        assert manifest is not None
        live = [row for row in manifest.segments if row.status is not SegmentStatus.DELETED]
        own = metadata.segments(queue.key)
        assert {(row.key, row.size) for row in own} == {(row.key, row.size) for row in live}, queue.key
    listed = {(info.key, info.size) for info in world.driver.list_segments(f"{INDEX.directory}/") if info.size}
    known = {(row.key, row.size) for row in metadata.segments(INDEX)}
    assert {(key, size) for key, size in listed - known if key.base not in left_over} == set()
    assert known <= listed


def require_all(world: BrokerWorld) -> None:
    """Every message is read by its offset, by its time and by its key."""
    assert bodies(world) == sent(world)
    for message in world.sent["orders", 0]:
        assert world.store.offset_at("orders", 0, message.store_ms) <= message.offset
        found = world.store.query("orders", message.keys[0])
        assert [each.body for each in found.messages] == [message.body], message


def test_a_running_broker_lends_its_lease_to_a_job_and_takes_it_back(lending: BrokerWorld) -> None:
    world = lending
    epoch = world.store.tier.lease.epoch
    with borrowed(world) as held:
        assert held.lease.epoch == epoch + 1
        assert "(pipeline test)" in world.store.tier.writer.job
        require_all(world)
        world.put(10)
        assert not world.store.flush_to_tier(), "uploads wait"
        assert world.store.tend_lease()
        with pytest.raises(StaleWriter, match=r"\(pipeline test\)"):
            world.store.expire_now()
    taken_back(world)
    assert world.store.tier.lease.epoch == epoch + 2
    assert world.store.flush_to_tier()
    require_all(world)
    require_equal_metadata(world)


def test_a_request_costs_an_idle_broker_nothing_and_is_answered_by_the_next_renewal(lending: BrokerWorld) -> None:
    world = lending
    world.clock.advance_ms(20_000)
    world.store.tend_lease()
    job = BrokerLease(world.driver, *PLACE, "elsewhere (pipeline test)", clock=world.clock)
    job.ask()
    calls: list[str] = []
    world.driver.plan = Counting(calls)
    world.clock.advance_ms(19_000)
    assert not world.store.tend_lease()
    assert calls == [], "nothing is asked between two renewals"
    world.clock.advance_ms(1_000)
    assert world.store.tend_lease()
    assert calls.count("put_object") == 3, "the renewal, the same over the request, and the lease for the job"
    assert job.acquire()


class Counting:
    """A fault plan without faults, which writes down the calls."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def next_fault(self, operation: str) -> Fault | None:
        self._calls.append(operation)
        return None


@pytest.mark.parametrize("kind", ["compact", "reindex", "expire", "verify"])
def test_what_a_job_changes_is_known_to_the_broker_and_nothing_is_lost(lending: BrokerWorld, kind: str) -> None:
    world = lending
    world.put(60, "old")
    assert world.store.flush_to_tier()
    round_of_index(world)
    wait = tending(world, then=lambda: require_all(world))
    place: dict[str, Any] = {"tier": "memory://lent", "clock": world.clock, "wait": wait}
    before = {row.key for row in world.store.tier.metadata.all_segments()}
    assert sum(key.type is SegmentType.INDEX for key in before) > 2
    if kind == "compact":
        report = compact(None, items_max=10_000, **place)
    elif kind == "reindex":
        report = reindex(None, **place)
    elif kind == "expire":
        world.store.set_retention("old", max_bytes=2_000)
        world.store.tier.engine.step()
        report = expire(None, **place)
    else:
        damage_units(world)
        report = verify(None, repair=True, **place)
    assert not report.problems, report.problems
    assert world.store.tend_lease() is False
    after = {row.key for row in world.store.tier.metadata.all_segments()}
    if kind == "expire":
        old = world.store.tier.files.find("old", 0)
        assert old is not None
        assert old.min_offset > 0
    if kind in ("compact", "expire", "reindex"):
        assert before != after
    world.put(20)
    world.put(5, "old")
    assert world.store.flush_to_tier()
    round_of_index(world)
    require_all(world)
    require_equal_metadata(world)
    assert not verify(None, tier="memory://lent", clock=world.clock).problems
    world.close()
    world.open(tiered_storage_level="FORCE")
    require_all(world)


def test_keys_are_found_at_every_step_of_a_merge_of_index_files(lending: BrokerWorld) -> None:
    world = lending
    steps: list[str] = []

    def look(name: str) -> None:
        steps.append(name)
        require_all(world)

    compact(
        None, tier="memory://lent", clock=world.clock, wait=tending(world), items_max=10_000, step=look
    )  # fmt: skip
    assert steps.count("remove") > 2


def damage_units(world: BrokerWorld, number: int = 0) -> None:
    """One unit of a segment, of the first one, points nowhere: a repair makes it again from its record."""
    row = world.store.tier.metadata.segments(QueueKey(*PLACE, "old", 0), SegmentType.CONSUME_QUEUE)[number]
    data = bytearray(world.driver.read(row.key, 0, row.size))
    data[20:32] = bytes(12)
    world.driver.inner.replace(row.key, [bytes(data)], "damaged-1")


def test_two_jobs_at_once_get_the_lease_one_after_the_other(lending: BrokerWorld) -> None:
    world = lending
    first = BrokerLease(world.driver, *PLACE, "one (pipeline compact)", clock=world.clock)
    second = BrokerLease(world.driver, *PLACE, "two (pipeline expire)", clock=world.clock)
    first.ask()
    with pytest.raises(LeaseHeld, match=r"one \(pipeline compact\)"):
        second.ask()
    world.clock.advance_ms(20_000)
    assert world.store.tend_lease()
    with pytest.raises(LeaseHeld, match=r"one \(pipeline compact\)"):
        second.acquire()
    first.acquire()
    wait = tending(world, then=first.renew)
    with (
        pytest.raises(LeaseHeld, match=r"one \(pipeline compact\) holds its lease"),
        lease_broker(world.driver, HOME, "expire", clock=world.clock, wait=wait),
    ):
        pass
    first.release()
    taken_back(world)
    with borrowed(world):
        assert world.store.tier.writer.job


def test_a_lease_that_a_dead_job_asked_for_is_taken_back_after_seconds(lending: BrokerWorld) -> None:
    world = lending
    BrokerLease(world.driver, *PLACE, "elsewhere (pipeline test)", clock=world.clock).ask()
    world.clock.advance_ms(20_000)
    assert world.store.tend_lease()
    world.clock.advance_ms(LENT_MS - 1)
    assert world.store.tend_lease()
    world.clock.advance_ms(1)
    taken_back(world)
    world.put(5)
    assert world.store.flush_to_tier()
    require_all(world)


@pytest.mark.parametrize("step", ["seal", "merge", "row", "remove"])
def test_a_job_that_dies_in_the_middle_holds_a_broker_for_one_term(lending: BrokerWorld, step: str) -> None:
    """A killed job releases nothing. The broker goes on after its term, with what it finds in the bucket."""
    world = lending
    job = DyingDriver(world.driver)
    worker_cache._drivers["memory://lent"] = job

    def killed(name: str) -> None:
        if name == step:
            job.is_dead = True
            raise Killed

    place: dict[str, Any] = {"tier": "memory://lent", "clock": world.clock, "items_max": 10_000}
    bases = {row.key.base for row in world.store.tier.metadata.segments(INDEX)}
    try:
        compact(None, **place, wait=tending(world), step=killed)
    except Killed:
        pass
    else:
        pytest.skip(f"a compaction of this history has no step {step!r}")
    assert world.store.tend_lease()
    require_all(world)
    world.clock.advance_ms(59_000)
    assert world.store.tend_lease()
    world.clock.advance_ms(2_000)
    taken_back(world)
    world.put(20)
    assert world.store.flush_to_tier()
    round_of_index(world)
    require_all(world)
    require_equal_metadata(world, left_over=bases if step in ("row", "remove") else ())
    worker_cache._drivers["memory://lent"] = world.driver
    assert not compact(None, **place, wait=tending(world)).problems
    taken_back(world)
    require_all(world)
    require_equal_metadata(world)


class Killed(Exception):
    """The job's process is gone."""


class DyingDriver:
    """The driver of a process that is killed: nothing of it reaches the tier after that."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        if self.is_dead:
            raise TierError("the process is dead")
        return getattr(self._driver, name)


def test_a_broker_starts_beside_a_job_stands_by_and_takes_over_when_it_ends(lending: BrokerWorld) -> None:
    world = lending
    with borrowed(world) as held:
        world.put(10)
        world.kill()
        world.open()
        assert world.store.tend_lease()
        assert held.lease.owner == world.store.tier.writer.job
        assert world.store.put(Message("orders", b"while it stands by")).ok, "puts are not refused"
        assert not world.store.flush_to_tier()
        assert held.lease.read() is not None
        held.check()
    taken_back(world)
    assert world.store.flush_to_tier()
    assert bodies(world) == [*sent(world), b"while it stands by"]
    require_equal_metadata(world)


def test_another_store_of_the_broker_is_refused_while_its_lease_is_lent(lending: BrokerWorld, tmp_path: Path) -> None:
    """The job gives no numbers to messages; the broker that lent the lease still does."""
    world = lending
    with borrowed(world), pytest.raises(StoreLocked, match=r"\(pipeline test\)"):
        opened(tmp_path / "second", driver=world.driver, clock=world.clock)
    taken_back(world)
    with pytest.raises(StoreLocked, match="holds it"):
        opened(tmp_path / "second", driver=world.driver, clock=world.clock)


def test_a_topic_that_is_deleted_while_a_job_has_the_lease_is_gone_after_it(lending: BrokerWorld) -> None:
    world = lending
    world.put(20, "old")
    assert world.store.flush_to_tier()
    with borrowed(world):
        with pytest.raises(StaleWriter):
            world.store.delete_topics(["old"])
        assert world.store.max_offset("old", 0) <= 0
    taken_back(world)
    world.store.expire_now()
    assert not list(world.driver.list_segments(f"{QueueKey(*PLACE, 'old', 0).directory}/"))
    require_all(world)


def test_a_job_on_the_bucket_of_a_stopped_broker_is_known_to_it_when_it_starts(lending: BrokerWorld) -> None:
    world = lending
    world.close()
    report = compact(None, tier="memory://lent", clock=world.clock, items_max=10_000)
    assert report.done["merged_files"], report
    world.open(tiered_storage_level="FORCE")
    world.put(5)
    assert world.store.flush_to_tier()
    require_all(world)
    require_equal_metadata(world)


def test_a_broker_that_does_not_end_its_upload_keeps_its_lease_and_the_job_is_reported(
    lending: BrokerWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = lending
    monkeypatch.setattr(world.store.tier.engine, "pause", lambda _timeout_s: False)

    def wait(seconds: float) -> None:
        world.clock.advance_ms(int(seconds * 1000))
        world.store.tier.writer.keep_lease()
        assert not world.store.tend_lease()

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(LeaseHeld, match="has not lent it"),
        lease_broker(world.driver, HOME, "test", clock=world.clock, wait=wait),
    ):
        pass
    assert "to lend its lease" in caplog.text
    assert world.store.tier.writer.may_write()


def test_without_waiting_the_error_names_what_a_broker_lends(lending: BrokerWorld) -> None:
    with pytest.raises(LeaseHeld, match="leave out --no-wait"), lease_broker(lending.driver, HOME, "t"):
        pass
    stored = lending.driver.get_object(lease_name(*PLACE))
    assert b'"request"' not in stored.data


def test_homes_and_names_are_those_of_the_lease(lending: BrokerWorld) -> None:
    (home,) = homes_of(lending.driver)
    assert home == HOME
    with borrowed(lending) as held:
        assert isinstance(held, LeasedBroker)
