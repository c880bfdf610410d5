"""Hot records are views of mapped files; what is gone is reported in its place."""

from __future__ import annotations

import pytest

from history.history_world import HistoryWorld, as_sent, messages_of, sent_of
from tiermq.history.planning import plan_scan
from tiermq.history.reading import HotReader, Missing
from tiermq.history.scan_values import Loss, LossReason, RecordRun, ScanCounters, ScanRequest, ScanTask, Side


def steps(world: HistoryWorld, task: ScanTask, losses: list[Loss] | None = None) -> list[RecordRun | Missing]:
    note = losses if losses is not None else []
    return list(HotReader(world.history(), task, ScanCounters(), note.append).steps())


def test_a_run_is_a_view_of_a_file_of_the_log(world: HistoryWorld) -> None:
    world.put(400)
    (task,) = plan_scan(world.catalog(tier=False), ScanRequest()).tasks
    runs = [step for step in steps(world, task) if isinstance(step, RecordRun)]
    assert [message for run in runs for message in as_sent(messages_of(run))] == sent_of(world.sent["orders", 0])
    assert {run.side for run in runs} == {Side.HOT}
    assert {len(run.buffer) for run in runs} == {16 * 1024}
    assert len({run.log_base for run in runs}) > 3
    assert all(run.segment == f"commitlog/{run.log_base:020d}" for run in runs)


def test_messages_that_were_put_after_the_last_look_are_seen(world: HistoryWorld) -> None:
    world.put(10)
    history = world.history()
    history.store(str(world.disk))
    world.put(10)
    (task,) = plan_scan(world.catalog(tier=False), ScanRequest()).tasks
    found = list(HotReader(history, task, ScanCounters(), lambda _loss: None).steps())
    assert sum(len(step.starts) for step in found if isinstance(step, RecordRun)) == 20


def test_what_was_deleted_is_missing_before_what_is_left(world: HistoryWorld) -> None:
    world.put(400)
    (task,) = plan_scan(world.catalog(tier=False), ScanRequest()).tasks
    world.flush_to_tier()
    assert world.evict_old() > 0
    left = world.store.local.min_offset("orders", 0)
    found = steps(world, task)
    missing = [step for step in found if isinstance(step, Missing)]
    assert found[: len(missing)] == missing
    assert (missing[0].begin, missing[-1].end) == (0, left)


def test_a_queue_that_ends_earlier_than_the_plan_reports_is_missing_its_end(world: HistoryWorld) -> None:
    world.put(10)
    (task,) = plan_scan(world.catalog(tier=False), ScanRequest()).tasks
    longer = ScanTask(task.place, task.queue, Side.HOT, 0, 15, task.request, store=task.store)
    assert steps(world, longer)[-1] == Missing(10, 15)


@pytest.mark.parametrize("what", ["magic", "queue offset"])
def test_a_record_that_is_not_its_units_is_a_loss(world: HistoryWorld, what: str) -> None:
    world.put(3, size=1)
    world.close()
    path = world.disk / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:4], "big")
    at = {"magic": 5, "queue offset": 27}[what]
    data[size + at] ^= 0x11
    path.write_bytes(data)
    (task,) = plan_scan(world.catalog(tier=False), ScanRequest()).tasks
    losses: list[Loss] = []
    found = steps(world, task, losses)
    assert [m.queue_offset for run in found if isinstance(run, RecordRun) for m in messages_of(run)] == [0, 2]
    assert [(loss.from_offset, loss.to_offset, loss.reason) for loss in losses] == [(1, 2, LossReason.CORRUPT)]
