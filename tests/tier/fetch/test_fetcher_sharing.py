"""Many readers at once: each byte is fetched once, memory is bounded, read-ahead adapts, no reader starves."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from tier.fetch.fetch_world import QUEUE_ID, TOPIC, FetchWorld, IdlePool, Mail, mails
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.fetch import fetcher as fetcher_module
from tiermq.tier.fetch.read_ahead import WINDOW_MIN
from tiermq.tier.names import SegmentType

Make = Callable[..., FetchWorld]
LOG = SegmentType.COMMIT_LOG


def everything_fetched_once(world: FetchWorld) -> None:
    """No byte of the log was asked for twice."""
    ranges = sorted(
        (key.base + position, key.base + position + length)
        for key, position, length in world.driver.reads
        if key.type is LOG
    )
    for (_, end), (start, _) in pairwise(ranges):
        assert start >= end, ranges


@pytest.mark.parametrize("same_start", [True, False])
def test_each_byte_is_fetched_once_however_many_threads_read(make_world: Make, same_start: bool) -> None:
    with ThreadPoolExecutor(4) as ahead:
        world = make_world(pool=ahead, message_count_threshold=100)
        world.write(mails(3_000))
        start = threading.Barrier(12)

        def read(number: int) -> list[int]:
            start.wait()
            return world.read_all(0 if same_start else number * 200, group=f"group-{number}")

        with ThreadPoolExecutor(12) as readers:
            results = list(readers.map(read, range(12)))
        for number, found in enumerate(results):
            assert found == list(range(0 if same_start else number * 200, 3_000))
    everything_fetched_once(world)
    counts = world.fetcher.counts()
    assert counts.fetched_bytes == world.driver.bytes_read(LOG) == world.queue().log.commit_offset


def test_broadcast_groups_share_what_one_of_them_fetched(make_world: Make) -> None:
    world = make_world()
    world.write(mails(5_000))
    for offset in range(0, 5_000, 32):
        for group in range(20):
            assert world.get(offset, group=f"group-{group}").count > 0
    everything_fetched_once(world)
    assert world.driver.bytes_read(LOG) == world.queue().log.commit_offset


def test_a_window_that_others_have_still_to_read_is_not_let_go(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "HISTORY_BYTES", 10_000)
    world = make_world(message_count_threshold=64)
    world.write(mails(3_000))
    world.get(0, group="slow")
    world.read_all(group="fast")
    assert world.read_all(32, group="slow") == list(range(32, 3_000))
    everything_fetched_once(world)


def test_a_single_reader_does_not_fill_the_memory_with_what_it_has_read(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "HISTORY_BYTES", 100_000)
    world = make_world(message_count_threshold=8)
    world.write([Mail(body=bytes(1_000))] * 4_000)
    highest = 0
    offset = 0
    while offset < 4_000:
        offset = world.get(offset).next_offset
        highest = max(highest, world.fetcher.cache.bytes)
    window_bytes = 8 * fetcher_module.AHEAD_FACTOR * 1_250
    assert highest < 100_000 + 4 * window_bytes < world.queue().log.commit_offset / 5


def test_100_groups_stay_within_the_limit_and_all_come_through(make_world: Make) -> None:
    world = make_world(cache_bytes=1_000_000, message_count_threshold=4_096)
    for number in range(10):
        world.write([Mail(body=bytes(200))] * 400, queue_id=number)
    places = {f"group-{number}": (number % 10, 0) for number in range(100)}
    seen: Counter[str] = Counter()
    while places:
        for group, (queue_id, offset) in list(places.items()):
            page = world.fetcher.get(TOPIC, queue_id, offset, group=group)
            assert world.fetcher.cache.bytes <= 1_000_000
            seen[group] += page.count
            places[group] = (queue_id, page.next_offset)
            if page.next_offset >= 400:
                del places[group]
    assert set(seen.values()) == {400}


def test_a_slow_group_with_big_windows_does_not_make_a_fast_one_fetch_again(make_world: Make) -> None:
    world = make_world(cache_bytes=2_000_000)
    world.write([Mail(body=bytes(300))] * 4_000, queue_id=0)
    world.write([Mail(body=bytes(50_000))] * 200, queue_id=1)
    slow = 0
    offset = 0
    while offset < 4_000:
        offset = world.fetcher.get(TOPIC, 0, offset, group="fast").next_offset
        for _ in range(3):
            slow = world.fetcher.get(TOPIC, 1, slow % 200, 1, group="slow").next_offset
        assert world.fetcher.cache.bytes <= 2_000_000
    fast = [(position, length) for key, position, length in world.driver.reads if key.type is LOG and key.queue_id == 0]
    assert sum(length for _, length in fast) == world.files.find(TOPIC, 0).log.commit_offset  # type: ignore[union-attr]


def test_unread_messages_that_expire_halve_the_window_of_their_group(make_world: Make) -> None:
    world = make_world()
    world.write(mails(20_000))
    offset = 0
    for _ in range(12):
        offset = world.get(offset, group="g").next_offset
    reader = world.fetcher._readers[("g", world.queue())]
    grown = reader.ahead.window
    assert grown > 4_096
    world.clock.advance_ms(10 * 60_000)
    assert world.fetcher.cache.expire() > 0
    assert WINDOW_MIN <= reader.ahead.window <= grown // 2
    assert world.read_all(offset, group="g") == list(range(offset, 20_000))


def test_a_reader_who_has_to_wait_gets_more_windows_ahead(make_world: Make) -> None:
    pool = IdlePool()
    world = make_world(pool=pool)
    world.write(mails(20_000))
    offset = 0
    while offset < 10_000:
        offset = world.get(offset, group="g").next_offset
    assert world.fetcher._readers[("g", world.queue())].ahead.depth > 2
    waiting = len(pool.waiting)
    assert 0 < waiting < 100
    pool.run_all()
    everything_fetched_once(world)


def test_nothing_is_asked_for_twice_while_it_waits_for_a_thread(make_world: Make) -> None:
    pool = IdlePool()
    world = make_world(pool=pool)
    world.write(mails(4_000))
    world.get(0)
    for offset in range(32, 64, 4):
        world.get(offset, 4)
    begins = len(pool.waiting)
    for _ in range(50):
        world.get(60, 4)
        world.get(60, 4)
    assert len(pool.waiting) <= begins + 2


def test_gap_10_groups_jumping_about_are_not_read_ahead_for(make_world: Make) -> None:
    pool = IdlePool()
    world = make_world(pool=pool)
    world.write(mails(5_000))
    for offset in (4_000, 100, 2_000, 3_000, 50):
        assert world.get(offset, group="g").count == 32
    assert pool.waiting == []


def test_a_closed_pool_means_no_read_ahead_and_no_error(make_world: Make) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    world = make_world(pool=pool)
    world.write(mails(2_000))
    assert world.read_all() == list(range(2_000))


def test_bug_23_one_thread_for_read_ahead_is_enough_for_many_readers(make_world: Make) -> None:
    with ThreadPoolExecutor(1) as ahead:
        world = make_world(pool=ahead, message_count_threshold=64)
        for number in range(8):
            world.write(mails(1_000), queue_id=number)
        with ThreadPoolExecutor(8) as readers:

            def read(queue_id: int) -> int:
                offset = 0
                while offset < 1_000:
                    offset = world.fetcher.get(TOPIC, queue_id, offset, group="g").next_offset
                return offset

            assert list(readers.map(read, range(8))) == [1_000] * 8


def test_bug_06_concurrent_readers_of_a_posix_tier_get_their_own_bytes(make_world: Make, tmp_path) -> None:  # type: ignore[no-untyped-def]
    with ThreadPoolExecutor(2) as ahead:
        world = make_world(pool=ahead, driver=PosixDriver(tmp_path / "tier"), message_count_threshold=50)
        world.write([Mail(body=b"%05d" % n * 20) for n in range(1_500)])

        def read(number: int) -> bool:
            offset = number * 37
            while offset < 1_500:
                page = world.get(offset, 7, group=f"group-{number}")
                for message in page.messages:
                    assert message.body == b"%05d" % message.queue_offset * 20
                offset = page.next_offset
            return True

        with ThreadPoolExecutor(8) as readers:
            assert all(readers.map(read, range(8)))
    assert world.fetcher.counts().corrupt_count == 0


def test_the_number_of_remembered_readers_is_bounded_and_counts_survive(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "READERS_MAX", 10)
    world = make_world()
    world.write(mails(10), queue_id=QUEUE_ID)
    for number in range(35):
        world.get(0, group=f"group-{number}")
    assert len(world.fetcher._readers) == 10
    assert sum(map(len, world.fetcher._by_file.values())) == 10
    assert world.fetcher.counts().served_count == 350


def test_a_window_that_is_read_slowly_is_kept_as_long_as_it_is_read(make_world: Make) -> None:
    world = make_world()
    world.write(mails(64))
    for offset in range(0, 64, 2):
        assert world.get(offset, 2).count == 2
        world.clock.advance_ms(14_000)
        assert world.fetcher.cache.expire() == 0
    assert len(world.driver.reads) == 2
