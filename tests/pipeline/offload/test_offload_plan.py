"""What waits in stores, what a wave takes of each queue, and the values between driver and task."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.offload.offload_world import TIER, OffloadWorld, fill
from tiermq import Message
from tiermq.errors import BadConfig, StoreNotRecovered
from tiermq.history.scan_values import StorePlace
from tiermq.pipeline.index_build import StagedKeys
from tiermq.pipeline.offload.plan import (
    Backlog,
    LeaseClaim,
    OffloadSettings,
    OffloadTask,
    QueueCommit,
    QueueWork,
    Stop,
    TaskResult,
    cut,
    part,
    share,
)
from tiermq.pipeline.offload.preview import require_topics, waiting_in
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.metadata_values import Segment, TimeEntry, Topic
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.tier_config import TierConfig

SETTINGS = OffloadSettings(wave_bytes=10_000, wave_messages=500, task_bytes=1_000)
backlogs = st.lists(
    st.tuples(st.integers(1, 10_000), st.integers(91, 2_000)).map(lambda row: Backlog(row[0], row[0] * row[1])),
    min_size=1,
    max_size=40,
)


def work(number: int, messages: int, size: int) -> QueueWork:
    queue = QueueKey("c", "b", "T", number)
    log, units = (Segment(queue.segment(kind, 0)) for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE))
    return QueueWork(queue, Topic(1, "T"), log, units, None, 100, 100 + messages, messages * size)


@given(backlogs)
def test_a_wave_stays_within_its_limits_and_never_takes_more_than_there_is(found: list[Backlog]) -> None:
    taken = share(found, SETTINGS)
    assert all(0 <= count <= backlog.messages for count, backlog in zip(taken, found, strict=True))
    assert max(taken) >= 1
    largest = max(backlog.bytes // backlog.messages for backlog in found)
    copied = sum(backlog.bytes * count // backlog.messages for count, backlog in zip(taken, found, strict=True))
    assert copied <= SETTINGS.wave_bytes + len(found) * largest
    assert sum(taken) <= SETTINGS.wave_messages + len(found)


def test_small_backlogs_are_taken_whole_and_large_ones_share_the_rest_alike() -> None:
    found = [Backlog(10, 1_000), Backlog(1_000, 100_000), Backlog(5, 500), Backlog(2_000, 200_000)]
    assert share(found, SETTINGS) == [10, 42, 5, 43]


def test_no_queue_has_more_in_a_wave_than_a_task_can_hold() -> None:
    settings = OffloadSettings(queue_messages=7)
    assert share([Backlog(100, 9_100), Backlog(3, 300)], settings) == [7, 3]


@given(sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=60), parallelism=st.integers(1, 8))
def test_every_work_is_in_one_task_and_tasks_weigh_about_the_same(sizes: list[int], parallelism: int) -> None:
    works = [work(number, 1, size) for number, size in enumerate(sizes)]
    tasks = part(works, parallelism, SETTINGS)
    assert sorted(each.queue.queue_id for task in tasks for each in task) == list(range(len(sizes)))
    assert len(tasks) <= 2 * parallelism
    weights = [sum(each.bytes for each in task) for task in tasks]
    assert weights == sorted(weights, reverse=True)
    assert max(weights) - min(weights) <= max(sizes)


def test_little_work_is_not_worth_many_tasks() -> None:
    assert len(part([work(number, 1, 100) for number in range(4)], 4, SETTINGS)) == 1
    assert len(part([work(number, 1, 900) for number in range(8)], 2, SETTINGS)) == 4


def test_a_cut_work_ends_earlier() -> None:
    assert (cut(work(0, 10, 50), 4).to_offset, cut(work(0, 10, 50), 4).bytes) == (104, 200)


QUEUE = QueueKey("c", "b", "T", 3)


def commit(stop: Stop) -> QueueCommit:
    return QueueCommit(QUEUE, 5, 9, 50, (), (TimeEntry(5, 6, 7),), stop)


def test_tasks_and_results_survive_the_way() -> None:
    task = OffloadTask("/s", "file:///t", (), LeaseClaim("me", 3), 100, 200)
    result = TaskResult((commit(Stop.TARGET),), (StagedKeys(QUEUE, 1, 0, 50, 1, "keys", 24, 7),), 1.5)
    assert pickle.loads(pickle.dumps((task, result))) == (task, result)
    assert result.commits[0].messages == 4


@pytest.mark.parametrize("stop", Stop)
def test_only_a_failure_leaves_doubt_about_what_was_written(stop: Stop) -> None:
    assert commit(stop).is_settled == (stop not in (Stop.UNAVAILABLE, Stop.REFUSED))


def test_what_waits_is_counted_without_touching_anything(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 40)
    config = TierConfig(store_path_root_dir=str(world.store), **TIER)
    place = StorePlace(str(world.store), "c", "b")
    driver = open_driver(world.tier)
    before = sorted(path for path in tmp_path.rglob("*"))
    found = waiting_in(place, config, frozenset(), driver)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert sum(waiting.backlog.messages for waiting in found) == 40
    orders = waiting_in(place, config, frozenset({"orders"}), driver)
    assert {waiting.as_row()["topic"] for waiting in orders} == {"orders"}
    (world.store / "abort").write_bytes(b"1")
    with pytest.raises(StoreNotRecovered):
        waiting_in(place, config, frozenset(), driver)


def test_a_topic_that_one_of_the_stores_has_is_known(tmp_path: Path) -> None:
    places = []
    for name in ("orders", "payments"):
        with LocalStore.open(tmp_path / name, background=False) as store:
            store.put(Message(name, b"x", 0))
            store.dispatch_now()
        places.append(StorePlace(str(tmp_path / name), "c", name))
    require_topics(places, frozenset({"orders", "payments"}))
    with pytest.raises(BadConfig, match="no topic 'order' in these stores; did you mean 'orders'.*orders, payments"):
        require_topics(places, frozenset({"orders", "order"}))
