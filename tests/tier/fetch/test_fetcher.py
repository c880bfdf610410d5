"""Gets from the tier: RocketMQ's offset table and numbers, filters, damage, gaps, huge messages, always progress."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tier.fetch.fetch_world import QUEUE_ID, TOPIC, FetchWorld, Mail, Run, mails, unit_of
from tier.flat.flat_world import remove_first
from tiermq import Message
from tiermq.consumequeue.unit import UNIT
from tiermq.errors import CorruptSegment, SegmentMissing, TierUnavailable
from tiermq.kernel import collect_for_tier
from tiermq.message.message_filter import TagFilter
from tiermq.message.stored_message import StoredMessage
from tiermq.status import GetStatus, PutStatus
from tiermq.store.local_store import LocalStore
from tiermq.tier.names import SegmentType

Make = Callable[..., FetchWorld]
LOG = SegmentType.COMMIT_LOG


@pytest.fixture
def hundred(make_world: Make) -> FetchWorld:
    """Messages 100 to 199, as RocketMQ's own tests have them."""
    world = make_world()
    world.write(mails(100), first=100)
    return world


# The offset table


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, GetStatus.OFFSET_TOO_SMALL, 100),
        (99, GetStatus.OFFSET_TOO_SMALL, 100),
        (100, GetStatus.FOUND, 132),
        (180, GetStatus.FOUND, 200),
        (200, GetStatus.OFFSET_OVERFLOW_ONE, 200),
        (300, GetStatus.OFFSET_OVERFLOW_BADLY, 200),
    ],
)
def test_each_offset_has_its_status_and_its_next(
    hundred: FetchWorld, cached: bool, offset: int, status: GetStatus, next_offset: int
) -> None:
    page = hundred.refetch(cache_enable=cached).get(TOPIC, QUEUE_ID, offset)
    assert (page.status, page.next_offset, page.min_offset, page.max_offset) == (status, next_offset, 100, 200)
    found = [message.queue_offset for message in page.messages]
    assert found == (list(range(offset, next_offset)) if status is GetStatus.FOUND else [])
    assert page.count == len(found)


def test_an_unknown_queue_and_an_empty_one_keep_the_requested_offset(world: FetchWorld) -> None:
    page = world.get(7)
    assert (page.status, page.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 7)
    world.files.find_or_create(TOPIC, QUEUE_ID)
    page = world.get(7)
    assert (page.status, page.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 7)
    world.queue(first=0)
    assert world.get(7).status is GetStatus.NO_MESSAGE_IN_QUEUE


def test_a_queue_that_begins_later_and_has_nothing_yet_ends_where_it_begins(world: FetchWorld) -> None:
    world.queue(first=500)
    assert (world.get(500).status, world.get(500).next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 500)
    assert world.get(3).status is GetStatus.OFFSET_TOO_SMALL


# Direct reads


def test_a_direct_read_costs_two_requests_and_keeps_nothing(hundred: FetchWorld) -> None:
    fetcher = hundred.refetch(cache_enable=False)
    assert fetcher.get(TOPIC, QUEUE_ID, 100).next_offset == 132
    assert len(hundred.driver.reads) == 2
    assert fetcher.get(TOPIC, QUEUE_ID, 180).count == 20
    assert fetcher.cache.count == 0


def test_thresholds_of_count_and_size_limit_a_direct_read(hundred: FetchWorld) -> None:
    size = unit_of(hundred.queue(), 100)[1]
    by_size = hundred.refetch(cache_enable=False, message_size_threshold=8 * size)
    assert [by_size.get(TOPIC, QUEUE_ID, 180).next_offset, by_size.get(TOPIC, QUEUE_ID, 180).count] == [188, 8]
    by_count = hundred.refetch(cache_enable=False, message_count_threshold=8)
    assert by_count.get(TOPIC, QUEUE_ID, 180).count == 8


def test_a_direct_read_filters_afterwards_and_goes_on_behind_what_it_looked_at(make_world: Make) -> None:
    world = make_world(cache_enable=False)
    world.write([Mail(tag=str(n % 2)) for n in range(100)], first=100)
    page = world.get(100, message_filter=TagFilter("1"))
    assert (page.count, page.next_offset) == (16, 132)
    page = world.get(100, message_filter=TagFilter("7"))
    assert (page.status, page.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 132)


# The cache loop


def test_the_cache_loop_returns_a_full_batch_at_every_call(make_world: Make) -> None:
    world = make_world(message_count_threshold=32)
    world.write(mails(100), first=100)
    offset, calls = 100, 0
    while offset < 200:
        page = world.get(offset, 4)
        assert [message.queue_offset for message in page.messages] == list(range(offset, offset + 4))
        offset, calls = page.next_offset, calls + 1
    assert calls == 25


@pytest.mark.parametrize("batch", [1, 3, 7, 32])
def test_pages_are_full_over_the_ends_of_windows_that_are_in_memory(make_world: Make, batch: int) -> None:
    world = make_world(message_count_threshold=50)
    world.write(mails(1000))
    offset = 0
    while offset < 1000:
        page = world.get(offset, batch)
        if offset > 100:
            assert page.count == min(batch, 1000 - offset)
        assert [message.queue_offset for message in page.messages] == list(range(offset, page.next_offset))
        offset = page.next_offset


def test_reading_ahead_needs_few_requests(make_world: Make) -> None:
    world = make_world()
    world.write(mails(20_000))
    assert world.read_all() == list(range(20_000))
    assert len(world.driver.reads) <= 2 * 12
    counts = world.fetcher.counts()
    assert counts.served_count == 20_000
    assert counts.miss_count <= 2
    assert counts.hit_count + counts.miss_count >= 20_000 // 32
    assert counts.fetched_bytes == counts.served_bytes == world.driver.bytes_read(LOG)


def test_transfer_limits_hold_and_the_first_message_always_goes(world: FetchWorld) -> None:
    world.write([Mail(body=bytes(100_000))] * 10)
    size = unit_of(world.queue(), 0)[1]
    assert world.get(0).count == 2
    assert world.get(0, max_bytes=3 * size).count == 2
    assert world.get(0, max_bytes=size).count == 1
    assert world.get(0, max_bytes=0).count == 1
    assert world.get(0, 0).count == 1
    assert world.fetcher.get(TOPIC, QUEUE_ID, 0, 10_000).count == 2


@pytest.mark.parametrize("cached", [True, False])
def test_messages_larger_than_every_limit_are_served_one_by_one(make_world: Make, cached: bool) -> None:
    world = make_world(cache_enable=cached, transfer_bytes=1_000, message_size_threshold=2_000, cache_bytes=50_000)
    world.write([Mail(body=bytes(n * 10_000)) for n in (1, 0, 0, 9, 3, 0)])
    assert world.read_all() == list(range(6))


# Filters


def test_tag_filters_count_on_over_windows_as_rocketmq_counts(make_world: Make) -> None:
    for threshold in (4096, 32):
        world = make_world(message_count_threshold=threshold)
        world.write([Mail(tag=str(n % 2)) for n in range(100)], first=100)
        found, page = [], world.get(100, message_filter=TagFilter("1 || 2"))
        while page.next_offset < 200:
            found += [message.queue_offset for message in page.messages]
            page = world.get(page.next_offset, message_filter=TagFilter("1 || 2"))
        found += [message.queue_offset for message in page.messages]
        assert found == list(range(101, 200, 2))


def test_tag_filters_have_rocketmqs_numbers(hundred: FetchWorld) -> None:
    world = hundred
    world.write([Mail(tag=str(n % 2)) for n in range(100)], topic="tags", first=100)
    get = world.fetcher.get
    either = TagFilter("1 || 2")
    pages = [get("tags", QUEUE_ID, offset, 32, message_filter=either) for offset in (100, 164)]
    assert [(page.count, page.next_offset) for page in pages] == [(32, 164), (18, 200)]
    assert get("tags", QUEUE_ID, 200, message_filter=either).next_offset == 200
    assert get("tags", QUEUE_ID, 100, 32, message_filter=TagFilter("0")).next_offset == 163


def test_sparse_tags_are_found_with_one_call(world: FetchWorld) -> None:
    world.write([Mail(tag=str(n)) for n in range(100)], first=100)
    page = world.get(100, 2, message_filter=TagFilter("10 || 20"))
    assert ([message.queue_offset for message in page.messages], page.next_offset) == ([110, 120], 121)


def test_a_filter_that_finds_nothing_looks_at_a_bounded_number_of_messages_and_goes_on(make_world: Make) -> None:
    world = make_world(message_count_threshold=100)
    world.write(mails(1000, tag="other"))
    page = world.get(0, message_filter=TagFilter("wanted"))
    assert (page.status, page.count) == (GetStatus.NO_MATCHED_MESSAGE, 0)
    assert 100 <= page.next_offset <= 200
    assert world.read_all(message_filter=TagFilter("wanted")) == []


def test_gap_10_different_filters_on_one_range_fetch_it_once(world: FetchWorld) -> None:
    world.write([Mail(tag=str(n % 3)) for n in range(60)])
    for tag in "012":
        assert world.get(0, message_filter=TagFilter(tag), group=f"group-{tag}").count == 20
    assert len(world.driver.reads) == 2


# Errors, damage and gaps


def test_bug_07_a_tier_that_cannot_be_reached_is_an_error_and_not_an_empty_page(hundred: FetchWorld) -> None:
    hundred.driver.down = True
    for _ in range(3):
        with pytest.raises(TierUnavailable):
            hundred.get(100)
    hundred.driver.down = False
    assert hundred.get(100).count == 32


def test_what_is_in_memory_is_served_while_the_tier_is_away(hundred: FetchWorld) -> None:
    hundred.get(100)
    hundred.driver.down = True
    assert hundred.get(132).count == 32


def test_a_failed_read_ahead_is_no_error_until_it_is_needed(make_world: Make) -> None:
    world = make_world()
    world.write(mails(5_000))
    world.get(0)
    world.driver.down = True
    world.get(32)
    with pytest.raises(TierUnavailable):
        world.get(64)
    world.driver.down = False
    assert world.read_all(64) == list(range(64, 5_000))


def test_a_damaged_message_is_an_error_logged_and_never_passed_over(
    make_world: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for cached in (True, False):
        world = make_world(cache_enable=cached)
        file = world.write(mails(100))
        for at in (0, 17, 99):
            world.damage(LOG, unit_of(file, at)[0] + 90, b"\xff\xff\xff")
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            for at in (0, 17, 99):
                with pytest.raises(CorruptSegment, match=f"broker-a/orders/3.*queue offset {at} is damaged"):
                    world.get(at)
            page = world.get(1)
            assert (page.status, page.next_offset, page.count) == (GetStatus.FOUND, 17, 16)
            page = world.get(18, 100)
            assert [message.queue_offset for message in page.messages] == list(range(18, page.next_offset))
        assert world.fetcher.counts().corrupt_count >= 3
        assert "damaged messages" in caplog.text
        assert "broker-a/orders/3" in caplog.text


@pytest.mark.parametrize("cached", [True, False])
def test_a_record_that_names_another_queue_or_topic_since_it_went_bad_is_an_error(
    make_world: Make, cached: bool
) -> None:
    world = make_world(cache_enable=cached)
    file = world.write(mails(100))
    world.damage(LOG, unit_of(file, 17)[0] + 15, b"\x07")  # Queue 7 instead of 3.
    topic_at = 84 + 4 + len(mails(1)[0].body) + 1
    world.damage(LOG, unit_of(file, 40)[0] + topic_at, b"a")  # And "arders".
    assert world.get(0).next_offset == 17
    assert world.get(18).next_offset == 40
    for at in (17, 40):
        with pytest.raises(CorruptSegment):
            world.get(at)


@pytest.mark.parametrize("cached", [True, False])
def test_no_page_leads_past_a_long_run_of_damage(make_world: Make, cached: bool) -> None:
    world = make_world(cache_enable=cached)
    file = world.write(mails(500))
    for at in range(1, 499):
        world.damage(LOG, unit_of(file, at)[0] + 4, b"\0\0\0\0")
    assert (world.get(0).count, world.get(0).next_offset) == (1, 1)
    for at in range(1, 499):
        with pytest.raises(CorruptSegment):
            world.get(at)
    assert world.get(499).count == 1


@pytest.mark.parametrize("cached", [True, False])
def test_a_filter_that_drops_everything_leads_up_to_the_damage_and_not_past_it(make_world: Make, cached: bool) -> None:
    world = make_world(cache_enable=cached)
    file = world.write(mails(100))
    world.damage(LOG, unit_of(file, 30)[0] + 90, b"\xff\xff\xff")
    nothing = TagFilter("unknown")
    page = world.fetcher.get(TOPIC, QUEUE_ID, 0, 100, None, nothing)
    assert (page.status, page.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 30)
    with pytest.raises(CorruptSegment):
        world.fetcher.get(TOPIC, QUEUE_ID, 30, 100, None, nothing)


def test_what_was_damaged_is_served_as_soon_as_it_is_repaired(make_world: Make) -> None:
    world = make_world()
    file = world.write(mails(100))
    place = unit_of(file, 17)[0] + 90
    whole = bytes(file.log.read(place, 3))
    world.damage(LOG, place, b"\xff\xff\xff")
    with pytest.raises(CorruptSegment):
        world.get(17)
    world.damage(LOG, place, whole)
    assert world.get(17).messages[0].queue_offset == 17


def test_gaps_are_passed_over_with_the_right_next_offsets(make_world: Make) -> None:
    for cached in (True, False):
        world = make_world(cache_enable=cached)
        file = world.write(mails(10))
        assert file.skip_to(5_000, "lost before it could be copied") is not None
        world.write(mails(10))
        assert world.read_all() == [*range(10), *range(5_000, 5_010)]
        page = world.get(8)
        assert [message.queue_offset for message in page.messages][:2] == [8, 9]
        assert world.fetcher.counts().corrupt_count == 0


def test_bug_22_nothing_below_the_oldest_record_is_read_though_its_unit_is_there(make_world: Make) -> None:
    world = make_world(log_bytes=2_000)
    file = world.write(mails(100))
    remove_first(file.log, file.log.segments[0])
    assert file.units.min_queue_offset == 0
    low = file.min_offset
    assert low > 0
    page = world.get(0)
    assert (page.status, page.next_offset, page.min_offset) == (GetStatus.OFFSET_TOO_SMALL, low, low)
    assert world.read_all(low) == list(range(low, 100))


def test_messages_that_retention_takes_during_a_get_are_too_small_and_no_error(make_world: Make) -> None:
    world = make_world(log_bytes=2_000)
    file = world.write(mails(100))
    original = world.driver.read

    def read_late(key, position, length):  # type: ignore[no-untyped-def]
        if key.type is LOG and len(file.log.segments) > 5:
            while len(file.log.segments) > 5:
                remove_first(file.log, file.log.segments[0])
        return original(key, position, length)

    world.driver.read = read_late  # type: ignore[method-assign]
    page = world.get(0)
    assert (page.status, page.next_offset) == (GetStatus.OFFSET_TOO_SMALL, file.min_offset)


def test_a_segment_that_is_missing_without_reason_is_an_error(world: FetchWorld) -> None:
    file = world.write(mails(100))
    world.driver.delete(file.queue.segment(LOG, 0))
    with pytest.raises(SegmentMissing):
        world.get(0)


def test_a_queue_that_was_deleted_and_came_back_shows_nothing_of_its_first_life(world: FetchWorld) -> None:
    file = world.write(mails(50))
    assert world.get(0).count == 32
    world.files.destroy(TOPIC, QUEUE_ID)
    world.fetcher.forget(file)
    assert world.fetcher.cache.count == 0
    assert world.get(0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    world.write([Mail(body=b"second life")] * 40)
    assert {message.body for message in world.get(0).messages} == {b"second life"}
    assert world.fetcher.counts().served_count == 64


def test_hosts_of_either_shape_and_long_topics_are_served(world: FetchWorld) -> None:
    topic = "T" * 160
    six = Mail(born_host="[2001:db8::1]:7", store_host="[2001:db8::2]:9", store_ms=77)
    world.write([six, Mail(), six, Mail(born_host="[::1]:1")], topic=topic)
    page = world.fetcher.get(topic, QUEUE_ID, 0)
    assert page.messages[0].born_host == "[2001:db8::1]:7"
    assert [message.version for message in page.messages] == [2, 2, 2, 2]
    assert world.fetcher.counts().corrupt_count == 0


def test_a_record_with_a_crc_property_is_served_though_the_property_is_stale(world: FetchWorld) -> None:
    record = bytearray(Mail(crc_property=True).record(0, 9_999))
    struct.pack_into(">q", record, 28, 0)
    world.queue().write(Run(bytes(record), UNIT.pack(0, len(record), 0), 1, 1, 0, 0))
    assert world.read_all() == [0]


def test_bug_23_bounds_cost_no_request_so_a_get_never_waits_inside_of_another(hundred: FetchWorld) -> None:
    for offset in (0, 99, 200, 300):
        hundred.get(offset)
    assert hundred.driver.reads == []


def test_what_a_local_store_stored_comes_back_from_its_tier_the_same_but_for_its_place(
    make_world: Make, tmp_path: Path
) -> None:
    world = make_world()
    with LocalStore.open(tmp_path / "local", mapped_file_size_commit_log=1 << 20) as store:
        for number in range(300):
            message = Message(
                TOPIC, b"body %d" % number * (number % 9), QUEUE_ID, keys=[f"k{number}"], tags=f"t{number % 4}"
            )
            assert store.put(message).status is PutStatus.PUT_OK
            store.put(Message("another", b"between", 0))
        store.dispatch_now()
        file = world.queue()
        queue = store._parts.queues.find(TOPIC, QUEUE_ID)
        assert queue is not None
        units = queue.files.segments
        while file.append_offset < 300:
            run = collect_for_tier(
                units, store._parts.log.files.segments, file.append_offset, 64, 1 << 20, file.log.append_offset
            )
            assert file.write(run)
        for chosen in (None, TagFilter("t1 || t3")):
            offset = 0
            while offset < 300:
                hot = store.get(TOPIC, QUEUE_ID, offset, message_filter=chosen)
                cold = world.get(offset, message_filter=chosen)
                assert [_without_place(m) for m in cold.messages] == [_without_place(m) for m in hot.messages]
                assert (cold.status, cold.min_offset, cold.max_offset) == (hot.status, hot.min_offset, hot.max_offset)
                if chosen is None:
                    assert cold.next_offset == hot.next_offset
                offset = cold.next_offset


def _without_place(message: StoredMessage) -> tuple[Any, ...]:
    return tuple(value for name, value in message.to_dict().items() if name not in ("physical_offset", "message_id"))
