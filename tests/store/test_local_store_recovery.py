"""Recovery, continued: RocketMQ's own traps, whole-record CRCs, lost logs, and durability after a recovery."""

from __future__ import annotations

from typing import Any

from present import present
from recovery_cases import closed_store, reopened, unclean, without_marker
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from small_store import (
    ROOT,
    bodies,
    killed,
    log_place,
    numbered,
    on_simulation,
    overwrite,
    power_cut,
    put_all,
    read_all,
    remove_tree,
)
from tiermq import Message
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.message.java_hash import java_hash
from tiermq.store.checkpoint import CHECKPOINT


def test_trap_07_a_safe_index_loses_no_entry_by_an_unclean_stop() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access, max_msgs_num_batch=1000)
    put_all(store, 500, keys="k")
    with reopened(killed(access), max_msgs_num_batch=1000) as after:
        found = after.query("T", "k", max_messages=1000).messages
        assert [message.body for message in found] == numbered(500)
    store.close()


def test_an_unsafe_index_keeps_its_durable_files_and_finds_what_the_walk_dispatches() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access, message_index_safe=False)
    put_all(store, 300, keys="k")
    with reopened(killed(access), message_index_safe=False) as after:
        assert bodies(after) == numbered(300)
        assert after.query("T", "k").messages[-1].body == numbered(300)[-1]
    store.close()


def test_trap_08_recovery_indexes_no_key_twice() -> None:
    access, _ = closed_store(50)
    with reopened(without_marker(access), max_msgs_num_batch=1000) as store:
        index = store._parts.index
        assert index is not None
        assert len(index.query("T", "k", 1000, 0, 1 << 62).offsets) == 50


def test_trap_03_a_record_starting_exactly_at_dispatch_from_is_dispatched_again() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    put_all(store, 10)
    store.put(Message("T", b"the only one that was not dispatched"))
    after = killed(access)
    after.remove(f"{ROOT}/abort")
    after.sync_directory(ROOT)
    with reopened(after) as again:
        assert again.recovered is not None
        assert again.recovered.mode == "normal"
        assert bodies(again)[-1] == b"the only one that was not dispatched"
        assert again.max_offset("T", 0) == 11
    store.close()


def test_trap_04_a_batch_queue_and_a_simple_one_agree_on_where_dispatch_goes_on() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access, batch_topics=["B"]) as store:
        put_all(store, 3)
        put_all(store, 3, "B")
    with reopened(without_marker(access), batch_topics=["B"]) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "normal"
        assert store.max_offset("B", 0) == 3
        assert bodies(store, "B") == numbered(3)
        assert bodies(store) == numbered(3)


def test_trap_05_the_checkpoint_names_the_end_of_the_log_after_recovery() -> None:
    access, results = closed_store(10)
    with reopened(unclean(access)) as store:
        assert store._parts.checkpoint.confirm_offset == results[-1].end_offset


def test_trap_06_the_checkpoint_vouches_for_queues_only_once_they_are_durable() -> None:
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    store = on_simulation(access, clock=clock)
    put_all(store, 10)
    store._parts.housekeeping.run_once()
    assert store._parts.checkpoint.logics_msg_timestamp_ms == 0
    store.flush_queues()
    assert store._parts.checkpoint.logics_msg_timestamp_ms == clock.now_ms()
    store.close()


def test_queues_with_holes_that_the_checkpoint_denies_are_found_and_filled() -> None:
    """Trap 6: a checkpoint that promises more than the disk has must not cost a message."""
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    store = on_simulation(access, clock=clock)
    put_all(store, 200)
    store.flush()
    clock.advance_ms(60_000)
    put_all(store, 200, first=200)
    store.flush()
    after = power_cut(access)  # No queue unit is durable.
    stamp = CHECKPOINT.pack(clock.now_ms(), clock.now_ms(), clock.now_ms(), 0, 0)
    overwrite(after, "checkpoint", 0, stamp)
    store.close()
    with reopened(after, clock=clock) as again:
        assert bodies(again) == numbered(400)


def test_a_lost_checkpoint_costs_time_and_nothing_else() -> None:
    access, _ = closed_store()
    remove_tree(unclean(access), "checkpoint")
    with reopened(access) as store:
        assert store.recovered is not None
        assert store.recovered.started_at == 0
        assert bodies(store) == numbered(200)


# Whole-record CRC


def test_with_forced_record_crc_a_flipped_property_byte_ends_the_log() -> None:
    """Item 22."""
    settings: dict[str, Any] = {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}
    access, results = closed_store(10, **settings)
    last = results[-1]
    overwrite(access, *log_place(last.end_offset - 22), b"X")  # Inside KEYS; the body's own CRC does not see it.
    with reopened(unclean(access), **settings) as store:
        assert store.max_offset("T", 0) == 9


def test_without_forced_record_crc_a_flipped_property_byte_is_not_seen() -> None:
    access, results = closed_store(10, enabled_append_prop_crc=True)
    overwrite(access, *log_place(results[-1].end_offset - 22), b"X")
    with reopened(unclean(access), enabled_append_prop_crc=True) as store:
        assert store.max_offset("T", 0) == 10


def test_forced_record_crc_takes_a_record_without_one_for_damage() -> None:
    access, _ = closed_store(10)
    with reopened(unclean(access), force_verify_prop_crc=True) as store:
        assert store.max_physical_offset == 0


def test_a_flipped_body_byte_is_not_looked_for_when_the_setting_forbids_it() -> None:
    access, results = closed_store(10)
    overwrite(access, *log_place(results[-1].physical_offset + 90), b"\xee")
    with reopened(unclean(access), check_crc_on_recover=False) as store:
        assert store.max_offset("T", 0) == 10


def test_untouched_records_with_a_record_crc_verify_single_and_batch() -> None:
    """Item 22."""
    settings: dict[str, Any] = {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}
    access, _ = closed_store(200, **settings)
    with reopened(unclean(access), **settings) as store:
        assert bodies(store) == numbered(200)
        assert store.verify_log() == 200


# No log


def test_without_a_log_queues_and_index_begin_again() -> None:
    access, _ = closed_store(30)
    remove_tree(without_marker(access), "commitlog")
    with reopened(access) as store:
        assert store.recovered is not None
        assert store.recovered.mode == "empty"
        assert store.max_offset("T", 0) == 0
        assert put_all(store, 1, keys="fresh")[0].queue_offset == 0
        assert bodies(store) == numbered(1)
        assert len(store.query("T", "fresh").messages) == 1


# Transactions and queue offsets


def test_the_next_queue_offset_follows_the_last_unit_after_recovery() -> None:
    access, _ = closed_store(7)
    with reopened(unclean(access)) as store:
        assert store.put(Message("T", b"next")).queue_offset == 7


def test_messages_of_every_queue_have_unbroken_offsets_after_a_kill_between_dispatches() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    for number in range(150):
        store.put(Message("T", numbered(1, number)[0], number % 4))
        if number % 40 == 0:
            store.dispatch_now()
    with reopened(killed(access)) as after:
        for queue_id in range(4):
            found = read_all(after, "T", queue_id)
            assert [message.queue_offset for message in found] == list(range(len(found)))
            assert [message.body for message in found] == numbered(150)[queue_id::4]
    store.close()


def test_what_a_killed_process_left_unflushed_is_durable_once_it_was_recovered() -> None:
    """Recovery says that everything is flushed, so a power cut right afterwards may take nothing away."""
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    abandoned = on_simulation(access, clock=clock)
    put_all(abandoned, 400)
    access._locked.clear()  # The process died; its pages are the kernel's now, and they were not synced.
    recovered = on_simulation(access, clock=clock)
    assert recovered.flushed_where == recovered.max_physical_offset
    clock.advance_ms(60_000)
    with reopened(power_cut(access), clock=clock) as after:
        assert bodies(after) == numbered(400)
    recovered.close()
    abandoned.close()


def test_trap_17_queue_files_that_came_to_the_disk_as_zeros_hold_no_unit() -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access)
    put_all(store, 180)  # Four queue files, none of them flushed.
    store.flush()
    with reopened(power_cut(access)) as after:
        assert (after.min_offset("T", 0), after.max_offset("T", 0)) == (0, 180)
        assert bodies(after) == numbered(180)
        assert after.status()["queue_conflicts"] == 0
    store.close()


def test_trap_18_a_queue_of_nothing_but_blanks_takes_the_messages_that_are_left() -> None:
    """Its first messages are gone with their log files; what comes next is no duplicate of anything."""
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    with on_simulation(access, clock=clock) as store:
        put_all(store, 130)
        put_all(store, 150, "Other")
        clock.advance_ms(100 * 3_600_000)
        store.clean_now()
        assert store.min_physical_offset > 0
    with reopened(unclean(access), clock=clock) as store:
        next_offset = store.put(Message("T", b"next")).queue_offset
        store.dispatch_now()
        assert store.get("T", 0, next_offset).messages[0].body == b"next"
        assert store.status()["queue_conflicts"] == 0


def test_trap_21_ext_units_are_truncated_with_the_units_that_refer_to_them() -> None:
    settings: dict[str, Any] = {"enable_consume_queue_ext": True}
    access = SimulatedFileAccess()
    with on_simulation(access, **settings) as store:
        results = [store.put(Message("T", b"x", tags=f"t{number}")) for number in range(60)]
    overwrite(access, *log_place(results[40].physical_offset), bytes(8))
    with reopened(unclean(access), **settings) as store:
        assert store.max_offset("T", 0) == 40
        for number in range(100, 130):
            store.put(Message("T", b"x", tags=f"t{number}"))
        store.dispatch_now()
        queue = store._parts.queues.find("T", 0)
        assert isinstance(queue, ConsumeQueue)
        units = [*present(queue.iterate_from(0)), *present(queue.iterate_from(50))]
        codes = [present(queue.ext_unit_of(unit[2])).tags_code for unit in units]
        assert codes == [java_hash(f"t{number}") for number in (*range(40), *range(100, 130))]
