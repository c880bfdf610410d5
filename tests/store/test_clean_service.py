"""Cleaning: which files go when; the table of hours and disk levels, vetoes, and what readers find afterwards."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import ROOT, bodies, numbered, on_simulation, put_all
from tiermq import GetStatus, Message, PutStatus
from tiermq.config import StoreConfig
from tiermq.errors import DiskFull, StoreClosed
from tiermq.store.clean_service import FULL_LOG_REST_MS, MANUAL_RUNS, Urgency, urgency_of
from tiermq.store.local_store import LocalStore
from tiermq.store.running_flags import Flag

HOUR_MS = 3_600_000
FILE_BYTES = 256  # One message to a file.


class DiskOf(SimulatedFileAccess):
    """A simulated disk that is as full as the test says."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.ratio = 0.10
        self.ratio_of: dict[str, float] = {}

    def disk_usage_ratio(self, path: str) -> float:
        return self.ratio_of.get(path, self.ratio)


def at_hour(hour: int) -> int:
    return int(datetime(2024, 5, 1, hour, 30).astimezone().timestamp() * 1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(at_hour(12))


@pytest.fixture
def disk(clock: ManualClock) -> DiskOf:
    return DiskOf(clock)


def filled(disk: DiskOf, clock: ManualClock, count: int = 55, **settings: Any) -> LocalStore:
    """Item 42: one message to a file, 55 files."""
    store = on_simulation(disk, clock=clock, mapped_file_size_commit_log=FILE_BYTES, max_index_num=20, **settings)
    put_all(store, count, size=100, keys="k")
    return store


def clean(store: LocalStore) -> int:
    """One round as housekeeping runs it."""
    return store._parts.cleaner.run().log_files


def log_files(store: LocalStore) -> int:
    return len(store._parts.log.files.files)


# When


def test_young_files_stay_at_every_hour(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        clock.set_ms(at_hour(4))
        assert clean(store) == 0


def test_expired_files_go_in_the_hour_of_delete_when_ten_at_a_time(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        clock.set_ms(at_hour(12) + 100 * HOUR_MS)
        if datetime.fromtimestamp(clock.now_ms() / 1000).astimezone().hour == 4:
            clock.advance_ms(HOUR_MS)
        assert clean(store) == 0
        clock.set_ms(at_hour(4) + 96 * HOUR_MS)
        assert [clean(store) for _ in range(7)] == [10, 10, 10, 10, 10, 4, 0]
        assert log_files(store) == 1


def test_several_hours_may_be_named(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock, 3, delete_when="04;13") as store:
        clock.set_ms(at_hour(13) + 96 * HOUR_MS)
        assert clean(store) == 2


def test_a_disk_above_its_limit_loses_expired_files_at_any_hour(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        disk.ratio = 0.76
        assert clean(store) == 0
        clock.set_ms(at_hour(12) + 96 * HOUR_MS)
        assert clean(store) == 10
        disk.ratio = 0.75
        assert clean(store) == 0


def test_a_disk_above_the_force_level_loses_files_that_are_not_expired(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        disk.ratio = 0.86
        assert clean(store) == 10
        assert store.writeable


def test_without_force_a_full_disk_loses_nothing_that_is_not_expired(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock, clean_file_forcibly_enable=False) as store:
        disk.ratio = 0.95
        assert clean(store) == 0


def test_trap_31_a_full_disk_refuses_puts_until_it_is_below_the_force_level(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        disk.ratio = 0.91
        assert clean(store) == 10
        assert store.status()["flags"] == ["DISK_FULL"]
        assert store.put(Message("T", b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert store.get("T", 0, 54).status is GetStatus.FOUND
        disk.ratio = 0.88
        clean(store)
        writeable = [store.writeable]
        disk.ratio = 0.85
        clean(store)
        assert [*writeable, store.writeable] == [False, True]
        assert store.put(Message("T", b"x")).ok


def test_the_disk_of_the_queues_counts_too(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        disk.ratio_of[ROOT] = 0.95
        assert clean(store) == 10
        assert not store.writeable


def test_of_several_log_disks_the_emptiest_decides(disk: DiskOf, clock: ManualClock) -> None:
    paths = [f"{ROOT}/one", f"{ROOT}/two"]
    with filled(disk, clock, store_path_commit_log=",".join(paths)) as store:
        assert len(disk.list_files(paths[0])) in (27, 28)
        disk.ratio_of[paths[0]] = 0.95
        assert clean(store) == 0
        writeable = [store.writeable]
        disk.ratio_of[paths[1]] = 0.95
        assert clean(store) == 10
        assert [*writeable, store.writeable] == [True, False]
        assert bodies(store) == numbered(45, 10, size=100)


def test_new_files_avoid_a_log_disk_that_is_too_full(disk: DiskOf, clock: ManualClock) -> None:
    paths = [f"{ROOT}/one", f"{ROOT}/two"]
    with filled(disk, clock, 4, store_path_commit_log=",".join(paths)) as store:
        before = len(disk.list_files(paths[0]))
        disk.ratio_of[paths[0]] = 0.86
        put_all(store, 6, first=4, size=100)
        assert len(disk.list_files(paths[0])) <= before + 1  # One may have been made in advance.
        assert bodies(store) == numbered(10, size=100)


def test_a_request_by_hand_cleans_at_any_hour_for_twenty_rounds(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        clock.set_ms(at_hour(12) + 96 * HOUR_MS)
        store._parts.cleaner.request()
        assert [clean(store) for _ in range(6)] == [10, 10, 10, 10, 10, 4]
        for _ in range(MANUAL_RUNS - 6):
            clean(store)
        put_all(store, 3, first=55, size=100)
        clock.advance_ms(96 * HOUR_MS)
        assert clean(store) == 0


def test_clean_now_reports_what_went(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock, 55) as store:
        clock.advance_ms(96 * HOUR_MS)
        done = store.clean_now()
        assert (done.log_files, done.vetoed) == (10, False)
        for _ in range(5):
            done = store.clean_now()
        assert log_files(store) == 1


def test_trap_32_a_round_deletes_as_many_files_as_it_may(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock, 30, delete_file_batch_max=25) as store:
        clock.advance_ms(96 * HOUR_MS)
        assert store.clean_now().log_files == 25


def test_trap_33_age_is_the_file_s_own_and_the_first_young_file_ends_the_round(
    disk: DiskOf, clock: ManualClock
) -> None:
    """Item 36: later files that look older stay."""
    with filled(disk, clock, 20) as store:
        files = store._parts.log.files.files
        clock.advance_ms(96 * HOUR_MS)
        disk.set_modified_ms(files[5].path, clock.now_ms())
        assert store.clean_now().log_files == 5
        assert store.clean_now().log_files == 0


def test_the_last_file_stays_whatever_its_age(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock, 1) as store:
        disk.ratio = 0.99
        clock.advance_ms(1000 * HOUR_MS)
        assert store.clean_now().log_files == 0
        assert bodies(store) == numbered(1, size=100)


@pytest.mark.parametrize(
    ("ratio", "urgency"),
    [
        (-1.0, Urgency.EXPIRED), (0.0, Urgency.NOTHING), (0.75, Urgency.NOTHING), (0.751, Urgency.EXPIRED),
        (0.85, Urgency.EXPIRED), (0.851, Urgency.IMMEDIATE), (1.0, Urgency.IMMEDIATE),
    ],
)  # fmt: skip
def test_the_table_of_disk_levels(ratio: float, urgency: Urgency) -> None:
    assert urgency_of(ratio, StoreConfig()) is urgency


# Vetoes


def test_a_veto_holds_files_back_also_from_a_full_disk(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        asked: list[tuple[int, int]] = []

        def veto(start: int, end: int) -> bool:
            asked.append((start, end))
            return start >= 3 * FILE_BYTES

        store.add_eviction_veto(veto)
        disk.ratio = 0.99
        done = store._parts.cleaner.run()
        assert (done.log_files, done.vetoed) == (3, True)
        assert asked == [(number * FILE_BYTES, (number + 1) * FILE_BYTES) for number in range(4)]
        assert store.min_physical_offset == 3 * FILE_BYTES


def test_any_of_several_vetoes_is_enough(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        store.add_eviction_veto(lambda start, end: False)
        store.add_eviction_veto(lambda start, end: True)
        disk.ratio = 0.99
        assert clean(store) == 0


def test_a_round_that_meets_the_end_of_its_store_is_no_error_and_any_other_is(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        found: list[Exception] = [StoreClosed("the store is closed"), OSError("the disk is gone")]

        def veto(_start: int, _end: int) -> bool:
            raise found.pop(0)

        store.add_eviction_veto(veto)
        disk.ratio = 0.99
        clock.advance_ms(HOUR_MS)
        assert store._parts.housekeeping.run_once() > 0
        clock.advance_ms(HOUR_MS)
        with pytest.raises(OSError, match="gone"):
            store._parts.housekeeping.run_once()
        assert found == []


# What follows


def test_queue_and_index_files_follow_the_log(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock, 150, mapped_file_size_consume_queue=200) as store:
        queue = store._parts.queues.find("T", 0)
        index = store._parts.index
        assert queue is not None
        assert index is not None
        before = (len(queue.files.files), len(index.files))
        clock.advance_ms(96 * HOUR_MS)
        removed = [store.clean_now() for _ in range(5)]
        assert sum(done.log_files for done in removed) == 50
        assert sum(done.queue_files for done in removed) == 5 == before[0] - len(queue.files.files)
        assert sum(done.index_files for done in removed) == before[1] - len(index.files) > 0
        assert store.min_offset("T", 0) == 50
        assert bodies(store) == numbered(100, 50, size=100)
        assert [m.queue_offset for m in store.query("T", "k", max_messages=64).messages] == list(range(86, 150))


def test_reading_below_the_oldest_message_returns_where_to_go_on(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        clock.advance_ms(96 * HOUR_MS)
        store.clean_now()
        page = store.get("T", 0, 3)
        assert (page.status, page.next_offset, page.min_offset) == (GetStatus.OFFSET_TOO_SMALL, 10, 10)
        assert store.message_at(0) is None
        assert store.store_time_of("T", 0, 3) == -1
        assert store.physical_offset_of("T", 0, 3) == -1
        assert store.earliest_time("T", 0) > 0


def test_a_queue_whose_records_are_all_gone_is_empty_and_keeps_its_numbering(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock, 10) as store:
        put_all(store, 5, "Other", size=100)
        clock.advance_ms(96 * HOUR_MS)
        store.clean_now()
        store.clean_now()
        assert store.min_offset("T", 0) == store.max_offset("T", 0) == 10
        assert store.put(Message("T", bytes(100))).queue_offset == 10
    with on_simulation(disk, clock=clock, mapped_file_size_commit_log=FILE_BYTES, max_index_num=20) as store:
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (10, 11)


@pytest.mark.parametrize("clean_stop", [True, False])
def test_the_oldest_offsets_survive_a_restart(disk: DiskOf, clock: ManualClock, clean_stop: bool) -> None:
    store = filled(disk, clock)
    clock.advance_ms(96 * HOUR_MS)
    store.clean_now()
    after = disk
    if clean_stop:
        store.close()
    else:
        after = disk.crash(lambda path, page: True)  # type: ignore[assignment]
    again = on_simulation(after, clock=clock, mapped_file_size_commit_log=FILE_BYTES, max_index_num=20)
    assert (again.min_offset("T", 0), again.min_physical_offset) == (10, 10 * FILE_BYTES)
    assert bodies(again) == numbered(45, 10, size=100)
    again.close()
    store.close()


def test_a_file_that_is_being_read_is_deleted_once_it_is_let_go(disk: DiskOf, clock: ManualClock) -> None:
    """Item 36."""
    with filled(disk, clock) as store:
        first = store._parts.log.files.files[0]
        held = first.select(0)
        assert held is not None
        clock.advance_ms(96 * HOUR_MS)
        assert store.clean_now().log_files == 0
        assert bytes(held.data[:4]) != bytes(4)
        assert store.get("T", 0, 0).status is not GetStatus.FOUND
        held.release()
        assert not disk.exists(first.path)
        assert store.clean_now().log_files > 0


def test_trap_34_a_file_that_hangs_is_forced_out_after_its_time(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        first = store._parts.log.files.files[0]
        held = first.select(0)
        assert held is not None
        clock.advance_ms(96 * HOUR_MS)
        store.clean_now()
        assert disk.exists(first.path)
        clock.advance_ms(120_001)
        store.clean_now()
        assert not disk.exists(first.path)
        assert bytes(held.data[4:8]).hex() == "daa320a7"
        held.release()
        assert store.clean_now().log_files == 10


def test_several_brokers_on_one_partition_look_at_their_own_share(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock, replicas_per_disk_partition=4) as store:
        disk.free_bytes = lambda path: 10 * 55 * FILE_BYTES  # type: ignore[method-assign]
        disk.ratio = 0.5
        clock.advance_ms(96 * HOUR_MS)
        assert clean(store) == 0  # Ours are 55 of the 275 files that are our share.
        disk.free_bytes = lambda path: 2 * 55 * FILE_BYTES  # type: ignore[method-assign]
        assert clean(store) == 10  # Ours are all of it.


def test_housekeeping_cleans_after_a_minute_and_then_every_interval(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        disk.ratio = 0.86
        housekeeping = store._parts.housekeeping
        housekeeping.run_once()
        assert log_files(store) == 55
        clock.advance_ms(60_000)
        housekeeping.run_once()
        assert log_files(store) == 45
        housekeeping.run_once()
        assert log_files(store) == 45
        clock.advance_ms(10_000)
        housekeeping.run_once()
        assert log_files(store) == 35


def test_a_flag_that_others_set_stays_when_the_disk_has_room_again(disk: DiskOf, clock: ManualClock) -> None:
    with filled(disk, clock) as store:
        store._parts.flags.set(Flag.NOT_WRITEABLE)
        disk.ratio = 0.95
        clean(store)
        disk.ratio = 0.10
        clean(store)
        assert store.status()["flags"] == ["NOT_WRITEABLE"]
        assert not store.put(Message("T", b"x")).ok


def test_a_full_disk_is_logged_once_a_minute_however_many_puts_find_it(
    disk: DiskOf, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with filled(disk, clock, 1) as store:
        for _ in range(3):
            for _ in range(100):
                store._parts.log.on_disk_full(DiskFull("no room"))
            clock.advance_ms(FULL_LOG_REST_MS)
    assert [record.message for record in caplog.records if "no room" in record.message] == [
        "a put found the disk full: no room"
    ] * 3
