"""Statistics: totals, rates from one-second samples, latency buckets and percentiles."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from small_store import on_simulation, put_all
from tiermq import Message
from tiermq.store.local_store import LocalStore
from tiermq.store.statistics import COARSE_NAMES, FINE_ENDS_MS, StoreStatistics


def put(statistics: StoreStatistics, topic: str, size_bytes: int, latency_ms: float, messages: int = 1) -> None:
    """Count one put call, which may have been a batch."""
    statistics.add_puts(topic, size_bytes, messages)
    statistics.record_latency(latency_ms)


def test_puts_are_counted_per_topic_with_their_bytes(manual_clock: ManualClock) -> None:
    statistics = StoreStatistics(manual_clock)
    put(statistics, "orders", 100, 1)
    put(statistics, "orders", 300, 1, 3)
    statistics.add_puts("audit", 50, 2)
    topics = statistics.topics()
    assert (topics["orders"].put_messages, topics["orders"].put_bytes) == (4, 400)
    assert (topics["audit"].put_messages, topics["audit"].put_bytes) == (2, 50)
    assert statistics.snapshot()["put_messages"] == 6
    assert statistics.snapshot()["put_bytes_average"] == 75


def test_a_get_counts_as_found_or_missed(manual_clock: ManualClock) -> None:
    statistics = StoreStatistics(manual_clock)
    statistics.add_gets(1, 0, 32)
    statistics.add_gets(0, 1, 0)
    statistics.add_gets(1, 0, 1)
    snapshot = statistics.snapshot()
    assert (snapshot["get_found"], snapshot["get_missed"], snapshot["get_transferred"]) == (2, 1, 33)


def test_the_rate_over_ten_seconds_forgets_what_is_older(manual_clock: ManualClock) -> None:
    statistics = StoreStatistics(manual_clock)
    for second in range(60):
        for _ in range(100 if second < 50 else 7):
            put(statistics, "t", 1, 0)
        manual_clock.advance_ms(1_000)
        assert statistics.sample()
    assert statistics.puts_per_second(10) == 7
    assert statistics.puts_per_second(60) == pytest.approx((50 * 100 + 10 * 7) / 60)
    assert statistics.puts_per_second(600) == statistics.puts_per_second(60)


def test_samples_are_taken_at_most_once_a_second(manual_clock: ManualClock) -> None:
    statistics = StoreStatistics(manual_clock)
    assert not statistics.sample()
    manual_clock.advance_ms(999)
    assert not statistics.sample()
    manual_clock.advance_ms(1)
    assert statistics.sample()


def test_a_late_sample_does_not_inflate_the_rate(manual_clock: ManualClock) -> None:
    statistics = StoreStatistics(manual_clock)
    statistics.add_puts("t", 1, 500)
    manual_clock.advance_ms(5_000)
    statistics.sample()
    assert statistics.puts_per_second(10) == 100


def test_the_rate_before_the_second_sample_is_zero(manual_clock: ManualClock) -> None:
    assert StoreStatistics(manual_clock).puts_per_second(10) == 0


@pytest.mark.parametrize(
    ("latency_ms", "name"),
    [
        (0, "<=0ms"),
        (0.2, "0~10ms"),
        (9.9, "0~10ms"),
        (10, "10~50ms"),
        (999, "500ms~1s"),
        (9_999, "5~10s"),
        (10_000, "10s~"),
    ],
)
def test_a_latency_falls_into_the_bucket_that_rocketmq_would_print(
    manual_clock: ManualClock, latency_ms: float, name: str
) -> None:
    statistics = StoreStatistics(manual_clock)
    put(statistics, "t", 1, latency_ms)
    distribution = statistics.snapshot()["put_latency_distribution"]
    assert distribution == {other: int(other == name) for other in COARSE_NAMES}


def test_fine_buckets_have_the_widths_of_the_original() -> None:
    assert len(FINE_ENDS_MS) == 75
    assert FINE_ENDS_MS[:21] == (*range(1, 21), 22)
    assert FINE_ENDS_MS[-10:] == (1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000, 9_000, 10_000)


@given(st.lists(st.floats(0, 20_000), min_size=1, max_size=60), st.sampled_from([50.0, 99.0, 99.9]))
def test_a_percentile_is_off_by_no_more_than_its_bucket(latencies_ms: list[float], percentile: float) -> None:
    statistics = StoreStatistics(ManualClock())
    for latency_ms in latencies_ms:
        put(statistics, "t", 1, latency_ms)
    rank = max(1, -(-len(latencies_ms) * percentile // 100))
    exact_ms = sorted(latencies_ms)[int(rank) - 1]
    start_ms = max([0, *(end for end in FINE_ENDS_MS if end <= exact_ms)])
    end_ms = min([end for end in FINE_ENDS_MS if end > exact_ms], default=max(latencies_ms))
    assert start_ms <= statistics.latency_percentile_ms(percentile) <= end_ms


def test_latencies_older_than_two_minutes_leave_the_percentiles_but_not_the_table(manual_clock: ManualClock) -> None:
    statistics = StoreStatistics(manual_clock)
    put(statistics, "t", 1, 5_000)
    for _ in range(2):
        manual_clock.advance_ms(60_000)
        statistics.sample()
    put(statistics, "t", 1, 0.5)
    assert statistics.latency_percentile_ms(99.9) <= 1
    distribution = statistics.snapshot()["put_latency_distribution"]
    assert isinstance(distribution, dict)
    assert distribution["5~10s"] == 1


def test_nothing_put_means_zero_latency_and_an_impossible_percentile_is_refused(manual_clock: ManualClock) -> None:
    statistics = StoreStatistics(manual_clock)
    assert statistics.latency_percentile_ms(99) == 0
    with pytest.raises(ValueError, match="between 0 and 100"):
        statistics.latency_percentile_ms(101)


def test_no_count_is_lost_between_threads(manual_clock: ManualClock) -> None:
    statistics = StoreStatistics(manual_clock)

    def put_many() -> None:
        for _ in range(2_000):
            put(statistics, "t", 10, 1)

    threads = [threading.Thread(target=put_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statistics.topics()["t"].put_messages == 8_000


def test_failures_are_counted_apart(manual_clock: ManualClock) -> None:
    statistics = StoreStatistics(manual_clock)
    statistics.record_put_failures()
    assert statistics.snapshot()["put_failures"] == 1
    assert statistics.snapshot()["put_messages"] == 0


def counted(store: LocalStore) -> dict[str, object]:
    store._parts.housekeeping.run_once()
    return store.statistics()


def test_puts_and_gets_are_taken_over_once() -> None:
    with on_simulation() as store:
        results = put_all(store, 10)
        store.put_many([Message("U", b"x", queue_id) for queue_id in range(3)])
        store.get("T", 0, 0, 4)
        store.get("T", 0, 99)
        for _ in range(2):
            statistics = counted(store)
        assert statistics["put_messages"] == 13
        assert statistics["put_bytes"] == store.max_physical_offset
        assert (statistics["get_found"], statistics["get_missed"], statistics["get_transferred"]) == (1, 1, 4)
        topics = store._parts.statistics.topics()
        assert (topics["T"].put_messages, topics["T"].put_bytes) == (10, results[-1].end_offset)
        assert topics["U"].put_messages == 3


def test_a_topic_that_was_deleted_goes_on_being_counted() -> None:
    with on_simulation() as store:
        put_all(store, 10)
        counted(store)
        store.delete_topics(["T"])
        put_all(store, 4)
        assert counted(store)["put_messages"] == 14


def test_refused_puts_are_not_counted_as_stored() -> None:
    with on_simulation() as store:
        store.put(Message("not/legal", b"x"))
        store.put(Message("T", b"x", encoded_properties=b"p" * 40_000))
        assert counted(store)["put_messages"] == 0
