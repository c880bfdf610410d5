"""Offsets of groups as they were: points of a day in the tier, one GET to ask for a time."""

from __future__ import annotations

import pytest

from simulation.manual_clock import ManualClock
from tier.metadata.lease_samples import DISPATCHER, JOB, lease_of
from tiermq.clock import HOUR_MS
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata import offset_history
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.offset_history import (
    DAY_MS,
    EVERY_MS,
    OffsetHistory,
    day_object,
    offsets_at,
    points_of_day,
)
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.verify.verify import verify_tier

HOME = ("DefaultCluster", "broker-a")
MIDNIGHT = 20_000 * DAY_MS


def history_of(driver: MemoryDriver, clock: ManualClock, owner: str = DISPATCHER) -> OffsetHistory:
    lease = lease_of(driver, owner, clock)
    lease.acquire(force=True)
    return OffsetHistory(driver, *HOME, lease, lease.owner)


def table(**offsets: int) -> dict[str, dict[str, int]]:
    return {f"orders@{group}": {"0": offset} for group, offset in offsets.items()}


def seen(driver: MemoryDriver, moment_ms: int) -> dict[str, int] | None:
    found = offsets_at(driver, *HOME, moment_ms)
    return None if found is None else {key.partition("@")[2]: each["0"] for key, each in found.offsets.items()}


def test_offsets_are_those_of_the_last_point_before_a_time(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    history = history_of(driver, manual_clock)
    assert history.add(table(audit=5, bill=1), MIDNIGHT)
    assert not history.add(table(audit=6, bill=1), MIDNIGHT + EVERY_MS - 1), "at most one in ten minutes"
    assert history.add(table(audit=9, bill=1), MIDNIGHT + EVERY_MS)
    assert history.add(table(bill=1, late=0), MIDNIGHT + 2 * EVERY_MS)
    for at, expected in (
        (MIDNIGHT - 1, None),
        (MIDNIGHT, {"audit": 5, "bill": 1}),
        (MIDNIGHT + EVERY_MS - 1, {"audit": 5, "bill": 1}),
        (MIDNIGHT + EVERY_MS, {"audit": 9, "bill": 1}),
        (MIDNIGHT + 2 * EVERY_MS, {"bill": 1, "late": 0}),
        (MIDNIGHT + DAY_MS + HOUR_MS, {"bill": 1, "late": 0}),
        (MIDNIGHT + 3 * DAY_MS, None),
    ):
        assert seen(driver, at) == expected, at - MIDNIGHT
    stored = driver.get_object(day_object(*HOME, MIDNIGHT))
    assert stored is not None
    assert stored.data.count(b"orders@bill") == 1, "a point has only what changed"


def test_another_process_continues_the_day_and_a_new_day_begins_with_the_whole_table(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    assert history_of(driver, manual_clock).add(table(audit=5, bill=1), MIDNIGHT)
    other = history_of(driver, manual_clock, JOB)
    assert not other.add(table(audit=6, bill=1), MIDNIGHT + 1)
    assert other.add(table(audit=7, bill=1), MIDNIGHT + EVERY_MS)
    assert other.add(table(audit=7, bill=1), MIDNIGHT + DAY_MS)
    assert [len(points_of_day(driver, *HOME, MIDNIGHT + day * DAY_MS)) for day in range(3)] == [2, 1, 0]
    assert seen(driver, MIDNIGHT + DAY_MS) == {"audit": 7, "bill": 1}


def test_a_writer_that_was_overtaken_reads_what_the_other_added(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    first = history_of(driver, manual_clock)
    second = history_of(driver, manual_clock, JOB)
    assert first.add(table(audit=1), MIDNIGHT)
    assert second.add(table(audit=2), MIDNIGHT + EVERY_MS)
    assert not first.add(table(audit=3), MIDNIGHT + 2 * EVERY_MS), "its version is not the stored one"
    assert first.add(table(audit=3), MIDNIGHT + 2 * EVERY_MS)
    assert [seen(driver, MIDNIGHT + count * EVERY_MS) for count in range(3)] == [
        {"audit": 1}, {"audit": 2}, {"audit": 3},
    ]  # fmt: skip


def test_a_large_day_has_a_point_in_each_hour(manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_history, "OFTEN_BYTES_MAX", 10)
    history = history_of(MemoryDriver(), manual_clock)
    added = [history.add(table(audit=count), MIDNIGHT + count * EVERY_MS) for count in range(13)]
    assert [count for count, is_added in enumerate(added) if is_added] == [0, 6, 12]


def test_a_damaged_day_is_refused_by_readers_and_begun_again_by_the_writer(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    name = day_object(*HOME, MIDNIGHT)
    driver.put_object(name, b'{"body":{"points":[]},"crc32":1,"version":2}', expected=None)
    with pytest.raises(CorruptManifest, match="not known"):
        points_of_day(driver, *HOME, MIDNIGHT)
    [found] = verify_tier(driver, TierScope()).problems
    assert (found.where, "not known" in found.text) == (name, True)
    assert history_of(driver, manual_clock).add(table(audit=5), MIDNIGHT)
    assert seen(driver, MIDNIGHT) == {"audit": 5}
    assert verify_tier(driver, TierScope()).is_clean
