"""After a crash: nothing that was committed is lost, nothing is doubled, and what is torn is cut at a boundary."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from servers.faulty_driver import Down, Fault, FaultyDriver, ScriptedFaults
from tier.flat.flat_world import QUEUE, Died, MortalDriver, World, batch, record
from tiermq.consumequeue.unit import UNIT
from tiermq.errors import CorruptSegment, TierUnavailable
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.tier_url import open_driver

ONE = len(record(100))
DRIVERS = ["memory", "posix"]


def driver_in(kind: str, path: Path) -> TierDriver:
    if kind == "object":
        path.mkdir(exist_ok=True)
        return open_driver(f"{path.as_uri()}/tier?driver=object")
    return MemoryDriver() if kind == "memory" else PosixDriver(path / "tier")


def go_on(world: World, total: int) -> None:
    """What the next process does: recover, and copy the rest of the local queue."""
    file = world.file
    file.recover()
    if not file.initialised:
        file.init(0)
    if file.append_offset < total:
        assert world.write(total - file.append_offset)


@pytest.mark.parametrize(
    ("kind", "cut"),
    # An object store writes a part whole or not at all, so nothing of it can be cut.
    [*((kind, cut) for kind in DRIVERS for cut in (0.0, 0.37, 1.0)), ("object", 0.0), ("object", 1.0)],
)
def test_a_crash_at_any_change_of_the_tier_loses_and_doubles_nothing(tmp_path: Path, kind: str, cut: float) -> None:
    inner = MortalDriver(driver_in(kind, tmp_path / "count"))
    world = World(tmp_path, inner, log_bytes=3 * ONE, unit_bytes=80)
    world.file.init(0)
    world.write(10)
    world.close()
    assert inner.changes > 6
    for step in range(inner.changes):
        place = tmp_path / str(step)
        place.mkdir()
        mortal = MortalDriver(driver_in(kind, place), step, cut=cut)
        world = World(place, mortal, log_bytes=3 * ONE, unit_bytes=80)
        world.file.init(0)
        with pytest.raises(Died):
            world.write(10)
        world.reopen(mortal.inner)
        go_on(world, 10)
        assert world.messages() == list(range(10))
        places = [UNIT.unpack(world.file.units.read_units(n, 1))[0] for n in range(10)]
        assert places == [n * ONE for n in range(10)], "no record was written twice"
        assert world.file.log.commit_offset == 10 * ONE
        world.close()


@pytest.mark.parametrize("step", range(12))
def test_a_crash_while_recovering_is_recovered_from(tmp_path: Path, step: int) -> None:
    first = MortalDriver(MemoryDriver(), 1, cut=0.6)
    world = World(tmp_path, first, unit_bytes=80)
    world.file.init(0)
    with pytest.raises(Died):
        world.write(9)
    first.inner.write(QUEUE.segment(world.file.log.type, 0), first.inner.size(world.file.log.last.key), [b"torn"])
    mortal = MortalDriver(first.inner, step, cut=0.5)
    world.reopen(mortal)
    with contextlib.suppress(Died):
        world.file.recover()
    world.reopen(first.inner)
    go_on(world, 12)
    assert world.messages() == list(range(12))
    assert world.file.log.commit_offset == 12 * ONE


@pytest.mark.parametrize("kind", DRIVERS)
@pytest.mark.parametrize("landed", [*range(0, 3 * ONE, 7), 3 * ONE])
def test_bug_05_a_torn_tail_of_any_length_is_cut_to_whole_records(tmp_path: Path, kind: str, landed: int) -> None:
    driver = driver_in(kind, tmp_path)
    world = World(tmp_path, driver)
    world.file.init(0)
    world.write(2)
    torn = batch(2, 3, 2 * ONE).data[:landed]
    driver.write(world.file.log.last.key, 2 * ONE, [torn])
    world.reopen()
    world.file.recover()
    whole = 2 + landed // ONE
    assert world.messages() == list(range(whole))
    assert driver.size(world.file.log.last.key) == world.file.log.commit_offset == whole * ONE
    assert [found.count for found in world.file.committed] == ([whole - 2] if whole > 2 else [])
    go_on(world, 7)
    assert world.messages() == list(range(7))


@pytest.mark.parametrize("kind", DRIVERS)
@pytest.mark.parametrize("landed", range(61))
def test_bug_05_a_consume_queue_is_never_shifted_by_a_torn_unit(tmp_path: Path, kind: str, landed: int) -> None:
    driver = driver_in(kind, tmp_path)
    world = World(tmp_path, driver)
    world.file.init(0)
    world.write(2)
    more = batch(2, 3, 2 * ONE)
    driver.write(world.file.log.last.key, 2 * ONE, [more.data])
    driver.write(world.file.units.last.key, 40, [more.units[:landed]])
    world.reopen()
    world.file.recover()
    assert world.messages() == list(range(5))
    assert driver.size(world.file.units.last.key) == 100
    assert sum(found.count for found in world.file.committed) == 3


@pytest.mark.parametrize("zeros_from", range(20, 60, 3))
def test_units_whose_end_is_zeros_after_a_power_cut_are_rebuilt(tmp_path: Path, zeros_from: int) -> None:
    world = World(tmp_path)
    world.file.init(0)
    world.write(2)
    more = batch(2, 3, 2 * ONE)
    world.driver.write(world.file.log.last.key, 2 * ONE, [more.data])
    world.driver.write(world.file.units.last.key, 40, [more.units[:zeros_from].ljust(60, b"\0")])
    world.reopen()
    world.file.recover()
    assert world.messages() == list(range(5))
    assert bytes(world.driver.read(world.file.units.last.key, 40, 60)) == more.units


def test_a_body_that_did_not_reach_the_disk_ends_what_is_adopted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    world.write(2)
    data = bytearray(batch(2, 3, 2 * ONE).data)
    data[ONE + 90 : ONE + 120] = bytes(30)
    world.driver.write(world.file.log.last.key, 2 * ONE, [bytes(data)])
    world.reopen()
    go_on(world, 5)
    assert world.messages() == list(range(5))
    assert world.file.log.commit_offset == 5 * ONE


def test_records_whose_units_were_written_are_never_trimmed_when_they_turn_out_damaged(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    world.write(2)
    more = batch(2, 3, 2 * ONE)
    data = bytearray(more.data)
    data[90:120] = bytes(30)
    world.driver.write(world.file.log.last.key, 2 * ONE, [bytes(data)])
    world.driver.write(world.file.units.last.key, 40, [more.units])
    for _ in range(2):
        world.reopen()
        with pytest.raises(CorruptSegment, match="is damaged"):
            world.file.recover()
        assert world.driver.size(world.file.log.last.key) == 5 * ONE
        assert world.driver.size(world.file.units.last.key) == 100
        assert world.messages() == [0, 1]


def test_metadata_that_is_behind_the_tier_learns_what_is_there(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(10)
    world.write(3)
    rows = world.metadata.segments(QUEUE)
    world.write(4)
    world.file.skip_to(20, "gone")
    world.write(2)
    for row in rows:
        world.metadata.put_segment(row)
    world.reopen()
    assert world.file.commit_offset == 13
    world.file.recover()
    assert world.messages() == [10, 11, 12, 13, 14, 15, 16, 20, 21]
    assert world.file.commit_offset == 22
    log = world.metadata.segments(QUEUE)[0]
    assert (log.begin_offset, log.end_offset, log.begin_ms, log.end_ms) == (10, 22, 1010, 1021)


@pytest.mark.parametrize("lost", ["log", "units"])
@pytest.mark.parametrize("how", ["deleted", "cut"])
def test_bug_17_bytes_that_the_tier_lost_are_reported_and_not_papered_over(tmp_path: Path, lost: str, how: str) -> None:
    world = World(tmp_path)
    world.file.init(0)
    world.write(5)
    key = getattr(world.file, lost).last.key
    if how == "deleted":
        world.driver.delete(key)
    else:
        world.driver.trim(key, 20)
    world.reopen()
    with pytest.raises(CorruptSegment, match="expected the"):
        world.file.recover()
    assert not world.file.recovered


def test_a_back_end_that_is_down_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = World(tmp_path, driver)
    world.file.init(0)
    world.write(5)
    driver.plan = Down()
    world.reopen()
    assert (driver.injected, world.file.commit_offset) == ([], 5)
    with pytest.raises(TierUnavailable):
        world.file.recover()
    assert not world.file.recovered
    driver.plan = None
    world.file.recover()
    assert world.messages() == list(range(5))


@pytest.mark.parametrize("operation", ["size", "read", "trim", "write"])
@pytest.mark.parametrize("nth", range(4))
def test_an_outage_in_the_middle_of_recovery_changes_nothing_about_its_result(
    tmp_path: Path, operation: str, nth: int
) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = World(tmp_path, driver, unit_bytes=80)
    world.file.init(0)
    world.write(3)
    more = batch(3, 5, 3 * ONE)
    driver.inner.write(world.file.log.last.key, 3 * ONE, [more.data, b"torn"])
    driver.inner.write(world.file.units.last.key, 60, [more.units[:17]])
    world.reopen()
    driver.plan = ScriptedFaults(operation, [None] * nth + [Fault.BEFORE])
    try:
        world.file.recover()
    except TierUnavailable:
        assert not world.file.recovered
    driver.plan = None
    world.file.recover()
    assert world.file.commit()
    assert world.messages() == list(range(8))
    assert driver.size(world.file.log.last.key) == 8 * ONE
    handed = [n for found in world.file.committed for n in range(found.first_offset, found.next_offset)]
    assert handed == list(range(3, 8))


def test_a_record_larger_than_one_read_of_recovery_is_adopted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermq.tier.queue.units.RUN_BYTES", 500)
    world = World(tmp_path)
    world.file.init(0)
    world.write(1)
    big = batch(1, 1, ONE, size=3000)
    small = batch(2, 4, ONE + len(big.data))
    world.driver.write(world.file.log.last.key, ONE, [big.data, small.data])
    world.reopen()
    world.file.recover()
    assert world.messages() == list(range(6))


def test_what_a_rocketmq_upload_left_unreferenced_stays_and_is_passed_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.init(0)
    world.write(2)
    key, units = world.file.log.last.key, world.file.units.last.key
    again = batch(2, 2, 4 * ONE)
    world.driver.write(key, 2 * ONE, [batch(2, 2, 2 * ONE).data, again.data])
    world.driver.write(units, 40, [again.units])
    world.reopen()
    world.file.recover()
    assert world.messages() == [0, 1, 2, 3]
    assert world.driver.size(key) == 6 * ONE
