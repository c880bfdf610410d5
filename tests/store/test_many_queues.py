"""A store with many queues: what each of them costs at a start, on disk, and while nothing happens."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.queue_units import RESERVE_BYTES
from tiermq.errors import DiskFull
from tiermq.files.file_access import PAGE_BYTES
from tiermq.store.checkpoint import CLEAN_MARKER, CleanMarker
from tiermq.store.local_store import LocalStore

SIZES: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20 * 50_000}
QUEUES = 40
LATER_MS = 2_000_000_000_000


def opened(path: Path, **settings: Any) -> LocalStore:
    return LocalStore.open(path, background=False, **{**SIZES, **settings})


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A store that was closed with two messages in each of its queues."""
    with opened(tmp_path / "store") as store:
        for number in range(2 * QUEUES):
            store.put(Message("T", b"%d" % number, number % QUEUES))
    return tmp_path / "store"


def mapped(store: LocalStore) -> int:
    return Path("/proc/self/maps").read_text().count(f"{store.config.root_path}/consumequeue/")


def bodies(store: LocalStore, queue_id: int) -> list[bytes]:
    return [each.body for each in store.get("T", queue_id, 0, 32).messages]


def test_a_clean_start_maps_no_queue_until_it_is_used(closed: Path) -> None:
    with opened(closed) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "marker"
        assert mapped(store) == 0
        assert {store.max_offset("T", each) for each in range(QUEUES)} == {2}
        assert {store.min_offset("T", each) for each in range(QUEUES)} == {0}
        store.flush_queues()
        assert mapped(store) == 0
        assert bodies(store, 7) == [b"7", b"47"]
        store.put(Message("T", b"new", 8))
        store.dispatch_now()
        assert bodies(store, 8) == [b"8", b"48", b"new"]
        assert mapped(store) == 2
    with opened(closed) as store:  # The second clean close knew of the queues that it had not looked at.
        assert store.recovered is not None
        assert store.recovered.mode == "marker"
        assert {store.max_offset("T", each) for each in range(QUEUES)} == {2, 3}
        assert bodies(store, 8) == [b"8", b"48", b"new"]


def test_a_start_without_a_clean_close_looks_at_every_queue(closed: Path, tmp_path: Path) -> None:
    with opened(closed) as store:
        store.put(Message("T", b"new", 8))
        store.dispatch_now()
        shutil.copytree(closed, tmp_path / "killed")
    with opened(tmp_path / "killed") as store:
        assert store.recovered is not None
        assert store.recovered.mode == "abnormal"
        assert mapped(store) == QUEUES
        assert bodies(store, 8) == [b"8", b"48", b"new"]


def test_a_queue_file_that_went_since_the_close_is_rebuilt(closed: Path) -> None:
    shutil.rmtree(closed / "consumequeue" / "T" / "9")
    with opened(closed) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "abnormal"
        assert bodies(store, 9) == [b"9", b"49"]


def test_a_marker_without_the_begin_of_the_log_is_used_and_its_queues_are_looked_at(closed: Path) -> None:
    marker = CleanMarker.decode((closed / CLEAN_MARKER).read_bytes())
    assert marker is not None
    assert marker.log_begin == 0
    older = CleanMarker(marker.log_end, marker.checkpoint_hex, marker.queues, marker.index_names)
    (closed / CLEAN_MARKER).write_bytes(older.encode())
    with opened(closed) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "marker"
        assert mapped(store) == QUEUES
        assert bodies(store, 9) == [b"9", b"49"]


def test_a_queue_of_few_messages_takes_one_page_of_the_disk(closed: Path) -> None:
    sizes = {each.stat().st_blocks * 512 for each in (closed / "consumequeue").glob("T/*/*")}
    assert sizes == {PAGE_BYTES}


def test_the_blocks_of_a_queue_grow_with_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for count in (1, 204, 300, 3_000, 12_000):
            while store.put_count < count:
                store.put(Message("T", b"", 0))
            store.dispatch_now()
            queue = store._parts.queues.find("T", 0)
            assert isinstance(queue, ConsumeQueue)
            last = queue.files.last()
            assert last is not None
            assert count * 20 <= last.tail.limit <= min(max(PAGE_BYTES, 2 * count * 20), count * 20 + RESERVE_BYTES)
            assert os.stat(last.path).st_blocks * 512 >= last.tail.limit


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(queue id, least pages) of each flush."""
    calls: list[tuple[int, int]] = []
    original = ConsumeQueue.flush

    def counted(queue: ConsumeQueue, least_pages: int) -> bool:
        calls.append((queue.queue_id, least_pages))
        return original(queue, least_pages)

    monkeypatch.setattr(ConsumeQueue, "flush", counted)
    return calls


def test_only_queues_that_got_units_since_the_last_round_are_flushed(
    closed: Path, flushed: list[tuple[int, int]]
) -> None:
    clock = ManualClock(LATER_MS)
    with opened(closed, clock=clock) as store:
        flusher, flushed_pages = store._parts.queue_flush, store.config.flush_consume_queue_least_pages
        flusher.run_once()
        assert not flushed
        for queue_id in (8, 8, 30):
            store.put(Message("T", b"new", queue_id))
        store.dispatch_now()
        flusher.run_once()
        assert sorted(flushed) == [(8, flushed_pages), (30, flushed_pages)]
        flusher.run_once()
        assert len(flushed) == 2
        store.put(Message("T", b"new", 8))
        store.dispatch_now()
        flusher.run_once()
        assert flushed[2:] == [(8, flushed_pages)]
        del flushed[:]
        clock.advance_ms(60_000)
        flusher.run_once()  # The thorough one: what was less than two pages so far.
        assert {queue_id for queue_id, _ in flushed} == {8, 30}
        assert {pages for _, pages in flushed} == {0}
        del flushed[:]
        clock.advance_ms(60_000)
        flusher.run_once()
        assert not flushed


def test_a_queue_that_grows_while_it_is_flushed_does_not_hold_the_others_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        original, calls = ConsumeQueue.flush, 0

        def busy(queue: ConsumeQueue, least_pages: int) -> bool:
            nonlocal calls
            calls += 1
            unmoved = original(queue, least_pages)
            if calls < 100:  # So that a flush that waits for the end of the load ends too.
                store.put(Message("T", b"new", 0))
                store.dispatch_now()
            return unmoved

        store.put(Message("T", b"first", 0))
        store.dispatch_now()
        with monkeypatch.context() as patch:
            patch.setattr(ConsumeQueue, "flush", busy)
            store.flush_queues()
        assert calls == 1


def test_what_a_failed_flush_left_stays_due_and_the_checkpoint_waits_for_it(
    closed: Path, monkeypatch: pytest.MonkeyPatch, flushed: list[tuple[int, int]]
) -> None:
    with opened(closed, clock=ManualClock(LATER_MS)) as store:
        before = store._parts.checkpoint.logics_msg_timestamp_ms
        for queue_id in (3, 4, 5):
            store.put(Message("T", b"new", queue_id))
        store.dispatch_now()
        counted = ConsumeQueue.flush

        def failing(queue: ConsumeQueue, least_pages: int) -> bool:
            if queue.queue_id == 4:
                raise OSError("the disk has a bad sector")
            return counted(queue, least_pages)

        monkeypatch.setattr(ConsumeQueue, "flush", failing)
        with pytest.raises(OSError, match="bad sector"):
            store.flush_queues()
        assert store._parts.checkpoint.logics_msg_timestamp_ms == before
        monkeypatch.setattr(ConsumeQueue, "flush", counted)
        store.flush_queues()
        assert {queue_id for queue_id, _ in flushed} == {3, 4, 5}
        assert store._parts.checkpoint.logics_msg_timestamp_ms > before


def test_the_checkpoint_does_not_pass_units_of_a_dispatch_that_failed_half_way(
    closed: Path, monkeypatch: pytest.MonkeyPatch, flushed: list[tuple[int, int]]
) -> None:
    clock = ManualClock(LATER_MS)
    with opened(closed, clock=clock) as store:
        store.put(Message("T", b"first", 8))
        store.dispatch_now()
        store.flush_queues()
        before = store._parts.checkpoint.logics_msg_timestamp_ms
        del flushed[:]
        clock.advance_ms(1_000)
        store.put(Message("T", b"by the kernel", 8))
        store.put(Message("New", b"by the slow path", 0))

        def full(_: object) -> None:
            raise DiskFull("no space for a new queue")

        with monkeypatch.context() as patch:
            patch.setattr(store._parts.dispatch, "dispatch_one", full)
            with pytest.raises(DiskFull):
                store.dispatch_now()
        assert store.max_offset("T", 8) == 4, "the kernel did its part before the disk was full"
        store.flush_queues()
        assert store._parts.checkpoint.logics_msg_timestamp_ms == before
        store.dispatch_now()
        store.flush_queues()
        assert {queue_id for queue_id, _ in flushed} == {8, 0}
