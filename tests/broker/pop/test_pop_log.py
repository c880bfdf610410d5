"""The log of POP: what a broker that died had given out is known to the next one."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import put, running
from broker.pop.pop_peer import MINUTE_MS, PopPeer, pops, revive
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.broker.pop.pop_checkpoints import CheckPoint, PoppedMessage
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import REVIVE_GROUP
from tiermq.status import PutStatus

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"


def copy_as_killed(directory: Path) -> None:
    """What is in files of the broker `alive` when its process is killed now. It goes on meanwhile: a file that it is
    about to put in another's place may be gone when its turn comes.
    """

    def copied(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(source, target)

    shutil.copytree(directory / "alive", directory / "died", copy_function=copied)


def test_what_a_killed_broker_had_given_out_comes_back_and_what_was_acknowledged_does_not(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path / "alive", clock=manual_clock, revive_queue_num=2) as broker, PopPeer(broker) as peer:
        for queue_id in range(4):
            put(broker, *(f"{queue_id}-{number}" for number in range(5)), queue_id=queue_id)
        got = peer.pop(maxMsgNums=7) + peer.pop()
        assert len(got) == 20
        for each in got[::2]:
            assert peer.ack(each).code == 0
        broker.parts.offsets.flush()
        copy_as_killed(tmp_path)
    (tmp_path / "died" / "lock").unlink(missing_ok=True)
    with running(tmp_path / "died", clock=manual_clock, revive_queue_num=2) as broker, PopPeer(broker) as peer:
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
        again = {each.body: each.message.reconsume_times for each in peer.pop()}
        assert again == {each.body: 1 for each in got[1::2]}


@pytest.mark.parametrize("changes_time", [True, False])
def test_what_was_acknowledged_since_the_offsets_were_written_does_not_come_again(
    tmp_path: Path, manual_clock: ManualClock, changes_time: bool
) -> None:
    with running(tmp_path / "alive", clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two", "three")
        broker.parts.offsets.commit("H", "T", 0, 1)
        broker.parts.offsets.flush()
        manual_clock.advance_ms(1)
        got = peer.pop(maxMsgNums=2)
        peer.ack(got[0])
        if changes_time:
            assert peer.change_time(got[1], MINUTE_MS).code == 0
        copy_as_killed(tmp_path)
    with running(tmp_path / "died", clock=manual_clock) as broker, PopPeer(broker) as peer:
        assert [each.body for each in peer.pop()] == ["three"]
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
        assert {each.body for each in peer.pop()} == {"two", "three"}


@pytest.mark.parametrize("set_back_ms", [0, 1, MINUTE_MS, 1_000_000_000])
def test_what_was_acknowledged_does_not_come_again_though_the_clock_was_set_back(
    tmp_path: Path, manual_clock: ManualClock, set_back_ms: int
) -> None:
    """What is newer than the offsets' file is known by the log, not by clocks."""
    with running(tmp_path / "alive", clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two", "three", "four")
        peer.ack(peer.pop(maxMsgNums=1)[0])
        broker.parts.offsets.flush()
        manual_clock.advance_ms(-set_back_ms)
        got = peer.pop(maxMsgNums=2)
        peer.ack(got[0])
        copy_as_killed(tmp_path)
    with running(tmp_path / "died", clock=manual_clock) as broker, PopPeer(broker) as peer:
        assert [each.body for each in peer.pop()] == ["four"]
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
        assert {each.body for each in peer.pop()} == {"three", "four"}


def test_a_reset_is_not_undone_by_pops_from_before_it_though_the_clock_was_set_back(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path / "alive", clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two")
        assert len(peer.pop()) == 2
        manual_clock.advance_ms(-MINUTE_MS)
        broker.parts.offsets.reset("G", "T", 0, 0)
        broker.parts.offsets.flush()
        copy_as_killed(tmp_path)
    with running(tmp_path / "died", clock=manual_clock) as broker, PopPeer(broker) as peer:
        assert [each.body for each in peer.pop()] == ["one", "two"]


def test_what_has_more_time_comes_once_though_the_broker_was_killed_between_its_records(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "alive", clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two")
        got = peer.pop()
        manual_clock.advance_ms(1)
        monkeypatch.setattr(pops(broker).log, "acknowledge", lambda *_: copy_as_killed(tmp_path))
        assert peer.change_time(got[0], MINUTE_MS).code == 0
    with running(tmp_path / "died", clock=manual_clock) as broker, PopPeer(broker) as peer:
        manual_clock.advance_ms(MINUTE_MS)
        revive(broker)
        assert sorted(each.body for each in peer.pop()) == ["one", "two"]


def test_a_reset_is_not_undone_by_pops_from_before_it(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path / "alive", clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two")
        got = peer.pop()
        manual_clock.advance_ms(1)
        broker.parts.offsets.reset("G", "T", 0, 0)
        broker.parts.offsets.flush()
        assert peer.change_time(got[1], MINUTE_MS).code == 0
        copy_as_killed(tmp_path)
    with running(tmp_path / "died", clock=manual_clock) as broker, PopPeer(broker) as peer:
        assert [each.body for each in peer.pop()] == ["one", "two"]


def test_offsets_are_written_after_the_check_points_that_they_rely_on(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    """Or a power cut would lose messages: popped by the offset, in no check point."""
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one")
        peer.pop()
        broker.parts.offsets.flush()
        assert broker.parts.local.flushed_where == broker.parts.local.max_physical_offset


def test_the_log_is_needed_from_the_oldest_open_check_point_on(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock, revive_queue_num=1) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two", "three")
        got = [peer.pop(maxMsgNums=1)[0] for _ in range(3)]
        log = pops(broker).log
        peer.ack(got[0])
        log.commit()
        assert broker.parts.offsets.query(REVIVE_GROUP, REVIVE_TOPIC, 0) == 0
        for each in got[1:]:
            peer.ack(each)
        log.commit()
        assert broker.parts.offsets.query(REVIVE_GROUP, REVIVE_TOPIC, 0) == 5, "the last one that is done"
        broker.parts.local.dispatch_now()
        assert broker.parts.local.max_offset(REVIVE_TOPIC, 0) == 6


def test_two_who_let_the_offset_follow_at_once_do_not_set_it_back(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, clock=manual_clock, revive_queue_num=1) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two")
        got = [peer.pop(maxMsgNums=1)[0] for _ in range(2)]
        peer.ack(got[0])
        log, offsets = pops(broker).log, broker.parts.offsets
        query, entered, go_on = offsets.query, threading.Event(), threading.Event()

        def slow(*place: Any) -> int:
            found = query(*place)
            if threading.current_thread() is late:
                entered.set()
                go_on.wait(60)
            return found

        late, newest = threading.Thread(target=log.commit), threading.Thread(target=log.commit)
        monkeypatch.setattr(offsets, "query", slow)
        late.start()
        assert entered.wait(60)
        peer.ack(got[1])
        newest.start()
        newest.join(timeout=0.2)  # It waits for the other, unless this is broken.
        go_on.set()
        late.join()
        newest.join()
        assert query(REVIVE_GROUP, REVIVE_TOPIC, 0) == 3


def test_the_offset_does_not_pass_a_check_point_that_is_being_made(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or nobody would read it after a restart, and what was popped would never come back."""
    with running(tmp_path, clock=manual_clock, revive_queue_num=1) as broker:
        log = pops(broker).log
        add, entered, go_on = log.points.add, threading.Event(), threading.Event()

        def slow(point: CheckPoint) -> None:
            entered.set()
            go_on.wait(60)
            add(point)

        monkeypatch.setattr(log.points, "add", slow)
        popped = PoppedMessage("G", "T", 0, 0, manual_clock.now_ms())
        popping = threading.Thread(target=log.begin, args=(0, popped, MINUTE_MS, (0,)), kwargs={"group_offset": 1})
        following = threading.Thread(target=log.commit)
        popping.start()
        assert entered.wait(60)
        following.start()
        following.join(timeout=0.2)  # It waits for the check point, unless this is broken.
        go_on.set()
        popping.join()
        following.join()
        assert broker.parts.offsets.query(REVIVE_GROUP, REVIVE_TOPIC, 0) <= 0
    with running(tmp_path, clock=manual_clock, revive_queue_num=1) as broker:
        assert [point.popped for point in pops(broker).log.points] == [popped]


def test_records_are_rocketmq_s(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock, revive_queue_num=1) as broker, PopPeer(broker) as peer:
        put(broker, "one")
        (got,) = peer.pop()
        peer.ack(got)
        broker.parts.local.dispatch_now()
        point, ack = broker.parts.local.get(REVIVE_TOPIC, 0, 0).messages
    now_ms = manual_clock.now_ms()
    assert point.tags == "ck"
    assert point.body == (
        b'{"bm":0,"bn":"b","c":"G","d":[0],"it":60000,"n":1,"pt":%d,"q":0,"ro":0,"so":0,"t":"T"}' % now_ms
    )
    assert (ack.tags, ack.body) == ("ack", b'{"ao":0,"bn":"b","c":"G","pt":%d,"q":0,"so":0,"t":"T"}' % now_ms)


def test_records_that_nobody_understands_are_passed_over(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock, revive_queue_num=1) as broker, PopPeer(broker) as peer:
        for body in (b"no json", b"{}", b"[1]"):
            broker.parts.local.put(Message(REVIVE_TOPIC, body, 0, tags="ck"))
        put(broker, "one")
        peer.pop()
    with running(tmp_path, clock=manual_clock, revive_queue_num=1) as broker:
        assert len(pops(broker).log.points) == 1


def test_nothing_is_given_out_that_cannot_be_remembered(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one")
        log = pops(broker).log

        def refuse(*_arguments: object) -> None:
            raise RequestRefused(f"the store does not take it: {PutStatus.SERVICE_NOT_AVAILABLE.name}", 2)

        monkeypatch.setattr(log, "_append", refuse)
        assert peer.pop_raw().code == 2
        monkeypatch.undo()
        assert [got.body for got in peer.pop()] == ["one"]
