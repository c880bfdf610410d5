"""The life of a store: states, marker, abort file, and that a failed start leaves nothing behind."""

from __future__ import annotations

import itertools
import threading

import pytest

from simulation.simulated_files import SimulatedFileAccess
from small_store import ROOT, bodies, numbered, on_simulation, put_all
from tiermq import Message
from tiermq.errors import DiskFull, IllegalTransition, StoreError
from tiermq.store.local_store import LocalStore
from tiermq.store.running_flags import Flag
from tiermq.store.store_lifecycle import State, StateMachine


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
    store._parts.dispatch.dispatchers.append(Failing())
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


def test_a_store_passes_through_its_states_in_order() -> None:
    lifecycle = StateMachine()
    first, *others = State
    assert lifecycle.state is first
    for state in others:
        lifecycle.advance(state)
        assert lifecycle.state is state
        assert lifecycle.running is (state is State.RUNNING)


@pytest.mark.parametrize(
    ("now", "to"), [(a, b) for a, b in itertools.product(State, State) if b <= a and a is not State.INIT]
)
def test_a_move_that_is_not_forward_raises_and_changes_nothing(now: State, to: State) -> None:
    """Item 47."""
    lifecycle = StateMachine()
    lifecycle.advance(now)
    with pytest.raises(IllegalTransition, match=now.name):
        lifecycle.advance(to)
    assert lifecycle.state is now


def test_the_numbers_are_rocketmq_s() -> None:
    assert [state.value for state in State] == [0, 10, 11, 12, 14, 20, 21, 22, 23, 30, 40, 41]


def figure(store: LocalStore, name: str) -> float:
    lines = store.metrics.render_prometheus().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_figures_follow_the_store() -> None:
    with on_simulation() as store:
        assert figure(store, "tiermq_store_puts_total") == 0
        results = [store.put(Message("T", b"x")) for _ in range(3)]
        end = results[-1].end_offset
        assert figure(store, "tiermq_store_puts_total") == 3
        assert figure(store, "tiermq_store_put_bytes_total") == end
        assert figure(store, "rocketmq_storage_dispatch_behind_bytes") == end
        assert figure(store, "rocketmq_storage_flush_behind_bytes") == end
        assert figure(store, "rocketmq_storage_size") == store._parts.log.files.total_mapped_bytes
        store.dispatch_now()
        store.flush()
        assert figure(store, "rocketmq_storage_dispatch_behind_bytes") == 0
        assert figure(store, "rocketmq_storage_flush_behind_bytes") == 0
        assert figure(store, "tiermq_store_flushes_total") == 1
        assert figure(store, "tiermq_store_writeable") == 1
        store._parts.flags.set(Flag.FENCED)
        assert figure(store, "tiermq_store_writeable") == 0


def test_a_gap_in_a_queue_is_a_figure() -> None:
    with on_simulation() as store:
        put_all(store, 1)
        store.queue("T").next_offset = 9
        put_all(store, 1)
        assert figure(store, "tiermq_store_queue_gaps_total") == 1
