"""Messages that the index calls covered and has no items of are found, and get them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scenarios.broker_world import SETTINGS
from tiermq import Message
from tiermq.cli.main import cli
from tiermq.files.os_file_access import OsFileAccess
from tiermq.pipeline.reindex.job import reindex
from tiermq.pipeline.verify.job import verify as verify_job
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.index.index_coverage import Hole, QueueCoverage, open_sealed, sealed_text
from tiermq.tier.index.index_item import ITEM, IndexItem
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.names import QueueKey
from tiermq.tier.tiered_store import TieredStore
from tiermq.tier.verify.missing_keys import KeyRange, KeySum, KeySums, covered_ranges
from tiermq.tier.verify.verify import verify_tier
from tiermq.tier.verify.verify_report import VerifyReport

T = "orders"


def opened(path: Path, **more: Any) -> TieredStore:
    tier = (path / "tier").as_uri()
    return TieredStore.open(path / "store", tier=tier, tiered_storage_level="FORCE", **{**SETTINGS, **more})


def put(store: TieredStore, word: str, count: int = 20) -> None:
    for number in range(count):
        assert store.put(Message(T, b"x", queue_id=number % 2, keys=[f"{word}-{number}", word])).ok
    assert store.flush_to_tier()


def upload_index(store: TieredStore) -> None:
    index = store.tier.index
    assert index is not None
    uploaded = index.counts.uploaded
    index.seal()
    while index.counts.uploaded == uploaded:
        index.run_once()


def found(path: Path, word: str, **more: Any) -> tuple[int, bool]:
    with opened(path, **more) as store:
        pages = [store.query(T, f"{word}-{number}") for number in range(20)]
        return sum(len(page.messages) for page in pages), all(page.complete for page in pages)


def verified(path: Path, **options: Any) -> VerifyReport:
    return verify_tier(open_driver((path / "tier").as_uri()), **options)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store whose record claimed its first keys without the file that held them, as an earlier version left it."""
    with opened(tmp_path) as store:
        put(store, "old")
    directory = tmp_path / "store" / "tiered_index_file"
    path = directory / "coverage.tiermq.json"
    record = open_sealed(path.read_bytes(), str(path))
    assert sum(facts.item_count for facts in record.files) == 40
    OsFileAccess().write_bytes(str(path), sealed_text(replace(record, files=())))
    for file in directory.glob("[0-9]*"):
        file.unlink()
    with opened(tmp_path) as store:
        put(store, "new")
        upload_index(store)
    assert found(tmp_path, "old") == (0, True)
    assert found(tmp_path, "new") == (20, True)
    return tmp_path


@pytest.mark.parametrize("task_bytes", [1 << 30, 700])
def test_a_verification_finds_messages_without_items(damaged: Path, task_bytes: int) -> None:
    report = verified(damaged, task_bytes=task_bytes)
    assert {finding.kind for finding in report.problems} == {"missing_items"}
    assert (report.counts["keys"], report.counts["missing_items"]) == (80, 20)
    assert {finding.where.rsplit("/", 2)[1] for finding in report.problems} == {T}


def test_a_repair_gives_them_their_items_and_queries_find_them_again(damaged: Path) -> None:
    url, store = (damaged / "tier").as_uri(), str(damaged / "store")
    look = CliRunner().invoke(cli, ["tier", "repair", url, "--store", store, "--dry-run"])
    assert "40 items of 20 messages that had none" in look.output
    assert not verified(damaged).is_clean
    done = CliRunner().invoke(cli, ["tier", "repair", url, "--store", store])
    assert done.exit_code == 0, done.output
    assert verified(damaged).is_clean
    assert (found(damaged, "old"), found(damaged, "new")) == ((20, True), (20, True))
    again = CliRunner().invoke(cli, ["tier", "repair", url, "--store", store])
    assert (again.exit_code, "items of" in again.output) == (0, False)


def test_the_job_finds_and_repairs_the_same(damaged: Path) -> None:
    tier, store = (damaged / "tier").as_uri(), f"{damaged / 'store'}=DefaultCluster/broker-a"
    report = verify_job(None, tier=tier, store=store)
    assert not report.is_clean
    repaired = verify_job(None, tier=tier, store=store, repair=True)
    assert (repaired.details["problems_before"], repaired.details["problems_after"]) == (2, 0)
    assert found(damaged, "old") == (20, True)


def test_a_reindex_that_checks_what_is_covered_finds_them_and_one_that_does_not_leaves_them(damaged: Path) -> None:
    tier, store = (damaged / "tier").as_uri(), f"{damaged / 'store'}=DefaultCluster/broker-a"
    assert reindex(None, tier=tier, store=store).done.get("keys", 0) == 0
    look = reindex(None, tier=tier, store=store, check=True, dry_run=True)
    assert sorted(row["queue"] for row in look.details["missing"]) == [0, 1]
    words = [tier, "--store", store, "--check", "--dry-run", "--master", "here"]
    shown = CliRunner().invoke(cli, ["pipeline", "reindex", *words]).output
    assert "20 unindexed messages" in shown
    assert shown.count("10 messages without items") == 2
    report = reindex(None, tier=tier, store=store, check=True)
    assert (report.is_clean, report.done["keys"]) == (True, 40)
    assert verified(damaged).is_clean
    assert (found(damaged, "old"), found(damaged, "new")) == ((20, True), (20, True))


def test_keys_that_a_job_indexed_while_the_store_was_closed_are_found_by_its_first_query(damaged: Path) -> None:
    assert reindex(None, tier=(damaged / "tier").as_uri(), check=True).done["keys"] == 40
    assert found(damaged, "old", background=False) == (20, True)


def test_they_are_not_denied_before_it_is_read_what_the_job_has_written(damaged: Path) -> None:
    tier = (damaged / "tier").as_uri()
    reindex(None, tier=tier, check=True)
    next_job = BrokerLease(open_driver(tier), "DefaultCluster", "broker-a", "elsewhere (pipeline compact)")
    next_job.acquire()
    with opened(damaged, background=False) as store:
        page = store.query(T, "old")
        assert (len(page.messages), page.complete) == (0, False)
        next_job.release()
        assert store.flush_to_tier()
        page = store.query(T, "old")
        assert (len(page.messages), page.complete) == (20, True)


def test_a_first_query_does_not_ask_for_the_lease_where_no_other_had_it(tmp_path: Path) -> None:
    with opened(tmp_path, background=False) as store:
        put(store, "old")
    with opened(tmp_path, background=False) as store:
        page = store.query(T, "old")
        assert (len(page.messages), page.complete) == (20, True)
        assert not store.tier.lease.is_held


def test_a_sound_tier_is_clean_also_where_items_are_there_twice(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "old")
        upload_index(store)
        put(store, "new")
        index = store.tier.index
        assert index is not None
        coverage = index._table.coverage.queues[T, 0]
        coverage.holes.insert(0, Hole(0, coverage.end))  # Indexed again, as after a reindex.
        while index.hole_count or not index._table.coverage.is_base_known:
            index.run_once()
        upload_index(store)
    report = verified(tmp_path)
    assert report.is_clean, report.problems
    assert report.counts["index_items"] == 80 + 40
    assert report.counts["keys"] == 80


QUEUE = QueueKey("c", "b", T, 0)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, []),
        (QueueCoverage(8, 500), []),  # Of another life of the topic.
        (QueueCoverage(7, 500), [(100, 500)]),
        (QueueCoverage(7, 5_000), [(100, 1_000)]),
        (QueueCoverage(7, 500, [Hole(200, 300)]), [(100, 200), (300, 500)]),
        (QueueCoverage(7, 500, [Hole(0, 300), Hole(500, (1 << 63) - 1)]), [(300, 500)]),
        (QueueCoverage(7, 500, doubtful_end=400), [(400, 500)]),
    ],
)
def test_only_what_is_indexed_for_certain_is_asked_for(
    known: QueueCoverage | None, expected: list[tuple[int, int]]
) -> None:
    found = covered_ranges(QUEUE, known, 7, 100, 1_000)
    assert found == [KeyRange(QUEUE, 7, *each) for each in expected]


@pytest.mark.parametrize("field", ["key_hash", "tier_offset"])
def test_sums_of_items_differ_when_one_item_leads_elsewhere_or_is_of_another_key(field: str) -> None:
    where = KeyRange(QueueKey("c", "b", T, 0), 7, 0, 10_000)
    items = [IndexItem(100 + number, 7, 0, number * 100, 100, 0) for number in range(20)]
    other = [*items[:-1], items[-1]._replace(**{field: getattr(items[-1], field) + 1})]

    def summed(*chunks: list[IndexItem]) -> tuple[KeySum, ...]:
        sums = KeySums([where])
        for chunk in chunks:
            sums.add_items(chunk, memoryview(b"".join(ITEM.pack(*each) for each in chunk)))
        return sums.found()

    assert summed(items) == summed(items[:7], items[7:])
    assert summed(items) != summed(other)
    assert summed(items) != summed(other[:7], other[7:])
