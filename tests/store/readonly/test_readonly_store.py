"""A store directory, read while another process, or another part of this one, writes it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tiermq import Message
from tiermq.errors import StoreDamaged, StoreNotRecovered
from tiermq.kernel import TransferLimits, read_page
from tiermq.message.record import decode_record
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.directory import StoreState
from tiermq.store.readonly.store import ReadOnlyStore

GOLDEN = Path(__file__).parents[2] / "golden"
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
LIMITS = TransferLimits(1 << 30, 1 << 20, 1 << 30, 1 << 20, 1 << 40, 1 << 20)


def fill(store: LocalStore, count: int, topic: str = "orders") -> None:
    for number in range(count):
        store.put(Message(topic, b"b" * (number % 300), number % 3, keys=[f"key-{number}"], tags=f"t{number % 2}"))
    store.dispatch_now()


def test_what_is_seen_from_outside_is_what_the_store_itself_reports(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, background=False, **SMALL) as store:
        fill(store, 700)
        with ReadOnlyStore.open(tmp_path) as seen:
            assert seen.state is StoreState.RUNNING
            assert sorted(seen.queues()) == sorted(store.simple_queues())
            assert seen.batch_queues() == []
            assert seen.min_physical_offset == store.min_physical_offset
            assert seen.max_physical_offset == store.max_physical_offset
            for name in store.simple_queues():
                assert (seen.min_offset(*name), seen.max_offset(*name)) == (
                    store.min_offset(*name),
                    store.max_offset(*name),
                )
                page = read_page(seen.units(*name), 0, 0, seen.log, 1 << 20, 1 << 30, LIMITS)
                places = list(store.units_between(*name, 0, page.count))
                assert len(places) == page.count == 64
                assert page.data == b"".join(seen.read(physical, size) or b"" for _, physical, size in places)
                here, there = (each.collect_for_tier(*name, 5, 100, 1 << 20, 77) for each in (store, seen))
                assert (here.data, here.units, here.begin_ms) == (there.data, there.units, there.begin_ms)
                assert seen.store_time_of(*name, 7) == store.store_time_of(*name, 7)
                assert seen.store_time_of(*name, 10**6) == -1


def test_nothing_new_is_seen_before_a_refresh_and_everything_after_it(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, background=False, **SMALL) as store, ReadOnlyStore.open(tmp_path) as seen:
        fill(store, 9)
        seen.refresh()
        assert seen.max_offset("orders", 0) == 3
        fill(store, 900)
        assert seen.max_offset("orders", 0) == 3
        seen.refresh()
        assert seen.max_offset("orders", 0) == 303
        assert len(seen.log.views) > 1
        fill(store, 3, "later")
        assert seen.max_offset("later", 0) == 0
        seen.refresh()
        assert seen.max_offset("later", 0) == 1
        assert seen.index.find("later", "key-0")


def test_a_queue_that_grew_into_new_log_files_since_the_refresh_is_read_whole(tmp_path: Path) -> None:
    """Its units are newer than the look at the log then: of what they lead to nothing was there."""
    with LocalStore.open(tmp_path, background=False, **SMALL) as store, ReadOnlyStore.open(tmp_path) as seen:
        fill(store, 9)
        seen.refresh()
        fill(store, 900)
        found = seen.collect_for_tier("orders", 0, 0, 1 << 20, 1 << 30, 0)
        assert found.count == seen.max_offset("orders", 0) == 303
        fill(store, 900)
        [(_, physical, size)] = store.units_between("orders", 0, 602, 603)
        record = seen.read(physical, size)
        assert record is not None
        assert decode_record(record).queue_offset == 602


def test_queues_and_log_files_that_are_deleted_are_gone_after_a_refresh(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, background=False, **SMALL) as store, ReadOnlyStore.open(tmp_path) as seen:
        fill(store, 900)
        fill(store, 9, "other")
        seen.refresh()
        units, log = seen.units("orders", 0), seen.log
        store.delete_topics(["orders"])
        seen.refresh()
        assert seen.queues() == [("other", 0), ("other", 1), ("other", 2)]
        assert seen.max_offset("orders", 0) == 0
        assert units.read(0, 20) is not None
        assert log.read(0, 20) is not None


def test_looking_on_while_a_producer_puts_gives_only_whole_messages_in_order(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, **SMALL) as store, ReadOnlyStore.open(tmp_path) as seen:
        done = threading.Event()

        def put() -> None:
            for _ in range(6_000):
                store.put(Message("T", b"x" * 50, tags="tag"))
            store.dispatch_now()
            done.set()

        producer = threading.Thread(target=put)
        producer.start()
        offset = 0
        while offset < 6_000:
            last = done.is_set()
            seen.refresh()
            seen.flush()
            found = seen.collect_for_tier("T", 0, offset, 1 << 20, 1 << 30, 0)
            assert found.count == seen.max_offset("T", 0) - offset
            codes = {found.units[at + 12 : at + 20] for at in range(0, len(found.units), 20)}
            assert len(codes) <= 1
            offset = found.next_offset
            assert not last or offset == 6_000
        producer.join()


def test_a_flush_syncs_the_files_of_what_was_seen_and_each_only_as_often_as_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fdatasync

    def counted(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    with LocalStore.open(tmp_path, background=False, **SMALL) as store, ReadOnlyStore.open(tmp_path) as seen:
        fill(store, 600)
        seen.refresh()
        monkeypatch.setattr(os, "fdatasync", counted)
        seen.flush()
        assert synced == []  # No queue was looked at.
        for name in seen.queues():
            seen.max_offset(*name)
        seen.flush()
        first = [file for file in sorted(os.listdir(tmp_path / "commitlog")) if int(file) < seen.seen_end]
        assert synced == first
        assert len(first) > 1
        seen.flush()
        assert synced[len(first) :] == []
        monkeypatch.setattr(os, "fdatasync", real)
        fill(store, 1)
        monkeypatch.setattr(os, "fdatasync", counted)
        seen.refresh()
        seen.max_offset("orders", 0)
        seen.flush()
        assert synced[len(first) :] == [first[-1]]


def test_a_store_that_was_opened_again_is_looked_at_again(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, background=False, **SMALL) as store:
        fill(store, 30)
    with ReadOnlyStore.open(tmp_path) as seen:
        assert seen.state is StoreState.CLOSED
        assert seen.max_offset("orders", 0) == 10
        with LocalStore.open(tmp_path, background=False, **SMALL) as store:
            fill(store, 30)
            seen.refresh()
            assert seen.max_offset("orders", 0) == 20
        seen.refresh()
        assert seen.max_offset("orders", 0) == 20


def test_a_crashed_store_can_be_looked_at_but_reports_that_it_is_not_to_be_believed(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, background=False, **SMALL) as store:
        fill(store, 30)
    (tmp_path / "abort").write_bytes(b"1")
    with ReadOnlyStore.open(tmp_path) as seen:
        assert seen.max_offset("orders", 0) == 10
        with pytest.raises(StoreNotRecovered):
            seen.require_recovered()


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreDamaged, match="expected a store directory"):
        ReadOnlyStore.open(tmp_path / "nothing")


def test_a_store_of_rocketmq_is_read_like_any_other() -> None:
    with ReadOnlyStore.open(GOLDEN / "rocketmq-5.3.3-clean" / "store") as seen:
        assert seen.state is StoreState.CLOSED
        total = sum(seen.max_offset(*name) - seen.min_offset(*name) for name in seen.queues())
        assert total > 0
        assert seen.max_physical_offset == seen.seen_end


@pytest.mark.parametrize("store", ["rocketmq-5.3.3-clean", "rocketmq-5.3.3-crashed"])
def test_files_of_the_real_rocketmq_have_a_sound_layout_and_end_with_their_last_record(store: str) -> None:
    with ReadOnlyStore.open(GOLDEN / store / "store") as seen:
        queues = [queue for name in seen.queues() if (queue := seen.queue(*name)) is not None]
        assert queues
        assert seen.log_files.layout_problems() == []
        assert [queue.run.layout_problems() for queue in queues if queue.run.layout_problems()] == []
        ends = [found.physical_offset + found.size for queue in queues for _, found in queue.written_units()]
        assert seen.log_files.end_offset() == seen.max_physical_offset == max(ends)
        assert seen.ended_cleanly == store.endswith("clean")


def test_batch_queues_of_the_real_rocketmq_know_their_bounds() -> None:
    with ReadOnlyStore.open(GOLDEN / "rocketmq-5.3.3-batches" / "store") as seen:
        assert seen.batch_queues()
        for name in seen.batch_queues():
            queue = seen.queue(*name)
            assert queue is not None
            units = list(queue.written_batch_units())
            assert seen.bounds(*name) == (units[0].base_offset, units[-1].end_offset)
            assert queue.min_offset(10**12) == queue.max_offset
