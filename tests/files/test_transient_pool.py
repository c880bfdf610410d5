"""The pool of write buffers."""

from __future__ import annotations

from tiermq.files.allocator import TransientPool


def test_a_pool_lends_each_buffer_once() -> None:
    pool = TransientPool(2, 8192)
    first, second = pool.borrow(), pool.borrow()
    assert first is not None
    assert second is not None
    assert first is not second
    assert (len(first), pool.available, pool.borrow()) == (8192, 0, None)
    pool.give_back(first)
    assert (pool.available, pool.borrow()) == (1, first)
    pool.close()


def test_a_buffer_that_comes_back_after_closing_is_freed() -> None:
    pool = TransientPool(2, 4096, lock_memory=False)
    lent = pool.borrow()
    assert lent is not None
    pool.close()
    assert pool.available == 0
    pool.give_back(lent)
    assert (pool.available, lent.closed) == (0, True)
