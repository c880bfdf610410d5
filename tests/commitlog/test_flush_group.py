"""Producers that wait for one flush together: who flushes, who is let go, and what a leader waits for."""

from __future__ import annotations

import queue
import threading
from functools import partial

import pytest

from tiermq.commitlog.flush_services import FlushGroup

FOREVER_S = threading.TIMEOUT_MAX / 2


class Disk:
    """Flushes when the test says so: `begun`: a leader is at it, `go` lets it reach an offset."""

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
def disk() -> Disk:
    return Disk()


@pytest.fixture
def group(disk: Disk) -> FlushGroup:
    return FlushGroup(disk.flush, lambda: disk.where, lambda: disk.failed)


class Producer(threading.Thread):
    def __init__(self, group: FlushGroup, offset: int) -> None:
        super().__init__()
        self.result: bool | None = None
        self._work = partial(group.wait, offset, FOREVER_S)
        self.start()

    def run(self) -> None:
        self.result = self._work()


def followers(group: FlushGroup, count: int) -> None:
    """Wait until so many producers follow."""
    while len(group._followers) != count:
        threading.Event().wait(0.0005)


def test_one_flush_lets_everybody_go_whom_it_covers(disk: Disk, group: FlushGroup) -> None:
    producers = [Producer(group, 1)]
    disk.begun.get()
    producers += [Producer(group, offset) for offset in (2, 3, 4)]
    followers(group, 3)
    disk.go.put(4)
    for producer in producers:
        producer.join()
    assert [producer.result for producer in producers] == [True] * 4
    assert disk.count == 1


def test_who_came_too_late_leads_the_next_flush(disk: Disk, group: FlushGroup) -> None:
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


def test_a_failed_flush_lets_everybody_go_with_the_truth(disk: Disk, group: FlushGroup) -> None:
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


def test_followers_let_each_other_go_and_one_who_left_in_between_breaks_no_row(disk: Disk, group: FlushGroup) -> None:
    producers = [Producer(group, 1)]
    disk.begun.get()
    producers += [Producer(group, offset) for offset in range(2, 7)]
    followers(group, 5)
    late = group._join(7)
    assert late is not None
    producers += [Producer(group, offset) for offset in range(8, 20)]
    followers(group, 18)
    disk.go.put(20)
    producers[0].join()
    assert [producer.is_alive() for producer in producers].count(True) >= 6, "those behind it in its row wait"
    assert group._follow(late, timeout_s=0) is False
    for producer in producers:
        producer.join()
    assert [producer.result for producer in producers] == [True] * 18
    assert disk.count == 1


def test_a_signal_in_a_follower_leaves_no_thread_waiting(disk: Disk, group: FlushGroup) -> None:
    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            raise KeyboardInterrupt

        def release(self) -> None:
            pass

    first = Producer(group, 1)
    disk.begun.get()
    gone = group._join(5)
    assert gone is not None
    behind = Producer(group, 6)
    followers(group, 2)
    gone.turn = Interrupted()  # type: ignore[assignment]
    disk.go.put(1)
    first.join()
    assert gone.leads
    with pytest.raises(KeyboardInterrupt):
        group._follow(gone, FOREVER_S)
    assert disk.begun.get() == 6, "the next one leads"
    disk.go.put(6)
    behind.join()
    assert behind.result is True


def test_a_follower_whose_time_is_over_leaves_and_is_not_made_leader(disk: Disk, group: FlushGroup) -> None:
    first = Producer(group, 1)
    disk.begun.get()
    assert group.wait(9, timeout_s=0) is False
    disk.go.put(1)
    first.join()
    disk.go.put(2)
    assert group.wait(2, FOREVER_S) is True  # There is no leader, so the caller leads.


def test_a_leader_waits_for_those_whom_the_flush_before_let_go(
    disk: Disk, group: FlushGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiermq.commitlog.flush_services.PATIENCE_S_MAX", FOREVER_S)
    monkeypatch.setattr("tiermq.commitlog.flush_services.PATIENCE", 1e9)
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


def test_leaders_stop_waiting_for_producers_that_do_not_come_back(
    disk: Disk, group: FlushGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiermq.commitlog.flush_services.PATIENCE_S_MAX", 0)
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


def test_many_producers_that_put_again_at_once_are_all_served() -> None:
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
