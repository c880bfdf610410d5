"""An offload as a whole: what is in the tier afterwards, whatever happened on the way."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import NAMES, QUEUES, SMALL, STORE, TIER, OffloadWorld, fill, put, run_twice
from tiermq.errors import BadConfig, StaleWriter, StoreLocked, StoreNotRecovered, TierUnavailable
from tiermq.pipeline.offload import task as offload_task
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.task_runner import LocalRunner
from tiermq.store.local_store import LocalStore
from tiermq.tier.dispatch.dispatch_step import execute
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import LeaseHeld
from tiermq.tier.verify.verify import verify_tier


@pytest.fixture(params=["", "?driver=object"], ids=["files", "objects"])
def any_world(tmp_path: Path, request: pytest.FixtureRequest) -> OffloadWorld:
    """The same over each kind of back end: files that are appended to, and objects in parts."""
    made = OffloadWorld(tmp_path, request.param)
    fill(made.store, 400)
    return made


def by_engine(world: OffloadWorld, root: Path) -> OffloadWorld:
    """The same store directory, tiered by the embedded engine into another tier."""
    other = OffloadWorld(root)
    copy_of(world, other)
    with other.tiered() as store:
        assert store.flush_to_tier()
    return other


def copy_of(world: OffloadWorld, other: OffloadWorld) -> None:
    for path in sorted(world.store.rglob("*")):
        if path.is_file() and "tier" not in str(path.relative_to(world.store)).lower():
            to = other.store / path.relative_to(world.store)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())


def assert_whole(world: OffloadWorld, expected: dict[Any, Any]) -> None:
    """Every message once, in order; every key found; nothing in the tier that does not belong there."""
    assert world.messages() == expected
    with world.tiered(tier_dispatch_enable=True) as store:
        assert store.tier.index is not None
        while not store.tier.index.is_complete:
            store.tier.index.run_once()
        for file in store.tier.files:
            name = file.queue.topic, file.queue.queue_id
            assert file.commit_offset == store.local.max_offset(*name)
        for name, messages in expected.items():
            for _, _, keys in messages[:: max(1, len(messages) // 5)]:
                for key in keys[:1]:
                    cold = store.tier.index.query(name[0], key, 64, 0, 1 << 62)
                    assert len(cold.hits) == 1
    assert verify_tier(open_driver(world.tier)).problems == []


def test_the_tier_has_the_same_bytes_as_by_the_embedded_engine(any_world: OffloadWorld, tmp_path: Path) -> None:
    world = any_world
    other = by_engine(world, tmp_path / "engine")
    report = world.offload()
    assert (report.problems, report.done["messages"]) == ([], 400)
    assert world.segments() == other.segments()
    assert len(world.segments()) > 12


def test_every_message_and_every_key_is_found_and_a_second_run_finds_nothing_to_do(world: OffloadWorld) -> None:
    expected = world.messages()
    world.offload()
    assert_whole(world, expected)
    again = world.offload()
    assert again.done["messages"] == 0
    assert "waves" not in again.done


def test_a_dry_run_says_what_a_run_does_and_writes_nothing(world: OffloadWorld) -> None:
    report = world.offload(dry_run=True)
    assert report.planned["messages"] == 400
    assert report.done == {}
    assert not (world.root / "t").exists()
    assert not (world.store / "config" / "tieredStoreMetadata.db").exists()
    world.offload()
    assert world.offload(dry_run=True).planned["messages"] == 0


def test_only_the_topics_that_were_asked_for_are_copied(world: OffloadWorld) -> None:
    world.offload(topics=frozenset({"payments"}))
    assert {path.split("/")[2] for path in world.segments()} == {"payments"}


def test_many_stores_are_copied_at_once_each_under_its_own_name(tmp_path: Path) -> None:
    stores = []
    for number in range(3):
        fill(tmp_path / f"s{number}", 60, number)
        stores.append(f"{tmp_path / f's{number}'}=c/b{number}")
    report = offload(stores, (tmp_path / "t").as_uri(), settings=SMALL, config=TIER)
    assert report.done["messages"] == 180
    assert [row["broker"] for row in report.details["stores"]] == ["b2", "b1", "b0"]
    with pytest.raises(BadConfig, match="same cluster and broker"):
        offload([*stores, stores[0]], (tmp_path / "t").as_uri())


def test_twins_that_run_every_task_twice_change_nothing(any_world: OffloadWorld, tmp_path: Path) -> None:
    world = any_world
    expected = world.messages()
    other = by_engine(world, tmp_path / "engine")
    world.offload(run=run_twice)
    assert world.segments() == other.segments()
    assert_whole(world, expected)


def test_a_task_that_dies_half_way_twice_and_is_run_again_changes_nothing(
    any_world: OffloadWorld, tmp_path: Path
) -> None:
    world = any_world
    expected = world.messages()
    other = by_engine(world, tmp_path / "engine")
    chance = random.Random(5)

    class Died(Exception):
        pass

    def run(tasks: Any) -> Any:
        results = []
        for task in tasks:
            for _ in range(2):
                calls = [chance.randrange(1, 6)]

                def dying(*arguments: Any, calls: list[int] = calls) -> Any:
                    calls[0] -= 1
                    if calls[0] < 0:
                        raise Died
                    return execute(*arguments)

                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(offload_task, "execute", dying)
                    try:
                        offload_task.run_offload_task(task)
                    except Died:
                        continue
            results.append(offload_task.run_offload_task(task))
        return results

    world.offload(run=run)
    assert world.segments() == other.segments()
    assert_whole(world, expected)


STEPS = [
    "settle", "recover", "init", "tasks", "validate", "commit", "committed", "roll", "build", "index", "unmark",
    "cover", "rows", "manifests", "seal", "close",
]  # fmt: skip


@pytest.mark.crash
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_is_killed_at_any_step_loses_and_doubles_nothing(world: OffloadWorld, step: str) -> None:
    expected = world.messages()
    assert world.kill_at(step)
    world.kill_at(step, times=2)
    report = world.offload()
    assert report.problems == []
    assert_whole(world, expected)


@pytest.mark.crash
def test_what_tasks_wrote_before_the_driver_was_killed_is_adopted(world: OffloadWorld, tmp_path: Path) -> None:
    other = by_engine(world, tmp_path / "engine")
    assert world.kill_at("validate", times=2)
    report = world.offload()
    assert report.done["adopted"] > 0
    assert world.segments() == other.segments()


def test_a_tier_that_is_out_of_reach_ends_the_job_with_problems_and_the_next_run_goes_on(
    any_world: OffloadWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = any_world
    expected = world.messages()
    left = [7]

    def failing(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise TierUnavailable("the tier is down")
        return execute(*arguments)

    monkeypatch.setattr(offload_task, "execute", failing)
    report = world.offload()
    assert "the tier is down" in report.problems[0]
    monkeypatch.undo()
    assert world.offload().problems == []
    assert_whole(world, expected)


def test_an_index_that_is_left_for_later_is_completed_by_the_next_run(world: OffloadWorld) -> None:
    expected = world.messages()
    job = offload([world.place()], world.tier, index="later", settings=SMALL, config=TIER)
    assert job.done["keys"] == 0
    world.offload()
    assert_whole(world, expected)
    with pytest.raises(BadConfig, match="'now', 'small' or 'later'"):
        offload([world.place()], world.tier, index="never")


def test_a_job_and_the_embedded_engine_take_turns(any_world: OffloadWorld) -> None:
    world = any_world
    world.offload()
    for turn in range(2):
        with world.tiered() as store:
            put(store.local, 60, random.Random(turn), 1_000 * (turn + 1))
            assert store.flush_to_tier()
            put(store.local, 60, random.Random(turn + 7), 1_000 * (turn + 1) + 500)
            with pytest.raises(StoreLocked, match="stop it first"):
                world.offload()
        assert world.offload().done["messages"] == 60
    expected = world.messages()
    assert sum(map(len, expected.values())) == 640
    assert_whole(world, expected)


def test_a_store_on_another_machine_that_holds_the_lease_is_named(world: OffloadWorld) -> None:
    from tiermq.tier.metadata.broker_lease import BrokerLease

    lease = BrokerLease(open_driver(world.tier), "c", "b", "machine-7:/var/store")
    lease.acquire()
    with pytest.raises(LeaseHeld, match=r"machine-7:/var/store.*tierDispatchEnable=false"):
        world.offload()
    lease.release()
    assert world.offload().done["messages"] == 400


def test_a_job_whose_lease_was_taken_commits_nothing_more(any_world: OffloadWorld) -> None:
    world = any_world
    from tiermq.tier.metadata.broker_lease import BrokerLease

    def run(tasks: Any) -> Any:
        results = LocalRunner().run(offload_task.run_offload_task, tasks)
        BrokerLease(open_driver(world.tier), "c", "b", "an operator").acquire(force=True)
        return results

    with pytest.raises(StaleWriter, match="an operator"):
        world.offload(run=run)
    with pytest.raises(LeaseHeld):
        world.offload()


def test_a_task_whose_driver_lost_the_lease_writes_nothing(any_world: OffloadWorld) -> None:
    world = any_world
    from tiermq.tier.metadata.broker_lease import BrokerLease

    def run(tasks: Any) -> Any:
        BrokerLease(open_driver(world.tier), "c", "b", "an operator").acquire(force=True)
        return LocalRunner().run(offload_task.run_offload_task, tasks)

    with pytest.raises(StaleWriter):
        world.offload(run=run)
    assert world.segments() == {}


def test_a_crashed_store_is_refused_until_it_is_recovered(world: OffloadWorld) -> None:
    expected = world.messages()
    (world.store / "abort").write_bytes(b"1")
    with pytest.raises(StoreNotRecovered, match="--recover"):
        world.offload()
    report = world.offload(recover=True)
    assert report.details["recovered"] == [str(world.store)]
    assert_whole(world, expected)


def test_a_running_store_is_followed_until_somebody_says_stop(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    stop = threading.Event()
    with LocalStore.open(world.store, **STORE) as store:
        put(store, 50, random.Random(1))
        waves = []

        def progress(_done: int, _total: int) -> None:
            waves.append(1)
            if len(waves) == 1:
                put(store, 50, random.Random(2), 100)
            elif sum(store.max_offset(*name) for name in QUEUES) <= 100:
                stop.set()

        config = {**TIER, "tiered_store_group_commit": False}
        report = world.offload(trigger_s=0.01, stop=stop, progress=progress, config=config)
    assert report.problems == []
    assert report.done["messages"] >= 50
    assert world.offload().done["messages"] + report.done["messages"] == 100


def test_a_single_run_ends_though_a_producer_goes_on(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    with LocalStore.open(world.store, **STORE) as store:
        put(store, 100, random.Random(1))

        def progress(_done: int, _total: int) -> None:
            put(store, 30, random.Random(3))

        assert world.offload(progress=progress).done["messages"] == 100


def test_messages_that_were_deleted_before_they_were_copied_leave_a_recorded_gap(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 100)
    world.offload()
    with LocalStore.open(world.store, background=False, **STORE) as store:
        for topic, queue_id in QUEUES:
            store.advance_queue(topic, queue_id, store.max_offset(topic, queue_id) + 5)
        put(store, 30, random.Random(4))
    report = world.offload()
    assert (report.done["gaps"], report.done["messages"]) == (3, 30)
    assert sum(map(len, world.messages().values())) == 130


def test_names_other_than_those_of_the_tier_are_refused(world: OffloadWorld) -> None:
    world.offload()
    with pytest.raises(BadConfig, match=rf"\({NAMES}\), found c/other"):
        offload([world.place("c/other")], world.tier)
    assert offload([str(world.store)], world.tier, config=TIER).problems == []
