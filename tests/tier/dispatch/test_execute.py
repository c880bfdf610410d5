"""One executor: records, units, index, in this order, whatever fails in between."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from servers.faulty_driver import Fault, FaultyDriver, ScriptedFaults
from tier.dispatch.dispatch_world import DispatchWorld
from tier.flat.flat_world import Died, MortalDriver
from tiermq import Message
from tiermq.errors import DiskFull
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.dispatch.dispatch_step import NoIndex, Outcome, execute, feed_index
from tiermq.tier.dispatch.plan import Gap, Hold, Init, Nothing, Reason, RetryCommit, Roll, Upload
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.index.index_request import PutOutcome
from tiermq.tier.queue.records import RecordBatch

ALL = Upload(0, 4096, 1 << 22, repeat=False)


def ready(world: DispatchWorld, count: int = 10) -> FlatMessageFile:
    world.put(count)
    file = world.files.find_or_create("T", 0)
    execute(Init(0), file, world.source, world.index)
    return file


def test_an_upload_copies_commits_and_indexes(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    for number in range(5):
        world.store.put(Message("T", b"body", keys=[f"k{number}", "both"]))
    world.put(1)
    file = world.files.find_or_create("T", 0)
    assert execute(Init(0), file, world.source, world.index) == Outcome()
    outcome = execute(ALL, file, world.source, world.index)
    assert (outcome.done, outcome.messages, outcome.error) == (True, 6, None)
    assert outcome.bytes == file.log.commit_offset
    assert world.tier_offsets() == list(range(6))
    assert world.index.places() == world.places()
    keys = [tuple(request.keys)[-2:] for request in world.index.requests]
    assert keys[:5] == [(f"k{number}", "both") for number in range(5)]
    assert [request.size for request in world.index.requests] == [
        end - start for start, end in zip(world.places(), [*world.places()[1:], file.log.commit_offset], strict=True)
    ]
    assert {request.store_ms for request in world.index.requests} == {world.clock.now_ms()}
    assert isinstance(world.store.get("T", 0, 0).messages[0], StoredMessage)


@pytest.mark.parametrize("plan", [Nothing(Reason.CAUGHT_UP), Hold("", 1)])
def test_a_plan_to_do_nothing_does_nothing(tmp_path: Path, plan: Nothing | Hold) -> None:
    world = DispatchWorld(tmp_path)
    file = ready(world)
    assert execute(plan, file, world.source, NoIndex()) == Outcome()
    assert file.commit_offset == 0


def test_a_batch_ends_where_the_plan_reports(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    file = ready(world)
    assert execute(Upload(0, 4, 1 << 22, False), file, world.source, world.index).messages == 4
    assert execute(Upload(4, 10, 1, False), file, world.source, world.index).messages == 1
    assert world.tier_offsets() == list(range(5))


def test_nothing_to_collect_is_reported(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    file = ready(world)
    execute(ALL, file, world.source, world.index)
    assert execute(Upload(10, 10, 1000, False), file, world.source, world.index) == Outcome(empty=True)


def test_gaps_and_rolls_are_reported(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    file = ready(world)
    execute(Upload(0, 4, 1 << 22, False), file, world.source, world.index)
    outcome = execute(Gap(4, 8, "gone"), file, world.source, world.index)
    assert outcome.gap is not None
    assert (outcome.gap.from_offset, outcome.gap.to_offset, outcome.messages) == (4, 8, 0)
    assert execute(Roll(), file, world.source, world.index).rolled == 1
    assert execute(Upload(8, 9, 1 << 22, False), file, world.source, world.index).messages == 2
    assert world.tier_offsets() == [0, 1, 2, 3, 8, 9]


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
@pytest.mark.parametrize("nth", [0, 1])
def test_a_failed_commit_is_retried_and_then_indexed_once(tmp_path: Path, fault: Fault, nth: int) -> None:
    world = DispatchWorld(tmp_path)
    file = ready(world)
    world.driver.plan = ScriptedFaults("write", [None] * nth + [fault])
    failed = execute(ALL, file, world.source, world.index)
    assert not failed.done
    assert failed.error is not None
    assert world.index.requests == []
    retried = execute(RetryCommit(), file, world.source, world.index)
    assert (retried.done, retried.messages) == (True, 10)
    assert world.tier_offsets() == list(range(10))
    assert world.index.places() == world.places()


def test_what_the_index_could_not_take_is_given_to_it_again(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    file = ready(world)
    world.index.error = DiskFull("no room for the index")
    with pytest.raises(DiskFull):
        execute(ALL, file, world.source, world.index)
    assert file.commit_offset == 10
    assert file.committed
    world.index.error = None
    assert execute(RetryCommit(), file, world.source, world.index).done
    assert world.index.places() == world.places()
    assert not file.committed


def test_a_closed_index_is_fed_at_the_next_start(tmp_path: Path) -> None:
    class Closed:
        def put_batch(self, _batch: RecordBatch, _topic: str, _topic_id: int, _queue_id: int) -> PutOutcome:
            return PutOutcome.SHUTDOWN

    world = DispatchWorld(tmp_path)
    file = ready(world)
    assert execute(ALL, file, world.source, Closed()).done
    assert len(file.committed) == 1
    assert feed_index(file, world.index)
    assert world.index.places() == world.places()


def driver_in(kind: str, path: Path) -> TierDriver:
    if kind == "object":
        path.mkdir(exist_ok=True)
        return open_driver(f"{path.as_uri()}?driver=object")
    return MemoryDriver() if kind == "memory" else PosixDriver(path)


@pytest.mark.parametrize(
    ("kind", "cut"),
    # An object store writes a part whole or not at all, so nothing of it can be cut.
    [*((kind, cut) for kind in ("memory", "posix") for cut in (0.0, 0.5, 1.0)), ("object", 0.0), ("object", 1.0)],
)
def test_a_crash_between_any_two_steps_loses_and_doubles_nothing_the_index_included(
    tmp_path: Path, kind: str, cut: float
) -> None:
    inner = driver_in(kind, tmp_path / "count")
    counting = MortalDriver(inner)
    world = DispatchWorld(tmp_path, counting, log_bytes=1000, unit_bytes=160)
    file = ready(world, 20)
    execute(ALL, file, world.source, world.index)
    world.die()
    for step in range(counting.changes):
        place = tmp_path / str(step)
        place.mkdir()
        mortal = MortalDriver(driver_in(kind, place / "tier"), step, cut=cut)
        world = DispatchWorld(place, mortal, log_bytes=1000, unit_bytes=160)
        file = ready(world, 20)
        with contextlib.suppress(Died):
            execute(ALL, file, world.source, world.index)
        before = world.index.places()
        world.restart(mortal.inner)
        world.index.requests.clear()
        again = world.files.find_or_create("T", 0)
        known = again.log.commit_offset
        again.recover()
        feed_index(again, world.index)
        if again.append_offset < 20:
            rest = Upload(again.append_offset, 100, 1 << 22, False)
            assert execute(rest, again, world.source, world.index).done
        assert world.tier_offsets() == list(range(20))
        after, places = world.index.places(), world.places()
        assert before == places[: len(before)]
        assert after == places[len(places) - len(after) :], "without a hole, to the end"
        assert not set(before) & set(after), "none is reported twice"
        # What was committed and not reported, the index finds itself at its start: the metadata knew of it by then.
        assert all(place < known for place in places[len(before) : len(places) - len(after)])
        world.die()


def test_a_plan_that_recovery_made_old_is_planned_again(tmp_path: Path) -> None:
    world = DispatchWorld(tmp_path)
    file = ready(world)
    world.driver.plan = ScriptedFaults("write", [Fault.AFTER])
    assert not execute(ALL, file, world.source, world.index).done
    file.discard_pending()
    outcome = execute(ALL, file, world.source, world.index)
    assert (outcome.done, outcome.messages) == (True, 10)
    assert world.tier_offsets() == list(range(10))
    assert world.index.places() == world.places()
    assert isinstance(world.driver, FaultyDriver)
