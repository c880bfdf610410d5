"""Gets from a back end without waits: fetched when they are needed, in memory that is used again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tier.fetch.fetch_world import UNIT_BYTES, FetchWorld, IdlePool, Mail, mails, quick_pace, unit_of
from tiermq.errors import CorruptSegment, TierUnavailable
from tiermq.message.message_filter import TagFilter
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.fetch import fetcher as fetcher_module
from tiermq.tier.fetch.read_ahead import WINDOW_MIN
from tiermq.tier.names import SegmentType

Make = Callable[..., FetchWorld]
LOG = SegmentType.COMMIT_LOG


def log_reads(world: FetchWorld) -> list[tuple[int, int]]:
    return [(position, length) for key, position, length in world.driver.reads if key.type is LOG]


def test_no_other_thread_is_asked_to_fetch(quick: FetchWorld) -> None:
    quick.write(mails(5_000))
    assert quick.read_all() == list(range(5_000))
    assert quick.pool.waiting == []
    reads = log_reads(quick)
    assert all(first + length == second for (first, length), (second, _) in pairwise(reads))
    assert sum(length for _, length in reads) == quick.queue().log.commit_offset


def test_a_reader_in_order_gets_large_windows_soon_and_one_who_jumps_small_ones(quick: FetchWorld) -> None:
    quick.write([Mail(body=b"all alike")] * 30_000)
    quick.read_all()
    assert len(log_reads(quick)) <= 6
    quick.refetch()
    for offset in (20_000, 3_000, 11_000):
        quick.get(offset)
    units = [length for key, _, length in quick.driver.reads if key.type is not LOG]
    assert units == [WINDOW_MIN * UNIT_BYTES] * 3


def test_a_window_has_a_limit_in_bytes(quick: FetchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_module, "QUICK_BYTES_MAX", 50_000)
    quick.write([Mail(body=bytes(1_000))] * 2_000)
    assert quick.read_all() == list(range(2_000))
    assert 40_000 < max(length for _, length in log_reads(quick)[1:]) <= 50_000


@pytest.mark.parametrize("batch", [1, 3, 7, 32])
def test_every_page_is_full_also_over_the_ends_of_windows(quick: FetchWorld, batch: int) -> None:
    quick.write(mails(1_000))
    offset = 0
    while offset < 1_000:
        page = quick.get(offset, batch)
        assert page.count == min(batch, 1_000 - offset)
        assert [message.queue_offset for message in page.messages] == list(range(offset, page.next_offset))
        offset = page.next_offset


def test_what_was_found_is_given_when_the_next_window_cannot_be_fetched(quick: FetchWorld) -> None:
    quick.write(mails(200))
    assert quick.get(0, 30).count == 30
    assert quick.get(30, 30).count == 30
    quick.driver.down = True
    page = quick.get(60, 30)
    assert (page.count, page.next_offset) == (WINDOW_MIN - 60, WINDOW_MIN)
    with pytest.raises(TierUnavailable):
        quick.get(WINDOW_MIN, 30)
    quick.driver.down = False
    assert quick.get(WINDOW_MIN, 30).count == 30


def test_a_filter_sees_every_message_once(quick: FetchWorld) -> None:
    quick.write([Mail(tag="rare" if number % 100 == 0 else "often") for number in range(2_000)])
    assert quick.read_all(message_filter=TagFilter("rare")) == list(range(0, 2_000, 100))


def test_a_single_reader_keeps_little_of_what_it_has_read(quick: FetchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_module, "QUICK_HISTORY_BYTES", 100_000)
    monkeypatch.setattr(fetcher_module, "QUICK_BYTES_MAX", 50_000)
    quick.write([Mail(body=bytes(1_000))] * 2_000)
    highest = offset = 0
    while offset < 2_000:
        offset = quick.get(offset).next_offset
        highest = max(highest, quick.fetcher.cache.bytes)
    assert highest < 100_000 + 60_000


def test_a_damaged_record_is_an_error_and_counted_whatever_lay_in_the_memory_before(
    make_world: Make, tmp_path: Path
) -> None:
    driver = PosixDriver(tmp_path / "tier")
    world = make_world(driver=driver, pace=quick_pace(), pool=IdlePool())
    file = world.write([Mail(body=b"%04d" % number * 100) for number in range(2_000)])
    assert world.read_all() == list(range(2_000))
    place, size, _ = unit_of(file, 1_234)
    path = tmp_path / "tier" / file.queue.segment(LOG, 0).path
    with path.open("r+b") as segment:
        segment.seek(place + size // 2)
        segment.write(b"\xff")
    world.refetch(IdlePool())
    gc.collect()
    assert driver._memory.idle_bytes > 0
    with pytest.raises(CorruptSegment):
        world.read_all()
    assert world.read_all(1_235) == list(range(1_235, 2_000))
    assert world.fetcher.counts().corrupt_count > 0


def test_pages_keep_their_bytes_when_the_memory_of_their_window_is_used_again(
    make_world: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "QUICK_HISTORY_BYTES", 0)
    monkeypatch.setattr(fetcher_module, "QUICK_BYTES_MAX", 150_000)
    world = make_world(driver=PosixDriver(tmp_path / "tier"), pace=quick_pace(), pool=IdlePool())
    world.write([Mail(body=b"%05d" % number * 60) for number in range(3_000)])
    pages = []
    offset = 0
    while offset < 3_000:
        pages.append(world.get(offset))
        offset = pages[-1].next_offset
    bodies = [message.body for page in pages for message in page.messages]
    assert bodies == [b"%05d" % number * 60 for number in range(3_000)]
