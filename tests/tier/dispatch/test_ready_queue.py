"""ReadyQueue: each queue waits once, and one worker at a time has it."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from tiermq.tier.dispatch.ready_queue import ReadyQueue

A, B, C = ("a", 0), ("b", 0), ("c", 0)


def test_everybody_stands_in_line_once() -> None:
    turns = ReadyQueue()
    turns.push([A, B, A])
    assert [turns.take(), turns.take(), turns.take()] == [A, B, None]


def test_who_wants_another_turn_goes_to_the_end() -> None:
    turns = ReadyQueue()
    turns.push([A, B])
    assert turns.take() == A
    turns.push([C])
    turns.done(A, again=True)
    assert [turns.take(), turns.take(), turns.take()] == [B, C, A]


def test_who_is_called_while_busy_comes_again_afterwards_and_never_twice_at_once() -> None:
    turns = ReadyQueue()
    turns.push([A])
    assert turns.take() == A
    turns.push([A, A])
    assert turns.take() is None
    turns.done(A, again=False)
    assert turns.take() == A
    turns.done(A, again=False)
    assert turns.take() is None


@given(st.lists(st.tuples(st.sampled_from("pushtakedone"), st.sampled_from([A, B, C])), max_size=40))
def test_no_queue_is_ever_lost(steps: list[tuple[str, tuple[str, int]]]) -> None:
    turns = ReadyQueue()
    wanted: set[tuple[str, int]] = set()
    busy: list[tuple[str, int]] = []
    for kind, name in steps:
        if kind in "push":
            turns.push([name])
            wanted.add(name)
        elif kind in "take":
            taken = turns.take()
            if taken is not None:
                assert taken not in busy
                busy.append(taken)
                wanted.discard(taken)
        elif busy:
            turns.done(busy.pop(0), again=False)
    for name in busy:
        turns.done(name, again=False)
    left = set()
    while (taken := turns.take()) is not None:
        left.add(taken)
    assert left == wanted


def test_waiting_ends_when_a_queue_comes_or_the_time_is_over() -> None:
    turns = ReadyQueue()
    version = turns.version
    turns.wait(version, 0.001)
    thread = threading.Thread(target=lambda: turns.wait(version, 60))
    thread.start()
    turns.push([A])
    thread.join()
    assert turns.version != version
    assert turns.wait_idle(0)
    turns.take()
    assert turns.busy == 1
    assert not turns.wait_idle(0.001)
    turns.nudge()


def test_who_waits_for_queues_to_be_done_is_woken_by_one_that_leaves_and_not_by_every_turn() -> None:
    turns = ReadyQueue()
    turns.wait_left(60)  # None is there, so none will leave.
    turns.push([A, B])
    assert turns.take() == A
    woken = threading.Event()

    def wait() -> None:
        turns.wait_left(60)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    turns.done(A, again=True)
    assert turns.take() == B
    assert not woken.is_set()
    while not woken.is_set():  # The thread may not have begun to wait yet: let one leave until it has.
        turns.done(B, again=False)
        turns.push([B])
        turns.take()
        turns.take()
    thread.join()
