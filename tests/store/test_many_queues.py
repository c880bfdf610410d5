"""A store with many queues: what each of them costs at a start, on disk, and while nothing happens."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tiermq import Message
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.queue_units import RESERVE_BYTES
from tiermq.files.file_access import PAGE_BYTES
from tiermq.store.checkpoint import CLEAN_MARKER, CleanMarker
from tiermq.store.local_store import LocalStore

SIZES: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20 * 50_000}
QUEUES = 40


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


def test_queues_are_walked_only_when_something_was_dispatched(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    original = ConsumeQueue.flush

    def counted(queue: ConsumeQueue, least_pages: int) -> bool:
        flushed.append(queue.queue_id)
        return original(queue, least_pages)

    monkeypatch.setattr(ConsumeQueue, "flush", counted)
    with opened(closed) as store:
        flusher = store._parts.queue_flush
        flusher.run_once()
        flushed.clear()
        flusher.run_once()
        assert not flushed
        store.put(Message("T", b"new", 8))
        store.dispatch_now()
        flusher.run_once()
        assert len(flushed) == QUEUES
