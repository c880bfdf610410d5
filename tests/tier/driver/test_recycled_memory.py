"""Memory that is used again: never while a view of it exists, never more idle than allowed."""

from __future__ import annotations

import ctypes
import gc
import random
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st

from tiermq.tier.driver.posix import BLOCK_BYTES, RecycledMemory


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))


def block_bytes(view: memoryview) -> int:
    return memoryview(view.obj).nbytes


def test_memory_without_a_view_is_used_again() -> None:
    memory = RecycledMemory()
    view = memory.lease(200_000)
    assert (len(view), view.format, view.readonly, memory.idle_bytes) == (200_000, "B", False, 0)
    first, held = address(view), block_bytes(view)
    gc.collect()
    del view
    assert memory.idle_bytes == held == 4 * BLOCK_BYTES
    again = memory.lease(200_001)
    assert address(again) == first
    assert memory.idle_bytes == 0


def test_the_smallest_view_keeps_its_memory_from_being_used_again() -> None:
    memory = RecycledMemory()
    whole = memory.lease(BLOCK_BYTES)
    whole[:5] = b"mine!"
    part = whole[1:4].toreadonly()
    del whole
    other = memory.lease(BLOCK_BYTES)
    other[:5] = b"other"
    assert bytes(part) == b"ine"
    assert memory.idle_bytes == 0
    del part
    assert memory.idle_bytes == BLOCK_BYTES


def test_a_small_read_costs_no_block() -> None:
    memory = RecycledMemory()
    view = memory.lease(BLOCK_BYTES - 1)
    assert block_bytes(view) == len(view) == BLOCK_BYTES - 1
    del view
    assert memory.idle_bytes == 0
    assert len(memory.lease(0)) == 0


def test_of_what_is_idle_the_oldest_goes_when_it_is_too_much() -> None:
    memory = RecycledMemory(idle_bytes_max=5 * BLOCK_BYTES)
    old, new, huge = (memory.lease(count * BLOCK_BYTES) for count in (2, 4, 6))
    del old
    del new
    assert memory.idle_bytes == 4 * BLOCK_BYTES
    del huge
    assert memory.idle_bytes == 4 * BLOCK_BYTES


def test_a_block_is_not_wasted_on_a_much_smaller_read() -> None:
    memory = RecycledMemory()
    large = memory.lease(8 * BLOCK_BYTES)
    del large
    small = memory.lease(6 * BLOCK_BYTES)
    assert block_bytes(small) == 6 * BLOCK_BYTES
    fitting = memory.lease(7 * BLOCK_BYTES)
    assert block_bytes(fitting) == 8 * BLOCK_BYTES


def test_memory_outlives_the_pool_it_came_from() -> None:
    view = RecycledMemory().lease(BLOCK_BYTES)
    view[:4] = b"here"
    gc.collect()
    assert bytes(view[:4]) == b"here"


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6 * BLOCK_BYTES)), max_size=60))
def test_no_two_reads_ever_share_memory(steps: list[tuple[bool, int]]) -> None:
    memory = RecycledMemory(idle_bytes_max=8 * BLOCK_BYTES)
    held: list[tuple[int, memoryview]] = []
    for number, (give_back, length) in enumerate(steps):
        if give_back and held:
            del held[length % len(held)]
            continue
        view = memory.lease(length)
        assert len(view) == length
        assert block_bytes(view) <= max(length + BLOCK_BYTES, (length + BLOCK_BYTES) * 5 // 4) + BLOCK_BYTES
        view[0] = view[-1] = number
        held.append((number, view))
        assert all(one[0] == one[-1] == mark for mark, one in held)
        assert memory.idle_bytes <= 8 * BLOCK_BYTES


def test_threads_that_lease_and_let_go_at_once_never_meet_in_one_block() -> None:
    memory = RecycledMemory(idle_bytes_max=4 * BLOCK_BYTES)

    def work(mark: int) -> int:
        source, met = random.Random(mark), 0
        for _ in range(300):
            view = memory.lease(source.randint(BLOCK_BYTES, 3 * BLOCK_BYTES))
            view[:8] = bytes([mark]) * 8
            view[-8:] = bytes([mark]) * 8
            met += view[:8] != bytes([mark]) * 8 or view[-8:] != bytes([mark]) * 8
        return met

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(1, 5))) == [0] * 4
    assert 0 <= memory.idle_bytes <= 4 * BLOCK_BYTES
