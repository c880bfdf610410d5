"""What a wave takes of each queue, and how it is parted into tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiermq.spark.jobs.offload_values import OffloadSettings, QueueWork
from tiermq.spark.jobs.offload_wave import Backlog, cut, part, share
from tiermq.tier.metadata.metadata_values import Segment, Topic
from tiermq.tier.names import QueueKey, SegmentType

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
