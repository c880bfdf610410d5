"""Pages that are ready: what a get would give, without a request or a wait, and only for the group that reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tier.fetch.fetch_world import QUEUE_ID, TOPIC, FetchWorld, Mail, mails
from tiermq.errors import CorruptSegment
from tiermq.kernel import TierPage

Make = Callable[..., FetchWorld]
MIB = 1 << 20


def ready(world: FetchWorld, offset: int, count: int = 32, max_bytes: int = MIB, group: str = "g") -> TierPage | None:
    return world.fetcher.get_cached(TOPIC, QUEUE_ID, offset, count, max_bytes, group)


def reported(page: TierPage | None) -> tuple[object, ...] | None:
    if page is None:
        return None
    return page.status, page.next_offset, page.min_offset, page.max_offset, page.data, page.count


def test_a_ready_page_is_what_a_get_gives_and_asks_the_back_end_nothing(quick: FetchWorld) -> None:
    quick.write(mails(3_000), first=100)
    offset, served = 100, 0
    while offset < 3_100:
        before = len(quick.driver.reads)
        page = ready(quick, offset)
        assert len(quick.driver.reads) == before
        found = quick.get(offset, group="g")
        if page is not None:
            served += 1
            assert reported(page) == reported(found)
            assert len(quick.driver.reads) == before, "what was ready is still there"
        offset = found.next_offset
    assert served > 30


@pytest.mark.parametrize("max_bytes", [1, 500, 2_000])
def test_a_ready_page_keeps_to_the_bytes_that_were_allowed(quick: FetchWorld, max_bytes: int) -> None:
    quick.write(mails(100))
    first = quick.get(0, 8, group="g")
    page = ready(quick, first.next_offset, 16, max_bytes)
    assert page is not None
    assert reported(page) == reported(quick.get(first.next_offset, 16, max_bytes=max_bytes, group="g"))


def test_nothing_is_ready_for_whom_nothing_was_fetched(quick: FetchWorld) -> None:
    quick.write(mails(100))
    assert ready(quick, 0) is None
    quick.get(0, group="g")
    assert ready(quick, 32) is not None
    assert ready(quick, 32, group="another") is None
    assert quick.fetcher.get_cached("no such topic", 0, 0, 32, MIB, "g") is None


@pytest.mark.parametrize("offset", [0, 99, 190, 200, 5_000])
def test_nothing_is_ready_before_the_beginning_at_the_end_and_behind_it(quick: FetchWorld, offset: int) -> None:
    quick.write(mails(100), first=100)
    quick.get(100, group="g")
    assert ready(quick, offset) is None


def test_a_window_that_the_cache_let_go_is_not_ready(quick: FetchWorld) -> None:
    file = quick.write(mails(100))
    quick.get(0, group="g")
    quick.fetcher.cache.forget(file)
    assert ready(quick, 32) is None


def test_a_window_with_damage_is_never_ready(quick: FetchWorld) -> None:
    quick.write([Mail(body=b"0123456789")] * 64)
    quick.damage(quick.queue().log.type, 100, b"\xff" * 8)
    with pytest.raises(CorruptSegment):
        quick.get(0, group="g")
    assert ready(quick, 32) is None  # What is damaged is not kept, so that a repair is seen at once.


def test_where_it_is_time_to_read_ahead_a_get_is_asked_for(make_world: Make) -> None:
    slow = make_world()
    slow.write(mails(20_000))
    offset, was_ready, was_due = 0, 0, 0
    while offset < 20_000:
        page = ready(slow, offset)
        if page is None:
            was_due += 1
            page = slow.get(offset, group="g")
        else:
            was_ready += 1
        assert page.next_offset > offset
        offset = page.next_offset
    assert was_ready > 5 * was_due
    counts = slow.fetcher.counts()
    assert counts.miss_count <= 3, "who reads pages that are ready is read ahead for as well"
    assert counts.served_count == 20_000
