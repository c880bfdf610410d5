"""Tiered timers in the tier: what is added is given once, before it is due, over restarts, losses and refusals."""

from __future__ import annotations

import random
import threading
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.tiered_timers.tier_world import (
    BROKER,
    CLUSTER,
    DAY_MS,
    HOUR_MS,
    NOW_MS,
    FarWorld,
    LeaseOwner,
    number_of,
    timer,
)
from servers.faulty_driver import Down, Fault, FaultyDriver, ScriptedFaults
from servers.seaweedfs import SeaweedFS
from tiermq.delivery.tiered_timers.tier_timers import (
    REST_AFTER_REFUSAL_S,
    REST_S,
    PulledRecord,
    TieredTimerService,
    decode_pulled,
    encode_pulled,
)
from tiermq.delivery.tiered_timers.timer_name import decode_timer_manifest, manifest_name, timers_directory
from tiermq.delivery.tiered_timers.timer_upkeep import TimerLimits
from tiermq.errors import ManifestConflict, StaleWriter, StoreDamaged, TierError, TierUnavailable
from tiermq.files.os_file_access import OsFileAccess
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import LeaseHeld


@pytest.fixture(params=["memory", "posix", "s3"])
def far_driver(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TierDriver:
    if request.param == "memory":
        return MemoryDriver()
    if request.param == "posix":
        return PosixDriver(tmp_path / "tier")
    server: SeaweedFS = request.getfixturevalue("seaweedfs")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return open_driver(f"s3://history/{uuid.uuid4().hex}")


@pytest.fixture
def world(tmp_path: Path) -> FarWorld:
    return FarWorld(tmp_path, MemoryDriver())


def test_timers_of_many_days_are_each_given_once_and_before_they_are_due(
    tmp_path: Path, far_driver: TierDriver
) -> None:
    world = FarWorld(tmp_path, far_driver)
    chance = random.Random(7)
    dues = [NOW_MS + DAY_MS + chance.randrange(12 * DAY_MS) for _ in range(120)]
    world.add((timer(number, due) for number, due in enumerate(dues)), flush_every=40)
    world.tend()
    given: list[int] = []
    for pulled in world.walk(NOW_MS + 13 * DAY_MS, 6 * HOUR_MS):
        now_ms = world.clock.now_ms()
        assert all(now_ms < each.deliver_ms < now_ms + DAY_MS // 2 for each in pulled)
        given += map(number_of, pulled)
        if len(given) > 100:
            world.restart()
    assert sorted(given) == list(range(120))
    assert world.objects() == ["manifest.tiermq.json"]


def test_nothing_is_given_twice_by_pulls_that_reach_a_little_further_each_time(world: FarWorld) -> None:
    start = NOW_MS + 2 * DAY_MS
    world.add(timer(number, start + number * 100) for number in range(50))
    found = [number_of(each) for step in range(60) for each in world.timers.pull(start + step * 100)]
    assert found == list(range(50))


def test_a_flush_is_one_object_and_a_pull_of_nothing_asks_nothing(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = FarWorld(tmp_path, driver, limits=TimerLimits())
    world.add([timer(0, NOW_MS + 300 * DAY_MS)])
    calls: list[str] = []
    driver.plan = _Counted(calls)
    world.add(timer(number, NOW_MS + (2 + number) * DAY_MS) for number in range(1, 300))
    assert calls == ["put_object", "get_object"]  # The object, and whether the lease is still ours.
    assert list(world.timers.pull(NOW_MS + DAY_MS)) == []
    world.timers.pulled()
    world.timers.forget(NOW_MS)
    assert not world.timers.tend()
    assert calls == ["put_object", "get_object"]


class _Counted:
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def next_fault(self, operation: str) -> None:
        self._calls.append(operation)


def test_small_objects_of_a_day_are_merged_so_that_requests_stay_few(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = FarWorld(tmp_path, driver)
    for number in range(120):
        world.add([timer(number, NOW_MS + (2 + number % 3) * DAY_MS)])
        world.tend()
    assert len(world.objects()) < 40
    calls: list[str] = []
    driver.plan = _Counted(calls)
    given = list(world.timers.pull(NOW_MS + 5 * DAY_MS))
    assert sorted(map(number_of, given)) == list(range(120))
    assert len(calls) < 40


def test_a_day_with_too_many_for_one_object_is_split_into_hours_and_finer_when_it_comes_near(world: FarWorld) -> None:
    day = (NOW_MS // DAY_MS + 3) * DAY_MS
    world.add(timer(number, day + number * 50) for number in range(2_000))  # A hundred seconds.
    world.tend()
    times = {name.split("/")[1].split("_")[0] for name in world.objects() if "_" in name}
    assert any(time.count(".") == 2 for time in times)  # Seconds.
    given = [number_of(each) for pulled in world.walk(day + HOUR_MS, HOUR_MS) for each in pulled]
    assert sorted(given) == list(range(2_000))


def test_what_was_pulled_and_not_confirmed_is_given_again_after_a_crash(world: FarWorld) -> None:
    world.add(timer(number, NOW_MS + 2 * DAY_MS + number) for number in range(10))
    assert len(list(world.timers.pull(NOW_MS + 3 * DAY_MS))) == 10
    world.restart()
    assert len(list(world.timers.pull(NOW_MS + 3 * DAY_MS))) == 10
    world.timers.pulled()
    world.restart()
    assert list(world.timers.pull(NOW_MS + 3 * DAY_MS)) == []


def test_what_was_pulled_and_not_delivered_survives_the_loss_of_the_disk(world: FarWorld) -> None:
    due = NOW_MS + 2 * DAY_MS
    world.add(timer(number, due + number * 60_000) for number in range(10))
    world.clock.set_ms(due)
    assert len(list(world.timers.pull(due + DAY_MS))) == 10
    world.timers.pulled()
    world.timers.forget(due + 4 * 60_000)  # Four were delivered.
    world.tend()
    world.lose_disk()
    assert sorted(number_of(each) for each in world.timers.pull(due + DAY_MS)) == [4, 5, 6, 7, 8, 9]


def test_nothing_is_forgotten_that_was_never_pulled(world: FarWorld) -> None:
    world.add([timer(0, NOW_MS + 2 * DAY_MS)])
    world.clock.advance_ms(10 * DAY_MS)
    world.timers.forget(world.clock.now_ms())  # The tier was down when it was due.
    world.tend()
    assert [number_of(each) for each in world.timers.pull(world.clock.now_ms())] == [0]


def test_objects_whose_timers_were_all_delivered_are_removed(world: FarWorld) -> None:
    world.add([timer(0, NOW_MS + 2 * DAY_MS)])
    world.add([timer(1, NOW_MS + 5 * DAY_MS)])
    assert len(list(world.timers.pull(NOW_MS + 3 * DAY_MS))) == 1
    world.timers.pulled()
    world.timers.forget(NOW_MS + 3 * DAY_MS)
    world.tend()
    assert len([name for name in world.objects() if name.startswith("new/")]) == 1
    assert [number_of(each) for each in world.timers.pull(NOW_MS + 6 * DAY_MS)] == [1]


def test_a_delete_falls_into_the_same_pull_as_what_it_cancels(world: FarWorld) -> None:
    due = NOW_MS + 40 * DAY_MS
    world.add([timer(1, due)])
    for number in range(5):
        world.add([timer(100 + number, due + (number - 2) * DAY_MS)])
    world.add([timer(2, due, is_delete=True)])
    world.tend()
    assert not any(each.deliver_ms == due for each in world.timers.pull(due))
    found = [each for each in world.timers.pull(due + 1) if each.deliver_ms == due]
    assert sorted((number_of(each), each.is_delete) for each in found) == [(1, False), (2, True), (102, False)]


def test_times_that_were_asked_for_are_within_local_reach_from_then_on(world: FarWorld) -> None:
    assert world.timers.horizon_ms == DAY_MS
    assert list(world.timers.pull(NOW_MS + 3 * DAY_MS)) == []
    assert world.timers.horizon_ms == 3 * DAY_MS
    world.timers.add(timer(7, NOW_MS + 2 * DAY_MS))  # All the same, by a wheel whose clock is behind.
    world.timers.flush()
    assert [number_of(each) for each in world.timers.pull(NOW_MS + 3 * DAY_MS + 1)] == [7]
    world.clock.advance_ms(5 * DAY_MS)
    assert world.timers.horizon_ms == DAY_MS


def test_what_is_only_buffered_is_flushed_before_it_is_pulled(world: FarWorld) -> None:
    world.timers.add(timer(1, NOW_MS + 2 * DAY_MS))
    assert [number_of(each) for each in world.timers.pull(NOW_MS + 3 * DAY_MS)] == [1]
    assert len(world.objects()) == 1


def test_a_buffer_never_grows_beyond_an_object(world: FarWorld) -> None:
    for number in range(500):
        world.timers.add(timer(number, NOW_MS + 2 * DAY_MS + number))
    assert len(world.objects()) >= 500 * 81 // world.limits.object_bytes - 1
    world.timers.flush()
    assert sorted(number_of(each) for each in world.timers.pull(NOW_MS + 3 * DAY_MS)) == list(range(500))


def test_a_flush_whose_answer_was_lost_is_repeated_under_the_same_name(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = FarWorld(tmp_path, driver)
    world.timers.add(timer(1, NOW_MS + 2 * DAY_MS))
    driver.plan = _LostPuts()
    with pytest.raises(TierUnavailable):
        world.timers.flush()
    driver.plan = None
    world.timers.flush()
    assert [number_of(each) for each in world.timers.pull(NOW_MS + 3 * DAY_MS)] == [1]


class _LostPuts:
    def next_fault(self, operation: str) -> Fault | None:
        return Fault.AFTER if operation == "put_object" else None


def test_a_flush_that_failed_gets_another_number_when_another_has_written_meanwhile(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver())
    world = FarWorld(tmp_path, driver)
    world.timers.add(timer(99, NOW_MS + 2 * DAY_MS))
    driver.plan = ScriptedFaults("put_object", [None, Fault.BEFORE])  # The lease, then the flush.
    with pytest.raises(TierUnavailable):
        world.timers.flush()
    driver.plan = None
    first = world.timers
    world.restart()
    world.add((timer(number, NOW_MS + 2 * DAY_MS) for number in range(20)), flush_every=1)
    world.tend()  # Flushes up to that number are settled.
    first.state._owner._held = False  # type: ignore[attr-defined] # It gets the lease again.
    first.flush()
    world.restart()
    assert sorted(number_of(each) for each in world.timers.pull(NOW_MS + 3 * DAY_MS)) == [*range(20), 99]


def test_a_tier_that_is_down_loses_nothing_that_was_added(tmp_path: Path) -> None:
    driver = FaultyDriver(MemoryDriver(), Down())
    world = FarWorld(tmp_path, driver)
    world.timers.add(timer(1, NOW_MS + 2 * DAY_MS))
    for attempt in (world.timers.flush, lambda: list(world.timers.pull(NOW_MS + 3 * DAY_MS)), world.timers.tend):
        with pytest.raises(TierUnavailable):
            attempt()
    driver.plan = None
    world.timers.flush()
    assert [number_of(each) for each in world.timers.pull(NOW_MS + 3 * DAY_MS)] == [1]


def test_another_writer_of_the_broker_is_kept_out_and_a_stale_one_is_reported(world: FarWorld) -> None:
    world.add([timer(1, NOW_MS + 2 * DAY_MS)])
    other = LeaseOwner(world.driver, world.clock, "two")
    with pytest.raises(LeaseHeld):
        other.own()
    other.lease.acquire(force=True)
    world.timers.add(timer(2, NOW_MS + 2 * DAY_MS))
    with pytest.raises(StaleWriter):
        world.timers.flush()
    with pytest.raises(TierError):
        list(world.timers.pull(NOW_MS + 3 * DAY_MS))


def test_a_stale_writer_cannot_commit_over_the_manifest_of_the_new_one(world: FarWorld) -> None:
    world.add((timer(number, NOW_MS + (2 + number) * DAY_MS) for number in range(20)), flush_every=1)
    world.tend()
    first = world.timers
    snapshot = first.state.ready()
    world.restart()  # The same name takes over; the first one's epoch has passed.
    assert sorted(number_of(each) for each in world.timers.pull(NOW_MS + 30 * DAY_MS)) == list(range(20))
    with pytest.raises((StaleWriter, ManifestConflict)):
        first.state.commit(snapshot.generation, lambda manifest: manifest)


def test_a_lost_or_damaged_manifest_costs_no_timer(world: FarWorld) -> None:
    world.add((timer(number, NOW_MS + (2 + number % 9) * DAY_MS) for number in range(100)), flush_every=7)
    world.tend()
    name = manifest_name(CLUSTER, BROKER)
    for damage in (lambda: world.driver.delete_object(name), lambda: world.driver.put_object(name, b"{}")):
        damage()
        world.restart()
        assert {number_of(each) for each in world.timers.pull(NOW_MS + 30 * DAY_MS)} == set(range(100))


def test_a_damaged_record_is_reported_and_the_others_of_its_object_are_given(
    world: FarWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.add(timer(number, NOW_MS + 2 * DAY_MS + number) for number in range(10))
    [path] = [name for name in world.driver.list_objects() if "/new/" in name]
    stored = world.driver.get_object(path)
    assert stored is not None
    world.driver.put_object(path, stored.data[:-1] + b"!")
    world.restart()
    assert sorted(number_of(each) for each in world.timers.pull(NOW_MS + 3 * DAY_MS)) == list(range(9))
    assert world.timers.damaged_count == 1
    assert "cannot be delivered" in caplog.text


def test_a_torn_object_is_reported_and_kept_and_holds_nothing_up(
    world: FarWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.add((timer(number, NOW_MS + 2 * DAY_MS + number) for number in range(20)), flush_every=5)
    path = sorted(name for name in world.driver.list_objects() if "/new/" in name)[1]
    stored = world.driver.get_object(path)
    assert stored is not None
    world.driver.put_object(path, stored.data[: len(stored.data) // 2])
    world.restart()
    world.tend()  # Four flushes are sorted into days; the torn one is not.
    assert path in world.driver.list_objects()
    expected = [number for number in range(20) if not 5 <= number < 10]
    assert sorted(number_of(each) for each in world.timers.pull(NOW_MS + 3 * DAY_MS)) == expected
    world.timers.pulled()
    world.clock.advance_ms(10 * DAY_MS)
    world.timers.forget(world.clock.now_ms())
    world.tend()
    assert [name for name in world.driver.list_objects() if name.endswith(".timers")] == [path]
    kept = world.driver.get_object(manifest_name(CLUSTER, BROKER))
    assert kept is not None
    assert len(decode_timer_manifest(kept.data, "manifest").damaged) == 1
    world.driver.delete_object(path)  # An operator has looked at it.
    world.restart()
    assert world.timers.state.ready().manifest.damaged == frozenset()
    assert "left as it is" in caplog.text


def test_what_dead_writers_left_over_is_removed(world: FarWorld) -> None:
    world.add((timer(number, NOW_MS + 2 * DAY_MS) for number in range(20)), flush_every=5)
    world.tend()
    directory = timers_directory(CLUSTER, BROKER)
    data = world.driver.get_object(f"{directory}/{world.objects()[0]}")
    assert data is not None
    stray = f"{directory}/2027-01-17/all_000000000099_1_200_1800000000000_1800000000000.tiermq.timers"
    world.driver.put_object(stray, data.data)
    world.restart()
    world.tend()
    assert stray not in world.driver.list_objects()
    assert sorted(number_of(each) for each in world.timers.pull(NOW_MS + 3 * DAY_MS)) == list(range(20))


def test_upkeep_beside_a_pull_removes_nothing_that_the_pull_still_reads(world: FarWorld) -> None:
    world.add((timer(number, NOW_MS + 2 * DAY_MS + number) for number in range(200)), flush_every=10)
    pull = world.timers.pull(NOW_MS + 3 * DAY_MS)
    found = [number_of(next(pull))]
    rounds = threading.Thread(target=world.tend)
    rounds.start()
    rounds.join()
    found += map(number_of, pull)
    assert sorted(found) == list(range(200))
    world.tend()
    assert not [name for name in world.objects() if name.startswith("new/")]


def record(path: Path, place: str = "memory://x/timers") -> PulledRecord:
    return PulledRecord(str(path), place, OsFileAccess())


def test_a_time_is_remembered_over_a_restart(tmp_path: Path) -> None:
    assert record(tmp_path).until_ms == 0
    record(tmp_path).write(17)
    record(tmp_path).write(42)
    assert record(tmp_path).until_ms == 42


def test_the_file_of_another_tier_says_nothing(tmp_path: Path) -> None:
    record(tmp_path, "s3://one/timers").write(17)
    assert record(tmp_path, "s3://two/timers").until_ms == 0


def test_a_torn_file_is_replaced_by_the_one_before(tmp_path: Path) -> None:
    record(tmp_path).write(17)
    record(tmp_path).write(42)
    (tmp_path / "farTimers.json").write_bytes(b"{")
    assert record(tmp_path).until_ms == 17


@given(st.text(max_size=30), st.integers(0, 2**63))
def test_a_pulled_time_comes_back_as_it_was(place: str, until_ms: int) -> None:
    assert decode_pulled(encode_pulled(place, until_ms)) == (place, until_ms)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"place":"x","pulledUntilMs":-1}', b'{"place":1,"pulledUntilMs":1}']
)
def test_other_bytes_are_no_pulled_time(data: bytes) -> None:
    with pytest.raises(StoreDamaged):
        decode_pulled(data)


def test_a_round_says_how_long_to_rest(tmp_path: Path) -> None:
    world = FarWorld(tmp_path, MemoryDriver())
    service = TieredTimerService(world.timers)
    assert service.run_once() == REST_S
    world.add((timer(number, NOW_MS + 2 * DAY_MS) for number in range(20)), flush_every=5)
    assert service.run_once() == 0.0
    assert service.run_once() == REST_S


def test_a_tier_that_is_down_is_reported_once_and_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    driver = FaultyDriver(MemoryDriver(), Down())
    service = TieredTimerService(FarWorld(tmp_path, driver).timers)
    assert service.run_once() == REST_AFTER_REFUSAL_S
    assert service.run_once() == REST_AFTER_REFUSAL_S
    assert caplog.text.count("not tended") == 1
    driver.plan = None
    assert service.run_once() == REST_S
    assert service.refusal == ""


def test_the_thread_sorts_flushes_into_days(tmp_path: Path) -> None:
    world = FarWorld(tmp_path, MemoryDriver())
    world.add((timer(number, NOW_MS + 2 * DAY_MS) for number in range(20)), flush_every=5)
    service = TieredTimerService(world.timers)
    service.start()
    while any(name.startswith("new/") for name in world.objects()):
        service.wake()
    service.stop()
    assert service.error_count == 0
    assert len(list(world.timers.pull(NOW_MS + 3 * DAY_MS))) == 20
