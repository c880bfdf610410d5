"""What a broker with a tier lives through, as actions and expectations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import HOUR_MS, BrokerWorld, Sent
from scenarios.steps import (
    BackEndDown,
    BackEndUp,
    EraseBrokerDisk,
    ExpectEverything,
    ExpectLocalMin,
    ExpectMessages,
    ExpectOffsets,
    ExpectStatus,
    ExpectTierError,
    ExpectTierHolds,
    ExpireLocal,
    ExpireTier,
    KillWriter,
    Lost,
    MoveClock,
    Open,
    Pause,
    Produce,
    Reopen,
    Resume,
    Step,
    TierNow,
    play,
    with_between,
)
from servers.faulty_driver import Fault, ScriptedFaults
from tiermq import Message
from tiermq.config import SETTINGS as STORE_SETTINGS
from tiermq.errors import TierError
from tiermq.store.local_store import LocalStore
from tiermq.tier.names import SegmentType


@pytest.fixture
def world(tmp_path: Path) -> BrokerWorld:
    return BrokerWorld(tmp_path)


LIFE: list[Step] = [
    Open(),
    Produce(30),
    MoveClock(1_000),
    Produce(30, "orders", 1),
    TierNow(),
    MoveClock(60_000),
    Produce(40),
    TierNow(),
    ExpectEverything(),
    MoveClock(60_000),
    Produce(120),
    TierNow(),
    Produce(5),
    ExpectEverything(),
]


def test_a_life_without_accidents(world: BrokerWorld) -> None:
    play(world, LIFE)


def test_a_restart_between_any_two_steps_changes_nothing(world: BrokerWorld) -> None:
    play(world, with_between(LIFE, lambda: [Reopen()]))


def test_a_kill_between_any_two_steps_changes_nothing(world: BrokerWorld) -> None:
    play(world, with_between(LIFE, lambda: [KillWriter()]))


def test_what_was_evicted_is_read_from_the_tier(world: BrokerWorld) -> None:
    play(world, [*LIFE, TierNow(), ExpireLocal(), ExpectLocalMin(1), ExpectOffsets(0, 195), ExpectEverything()])


def test_what_was_evicted_is_read_from_the_tier_after_a_restart_too(world: BrokerWorld) -> None:
    play(world, [*LIFE, TierNow(), ExpireLocal(), Reopen(), Produce(3), ExpectEverything(), TierNow(), KillWriter(),
                 ExpectEverything()])  # fmt: skip


def test_records_whose_writer_died_before_their_units_were_there_keep_their_numbers_when_the_disk_is_lost(
    tmp_path: Path,
) -> None:
    world = BrokerWorld(tmp_path)
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    world.put(3)
    world.driver.plan = ScriptedFaults("write", [None, Fault.BEFORE, *[Fault.BEFORE] * 50])
    assert not world.store.flush_to_tier()
    world.driver.plan = None
    world.erase_disk()
    steps: list[Step] = [Open({"restore": True}), ExpectEverything(), ExpectOffsets(0, 8), Produce(2), TierNow()]
    play(world, [*steps, ExpectEverything(), ExpectTierHolds(0, 10)])


def test_a_queue_whose_last_segments_were_sealed_goes_on_when_the_disk_is_lost(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path)
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    for info in list(world.driver.list_segments()):
        if info.key.topic == "orders":
            world.driver.seal(info.key)  # The writer rolled, sealed, and died before it reported that.
    world.erase_disk()
    play(world, [Open({"restore": True}), ExpectEverything(), Produce(2), TierNow(), ExpectEverything()])


def test_a_disk_that_is_lost_between_a_queues_first_records_and_their_units_costs_neither(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path)
    world.open()
    world.put(5)
    world.driver.plan = ScriptedFaults("write", [None, *[Fault.BEFORE] * 99])
    assert not world.store.flush_to_tier()
    world.driver.plan = None
    assert {info.key.type for info in world.driver.list_segments()} == {SegmentType.COMMIT_LOG}
    world.erase_disk()
    play(world, [Open({"restore": True}), ExpectEverything(), Produce(2), ExpectOffsets(0, 7), TierNow(),
                 ExpectEverything(), EraseBrokerDisk(), Reopen(restore=True), ExpectEverything()])  # fmt: skip


def test_a_restore_that_cannot_give_records_their_units_fails_and_can_be_tried_again(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path)
    world.open()
    world.put(5)
    world.driver.plan = ScriptedFaults("write", [None, *[Fault.BEFORE] * 99])
    assert not world.store.flush_to_tier()
    world.erase_disk()
    world.driver.plan = ScriptedFaults("write", [Fault.BEFORE] * 99)
    with pytest.raises(TierError):
        world.open(restore=True)
    world.driver.plan = None
    steps: list[Step] = [Open({"restore": True}), ExpectEverything(), Produce(2), ExpectOffsets(0, 7), TierNow()]
    play(world, [*steps, ExpectEverything()])


def test_numbering_goes_on_when_the_disk_is_lost_right_after_everything_in_the_tier_expired(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path)
    steps: list[Step] = [Open(), Produce(3), TierNow(), Produce(4), TierNow(), MoveClock(100 * HOUR_MS), ExpireTier()]
    play(world, [*steps, EraseBrokerDisk(), Reopen(restore=True), ExpectOffsets(7, 7)])


def test_a_lost_disk_is_restored_from_the_tier_and_numbering_goes_on(world: BrokerWorld) -> None:
    steps = [*LIFE, TierNow(), EraseBrokerDisk(), Reopen(restore=True), ExpectOffsets(0, 195), ExpectEverything()]
    play(world, [*steps, Produce(10), ExpectOffsets(0, 205), ExpectEverything(), TierNow(), ExpectEverything(),
                 KillWriter(), ExpectEverything(), EraseBrokerDisk(), Reopen(restore=True),
                 ExpectEverything()])  # fmt: skip


def test_what_had_not_reached_the_tier_is_lost_with_the_disk_and_nothing_else(world: BrokerWorld) -> None:
    play(world, [Open(), Produce(20), TierNow(), Produce(5), EraseBrokerDisk(), Reopen(restore=True), Lost(20, 25),
                 ExpectEverything(), Produce(5), ExpectOffsets(0, 25), TierNow(), ExpectEverything()])  # fmt: skip


def test_a_back_end_that_is_down_for_an_hour_holds_up_no_put_and_is_caught_up_with(world: BrokerWorld) -> None:
    outage: list[Step] = [BackEndDown(), Produce(60), TierNow(succeeds=False), MoveClock(HOUR_MS // 2),
              ExpectMessages(), Reopen(), Produce(60), TierNow(succeeds=False), ExpectMessages(), KillWriter(),
              ExpectMessages(),
              MoveClock(HOUR_MS // 2), Produce(7), ExpectMessages()]  # fmt: skip
    play(world, [*LIFE, *outage, BackEndUp(), MoveClock(120_000), TierNow(), ExpectEverything(),
                 ExpectTierHolds(0, 322), ExpireLocal(), ExpectEverything()])  # fmt: skip


def test_messages_that_only_the_tier_has_are_an_error_while_it_is_down(world: BrokerWorld) -> None:
    play(world, [*LIFE, TierNow(), ExpireLocal(), Reopen(), BackEndDown(), ExpectTierError(0), BackEndUp(),
                 ExpectEverything()])  # fmt: skip


def test_a_tier_that_lags_keeps_local_files_and_reports_so(world: BrokerWorld) -> None:
    lags: Any = lambda status: status["lag_bytes"] > 0  # noqa: E731
    play(world, [Open(), Produce(100), TierNow(), Produce(300), ExpectStatus(lags),
                 MoveClock(80 * HOUR_MS), ExpireLocal(), ExpectStatus(lags), ExpectMessages(), Produce(300),
                 BackEndDown(), ExpireLocal(removed=0), ExpectStatus(lags), BackEndUp(), ExpectMessages(), TierNow(),
                 ExpectStatus(lambda status: status["lag_bytes"] == 0), ExpireLocal(), ExpectEverything()])  # fmt: skip


def test_clock_jumps_do_no_harm(world: BrokerWorld) -> None:
    day = 24 * HOUR_MS
    play(world, [Open(), Produce(60), TierNow(), MoveClock(-day), Produce(60), TierNow(), MoveClock(30 * day),
                 Produce(60), TierNow(), MoveClock(-29 * day), Produce(5), TierNow(), ExpectMessages(), KillWriter(),
                 ExpectMessages(), EraseBrokerDisk(), Reopen(restore=True), ExpectMessages(), Produce(5), TierNow(),
                 ExpectMessages()])  # fmt: skip


def test_history_from_before_tiering_is_back_filled(world: BrokerWorld) -> None:
    local = {name: value for name, value in world.settings.items() if name in STORE_SETTINGS}
    with LocalStore.open(world.disk, clock=world.clock, background=False, **local) as store:
        for number in range(200):
            body, keys = b"%d" % number, (f"key-{number}", "all-orders")
            assert store.put(Message("orders", body, keys=list(keys), tags="old")).ok
            world.sent.setdefault(("orders", 0), []).append(Sent(number, body, keys, "old", world.clock.now_ms()))
    play(world, [MoveClock(HOUR_MS), Open(), TierNow(), ExpectTierHolds(0, 200), ExpireLocal(),
                 ExpectEverything()])  # fmt: skip


def test_a_pause_leaves_no_gap(world: BrokerWorld) -> None:
    play(world, [Open(), Produce(50), TierNow(), Pause(), Produce(50), TierNow(succeeds=False), Resume(), TierNow(),
                 ExpectTierHolds(0, 100), ExpectEverything()])  # fmt: skip


def test_a_message_larger_than_a_batch_goes_too(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path, tiered_store_group_commit_size=500)
    play(world, [Open(), Produce(3), Produce(2, fields={"size": 3_000}), Produce(3), TierNow(), ExpectTierHolds(0, 8),
                 ExpireLocal(removed=0), ExpectEverything()])  # fmt: skip


def test_bug_02_an_upload_that_lags_behind_local_expiry_leaves_a_gap_and_history_stays(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path, tier_evict_on_proof=False)
    lost: list[int] = []

    class NoteLoss:
        def run(self, world: BrokerWorld) -> None:
            lost.append(world.store.local.min_offset("orders", 0))
            Lost(50, lost[0]).run(world)

    class ExpectGap:
        def run(self, world: BrokerWorld) -> None:
            ExpectTierHolds(0, 400, gaps=((50, lost[0]),)).run(world)

    play(world, [Open(), Produce(50), TierNow(), Produce(350), ExpireLocal(), NoteLoss(), ExpectMessages(), TierNow(),
                 ExpectGap(), ExpectMessages(), KillWriter(), ExpectMessages(), EraseBrokerDisk(), Reopen(restore=True),
                 ExpectMessages(), ExpectGap(), Produce(5), TierNow(), ExpectMessages()])  # fmt: skip


def test_hosts_with_ipv6_addresses_live_like_others(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path, store_host="[2001:db8::1]:10911")
    ipv6: dict[str, Any] = {"fields": {"born_host": "[2001:db8::2]:5000"}}
    play(world, [Open(), Produce(50, **ipv6), MoveClock(1_000), Produce(150), TierNow(), ExpectEverything(),
                 ExpireLocal(), ExpectEverything(), EraseBrokerDisk(), Reopen(restore=True), ExpectEverything(),
                 Produce(3, **ipv6), TierNow(), KillWriter(), ExpectEverything()])  # fmt: skip


def test_what_expires_in_the_tier_leaves_by_whole_segments_and_the_rest_is_read(world: BrokerWorld) -> None:
    dropped: list[int] = []

    class NoteExpiry:
        def run(self, world: BrokerWorld) -> None:
            dropped.append(world.store.min_offset("orders", 0))
            assert 0 < dropped[-1] <= 100
            Lost(0, dropped[-1]).run(world)

    play(world, [Open(), Produce(100), TierNow(), MoveClock(48 * HOUR_MS), Produce(100), TierNow(), ExpireTier(),
                 ExpectOffsets(0, 200), MoveClock(30 * HOUR_MS), Evict(), ExpireTier(), NoteExpiry(), ExpectMessages(),
                 Produce(5), TierNow(), KillWriter(), ExpectMessages(), EraseBrokerDisk(), Reopen(restore=True),
                 ExpectMessages()])  # fmt: skip


class Evict:
    def run(self, world: BrokerWorld) -> None:
        assert world.evict() > 0
