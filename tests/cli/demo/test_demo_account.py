"""Numbers for eyes, and an account that keeps what was found."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from cli.demo.demo_cases import account_of, timeline_of
from tiermq.cli.demo.account import Sample, Spread, Timeline, bytes_on_disk, rate, rates, seconds, size
from tiermq.cli.demo.orders import Tally
from tiermq.errors import TierUnavailable


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1_000, "0.977 KiB"), (1_536, "1.5 KiB"), (145 << 20, "145 MiB"), (3 << 40, "3 TiB")],
)
def test_a_size_has_three_digits_and_a_unit(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(("count", "shown"), [(0.0421, "42 ms"), (1.26, "1.3 s"), (61.4, "61 s")])
def test_seconds_are_as_exact_as_they_are_short(count: float, shown: str) -> None:
    assert seconds(count) == shown


def test_a_rate_is_by_the_second() -> None:
    assert (rate(500, 2), rate(10**6, 2), rate(1, 0)) == ("250/s", "500k/s", "1,000,000k/s")


def test_a_check_says_whether_it_agrees_and_is_kept() -> None:
    account = account_of(timeline_of())
    assert account.check("twice", Tally(2, 5), Tally(2, 5))
    assert not account.check("once", Tally(1, 5), Tally(2, 5))
    assert [(check.by, check.agrees) for check in account.checks[-2:]] == [("twice", True), ("once", False)]


def test_a_fact_of_a_step_that_was_left_out_is_nothing() -> None:
    account = account_of(timeline_of(), without_spark="no Java")
    assert account.fact("sql", "rows") == 0
    assert not account.has("sql")
    assert account.fact("copy", "copied") == 900


def test_an_account_can_be_reported_to_programs() -> None:
    reported = json.loads(json.dumps(account_of(timeline_of()).as_dict()))
    assert reported["steps"][0]["facts"] == {"messages_per_s": 500.0}
    assert reported["sql"][0]["messages"] == 900


def test_counters_of_several_threads_lose_nothing() -> None:
    timeline = Timeline(lambda: 0, lambda: 0)
    threads = [threading.Thread(target=lambda: [timeline.counter("put")(1) for _ in range(2_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timeline.sample().counters == {"put": 8_000}


def test_the_sampler_looks_while_a_step_runs() -> None:
    seen = threading.Event()
    looked: list[Sample] = []

    def watch(_: Timeline, sample: Sample) -> None:
        looked.append(sample)
        seen.set()

    with Timeline(lambda: 7, lambda: 11, watch) as timeline, timeline.step("put", "Put") as step:
        timeline.count("put", 3)
        assert seen.wait(60)
    assert (looked[0].local_bytes, looked[0].tier_bytes) == (7, 11)
    assert step.end_s > step.begin_s
    assert timeline.samples[-1].counters == {"put": 3}


def test_a_step_that_fails_has_an_end_all_the_same() -> None:
    timeline = Timeline(lambda: 0, lambda: 0)
    with pytest.raises(ValueError, match="broken"), timeline.step("copy", "Copy"):
        raise ValueError("broken")
    assert timeline.steps[0].took_s > 0
    assert len(timeline.samples) == 2


def test_a_tier_that_takes_long_to_list_is_listed_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tiermq.cli.demo.account.time.monotonic", lambda: now[0])
    listed: list[float] = []

    def slowly() -> int:
        listed.append(now[0])
        now[0] += 1.0
        return len(listed)

    timeline = Timeline(lambda: 0, slowly)
    for _ in range(20):
        timeline.sample()
        now[0] += 1.0
    assert listed == [100.0, 111.0]
    assert timeline.sample(with_tier=True).tier_bytes == 3


def test_a_tier_that_cannot_be_listed_leaves_the_last_number(caplog: pytest.LogCaptureFixture) -> None:
    def down() -> int:
        raise TierUnavailable("no answer")

    timeline = Timeline(lambda: 5, down)
    with caplog.at_level(logging.WARNING):
        assert timeline.sample().tier_bytes == 0
    assert "no answer" in caplog.text


def test_bytes_on_disk_are_blocks_and_not_lengths(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "full").write_bytes(bytes(100_000))
    with (tmp_path / "hollow").open("wb") as file:
        file.truncate(1 << 30)
    assert 100_000 <= bytes_on_disk(tmp_path) < 1 << 20
    assert bytes_on_disk(tmp_path / "nothing") == 0


def test_rates_keep_the_sum_whatever_the_buckets_are() -> None:
    timeline = Timeline(lambda: 0, lambda: 0)
    timeline.samples = [
        Sample(0.0, {}, 0, 0),
        Sample(0.25, {"put": 10}, 0, 0),
        Sample(1.75, {"put": 40}, 0, 900),
        Sample(2.0, {"put": 40}, 0, 300),
    ]
    timeline.spreads = [Spread("sql", 8, 0.5, 2.5), Spread("sql", 5, 1.0, 1.0)]
    for bucket_s in (0.1, 0.4, 10.0):
        found = rates(timeline, bucket_s, record_bytes=100.0)
        sums = {series: round(sum(line) * bucket_s) for series, line in found.items()}
        assert sums == {"put": 4_000, "copy": 900, "sql": 800}


def test_rates_of_nothing_are_nothing() -> None:
    assert rates(Timeline(lambda: 0, lambda: 0), 0.1, 1.0) == {}
