"""A signal ends the wait, whenever it comes and whichever thread gets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tiermq.cli.end_signals import NUMBERS, EndSignals


def unasked() -> None:
    raise AssertionError("nobody hung up")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_another_thread_gets_ends_the_wait_of_the_main_thread(number: int) -> None:
    with EndSignals() as ending:
        # The handler of such a signal does not wake a main thread that waits for a lock.
        threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), number)).start()
        ending.wait(unasked)


def test_a_signal_that_came_before_the_wait_is_not_lost() -> None:
    with EndSignals() as ending:
        os.kill(os.getpid(), signal.SIGTERM)
        ending.wait(unasked)


def test_a_signal_that_means_something_else_does_not_end_the_wait() -> None:
    order: list[str] = []

    def end() -> None:
        order.append("the end")
        os.kill(os.getpid(), signal.SIGTERM)

    def heard(_number: int, _frame: object) -> None:
        order.append("something else")
        threading.Thread(target=end).start()

    before = signal.signal(signal.SIGUSR1, heard)
    try:
        with EndSignals() as ending:
            os.kill(os.getpid(), signal.SIGUSR1)
            ending.wait(unasked)
            assert order == ["something else", "the end"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_signals_mean_afterwards_what_they_meant_before() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    with EndSignals():
        assert [signal.getsignal(number) for number in NUMBERS] != before
    assert [signal.getsignal(number) for number in NUMBERS] == before
    assert signal.set_wakeup_fd(-1) == -1


HANGING = """
import threading
from tiermq.cli.end_signals import EndSignals
with EndSignals() as ending:
    print("serving", flush=True)
    ending.wait(lambda: None)
    print("ending", flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("number", NUMBERS)
def test_a_second_signal_ends_a_process_at_once_whose_end_hangs(number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "serving\n"
    process.send_signal(number)
    assert process.stdout.readline() == "ending\n"
    while process.poll() is None:  # Those that come right behind the first are taken for it.
        process.send_signal(number)
        os.sched_yield()
    assert process.returncode == 128 + number
    assert "ended at once by a second signal" in process.communicate()[1]


def test_a_hangup_is_heard_and_does_not_end_the_wait() -> None:
    heard: list[str] = []

    def reload() -> None:
        heard.append("hangup")
        os.kill(os.getpid(), signal.SIGHUP if len(heard) < 2 else signal.SIGTERM)

    with EndSignals() as ending:
        os.kill(os.getpid(), signal.SIGHUP)
        ending.wait(reload)
    assert heard == ["hangup", "hangup"]
