"""Reads over both stores: policy, fallbacks, the seam between tier and local, times and keys."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import HOUR_MS, BrokerWorld
from servers.faulty_driver import Down
from tiermq import GetStatus, Message
from tiermq.errors import CorruptRecord, TierError, TierUnavailable
from tiermq.kernel import TierPage
from tiermq.message.message_filter import MessageFilter, TagFilter
from tiermq.tier.names import SegmentType
from tiermq.tier.tier_config import StorageLevel

T = "orders"


def evicted(world: BrokerWorld, count: int = 300, **settings: Any) -> int:
    """A queue whose head is only in the tier; where the local store begins."""
    world.open(**{"tiered_store_file_reserved_time": 10_000, **settings})
    world.put(count)
    assert world.store.flush_to_tier()
    world.clock.advance_ms(73 * HOUR_MS)
    assert world.evict() > 0
    return world.store.local.min_offset(T, 0)


def offsets(page: Any) -> list[int]:
    return [message.queue_offset for message in page.messages]


def test_messages_that_are_damaged_on_the_disk_come_from_the_tier_and_the_others_from_the_disk(
    world: BrokerWorld,
) -> None:
    world.open()
    world.put(50)
    assert world.store.flush_to_tier()
    world.put(10)
    world.close()
    [log] = (world.disk / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    for number in (7, 8, 55):  # The last of them has not come to the tier.
        data[data.index(b"orders 0 %d " % (number + 1))] ^= 1
    log.write_bytes(data)
    world.open(tier_dispatch_enable=False)
    found = [world.store.get(T, 0, offset, 1) for offset in range(55)]
    assert [page.messages[0].body for page in found] == [sent.body for sent in world.sent[T, 0][:55]]
    assert [offset for offset, page in enumerate(found) if isinstance(page, TierPage)] == [7, 8]
    with pytest.raises(CorruptRecord):
        world.store.get(T, 0, 55)


# Who answers


@pytest.mark.parametrize(
    ("level", "hot", "cold"),
    [
        ("DISABLE", "local", "too small"),
        ("0", "local", "too small"),
        ("NOT_IN_DISK", "local", "tier"),
        (1, "local", "tier"),
        ("NOT_IN_MEM", "local", "tier"),
        (2, "local", "tier"),
        ("FORCE", "tier", "tier"),
        ("3", "tier", "tier"),
    ],
)
def test_the_level_reports_who_answers_by_name_and_by_number(
    world: BrokerWorld, level: Any, hot: str, cold: str
) -> None:
    seam = evicted(world, tiered_storage_level=level)
    page = world.store.get(T, 0, seam + 1)
    assert page.status is GetStatus.FOUND
    assert isinstance(page, TierPage) == (hot == "tier")
    page = world.store.get(T, 0, 0)
    if cold == "tier":
        assert isinstance(page, TierPage)
        assert offsets(page)[0] == 0
    else:
        assert (page.status, page.next_offset) == (GetStatus.OFFSET_TOO_SMALL, seam)


@pytest.mark.parametrize("level", ["DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE"])
def test_a_hot_page_is_what_get_gives_without_the_tier_and_none_where_the_tier_must_be_asked(
    world: BrokerWorld, level: str
) -> None:
    low = evicted(world, tiered_storage_level=level)
    store = world.store
    high = store.max_offset(T, 0)
    for offset in (-1, 0, low - 1, low, low + 5, high - 1, high, high + 7):
        expected = store.get(T, 0, offset)
        world.driver.plan = Down()
        page = store.get_local(T, 0, offset)
        world.driver.plan = None
        if page is None:
            assert level != "DISABLE"
            assert level == "FORCE" or 0 <= offset < low
        else:
            found = page.status, page.next_offset, offsets(page), page.min_offset, page.max_offset
            wanted = expected.status, expected.next_offset, offsets(expected), expected.min_offset, expected.max_offset
            assert found == wanted


def test_what_is_no_longer_in_memory_comes_from_the_tier_at_not_in_mem(world: BrokerWorld) -> None:
    world.open(tiered_storage_level="NOT_IN_MEM", access_message_in_memory_max_ratio=0)
    world.put(50)
    assert not isinstance(world.store.get(T, 0, 0), TierPage)  # Not committed in the tier yet.
    assert world.store.flush_to_tier()
    page = world.store.get(T, 0, 0)
    assert isinstance(page, TierPage)
    assert offsets(page) == list(range(32))
    world.put(5)
    assert offsets(world.store.get(T, 0, 50)) == [50, 51, 52, 53, 54]


def test_what_left_the_tier_before_the_local_store_is_still_read_at_not_in_mem(world: BrokerWorld) -> None:
    world.open(tiered_storage_level="NOT_IN_MEM", access_message_in_memory_max_ratio=0, tier_max_bytes_per_topic=5_000)
    world.put(100)
    assert world.store.flush_to_tier()
    assert world.store.expire_now().segments
    file = world.store.tier.files.find(T, 0)
    assert file is not None
    assert file.min_offset > 0
    assert offsets(world.store.get(T, 0, 0))[0] == 0
    assert world.store.min_offset(T, 0) == 0
    assert world.read()[0].queue_offset == 0


def test_system_topics_are_always_local(world: BrokerWorld) -> None:
    world.open(tiered_storage_level="FORCE")
    world.put(3, "rmq_sys_TRACE_DATA")
    assert world.store.flush_to_tier()
    assert world.store.tier.files.find("rmq_sys_TRACE_DATA", 0) is None
    assert not isinstance(world.store.get("rmq_sys_TRACE_DATA", 0, 0), TierPage)
    assert world.store.query("rmq_sys_TRACE_DATA", "key-1").messages


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [(20, GetStatus.OFFSET_OVERFLOW_ONE, 20), (25, GetStatus.OFFSET_OVERFLOW_BADLY, 20)],
)
def test_statuses_of_the_tier_are_passed_on_at_force(
    world: BrokerWorld, offset: int, status: GetStatus, next_offset: int
) -> None:
    world.open(tiered_storage_level="FORCE")
    world.put(20)
    assert world.store.flush_to_tier()
    page = world.store.get(T, 0, offset)
    assert (page.status, page.next_offset) == (status, next_offset)
    assert world.store.get("unknown", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_a_queue_that_the_tier_does_not_know_yet_falls_back_to_local_at_force(world: BrokerWorld) -> None:
    world.open(tiered_storage_level="FORCE")
    world.put(3)
    assert offsets(world.store.get(T, 0, 0)) == [0, 1, 2]
    at_its_end = world.store.get(T, 0, 3)
    assert (at_its_end.status, at_its_end.max_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 3)
    assert "get_message_fallback_total" in world.store.metrics.render_prometheus()


def test_a_reader_who_is_ahead_of_the_tier_waits_for_it_and_is_not_sent_back_at_force(world: BrokerWorld) -> None:
    world.open(tiered_storage_level="FORCE")
    world.put(3)
    assert world.store.get(T, 0, 0).count == 3  # From the local store: the tier does not know the queue.
    world.store.tier.files.find_or_create(T, 0)
    empty = world.store.get(T, 0, 3)
    assert (empty.status, empty.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 3)
    assert world.store.flush_to_tier()
    world.put(2)
    assert world.store.get(T, 0, 5).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert world.store.get(T, 0, 6).status is GetStatus.OFFSET_OVERFLOW_BADLY  # Neither store has that.


def test_a_tier_that_is_down_falls_back_to_local_where_local_can_answer(world: BrokerWorld) -> None:
    seam = evicted(world, tiered_storage_level="FORCE")
    world.driver.plan = Down()
    assert offsets(world.store.get(T, 0, seam + 3))[0] == seam + 3
    with pytest.raises(TierUnavailable):
        world.store.get(T, 0, 0)


def test_the_page_behind_the_end_of_a_restored_queue_reports_so(world: BrokerWorld) -> None:
    world.open()
    world.put(10)
    assert world.store.flush_to_tier()
    world.erase_disk()
    world.open(restore=True)
    assert world.store.get(T, 0, 10).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert world.store.get(T, 0, 11).status is GetStatus.OFFSET_OVERFLOW_BADLY
    assert world.store.get(T, 0, 11).next_offset == 10
    assert (world.store.min_offset(T, 0), world.store.max_offset(T, 0, committed=False)) == (0, 10)


# The seam


def test_pages_around_the_seam_have_every_message_once(world: BrokerWorld) -> None:
    seam = evicted(world)
    for start in range(seam - 3, seam + 3):
        found: list[int] = []
        offset = start
        while len(found) < 10:
            page = world.store.get(T, 0, offset, 4)
            assert page.status is GetStatus.FOUND
            found += offsets(page)
            offset = page.next_offset
        assert found[:10] == list(range(start, start + 10))


def test_pages_know_the_minimum_of_both_stores(world: BrokerWorld) -> None:
    evicted(world)
    assert world.store.get(T, 0, 0).min_offset == 0
    assert world.store.min_offset(T, 0) == 0
    world.store.set_retention(T, max_bytes=15_000)
    world.store.expire_now()
    low = world.store.min_offset(T, 0)
    page = world.store.get(T, 0, 0)
    assert 0 < low < world.store.local.min_offset(T, 0)
    assert (page.status, page.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    assert offsets(world.store.get(T, 0, low))[0] == low


def test_a_filter_works_on_both_sides_of_the_seam(world: BrokerWorld) -> None:
    seam = evicted(world)
    chosen: MessageFilter = TagFilter("t1")
    expected = [sent.offset for sent in world.sent[T, 0] if sent.tags == "t1"]
    found: list[int] = []
    offset = 0
    while offset < 300:
        page = world.store.get(T, 0, offset, 5, message_filter=chosen)
        found += offsets(page)
        assert page.next_offset > offset
        offset = page.next_offset
    assert found == expected
    assert 0 < seam < 300


def test_messages_that_the_local_store_lost_in_the_middle_come_from_the_tier(
    world: BrokerWorld, tmp_path: Path
) -> None:
    """The disk of yesterday comes back: the tier knows more than it, and numbering goes on behind."""
    world.open()
    world.put(20)
    world.close()
    yesterday = tmp_path / "yesterday"
    shutil.copytree(world.disk, yesterday)
    world.open()
    world.put(30)
    assert world.store.flush_to_tier()
    world.erase_disk()
    yesterday.rename(world.disk)
    world.open(restore=True)
    assert world.store.max_offset(T, 0) == 50
    assert [m.body for m in world.read()] == [sent.body for sent in world.sent[T, 0]]
    world.put(10)
    assert [m.body for m in world.read()] == [sent.body for sent in world.sent[T, 0]]
    assert world.store.flush_to_tier()
    world.close()
    world.open()
    assert [m.body for m in world.read()] == [sent.body for sent in world.sent[T, 0]]
    chosen = TagFilter("t1")
    found, offset = [], 15
    while offset < 60:
        page = world.store.get(T, 0, offset, 32, message_filter=chosen)
        found += offsets(page)
        offset = page.next_offset
    assert found == [sent.offset for sent in world.sent[T, 0] if sent.tags == "t1" and sent.offset >= 15]
    world.driver.plan = Down()
    world.close()
    world.open()
    assert offsets(world.store.get(T, 0, 15)) == [15, 16, 17, 18, 19]
    with pytest.raises(TierUnavailable):
        world.store.get(T, 0, 20)


# Times


def test_times_on_both_sides_of_the_seam_and_within_one_millisecond_of_it(world: BrokerWorld) -> None:
    world.open()
    times: list[int] = []
    for number in range(300):
        if number % 5 == 0:
            world.clock.advance_ms(10)
        world.put(1)
        times.append(world.clock.now_ms())
    assert world.store.flush_to_tier()
    world.clock.advance_ms(73 * HOUR_MS)
    assert world.evict() > 0
    seam = world.store.local.min_offset(T, 0)
    assert times[seam] == times[seam - 1]  # The seam lies within one millisecond.
    for time_ms in sorted(set(times)):
        first, last = times.index(time_ms), len(times) - 1 - times[::-1].index(time_ms)
        assert world.store.offset_at(T, 0, time_ms) == first
        assert world.store.offset_at(T, 0, time_ms, "upper") == last
        assert world.store.offset_at(T, 0, time_ms - 1) == first
    assert world.store.offset_at(T, 0, times[-1] + 1) == 300
    assert world.store.offset_at(T, 0, 0) == 0
    assert world.store.earliest_time(T, 0) == times[0]
    assert [world.store.store_time_of(T, 0, n) for n in (0, seam - 1, seam, 299)] == [
        times[n] for n in (0, seam - 1, seam, 299)
    ]
    assert world.store.store_time_of(T, 0, 300) == -1


def test_times_before_the_local_history_lead_behind_a_gap(tmp_path: Path) -> None:
    world = BrokerWorld(tmp_path, tier_evict_on_proof=False)
    world.open()
    world.put(10)
    first_ms = world.clock.now_ms()
    assert world.store.flush_to_tier()
    world.clock.advance_ms(1_000)
    world.put(300)
    world.clock.advance_ms(73 * HOUR_MS)
    assert world.evict() > 0
    seam = world.store.local.min_offset(T, 0)
    assert world.store.offset_at(T, 0, first_ms) == 0
    assert world.store.offset_at(T, 0, first_ms + 500) == seam
    world.bury()


def test_at_force_times_are_the_tiers(world: BrokerWorld) -> None:
    world.open(tiered_storage_level="FORCE")
    world.put(5)
    assert world.store.flush_to_tier()
    then = world.clock.now_ms()
    world.clock.advance_ms(10)
    world.put(5)
    assert [world.store.offset_at(T, 0, then, end) for end in ("lower", "upper")] == [0, 4]
    assert world.store.offset_at(T, 0, world.clock.now_ms()) == 5
    assert world.store.store_time_of(T, 0, 2) == then
    assert world.store.store_time_of(T, 0, 7) == then + 10  # The tier has it not; the local store has.


def test_at_disable_offsets_and_times_still_know_the_tier(world: BrokerWorld) -> None:
    seam = evicted(world, tiered_storage_level="DISABLE")
    first = world.sent[T, 0][0]
    assert world.store.min_offset(T, 0) == 0
    assert world.store.earliest_time(T, 0) == first.store_ms
    assert world.store.offset_at(T, 0, first.store_ms) == 0
    assert world.store.store_time_of(T, 0, 0) == -1
    assert [m.queue_offset for m in world.store.query(T, first.keys[0]).messages] == [0]
    assert seam > 0


def test_bug_15_a_queue_that_the_local_store_does_not_have_begins_where_the_tier_reports(world: BrokerWorld) -> None:
    evicted(world)
    world.close()
    world.open()
    assert world.store.min_offset(T, 0) == 0
    assert world.store.min_offset("unknown", 0) == 0
    assert world.store.earliest_time("unknown", 0) == -1


# Keys


@pytest.mark.parametrize(("keys", "expected"), [("cold", 2), ("hot", 1), ("both", 3)])
def test_a_key_query_counts_what_either_store_has(world: BrokerWorld, keys: str, expected: int) -> None:
    world.open()
    for key in ("cold", "both", "cold", "both"):
        assert world.store.put(Message(T, b"x", keys=[key])).ok
    world.put(300)
    assert world.store.flush_to_tier()
    world.clock.advance_ms(73 * HOUR_MS)
    assert world.evict() > 0
    for key in ("hot", "both"):
        assert world.store.put(Message(T, b"y", keys=[key])).ok
    world.store.local.dispatch_now()
    found = world.store.query(T, keys).messages
    assert len(found) == expected
    assert [m.queue_offset for m in found] == sorted(m.queue_offset for m in found)


def test_a_key_query_in_the_overlap_has_each_message_once_in_order_and_the_newest_of_too_many(
    world: BrokerWorld,
) -> None:
    seam = evicted(world)
    found = world.store.query(T, f"all-{T}", max_messages=40).messages
    assert [m.queue_offset for m in found] == list(range(260, 300))
    everything = world.store.query(T, f"all-{T}", max_messages=300).messages
    batch = world.store.config.max_msgs_num_batch
    assert [m.queue_offset for m in everything] == list(range(300))[-batch:]
    assert seam < 300


def test_bug_16_messages_behind_the_end_of_the_range_are_not_returned(world: BrokerWorld) -> None:
    world.open()
    world.put(3)
    then = world.clock.now_ms()
    world.clock.advance_ms(5_000)
    world.put(300)
    assert world.store.flush_to_tier()
    world.clock.advance_ms(73 * HOUR_MS)
    world.evict()
    assert [m.queue_offset for m in world.store.query(T, f"all-{T}", 0, then).messages] == [0, 1, 2]
    assert world.store.query(T, f"all-{T}", then + 1, then + 4_999).messages == []
    assert len(world.store.query(T, f"all-{T}", then + 1, then + 5_000, 64).messages) > 0


def test_keys_of_messages_that_are_all_local_are_found_while_the_tier_is_down(world: BrokerWorld) -> None:
    world.open()
    world.put(20)
    assert world.store.flush_to_tier()
    world.driver.plan = Down()
    assert [m.queue_offset for m in world.store.query(T, "key-3").messages] == [2]


def test_a_key_query_that_needs_the_tier_fails_while_it_is_down(world: BrokerWorld) -> None:
    evicted(world)
    world.close()
    world.open()
    world.driver.plan = Down()
    with pytest.raises(TierUnavailable):
        world.store.query(T, "key-1")


# Damage


def _spoil(world: BrokerWorld, offset: int) -> None:
    """Change a byte in the body of a message in the tier."""
    file = world.store.tier.files.find(T, 0)
    assert file is not None
    place = int.from_bytes(file.units.read_units(offset, 1)[:8], "big")
    inner = world.driver.inner
    segment = next(s for s in reversed(file.log.segments) if s.base <= place)
    stored = inner._place.segments[segment.key]
    data = stored if isinstance(stored, bytearray) else stored.data
    data[place - segment.base + 100] ^= 0xFF


def test_a_damaged_message_of_the_tier_is_never_returned_and_never_passed_over(world: BrokerWorld) -> None:
    evicted(world)
    _spoil(world, 5)
    for offset in range(6):
        with pytest.raises(TierError):
            world.store.get(T, 0, offset)
    assert offsets(world.store.get(T, 0, 200))[0] == 200  # Of another block.
    with pytest.raises((CorruptRecord, TierError)):
        world.store.query(T, world.sent[T, 0][5].keys[0])


def test_a_segment_that_is_gone_is_an_error_and_no_emptiness(world: BrokerWorld) -> None:
    evicted(world)
    file = world.store.tier.files.find(T, 0)
    assert file is not None
    world.driver.delete(file.log.segments[0].key)
    with pytest.raises(TierError):
        world.store.get(T, 0, 0)
    world.close()
    world.open(tiered_storage_level=StorageLevel.FORCE)
    with pytest.raises(TierError):
        world.store.get(T, 0, 0)
    assert file.log.segments[0].key.type is SegmentType.COMMIT_LOG


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_numbers_that_no_queue_has_are_answered_at_every_level(world: BrokerWorld, level: int) -> None:
    world.open(tiered_storage_level=level, access_message_in_memory_max_ratio=0)
    world.put(10)
    assert world.store.flush_to_tier()
    for offset, status, next_offset in [
        (-5, GetStatus.OFFSET_TOO_SMALL, 0),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (2**70, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
    ]:
        page = world.store.get(T, 0, offset, 2**40)
        assert (page.status, page.next_offset) == (status, next_offset)
        assert world.store.store_time_of(T, 0, offset) == -1
    assert [world.store.offset_at(T, 0, time_ms) for time_ms in (-1, 2**70)] == [0, 10]
    assert world.store.query(T, "key-1", 10, 5).messages == []
    assert world.store.query(T, "key-1", max_messages=0).messages == []
