"""What a tier costs in requests, counted: the table of docs/tier.md; it grows with commits and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tier.request_costs import (
    DAY_TICKS,
    TICK_MS,
    CountedBroker,
    busy_queues,
    idle_day,
    quiet_day,
    quiet_hours,
    read_back,
)
from tiermq import Message
from tiermq.clock import HOUR_MS
from tiermq.tier.driver import object_store
from tiermq.tier.driver.bundle import MERGE_RUN
from tiermq.tier.driver.object_store import PARTS_RUN_MAX

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "tier.md"
LEASE_PUTS = 24 * 60 * 3
COMMITS = 24  # Of a quiet queue and day.


def published(row: str) -> Counter[str]:
    """The numbers of a row of the document, by kind of request."""
    text = DOCUMENT.read_text(encoding="utf-8")
    kinds = re.search(r"^\| counted \|(.*)\|$", text, re.MULTILINE)
    cells = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", text, re.MULTILINE)
    assert kinds is not None
    assert cells is not None, row
    names = [name.strip().lower() for name in kinds[1].split("|")]
    counts = [int(cell.strip().replace(",", "")) for cell in cells[1].split("|")]
    return +Counter(dict(zip(names, counts, strict=True)))


def test_an_idle_broker_pays_for_its_lease_alone(tmp_path: Path) -> None:
    counted = idle_day(tmp_path)
    assert counted == published("a broker without messages, a day")
    assert counted["put"] == LEASE_PUTS


def test_a_quiet_queue_pays_for_three_puts_a_commit_and_its_share_of_a_merge(tmp_path: Path) -> None:
    queues = 2
    counted, broker = quiet_day(tmp_path, queues, days=2)
    assert counted["put"] == LEASE_PUTS + queues * (3 * COMMITS + 2)
    assert not counted["list"]
    assert broker.object_count() <= 2 * queues * (2 * COMMITS + 4)
    broker.store.close()


def test_busy_queues_pay_for_batches_and_not_for_messages(tmp_path: Path) -> None:
    messages = 50_000
    counted, broker = busy_queues(tmp_path, messages)
    batches = -(-messages // 4096) + 10
    assert counted["put"] <= 2 * batches + 3 * 10 + 12
    assert read_back(broker, messages)["get"] <= 10 * 8
    broker.store.close()


def test_three_hundred_commits_of_one_message_are_read_with_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def requests_to_read(path: Path) -> int:
        broker = CountedBroker(path, tiered_storage_level="FORCE")
        for number in range(300):
            assert broker.store.put(Message("orders", b"x" * 200 + b"%d" % number, 0)).ok
            assert broker.store.flush_to_tier()
        counted = read_back(broker, 300, queues=1)
        broker.store.close()
        return counted.total()

    # Records and units, each in two windows whose blocks overlap.
    assert requests_to_read(tmp_path / "merged") <= 2 * 2 * (PARTS_RUN_MAX + 8)
    monkeypatch.setattr(object_store, "PARTS_RUN_MAX", 1 << 40)
    assert requests_to_read(tmp_path / "unmerged") >= 600


def test_quiet_queues_in_bundles_pay_a_put_for_each_step_and_none_for_a_queue(tmp_path: Path) -> None:
    hours, few, many = 2, 10, 40
    puts = {}
    for queues in (few, many):
        counted, broker = quiet_hours(tmp_path / str(queues), queues, hours, rest=1, tier_bundle_interval=TICK_MS)
        steps = hours * queues  # Each queue has its own time in the hour.
        puts[queues] = counted["put"] - hours * LEASE_PUTS // 24
        assert steps <= puts[queues] <= steps + steps // MERGE_RUN + 1
        assert not counted["list"]
        broker.store.close()
    together, broker = quiet_hours(tmp_path / "one", many, hours, rest=1, tier_bundle_interval=HOUR_MS)
    assert together["put"] <= hours * LEASE_PUTS // 24 + 2 * hours + 1
    broker.store.close()


@pytest.mark.slow
def test_a_million_messages_cost_what_the_document_reports(tmp_path: Path) -> None:
    counted, broker = busy_queues(tmp_path, 1_000_000)
    assert counted == published("1,000,000 messages of 200 bytes into 10 queues")
    assert read_back(broker, 1_000_000).total() <= 1_000
    broker.store.close()


@pytest.mark.slow
def test_a_thousand_quiet_queues_in_bundles_cost_what_the_document_reports(tmp_path: Path) -> None:
    counted, broker = quiet_hours(tmp_path, 1_000, 1, rest=1, tier_bundle_interval=TICK_MS)
    assert counted == published("1,000 queues with a message an hour in bundles, an hour")
    broker.store.close()


@pytest.mark.slow
def test_a_thousand_quiet_queues_cost_what_the_document_reports(tmp_path: Path) -> None:
    counted, broker = quiet_day(tmp_path, 1_000, days=2)
    assert counted == published("1,000 queues with a message an hour, a day")
    assert len(broker.upload_times) == 2 * DAY_TICKS - 1  # Every step has an upload, but for the first.
    broker.store.close()
