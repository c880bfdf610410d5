"""Recovery of a whole store: what the next process finds after a clean stop, a kill, a power cut and damage."""

from __future__ import annotations

from typing import Any

import pytest

from recovery_cases import MARKER, closed_store, reopened, unclean, without_marker
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import (
    LOG_BYTES,
    ROOT,
    bodies,
    contents,
    killed,
    log_file,
    log_place,
    numbered,
    on_simulation,
    overwrite,
    power_cut,
    put_all,
    remove_tree,
)
from tiermq import Message
from tiermq.errors import StoreDamaged
from tiermq.store import recovery
from tiermq.store.checkpoint import CHECKPOINT
from tiermq.store.dispatch import Dispatch

# The clean marker


def test_a_clean_stop_leaves_a_marker_and_no_abort_file() -> None:
    access, _ = closed_store()
    assert access.exists(f"{ROOT}/{MARKER}")
    assert not access.exists(f"{ROOT}/abort")


def test_a_running_store_has_an_abort_file_and_no_marker() -> None:
    access, _ = closed_store()
    with reopened(access):
        assert not access.exists(f"{ROOT}/{MARKER}")
        assert access.exists(f"{ROOT}/abort")


def test_a_believed_marker_gives_back_every_position() -> None:
    access, results = closed_store()
    with reopened(access) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "marker"
        assert store.max_physical_offset == results[-1].end_offset
        assert store.max_offset("T", 0) == 200
        assert bodies(store) == numbered(200)
        assert put_all(store, 1)[0].queue_offset == 200


@pytest.mark.parametrize("files_walked", range(4))
def test_a_recovery_that_dies_half_way_is_not_taken_for_the_store_that_was_closed(
    monkeypatch: pytest.MonkeyPatch, files_walked: int
) -> None:
    """Its queues have all their files again, and the marker looks at no more than that."""
    access, _ = closed_store(400)
    remove_tree(access, "consumequeue/T")
    walk, begun = Dispatch.walk, []

    def dies(self: Dispatch, *arguments: Any) -> Any:
        begun.append(arguments)
        if len(begun) > files_walked:
            raise SystemExit("killed")
        return walk(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Dispatch, "walk", dies)
        with pytest.raises(SystemExit):
            reopened(access)
    with reopened(killed(access)) as store:
        assert bodies(store) == numbered(400)


def test_opening_a_cleanly_closed_store_does_not_read_its_log() -> None:
    access, results = closed_store()
    middle = results[20]
    overwrite(access, *log_place(middle.physical_offset), b"\xff" * middle.size)
    with reopened(access) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "marker"
        assert store.max_offset("T", 0) == 200


def test_a_marker_is_not_believed_when_the_checkpoint_changed() -> None:
    access, _ = closed_store()
    overwrite(access, "checkpoint", 24, b"\0" * 7 + b"\x09")
    with reopened(access) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "normal"
        assert bodies(store) == numbered(200)


def test_a_marker_is_not_believed_when_data_is_behind_the_end() -> None:
    access, results = closed_store(20)
    record = contents(access)[f"{ROOT}/{log_file(0)}"][: results[0].size]
    overwrite(access, *log_place(results[-1].end_offset), record)
    with reopened(access) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "normal"
        assert bodies(store) == numbered(20)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b'{"version": 99}', b'{"version": 1}', b"\xff\xfe"])
def test_a_marker_that_is_no_marker_is_as_if_there_were_none(damage: bytes) -> None:
    access, _ = closed_store(20)
    access.write_bytes(f"{ROOT}/{MARKER}", damage)
    with reopened(access) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "normal"
        assert bodies(store) == numbered(20)


def test_a_queue_that_the_marker_knows_and_the_disk_lacks_is_built_again_from_the_whole_log() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access) as store:
        for number in range(200):
            store.put(Message("T", numbered(1, number)[0]))
            store.put(Message("Other", numbered(1, number)[0]))
    remove_tree(access, "consumequeue/T")
    with reopened(access) as store:
        assert store.recovered is not None
        assert store.recovered.mode != "marker"
        assert store.min_offset("T", 0) == 0
        assert bodies(store) == numbered(200)
        assert bodies(store, "Other") == numbered(200)


def test_a_queue_that_lost_its_newest_file_after_a_clean_stop_gets_it_again() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access) as store:
        put_all(store, 120)
        put_all(store, 200, "Other")
    remove_tree(access, f"consumequeue/T/0/{2000:020d}")
    with reopened(access) as store:
        assert bodies(store) == numbered(120)
        assert put_all(store, 1, first=120)[0].queue_offset == 120
        assert bodies(store) == numbered(121)


def test_a_store_is_marked_clean_again_after_it_was_opened_and_closed_with_nothing_put() -> None:
    access, _ = closed_store(20)
    for _ in range(2):
        with reopened(access) as store:
            assert store.recovered is not None
            assert store.recovered.mode == "marker"


def test_a_log_that_ends_exactly_with_its_last_file_is_resumed() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access, mapped_file_size_commit_log=1024) as store:
        first = store.put(Message("T", b"x" * (1024 - 8 - 91 - 1)))
        second = store.put(Message("T", b"y" * 100))
        assert (first.size, second.physical_offset) == (1016, 1024)
    with reopened(access, mapped_file_size_commit_log=1024) as store:
        assert bodies(store) == [b"x" * 924, b"y" * 100]


# Clean stop of someone who leaves no marker


def test_a_clean_stop_without_a_marker_keeps_everything() -> None:
    access, results = closed_store()
    with reopened(without_marker(access)) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "normal"
        assert store.max_physical_offset == results[-1].end_offset
        assert bodies(store) == numbered(200)
        assert len(store.query("T", "k", max_messages=64).messages) == 64


def test_a_clean_stop_without_a_marker_walks_only_files_that_the_queues_do_not_know() -> None:
    access, results = closed_store()
    with reopened(without_marker(access)) as store:
        assert store.recovered is not None
        assert store.recovered.started_at == results[-1].physical_offset // LOG_BYTES * LOG_BYTES


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_last_record_is_truncated_in_log_and_queue_and_writing_goes_on(clean: bool) -> None:
    """Item 13."""
    access, results = closed_store(100)
    last = results[-1]
    overwrite(access, *log_place(last.physical_offset + 90), b"\xee")
    access = without_marker(access) if clean else unclean(access)
    with reopened(access) as store:
        assert store.max_physical_offset == last.physical_offset
        assert store.max_offset("T", 0) == 99
        assert bodies(store) == numbered(99)
        assert store.recovered is not None
        assert store.recovered.truncated
        assert put_all(store, 1, first=99)[0].queue_offset == 99
        assert bodies(store) == numbered(100)
    with reopened(access) as store:
        assert bodies(store) == numbered(100)


def test_nothing_is_reported_as_truncated_when_nothing_was() -> None:
    access, _ = closed_store(100)
    with reopened(unclean(access)) as store:
        assert store.recovered is not None
        assert not store.recovered.truncated


@pytest.mark.parametrize("clean", [True, False])
def test_messages_put_after_a_truncation_are_found_by_key_also_where_others_lay_before(clean: bool) -> None:
    access = SimulatedFileAccess()
    with on_simulation(access) as store:
        results = [store.put(Message("T", b"old", keys=f"old-{number}")) for number in range(20)]
    overwrite(access, *log_place(results[10].physical_offset), b"\xff" * 8)
    access = without_marker(access) if clean else unclean(access)
    with reopened(access) as store:
        assert store.max_offset("T", 0) == 10
        for number in range(10):
            store.put(Message("T", b"new", keys=f"new-{number}"))
        store.dispatch_now()
        assert [len(store.query("T", f"new-{number}").messages) for number in range(10)] == [1] * 10
        assert [len(store.query("T", f"old-{number}").messages) for number in range(20)] == [1] * 10 + [0] * 10


# Unclean stops


def test_a_killed_process_loses_nothing() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    put_all(store, 200, keys="k")
    with reopened(killed(access)) as after:
        assert after.recovered is not None
        assert after.recovered.mode == "abnormal"
        assert bodies(after) == numbered(200)
        assert after.query("T", "k").messages[-1].body == numbered(200)[-1]
    store.close()


def test_a_killed_process_that_had_dispatched_nothing_loses_nothing() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    for number in range(200):
        store.put(Message("T", numbered(1, number)[0], number % 3, keys=f"k{number}"))
    with reopened(killed(access)) as after:
        for queue_id in range(3):
            assert bodies(after, "T", queue_id) == numbered(200)[queue_id::3]
        assert len(after.query("T", "k199").messages) == 1
    store.close()


@pytest.mark.parametrize("synced_at_once_min", [1, 1_000])
def test_queues_that_a_recovery_rebuilt_are_on_disk_when_it_is_done(
    monkeypatch: pytest.MonkeyPatch, synced_at_once_min: int
) -> None:
    """Each by a call of its own, or all by one for the file system."""
    monkeypatch.setattr(recovery, "SYNCED_AT_ONCE_MIN", synced_at_once_min)
    access, calls = SimulatedFileAccess(), []
    store = on_simulation(access)
    for number in range(200):
        store.put(Message("T", b"%d" % number, number % 3))
    disk = killed(access)
    disk.on_call = lambda operation, _path: calls.append(operation)
    after = on_simulation(disk)
    queues = {path: data for path, data in contents(disk).items() if "/consumequeue/" in path}
    assert len(queues) == 6
    assert all(any(data) for data in queues.values())
    assert queues.items() <= contents(power_cut(disk)).items()
    assert ("sync_all" in calls) is (synced_at_once_min == 1)
    calls.clear()
    after.flush_queues()
    assert "sync" not in calls
    after.close()
    store.close()


def test_a_power_cut_keeps_what_was_flushed_and_ends_the_log_there() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    put_all(store, 100)
    store.flush()
    flushed = store.flushed_where
    put_all(store, 100, first=100)
    with reopened(power_cut(access)) as after:
        assert after.max_physical_offset == flushed
        assert bodies(after) == numbered(100)
        put_all(after, 50, first=100)
        assert bodies(after) == numbered(150)
    store.close()


def test_stale_records_behind_a_truncation_never_come_back() -> None:
    """Trap 2: without zeroing, a record of the old life that lines up with the new end would be read again."""
    access, results = closed_store(20)
    overwrite(access, *log_place(results[10].physical_offset + 90), b"\xee")
    unclean(access)
    with reopened(access) as store:
        assert store.max_offset("T", 0) == 10
        # As long as the damaged one: number 11 of the old life would follow it exactly.
        put_all(store, 1, first=10, keys="k")
        after = killed(access)
        with reopened(after) as again:
            assert bodies(again) == numbered(11)
            assert again.max_physical_offset == results[10].end_offset


def test_damage_in_the_middle_with_durable_files_behind_is_refused_and_nothing_is_changed() -> None:
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    with on_simulation(access, clock=clock) as store:
        results = put_all(store, 200, keys="k")
        clock.advance_ms(60_000)
        results += put_all(store, 100, first=200, keys="k")
    assert results[199].physical_offset > LOG_BYTES
    overwrite(access, *log_place(results[20].physical_offset + 90), b"\xee")
    without_marker(access)
    overwrite(access, "checkpoint", 0, CHECKPOINT.pack(*[clock.now_ms() - 60_000 + 3000] * 3, 0, 0))
    remove_tree(access, "consumequeue")  # No queue knows anything: the walk begins at the first file.
    before = contents(access, "commitlog"), contents(access, "consumequeue")
    with pytest.raises(StoreDamaged, match="damaged at physical offset"):
        reopened(access, clock=clock)
    assert (contents(access, "commitlog"), contents(access, "consumequeue")) == before


@pytest.mark.parametrize("damage", [b"\xee", b"\0"])
def test_an_unclean_start_that_was_refused_succeeds_with_everything_once_the_file_is_restored(damage: bytes) -> None:
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    store = on_simulation(access, clock=clock)
    results = put_all(store, 300, keys="k")  # One store time for all: every file begins with a durable record.
    clock.advance_ms(60_000)
    results += put_all(store, 1, first=300, keys="k")
    store.flush()
    store.flush_queues()
    after = killed(access)
    store.close()
    path, position = log_place(results[130].physical_offset)
    assert path == log_file(1)
    good = contents(after)[f"{ROOT}/{path}"]
    overwrite(after, path, position, damage * 512)
    remove_tree(after, "index")  # To be built again, from the first file on: the walk has to pass the damage.
    before = contents(after, "commitlog"), contents(after, "consumequeue")
    with pytest.raises(StoreDamaged, match="damaged at physical offset"):
        reopened(after, clock=clock)
    assert (contents(after, "commitlog"), contents(after, "consumequeue")) == before
    overwrite(after, path, 0, good)
    with reopened(after, clock=clock) as repaired:
        assert bodies(repaired) == numbered(301)


def test_a_torn_unit_of_a_consume_queue_is_built_again() -> None:
    access, _ = closed_store(120)
    unclean(access)
    overwrite(access, f"consumequeue/T/0/{1000:020d}", 10 * 20, b"\0" * 8 + b"\x01" + b"\0" * 11)
    with reopened(access) as store:
        assert bodies(store) == numbered(120)


def test_a_missing_consumequeue_directory_is_built_again_after_a_clean_stop() -> None:
    access, _ = closed_store(250)
    remove_tree(without_marker(access), "consumequeue")
    with reopened(access) as store:
        assert bodies(store) == numbered(250)


def test_all_consume_queues_deleted_are_built_again_from_the_log_after_an_unclean_stop() -> None:
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    with on_simulation(access, clock=clock) as store:
        put_all(store, 200)
        clock.advance_ms(60_000)
        put_all(store, 200, first=200)
        clock.advance_ms(60_000)
        put_all(store, 1, first=400)
    remove_tree(unclean(access), "consumequeue")
    with reopened(access, clock=clock) as store:
        assert store.min_offset("T", 0) == 0
        assert bodies(store) == numbered(401)


def test_a_missing_index_directory_is_built_again_after_an_unclean_stop() -> None:
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    with on_simulation(access, clock=clock) as store:
        put_all(store, 200, keys="k")
        clock.advance_ms(60_000)
        put_all(store, 200, first=200, keys="k")
    remove_tree(unclean(access), "index")
    with reopened(access, clock=clock, max_msgs_num_batch=1000) as store:
        assert len(store.query("T", "k", max_messages=1000).messages) == 400


def test_trap_52_a_trailing_blank_record_without_a_next_file_is_written_over() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access, mapped_file_size_commit_log=1024) as store:
        first = store.put(Message("T", b"x" * 700))
        store.put(Message("T", b"y" * 700))
    remove_tree(access, log_file(1, 1024))
    with reopened(unclean(access), mapped_file_size_commit_log=1024) as store:
        assert store.max_physical_offset == first.end_offset
        small = store.put(Message("T", b"z"))
        assert small.physical_offset == first.end_offset
        store.dispatch_now()
        assert bodies(store) == [b"x" * 700, b"z"]


def test_a_file_made_in_advance_is_gone_after_recovery_and_its_log_goes_on_before_it() -> None:
    access, results = closed_store(5)
    access.create(f"{ROOT}/{log_file(1)}", LOG_BYTES)
    with reopened(unclean(access)) as store:
        assert store.max_physical_offset == results[-1].end_offset
        assert put_all(store, 1, first=5)[0].physical_offset == results[-1].end_offset


# Records that were on disk for certain


@pytest.mark.parametrize("how", ["its last file", "its end"])
def test_a_killed_store_that_lacks_records_which_were_on_disk_reports_so(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What a crash may leave behind is lost silently; what the checkpoint vouches for is not."""
    access, clock = SimulatedFileAccess(), ManualClock()
    store = on_simulation(access, clock=clock)
    for number in range(300):
        clock.advance_ms(10)
        results = put_all(store, 1, first=number)
    store.flush()
    store.flush_queues()
    put_all(store, 1, first=300)
    sound = on_simulation(power_cut(access), clock=clock)
    assert len(bodies(sound)) == 300, "the last one was not flushed, and is not missed"
    assert sound.recovered is not None
    assert not sound.recovered.lost_durable
    damaged = power_cut(access)
    file, position = log_place(results[0].physical_offset)
    if how == "its end":
        overwrite(damaged, file, position, bytes(results[0].size))
    else:
        for info in damaged.list_files(f"{ROOT}/commitlog"):
            if f"commitlog/{info.name}" >= file:
                damaged.remove(f"{ROOT}/commitlog/{info.name}")
    caplog.clear()
    with on_simulation(damaged, clock=clock) as found:
        assert found.recovered is not None
        assert found.recovered.lost_durable
        assert len(bodies(found)) < 300
    assert "what came behind it is gone" in caplog.text


def test_a_killed_store_whose_last_log_file_is_gone_reports_so_whatever_the_times_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    access, clock = SimulatedFileAccess(), ManualClock()
    store = on_simulation(access, clock=clock)
    file, _ = log_place(put_all(store, 300)[-1].physical_offset)  # All within a millisecond.
    store.flush()
    store.flush_queues()
    damaged = power_cut(access)
    for info in damaged.list_files(f"{ROOT}/commitlog"):
        if f"commitlog/{info.name}" >= file:
            damaged.remove(f"{ROOT}/commitlog/{info.name}")
    with on_simulation(damaged, clock=clock) as found:
        assert 0 < len(bodies(found)) < 300
    assert "the file behind it is gone" in caplog.text
