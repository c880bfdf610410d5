"""Assembly: the parts are connected as the configuration says."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import ROOT, SIZES, on_simulation, put_all
from tiermq import Message
from tiermq.commitlog.flush_services import GroupCommit, RealTimeFlush
from tiermq.config import StoreConfig
from tiermq.files.mapped_file_queue import MultiPathMappedFileQueue
from tiermq.store.topic_attributes import TopicAttributes
from tiermq.store.wiring import DARWIN_OPEN_MAX, assemble, raise_descriptor_limit


def assembled(**settings: Any):  # type: ignore[no-untyped-def]
    config = StoreConfig(store_path_root_dir=ROOT, **{**SIZES, **settings})
    return assemble(config, SimulatedFileAccess(), ManualClock(), bytes(8), TopicAttributes(), background=False)


def test_assembling_touches_nothing_but_the_checkpoint() -> None:
    parts = assembled()
    assert list(parts.access._entries) == [f"{ROOT}/checkpoint"]


def test_the_flush_service_is_the_one_of_the_flush_mode() -> None:
    assert isinstance(assembled().flush_service, RealTimeFlush)
    parts = assembled(flush_disk_type="SYNC_FLUSH")
    assert isinstance(parts.flush_service, GroupCommit)
    assert parts.flush_service is parts.group_commit


def test_a_pool_brings_a_committer() -> None:
    assert assembled().commit_service is None
    parts = assembled(transient_store_pool_enable=True, transient_store_pool_size=2)
    assert parts.commit_service is not None
    assert parts.pool is not None
    assert parts.pool.count == 2
    parts.pool.close()


def test_several_paths_make_a_queue_of_several_paths() -> None:
    assert not isinstance(assembled().log.files, MultiPathMappedFileQueue)
    assert isinstance(assembled(store_path_commit_log="/a,/b").log.files, MultiPathMappedFileQueue)
    assert isinstance(assembled(read_only_commit_log_store_paths="/a").log.files, MultiPathMappedFileQueue)


def test_a_store_can_do_without_an_index() -> None:
    assert assembled(message_index_enable=False).index is None


def test_what_may_be_dispatched_is_what_is_durable_or_what_is_readable() -> None:
    for settings, confirmed in (
        ({}, True),
        ({"flush_disk_type": "SYNC_FLUSH"}, False),
        ({"flush_disk_type": "SYNC_FLUSH", "read_un_committed": True}, True),
    ):
        with on_simulation(**settings) as store:
            store.put(Message("T", b"x", properties={"WAIT": "false"}))
            assert (store._parts.confirm_offset() > 0) is confirmed


def test_files_are_not_cleaned_before_their_records_were_dispatched() -> None:
    clock = ManualClock()
    with on_simulation(SimulatedFileAccess(clock=clock), clock=clock) as store:
        for _ in range(200):
            store.put(Message("T", bytes(500)))
        clock.advance_ms(100 * 3_600_000)
        done = store.clean_now()
        assert (done.log_files, done.vetoed) == (0, True)
        store.dispatch_now()
        assert store.clean_now().log_files > 0


def test_every_descriptor_that_the_system_allows_is_taken() -> None:
    raise_descriptor_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard
    with on_simulation() as store:
        put_all(store, 1)


def test_a_limit_that_is_reported_and_not_granted_is_taken_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: no hard limit is reported, and more than OPEN_MAX is refused."""
    asked: list[int] = []

    def set_limit(_: int, limits: tuple[int, int]) -> None:
        asked.append(limits[0])
        if limits[0] > DARWIN_OPEN_MAX:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, (1 << 63) - 1))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    raise_descriptor_limit()
    assert asked == [(1 << 63) - 1, DARWIN_OPEN_MAX]
