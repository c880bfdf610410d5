"""The store's threads, round by round: dispatch, flushing of queues, housekeeping."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import bodies, body, numbered, on_simulation, pause_dispatch, power_cut, put_all, resume_dispatch
from tiermq import Message
from tiermq.errors import CorruptRecord
from tiermq.store.local_store import LocalStore


def test_reput_dispatches_and_then_rests_until_it_is_woken() -> None:
    with on_simulation() as store:
        reput, appender = store._parts.reput, store._parts.log.appender
        for number in range(10):
            store.put(Message("T", body(number)))
        assert reput.behind_bytes() == store.max_physical_offset
        assert reput.run_once() > 0
        assert (reput.behind_bytes(), appender.reput_idle, store.max_offset("T", 0)) == (0, True, 10)
        store.put(Message("T", b"x"))
        assert not appender.reput_idle


def test_trap_39_reput_rests_while_sync_flush_holds_messages_back() -> None:
    with on_simulation(flush_disk_type="SYNC_FLUSH") as store:
        store.put(Message("T", b"x", properties={"WAIT": "false"}))
        assert store._parts.reput.run_once() > 0
        assert store._parts.reput.behind_bytes() == 0
        store.flush()
        assert store._parts.reput.behind_bytes() > 0


def test_a_message_put_to_a_running_store_arrives_without_being_asked_for() -> None:
    for settings in ({}, {"flush_disk_type": "SYNC_FLUSH"}, {"transient_store_pool_enable": True}):
        with on_simulation(background=True, commit_commit_log_thorough_interval=0, **settings) as store:
            arrived = threading.Semaphore(0)
            store.add_arrival_listener(lambda *arguments, arrived=arrived: arrived.release())
            for number in range(5):
                store.put(Message("T", body(number)))
                assert arrived.acquire(timeout=60)
            assert bodies(store) == numbered(5)


def test_a_paused_reput_does_nothing() -> None:
    with on_simulation() as store:
        put_all(store, 1)
        pause_dispatch(store)
        store.put(Message("T", b"x"))
        assert store._parts.reput.run_once() > 0
        assert store.max_offset("T", 0) == 1
        resume_dispatch(store)
        store._parts.reput.run_once()
        assert store.max_offset("T", 0) == 2


def test_damage_found_by_reput_shuts_the_store() -> None:
    with on_simulation() as store:
        put_all(store, 1)
        store._parts.dispatch.offset = 5
        store.put(Message("T", b"x"))
        with pytest.raises(CorruptRecord):
            store._parts.reput.run_once()
        assert store.status()["flags"] == ["WRITE_LOGICS_QUEUE_ERROR"]


def test_queues_are_flushed_thoroughly_once_a_minute_and_the_checkpoint_follows() -> None:
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    store = on_simulation(access, clock=clock)
    service, checkpoint = store._parts.queue_flush, store._parts.checkpoint
    put_all(store, 30)
    assert service.run_once() == 1.0
    assert checkpoint.logics_msg_timestamp_ms == 0
    clock.advance_ms(60_000)
    service.run_once()
    assert checkpoint.logics_msg_timestamp_ms == clock.now_ms() - 60_000
    file = power_cut(access)._entries[f"/store/consumequeue/T/0/{0:020d}"]
    assert bytes(file.current[:20]) != bytes(20)
    store.close()


def test_housekeeping_writes_the_checkpoint_and_takes_samples() -> None:
    clock = ManualClock()
    with on_simulation(SimulatedFileAccess(clock=clock), clock=clock) as store:
        put_all(store, 10)
        store.flush()
        clock.advance_ms(1_000)
        assert store._parts.housekeeping.run_once() == 1.0
        statistics = store.statistics()
        assert statistics["put_messages"] == 10
        assert statistics["put_tps"]["10s"] == 10.0  # type: ignore[index]


def test_errors_of_services_are_in_the_status() -> None:
    with on_simulation() as store:
        store._parts.queue_flush.error_count = 3
        assert store.status()["service_errors"] == {"flush-consumequeue": 3}


def test_puts_that_wait_for_the_disk_gather_before_they_are_dispatched_and_a_stop_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiermq.store.wiring.SYNC_GATHER_S", threading.TIMEOUT_MAX / 2)
    with LocalStore.open(tmp_path, flush_disk_type="SYNC_FLUSH", mapped_file_size_commit_log=1 << 20) as store:
        assert store.put(Message("T", b"a")).ok
        assert len(store.get("T", 0, 0).messages) == 0
        store.dispatch_now()
        assert len(store.get("T", 0, 0).messages) == 1
