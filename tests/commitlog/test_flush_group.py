"""Producers that wait for one flush together: who flushes, who is let go, and what a leader waits for."""

from __future__ import annotations

import queue
import threading

import pytest

from tiermq.commitlog.flush_group import FlushGroup

FOREVER_S = threading.TIMEOUT_MAX / 2


class Disk:
    """Flushes when the test says so: `begun` tells that a leader is at it, `go` lets it reach an offset."""

    def __init__(self) -> None:
        self.where = 0
        self.failed = False
        self.count = 0
        self.begun: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.go: queue.SimpleQueue[int] = queue.SimpleQueue()

    def flush(self, offset: int, _deadline: float) -> None:
        self.count += 1
        self.begun.put(offset)
        self.where = max(self.where, self.go.get())


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def group(disk):
    return FlushGroup(disk.flush, lambda: disk.where, lambda: disk.failed)


class Producer(threading.Thread):
    def __init__(self, group: FlushGroup, offset: int) -> None:
        super().__init__()
        self.result: bool | None = None
        self._work = lambda: group.wait(offset, FOREVER_S)
        self.start()

    def run(self) -> None:
        self.result = self._work()


def followers(group: FlushGroup, count: int) -> None:
    """Wait until so many producers follow."""
    while len(group._followers) != count:
        threading.Event().wait(0.0005)


def test_one_flush_lets_everybody_go_whom_it_covers(disk, group):
    producers = [Producer(group, 1)]
    disk.begun.get()
    producers += [Producer(group, offset) for offset in (2, 3, 4)]
    followers(group, 3)
    disk.go.put(4)
    for producer in producers:
        producer.join()
    assert [producer.result for producer in producers] == [True] * 4
    assert disk.count == 1


def test_who_came_too_late_leads_the_next_flush(disk, group):
    first = Producer(group, 1)
    disk.begun.get()
    late = [Producer(group, 5), Producer(group, 6)]
    followers(group, 2)
    disk.go.put(1)
    first.join()
    assert disk.begun.get() in (5, 6)
    disk.go.put(6)
    for producer in late:
        producer.join()
    assert [producer.result for producer in late] == [True, True]
    assert disk.count == 2


def test_a_failed_flush_lets_everybody_go_with_the_truth(disk, group):
    producers = [Producer(group, 1)]
    disk.begun.get()
    producers += [Producer(group, 2), Producer(group, 3)]
    followers(group, 2)
    disk.failed = True
    disk.go.put(0)
    for producer in producers:
        producer.join()
    assert [producer.result for producer in producers] == [False] * 3
    assert disk.count == 1


def test_a_follower_whose_time_is_over_leaves_and_is_not_made_leader(disk, group):
    first = Producer(group, 1)
    disk.begun.get()
    assert group.wait(9, timeout_s=0) is False
    disk.go.put(1)
    first.join()
    disk.go.put(2)
    assert group.wait(2, FOREVER_S) is True  # Nobody leads, so the caller does.


def test_a_leader_waits_for_those_whom_the_flush_before_let_go(disk, group, monkeypatch):
    monkeypatch.setattr("tiermq.commitlog.flush_group.PATIENCE_S_MAX", FOREVER_S)
    monkeypatch.setattr("tiermq.commitlog.flush_group.PATIENCE", 1e9)
    producers = [Producer(group, 1)]
    disk.begun.get()
    producers += [Producer(group, 2), Producer(group, 3)]
    followers(group, 2)
    disk.go.put(3)
    for producer in producers:
        producer.join()
    assert group.expected == 3
    again = [Producer(group, 4), Producer(group, 5)]
    followers(group, 1)
    assert disk.begun.empty()  # The third is still to come.
    again.append(Producer(group, 6))
    disk.begun.get()
    disk.go.put(6)
    for producer in again:
        producer.join()
    assert [producer.result for producer in again] == [True] * 3
    assert disk.count == 2


def test_leaders_stop_waiting_for_producers_that_do_not_come_back(disk, group, monkeypatch):
    monkeypatch.setattr("tiermq.commitlog.flush_group.PATIENCE_S_MAX", 0)
    first = Producer(group, 1)
    disk.begun.get()
    second = Producer(group, 2)
    followers(group, 1)
    disk.go.put(2)
    first.join()
    second.join()
    disk.go.put(3)
    assert group.wait(3, FOREVER_S)
    assert (group.expected, group._misses) == (1, 1)  # It looked out once, in vain, and expects itself alone now.


def test_many_producers_that_put_again_at_once_are_all_served():
    where = [0]
    flushes = [0]

    def flush(offset: int, _deadline: float) -> None:
        flushes[0] += 1
        where[0] = max(where[0], offset)

    group = FlushGroup(flush, lambda: where[0], lambda: False)
    results: list[bool] = []

    def produce(number: int) -> None:
        results.extend(group.wait(turn * 8 + number, FOREVER_S) for turn in range(100))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 800
    assert 1 <= flushes[0] <= 800


@pytest.fixture
def overlapping(disk):
    return FlushGroup(disk.flush, lambda: disk.where, lambda: disk.failed, may_overlap=lambda: True)


def test_a_second_flush_begins_while_the_first_is_under_way(disk, overlapping):
    producers = [Producer(overlapping, 1)]
    assert disk.begun.get() == 1
    producers.append(Producer(overlapping, 2))
    assert disk.begun.get() == 2
    producers.append(Producer(overlapping, 3))
    followers(overlapping, 1)  # Two are enough: the third waits for one of them to end.
    disk.go.put(2)
    assert disk.begun.get() == 3
    disk.go.put(3)  # Whichever of the two takes it first.
    disk.go.put(3)
    for producer in producers:
        producer.join()
    assert [producer.result for producer in producers] == [True] * 3


def test_a_flush_lets_go_those_who_wait_for_an_earlier_one_that_still_runs():
    where = [0]
    begun: queue.SimpleQueue[int] = queue.SimpleQueue()
    go = {offset: threading.Event() for offset in (1, 3, 4)}

    def flush(offset: int, _deadline: float) -> None:
        begun.put(offset)
        go[offset].wait()
        where[0] = max(where[0], offset)

    group = FlushGroup(flush, lambda: where[0], lambda: False, may_overlap=lambda: may[0])
    may = [False]
    first = Producer(group, 1)
    begun.get()
    early = [Producer(group, 2), Producer(group, 3)]
    followers(group, 2)
    go[1].set()
    first.join()
    assert begun.get() == 3  # For both of them: one leads, one follows.
    may[0] = True
    late = Producer(group, 4)
    assert begun.get() == 4
    go[4].set()
    late.join()
    while all(each.is_alive() for each in early):  # One of them is let go, though the flush begun for it still runs.
        threading.Event().wait(0.0005)
    assert sorted(str(each.result) for each in early) == ["None", "True"]
    go[3].set()
    for each in early:
        each.join()
    assert [each.result for each in early] == [True, True]


def test_many_producers_flush_one_after_the_other_and_are_let_go_at_once(disk, overlapping, monkeypatch):
    monkeypatch.setattr("tiermq.commitlog.flush_group.MANY", 2)
    leader = Producer(overlapping, 1)
    disk.begun.get()
    overlapping._led = True  # Somebody gathers, so that these two follow.
    waiting = [overlapping._join(2), overlapping._join(3)]
    overlapping._led = False
    disk.go.put(3)
    leader.join()
    assert [each.turn.acquire(blocking=False) for each in waiting] == [True, True]
    first = Producer(overlapping, 4)
    disk.begun.get()
    second = Producer(overlapping, 5)
    followers(overlapping, 1)  # It could have begun a flush of its own.
    disk.go.put(5)
    first.join()
    second.join()
    assert (first.result, second.result, disk.count) == (True, True, 2)


def test_a_follower_whose_time_is_over_when_it_is_in_the_line_lets_the_next_one_go(disk, group):
    leader = Producer(group, 1)
    disk.begun.get()
    gone, following = group._join(2), group._join(3)
    disk.go.put(3)
    leader.join()
    assert gone.line == [following]
    gone.turn = threading.Lock()
    gone.turn.acquire()  # As if nobody had let it go yet.
    assert group._follow(gone, 0) is False
    assert following.turn.acquire(blocking=False)


def test_an_interrupted_follower_leaves_no_gap(disk, group):
    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            raise KeyboardInterrupt

        def release(self) -> None: ...

    leader = Producer(group, 1)
    disk.begun.get()
    follower = group._join(2)
    follower.turn = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        group._follow(follower, FOREVER_S)
    assert group._followers == []
    appointed = group._join(3)
    disk.go.put(1)
    leader.join()
    assert appointed.leads
    behind = Producer(group, 4)
    followers(group, 1)
    appointed.turn = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        group._follow(appointed, FOREVER_S)
    disk.begun.get()  # The one behind it leads instead.
    disk.go.put(4)
    behind.join()
    assert behind.result is True
