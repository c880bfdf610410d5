"""The cache weighs to the byte, shares fairly between groups, and lets go of what it drops."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from present import present
from simulation.manual_clock import ManualClock
from tier.fetch.fetch_world import Mail, Run
from tiermq.tier.fetch.window_cache import UNREAD_FACTOR, Window, WindowCache

EXPIRE_MS = 15_000


class Weighted:
    """A stand-in for a window: the cache asks it for its place and its weight."""

    def __init__(self, first_offset: int, count: int, weight: int) -> None:
        self.first_offset = first_offset
        self.count = count
        self.end_offset = first_offset + count
        self.weight = weight


class Cache(WindowCache):
    """A cache on a manual clock that notes what goes unread, and can be asked whether its books are right."""

    def __init__(self, max_bytes: int) -> None:
        self.clock = ManualClock()
        self.unread: list[tuple[str, Hashable]] = []
        super().__init__(max_bytes, EXPIRE_MS, self.clock, lambda owner, queue: self.unread.append((owner, queue)))

    def add(
        self, owner: str, first: int, *, weight: int = 10, count: int = 10, queue: str = "q", read: bool = False
    ) -> Any:
        return self.put(queue, Weighted(first, count, weight), owner, read=read)  # type: ignore[arg-type]

    def check(self) -> None:
        kept = [one for run in self._queues.values() for one in run]
        assert self.bytes == sum(one.weight for one in kept) <= self.max_bytes
        assert self.count == len(kept)
        assert all(one.window is not None and one.weight == one.window.weight for one in kept)
        owners = {one.owner for one in kept}
        assert self._owners.keys() == owners
        for owner in owners:
            assert self.bytes_of(owner) == sum(one.weight for one in kept if one.owner == owner) > 0
        for order in (self._all, *self._owners.values()):
            assert all(one.read for one in order.read)
            assert not any(one.read for one in order.unread)
        for run in self._queues.values():
            assert [one.first_offset for one in run] == sorted({one.first_offset for one in run})


def test_a_window_is_found_by_any_of_its_offsets() -> None:
    cache = Cache(100)
    cache.add("g", 100)
    assert [cache.find("q", offset) is not None for offset in (99, 100, 109, 110)] == [False, True, True, False]
    assert cache.find("other", 100) is None


def test_what_is_covered_is_known_without_reading_it() -> None:
    cache = Cache(100)
    for first in (10, 20, 40):
        cache.add("g", first)
    assert [cache.covered_until("q", offset) for offset in (5, 10, 15, 30, 45, 50)] == [5, 30, 30, 30, 50, 50]
    assert [cache.next_start("q", offset) for offset in (5, 10, 30, 40)] == [10, 20, 40, None]
    assert cache.peek("q", 12) is not None
    assert len(cache._all.read) == 0


def test_the_weight_is_limited_to_the_byte() -> None:
    cache = Cache(100)
    for number in range(50):
        cache.add("g", number * 10, weight=33)
        cache.check()
    assert cache.bytes == 99


def test_bug_08_a_window_weighs_all_the_memory_that_it_holds() -> None:
    run = Run.of([Mail(body=bytes(1000))] * 50, 0, 0)
    window = Window(0, run.units, run.data, 0)
    cache = Cache(window.weight)
    cache.put("q", window, "g")
    assert cache.bytes == window.weight >= window.data.nbytes + len(window.units)
    assert cache.count == 1


def test_a_window_heavier_than_the_cache_is_not_kept() -> None:
    cache = Cache(100)
    cache.add("g", 0, weight=60)
    assert cache.add("g", 10, weight=101) is None
    assert cache.bytes == 60


def test_a_group_gives_what_it_has_read_before_what_still_waits_for_it() -> None:
    cache = Cache(30)
    for first in (0, 10, 20):
        cache.add("g", first)
    cache.find("q", 15)
    cache.add("g", 30)
    assert [cache.peek("q", offset) is not None for offset in (0, 10, 20, 30)] == [True, False, True, True]
    assert cache.unread == []


def test_of_what_waits_a_group_gives_what_it_would_reach_last_and_is_notified() -> None:
    cache = Cache(30)
    for first in (0, 10, 20):
        cache.add("g", first)
    cache.add("g", 30)
    assert [cache.peek("q", offset) is not None for offset in (0, 10, 20, 30)] == [True, True, False, True]
    assert cache.unread == [("g", "q")]


def test_a_window_that_is_being_read_is_not_the_first_to_go() -> None:
    cache = Cache(30)
    current, other = cache.add("g", 0, read=True), cache.add("g", 10, read=True)
    cache.add("g", 20, read=True)
    current.fresh = True
    cache.add("g", 30, read=True)
    assert current.window is not None
    assert other.window is None


def test_the_group_that_would_hold_most_gives() -> None:
    cache = Cache(100)
    for first in range(0, 50, 10):
        cache.add("fast", first)
    cache.add("slow", 1000, weight=50)
    cache.add("slow", 2000, weight=50)
    assert (cache.bytes_of("fast"), cache.bytes_of("slow")) == (50, 50)
    assert cache.peek("q", 1000) is None


def test_a_window_for_which_only_its_own_group_could_give_is_not_kept() -> None:
    cache = Cache(100)
    cache.add("fast", 0, weight=50)
    cache.add("other", 10, weight=50)
    assert cache.add("slow", 1000, weight=80) is None
    assert cache.bytes == 100


@given(st.data())
def test_no_group_is_pushed_below_its_share_by_others(data: st.DataObject) -> None:
    """Who holds at most the n-th part, where n counts the groups, loses nothing to the puts of others."""
    cache = Cache(1000)
    for number in range(data.draw(st.integers(1, 60))):
        owner = data.draw(st.sampled_from("abcd"))
        weight = data.draw(st.integers(1, 400))
        before = {name: cache.bytes_of(name) for name in "abcd" if cache.bytes_of(name)}
        groups = len(before.keys() | {owner})
        cache.add(owner, number * 10, weight=weight)
        for name, held in before.items():
            if name != owner and held <= 1000 / groups:
                assert cache.bytes_of(name) == held, (name, owner, weight)
            elif name != owner:
                assert cache.bytes_of(name) >= 0
        cache.check()


def test_among_100_groups_a_slow_one_with_big_windows_takes_nothing_from_the_others() -> None:
    cache = Cache(100_000)
    groups = [f"fast-{number}" for number in range(99)]
    for group in groups:
        for first in (0, 10):
            cache.add(group, first, weight=500, queue=group)
    for first in range(0, 100_000, 10):
        cache.add("slow", first, weight=900)
    assert all(cache.bytes_of(group) == 1000 for group in groups)
    assert 0 < cache.bytes_of("slow") <= 1000
    cache.check()


def test_two_ttls_an_unread_window_is_kept_longer() -> None:
    cache = Cache(100)
    cache.add("g", 0)
    cache.add("g", 10, read=True)
    cache.clock.advance_ms(EXPIRE_MS - 1)
    assert cache.expire() == 0
    cache.clock.advance_ms(1)
    assert cache.expire() == 1
    assert cache.peek("q", 0) is not None
    assert cache.unread == []
    cache.clock.advance_ms(EXPIRE_MS * (UNREAD_FACTOR - 1))
    assert cache.expire() == 1
    assert cache.unread == [("g", "q")]
    cache.check()


def test_reading_a_window_keeps_it_alive() -> None:
    cache = Cache(100)
    kept = cache.add("g", 0, read=True)
    for _ in range(5):
        cache.clock.advance_ms(EXPIRE_MS - 1)
        assert cache.find("q", 0) is kept
    for _ in range(5):
        cache.clock.advance_ms(EXPIRE_MS - 1)
        kept.fresh = True
        assert cache.expire() == 0
    cache.clock.advance_ms(EXPIRE_MS)
    assert cache.expire() == 1


def test_an_expired_window_is_not_found_and_its_owner_is_notified_if_it_went_unread() -> None:
    cache = Cache(100)
    cache.add("g", 0)
    cache.clock.advance_ms(EXPIRE_MS * UNREAD_FACTOR)
    assert cache.find("q", 0) is None
    assert cache.unread == [("g", "q")]
    cache.check()


def test_a_put_lets_what_has_expired_go() -> None:
    cache = Cache(100)
    cache.add("g", 0, read=True)
    cache.clock.advance_ms(EXPIRE_MS)
    cache.add("h", 10)
    assert cache.bytes == 10
    assert (cache.bytes_of("g"), cache.bytes_of("h")) == (0, 10)


def test_a_dropped_window_is_not_held() -> None:
    run = Run.of([Mail(body=bytes(1000))] * 9, 0, 0)
    cache = Cache(1 << 20)
    buffer = bytearray(run.data)
    kept = cache.put("q", Window(0, run.units, memoryview(buffer), 0), "g")
    assert kept is not None
    with pytest.raises(BufferError):
        buffer.append(0)
    cache.forget("q")
    assert kept.window is None
    assert cache.bytes == cache.count == 0
    buffer.append(0)  # Possible only when there is no view of it any more.


def test_the_same_place_put_again_replaces_the_window() -> None:
    cache = Cache(100)
    cache.add("g", 0, weight=10)
    cache.add("h", 0, weight=20, count=20)
    cache.check()
    assert cache.bytes == 20
    assert cache.covered_until("q", 0) == 20


def test_release_and_oldest_read() -> None:
    cache = Cache(100)
    assert cache.oldest_read("g") is None
    cache.add("g", 20)
    first, second = cache.add("g", 0, read=True), cache.add("g", 10, read=True)
    assert present(cache.oldest_read("g")) is first
    cache.release(first)
    cache.release(first)
    assert cache.oldest_read("g") is second
    cache.check()


def test_an_empty_window_is_not_kept() -> None:
    assert Cache(100).add("g", 0, count=0) is None


@given(
    st.integers(1, 500),
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put_read", "find", "touch", "expire", "forget", "release"]),
            st.sampled_from("abc"),
            st.integers(0, 12),
            st.integers(1, 300),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_the_books_are_right(max_bytes: int, steps: list[tuple[str, str, int, int]]) -> None:
    cache = Cache(max_bytes)
    handles: list[Any] = []
    for action, name, place, weight in steps:
        if action.startswith("put"):
            handles.append(cache.add(name, place * 10, weight=weight, queue=name * 2, read=action == "put_read"))
        elif action == "find":
            handles.append(cache.find(name * 2, place * 10 + 3))
        elif action == "touch" and handles and handles[-1] is not None and handles[-1].read:
            handles[-1].fresh = True
        elif action == "expire":
            cache.clock.advance_ms(weight * 100)
            cache.expire()
        elif action == "forget":
            cache.forget(name * 2)
        elif action == "release" and handles and handles[-1] is not None:
            cache.release(handles[-1])
        cache.check()


@pytest.mark.parametrize("count", [10_000])
def test_expiry_looks_only_at_what_has_expired(count: int) -> None:
    """Many windows must not make each put slow: nothing is scanned but what goes, and one more."""
    cache = Cache(count * 10)
    for number in range(count):
        cache.add("g", number * 10)
    looked = 0
    original = cache._is_expired

    def counted(kept: Any, now_ms: int) -> bool:
        nonlocal looked
        looked += 1
        return original(kept, now_ms)

    cache._is_expired = counted  # type: ignore[method-assign]
    cache.expire()
    assert looked <= 2
