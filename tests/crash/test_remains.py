"""Remains of a crash that look harmless until the next one: each of these was lost, or came back, once."""

from __future__ import annotations

import pytest

from crash.world import World

pytestmark = pytest.mark.crash

LOG = "/store/commitlog/00000000000000000000"


def test_what_a_recovery_found_in_the_page_cache_survives_a_power_cut_right_after_it() -> None:
    """A killed process leaves log files that were never synced; puts acknowledged behind them must not be lost."""
    world = World(sync=False)
    world.put_many([(at % 3, 1600) for at in range(15)])  # More than two log files.
    world.sync = True
    world.settings["flush_disk_type"] = "SYNC_FLUSH"
    world.kill()
    world.put(0, 40)
    world.cut_power(seed=0, likely=0.0)
    world.check()
    assert len(world.history.messages) == 16


def test_records_behind_a_lost_one_do_not_come_back_when_new_ones_take_its_place() -> None:
    world = World(sync=False)
    world.put(0, 12)
    world.flush()
    world.put(0, 1600)
    world.put(0, 700)
    lost = world.history.messages[1].physical_offset
    behind = world.history.messages[2].physical_offset
    first_page, page_behind = -(-lost // 512), behind // 512
    world.access = world.access.crash(lambda path, page: path == LOG and not first_page <= page < page_behind)
    world.open_only()
    world.settle()
    assert len(world.history.messages) == 1
    world.put(0, 1600)  # As long as the lost one, so that the one behind it would line up.
    world.flush()
    world.cut_power(seed=0, likely=1.0)
    world.check()
    assert len(world.history.messages) == 2


@pytest.mark.parametrize("sync", [True, False])
def test_a_queue_whose_messages_were_all_cleaned_away_goes_on_counting_after_a_power_cut(sync: bool) -> None:
    world = World(sync=sync)
    world.put_many([(2, 12)] * 5)
    world.put_many([(0, 1600)] * 12)
    world.dispatch()
    world.move_clock(1000)
    world.clean()
    assert world.store.min_physical_offset > 0
    world.cut_power(seed=0, likely=0.0)
    world.put(2, 12)
    assert world.history.messages[-1].queue_offset == 5
    world.check()


def test_log_files_that_were_not_dispatched_yet_are_not_cleaned() -> None:
    world = World(sync=True)
    world.put_many([(0, 1600)] * 12)
    world.move_clock(1000)
    cleaned = world.store.clean_now()
    assert (cleaned.log_files, cleaned.vetoed) == (0, True)
    world.dispatch()
    assert world.store.clean_now().log_files > 0


def test_keys_are_found_when_an_index_file_was_durable_before_the_log_that_it_shows_of() -> None:
    """A full index file is synced at once, the log under ASYNC_FLUSH later: new records lie where the lost ones lay."""
    world = World(sync=False)
    world.put_many([(at % 3, 40) for at in range(45)])  # One index file is full.
    world.dispatch()
    world.cut_power(seed=0, likely=0.0)
    assert world.history.messages == []
    world.put_many([(at % 3, 40) for at in range(45)])
    world.check()


def test_an_index_file_that_fills_up_in_the_millisecond_of_a_restart_is_not_trusted_unsynced() -> None:
    world = World(sync=True)
    world.put_many([(0, 40)] * 20)
    world.dispatch()
    world.reopen()
    world.put_many([(0, 40)] * 19)  # Now it is full, and its last entry as old as the last one before the restart.
    world.dispatch()
    for seed in range(20):
        world.cut_power(seed, likely=0.5)
        world.check()
