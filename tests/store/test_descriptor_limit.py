"""A store that meets the limit of its file descriptors says so, loses nothing, and goes on when there are more.

The stores have no threads: one that closes a file while a test takes all descriptors would leave one free.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from simulation.descriptor_limit import descriptors_below, descriptors_left
from small_store import LOG_BYTES, body, on_disk, pause_dispatch, read_all, resume_dispatch
from tiermq import Message, PutStatus
from tiermq.errors import TooManyOpenFiles
from tiermq.store.local_store import LocalStore

QUEUES = 50


def opened(root: Path, **settings: Any) -> LocalStore:
    return on_disk(root, background=False, **settings)


def queue_descriptors(root: Path) -> list[str]:
    return descriptors_below(root / "consumequeue") + descriptors_below(root / "consumequeue_ext")


def bodies_of(store: LocalStore, queue_id: int) -> list[bytes]:
    return [message.body for message in read_all(store, "T", queue_id)]


@pytest.mark.parametrize("settings", [{}, {"enable_consume_queue_ext": True}], ids=["plain", "ext"])
def test_queues_keep_no_descriptors(tmp_path: Path, settings: dict[str, bool]) -> None:
    with opened(tmp_path / "store", **settings) as store:
        assert store.put(Message("T", body(0), 0)).ok
        store.dispatch_now()
        for round_number in range(2):
            for queue_id in range(QUEUES):
                assert store.put(Message("T", body(round_number), queue_id)).ok
            store.dispatch_now()
            store.flush_queues()
        assert descriptors_below(tmp_path / "store" / "commitlog"), "the file that is written keeps its own"
        assert queue_descriptors(tmp_path / "store") == []
    with opened(tmp_path / "store", **settings) as store:
        assert store.put(Message("T", body(2), 1)).ok
        store.dispatch_now()
        assert queue_descriptors(tmp_path / "store") == []
        assert bodies_of(store, 1) == [body(0), body(1), body(2)]


def test_without_descriptors_puts_go_on_and_dispatch_waits(tmp_path: Path) -> None:
    with opened(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
        assert store.put(Message("T", body(0), 0)).ok
        store.dispatch_now()
        store.flush_queues()  # A queue's first flush makes its name durable, which takes a descriptor.
        pause_dispatch(store)  # The error comes to this thread then.
        with descriptors_left(0):
            for queue_id in range(3):
                assert store.put(Message("T", body(1), queue_id)).ok
            with pytest.raises(TooManyOpenFiles, match="ulimit -n"):
                store.dispatch_now()
            assert bodies_of(store, 0) == [body(0), body(1)], "what needs no new file is dispatched and read"
            store.flush()
            store.flush_queues()
        resume_dispatch(store)
        store.dispatch_now()
        assert [bodies_of(store, queue_id) for queue_id in range(3)] == [[body(0), body(1)], [body(1)], [body(1)]]
    with opened(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
        assert [len(bodies_of(store, queue_id)) for queue_id in range(3)] == [2, 1, 1]


def test_the_first_flush_of_a_queue_waits_for_a_descriptor_and_the_checkpoint_with_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
        assert store.put(Message("T", body(0), 0)).ok
        store.dispatch_now()
        vouched_ms = store._parts.checkpoint.logics_msg_timestamp_ms
        with descriptors_left(0), pytest.raises(TooManyOpenFiles, match="ulimit -n"):
            store.flush_queues()
        assert store._parts.checkpoint.logics_msg_timestamp_ms == vouched_ms
        store.flush_queues()
        assert store._parts.checkpoint.logics_msg_timestamp_ms > vouched_ms


@pytest.mark.parametrize("left", range(1, 5))
def test_with_too_few_descriptors_no_half_made_file_is_left(tmp_path: Path, left: int) -> None:
    with opened(tmp_path / "store", mapped_file_size_commit_log=1 << 20) as store:
        pause_dispatch(store)
        assert store.put(Message("T", body(0), 7)).ok
        with descriptors_left(left), suppress(TooManyOpenFiles):
            store.dispatch_now()
        resume_dispatch(store)
        store.dispatch_now()
        assert bodies_of(store, 7) == [body(0)]


def test_a_put_that_needs_a_new_log_file_is_refused_with_a_status_and_nothing_is_lost(tmp_path: Path) -> None:
    accepted: list[bytes] = []
    refused: set[PutStatus] = set()
    with opened(tmp_path / "store") as store:
        pause_dispatch(store)
        with descriptors_left(0):
            for number in range(4 * LOG_BYTES // 1000):
                result = store.put(Message("T", body(number, 1000)))
                if result.ok:
                    accepted.append(body(number, 1000))
                else:
                    refused.add(result.status)
        assert refused == {PutStatus.CREATE_MAPPED_FILE_FAILED}
        assert store.put(Message("T", b"next")).ok
        resume_dispatch(store)
        store.dispatch_now()
        assert bodies_of(store, 0) == [*accepted, b"next"]


def test_the_last_log_file_of_an_old_store_takes_no_puts_while_it_cannot_be_opened(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        assert store.put(Message("T", body(0))).ok
    with opened(tmp_path / "store") as store:
        with descriptors_left(0):
            assert store.put(Message("T", body(1))).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert store.put(Message("T", body(1))).ok
        store.dispatch_now()
        assert bodies_of(store, 0) == [body(0), body(1)]
