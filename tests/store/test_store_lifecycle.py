"""The life of a store: states, marker, abort file, and that a failed start leaves nothing behind."""

from __future__ import annotations

import threading

import pytest

from simulation.simulated_files import SimulatedFileAccess
from small_store import ROOT, bodies, numbered, on_simulation, put_all
from tiermq import Message
from tiermq.errors import DiskFull, StoreError
from tiermq.store.lifecycle import State


def test_a_store_is_running_between_open_and_close() -> None:
    store = on_simulation()
    assert (store.running, store.writeable, store._lifecycle.state) == (True, True, State.RUNNING)
    store.close()
    assert (store.running, store.writeable, store._lifecycle.state) == (False, False, State.SHUTDOWN_OK)


def test_two_threads_that_close_do_it_once() -> None:
    store = on_simulation(background=True)
    put_all(store, 5)
    threads = [threading.Thread(target=store.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store._lifecycle.state is State.SHUTDOWN_OK


@pytest.mark.parametrize("operation", ["open", "create", "write_bytes", "reserve", "sync"])
def test_a_start_that_fails_anywhere_leaves_the_directory_unlocked(operation: str) -> None:
    access = SimulatedFileAccess()
    with on_simulation(access) as store:
        put_all(store, 100, keys="k")
    access.remove(f"{ROOT}/tiermq.clean")
    countdown = 0
    failures = 0
    while True:
        left = countdown

        def fault(called: str, path: str) -> None:
            nonlocal left
            if called == operation and not path.endswith("lock"):
                left -= 1
                if left < 0:
                    raise DiskFull(f"{called} {path}")

        access.on_call = fault
        try:
            store = on_simulation(access)
        except DiskFull:
            failures += 1
            countdown += 1
            assert access._locked == set()
            continue
        access.on_call = None
        assert bodies(store) == numbered(100)
        store.close()
        break
    assert failures > 0 or operation in ("create", "reserve", "sync")


def test_a_close_that_cannot_finish_lets_the_directory_go() -> None:
    failing = False

    def fault(operation: str, path: str) -> None:
        if failing and operation == "sync" and "consumequeue" in path:
            raise OSError(5, "no queue today")

    access = SimulatedFileAccess(on_call=fault)
    others = set(threading.enumerate())
    store = on_simulation(access, background=True)
    put_all(store, 10)
    failing = True
    with pytest.raises(OSError, match="no queue today"):
        store.close()
    assert not store.running
    failing = False
    with on_simulation(access) as again:
        assert again.recovered is not None
        assert again.recovered.mode == "abnormal"
        assert bodies(again) == numbered(10)
    names = {thread.name for thread in set(threading.enumerate()) - others}
    assert names.isdisjoint({"reput", "flush-commitlog", "flush-consumequeue", "allocate", "housekeeping"})


def test_a_dispatcher_that_fails_at_the_end_does_not_keep_the_store_open() -> None:
    class Failing:
        def dispatch(self, span: object) -> None:
            raise StoreError("not mine")

    access = SimulatedFileAccess()
    store = on_simulation(access)
    put_all(store, 2)
    store.add_dispatcher(Failing())
    store.put(Message("T", b"x"))
    store.close()
    assert access.exists(f"{ROOT}/abort")
    with on_simulation(access) as again:
        assert again.max_offset("T", 0) == 3


def test_a_store_without_threads_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    here, start = threading.get_ident(), threading.Thread.start
    started: list[str] = []

    def note(thread: threading.Thread) -> None:
        if threading.get_ident() == here:  # What other parts of the process start is theirs.
            started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    with on_simulation() as store:
        put_all(store, 300, keys="k")
    assert started == []
    on_simulation(background=True).close()
    assert "reput" in started
