"""The fetcher's settings have RocketMQ's defaults, and its counts add up."""

from __future__ import annotations

from tiermq.tier.fetch.fetcher import FetchConfig, FetchCounts


def test_defaults_are_rocketmqs() -> None:
    config = FetchConfig()
    assert config.cache_enable
    assert (config.message_count_threshold, config.message_size_threshold) == (4_096, 16_777_216)
    assert (config.cache_expire_ms, config.transfer_bytes, config.transfer_count) == (15_000, 262_144, 32)


def test_counts_of_readers_add_up() -> None:
    total = FetchCounts(fetched_bytes=1)
    total.add(FetchCounts(hit_count=1, miss_count=2, served_count=3, served_bytes=4))
    total.add(FetchCounts(hit_count=10, miss_count=20, served_count=30, served_bytes=40))
    assert total == FetchCounts(11, 22, 33, 44, fetched_bytes=1)
    assert FetchCounts(**total.as_dict()) == total
