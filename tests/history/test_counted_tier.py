"""A history reads, counts, and never writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiermq.errors import TierError
from tiermq.history.cold_queues import CountedTier
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.names import QueueKey, SegmentType

KEY = QueueKey("c", "b", "t", 0).segment(SegmentType.COMMIT_LOG, 0)
NAME = QueueKey("c", "b", "t", 0).object_name("manifest")


def test_every_question_counts_and_so_do_its_bytes() -> None:
    driver = MemoryDriver()
    driver.write(KEY, 0, [b"hello"])
    driver.put_object(NAME, b"{}")
    tier = CountedTier(driver)
    assert bytes(tier.read(KEY, 1, 3)) == b"ell"
    assert (tier.requests, tier.bytes_read) == (1, 3)
    assert [info.size for info in tier.list_segments()] == [5]
    stored = tier.get_object(NAME)
    assert stored is not None
    assert tier.list_objects() == [NAME]
    assert (tier.size(KEY), tier.is_sealed(KEY)) == (5, False)
    assert (tier.requests, tier.bytes_read) == (6, 5)
    tier.close()


@pytest.mark.parametrize(
    "act",
    [
        lambda tier: tier.write(KEY, 0, [b"x"]),
        lambda tier: tier.trim(KEY, 0),
        lambda tier: tier.seal(KEY),
        lambda tier: tier.delete(KEY),
        lambda tier: tier.put_object(NAME, b""),
        lambda tier: tier.delete_object(NAME),
    ],
)
def test_whatever_would_change_the_tier_is_refused(act: Callable[[CountedTier], object]) -> None:
    with pytest.raises(TierError, match="expected only reads"):
        act(CountedTier(MemoryDriver()))
