"""A loop in a thread, and its end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from remoting.peers import ServerThread, make_server
from tiermq.errors import RemotingError
from tiermq.remoting.loop_thread import LoopThread, new_event_loop
from tiermq.remoting.server import RemotingServer


def test_work_runs_in_the_thread_and_its_result_and_errors_come_back() -> None:
    thread = LoopThread("a-loop")

    async def name() -> str:
        return threading.current_thread().name

    assert thread.run(name()) == "a-loop"
    assert thread.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        thread.call(divmod, 7, 0)
    thread.stop()
    thread.stop()
    assert not thread.is_running
    with pytest.raises(RemotingError, match="stopped"):
        thread.run(name())


def test_a_port_that_is_taken_is_an_error_and_leaves_no_thread() -> None:
    with ServerThread(make_server()) as running:
        before = set(threading.enumerate())
        with pytest.raises(OSError):
            ServerThread(RemotingServer(port=running.port))
        assert set(threading.enumerate()) <= before  # Others may end meanwhile.


def test_a_server_can_be_started_and_stopped_again_and_again() -> None:
    before = set(threading.enumerate())
    for _ in range(5):
        with ServerThread(make_server()) as running:
            assert running.port > 0
    assert set(threading.enumerate()) <= before


def test_the_plain_loop_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERMQ_UVLOOP", "0")
    loop = new_event_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()


def test_the_loop_s_own_thread_does_not_wait_for_itself() -> None:
    thread = LoopThread("a-loop")

    async def waits() -> int:
        return thread.call(int, "7")

    with pytest.raises(RemotingError, match="own loop"):
        thread.run(waits())
    thread.stop()


def test_a_wait_in_steps_gives_results_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As threads wait on Windows before Python 3.14."""
    monkeypatch.setattr("tiermq.remoting.loop_thread.LOOK_S", 0.001)
    thread = LoopThread("a-loop")
    begins = threading.Event()

    async def late(error: BaseException | None) -> str:
        await asyncio.to_thread(begins.wait)
        if error is not None:
            raise error
        return "done"

    threading.Timer(0.02, begins.set).start()
    assert thread.run(late(None)) == "done"
    with pytest.raises(TimeoutError, match="its own"):
        thread.run(late(TimeoutError("its own")))
    thread.stop()
