"""The job that verifies a tier: the same findings as in one process, wherever it runs; and what --repair does."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline.job_world import UNITS, JobWorld, tiered
from tier.tier_world import BROKER, CLUSTER
from tiermq.delivery.tiered_timers.tiered_timer_state import TieredTimerState
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.errors import BadConfig, TierError
from tiermq.pipeline.verify.job import verify
from tiermq.spark import SparkRunner
from tiermq.spark.source.builder import messages
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.document import seal_document
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.verify.verify import verify_tier


def test_a_sound_tier_is_clean_and_every_byte_of_it_was_read(made: JobWorld) -> None:
    report = verify(None, tier=made.tier)
    expected = verify_tier(made.driver)
    assert report.is_clean
    assert report.done["bytes"] == expected.counts["bytes"] == report.planned["bytes"]
    assert report.done["records"] == 35
    assert [(row["topic"], row["queueId"], row["records"]) for row in report.details["queues"]] == [
        ("orders", 0, 30),
        ("payments", 2, 5),
        ("rmq_sys_INDEX", 0, 0),
    ]


@pytest.mark.parametrize("task_bytes", [300, 1 << 28])
def test_a_job_finds_what_one_process_finds_however_it_is_cut(made: JobWorld, task_bytes: int) -> None:
    made.damage()
    expected = verify_tier(made.driver)
    report = verify(None, tier=made.tier, task_bytes=task_bytes)
    assert not report.is_clean
    assert report.done["problems"] == expected.problem_count
    assert len(report.problems) == expected.problem_count


def test_a_dry_run_reads_no_record(made: JobWorld) -> None:
    made.damage()
    report = verify(None, tier=made.tier, dry_run=True)
    assert report.is_clean
    assert report.done == {}
    assert report.planned["bytes"] > 0
    assert [row["records"] for row in report.details["queues"]] == [0, 0, 0]


def test_the_report_table_has_a_row_for_each_queue_and_each_problem(made: JobWorld, tmp_path: Path) -> None:
    made.damage()
    path = tmp_path / "out" / "found.jsonl"
    report = verify(None, tier=made.tier, report_path=str(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["row"] for row in rows].count("queue") == 3
    problems = [row for row in rows if row["row"] == "problem"]
    assert len(problems) == report.done["problems"]
    assert {row["topic"] for row in problems} >= {"orders"}
    orders = next(row for row in rows if row["row"] == "queue" and row["topic"] == "orders")
    assert all(set(each) == {"path", "size", "crc32"} for each in orders["checksums"])
    assert orders["checksums"]


def test_the_report_is_a_parquet_table_too_and_a_second_one_replaces_it(made: JobWorld, tmp_path: Path) -> None:
    for _ in range(2):
        verify(None, tier=made.tier, report_path=str(tmp_path / "table"))
    table = pq.read_table(tmp_path / "table")
    assert table.column("row").to_pylist() == ["queue"] * 3
    assert sum(table.column("records").to_pylist()) == 35


def test_repair_mends_units_and_reports_so(made: JobWorld) -> None:
    path = made.damage(UNITS, at=5)
    report = verify(None, tier=made.tier, repair=True)
    assert report.is_clean
    assert report.details["problems_before"] > 0 == report.details["problems_after"]
    assert report.done["repaired"] > 0
    assert verify(None, tier=made.tier, repair=True).done["problems"] == 0
    assert path.exists()


def test_a_dry_run_of_a_repair_reports_what_it_would_do_and_does_nothing(made: JobWorld) -> None:
    path = made.damage(UNITS, at=5)
    before = path.read_bytes()
    report = verify(None, tier=made.tier, repair=True, dry_run=True)
    assert not report.is_clean
    assert any(repair["state"] == "planned" for repair in report.details["repairs"])
    assert path.read_bytes() == before
    assert BrokerLease(made.driver, CLUSTER, BROKER, "x").read() is None


def test_a_repair_names_whoever_holds_the_broker_and_changes_nothing(made: JobWorld) -> None:
    path = made.damage(UNITS, at=5)
    before = path.read_bytes()
    BrokerLease(made.driver, CLUSTER, BROKER, "box:/store").acquire()
    with pytest.raises(LeaseHeld, match="box:/store"):
        verify(None, tier=made.tier, repair=True)
    assert path.read_bytes() == before


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[str, dict[str, Path]]:
    """A tier of two brokers, with a bad unit in a queue of each: its URL, and the segments."""
    found = {}
    for broker in (BROKER, "broker-b"):
        tier, _ = tiered(tmp_path, broker=broker)
        units = [info.key.path for info in open_driver(tier).list_segments() if info.key.type is UNITS]
        path = tmp_path / "cold" / next(each for each in units if f"/{broker}/" in each)
        data = bytearray(path.read_bytes())
        data[5] ^= 0xFF
        path.write_bytes(data)
        found[broker] = path
    return tier, found


def test_executors_repair_each_broker_in_a_task(spark: SparkSession, damaged: tuple[str, dict[str, Path]]) -> None:
    tier, _ = damaged
    report = verify(SparkRunner(spark), tier=tier, repair=True)
    assert report.is_clean, report.problems
    assert {row["where"].split("/")[1] for row in report.details["repairs"] if row["changes"]} == {BROKER, "broker-b"}
    assert verify(None, tier=tier).is_clean


def test_a_broker_in_use_does_not_keep_the_others_from_being_repaired(damaged: tuple[str, dict[str, Path]]) -> None:
    tier, paths = damaged
    before = {broker: path.read_bytes() for broker, path in paths.items()}
    BrokerLease(open_driver(tier), CLUSTER, "broker-b", "box:/store").acquire()
    report = verify(None, tier=tier, repair=True)
    assert [text for text in report.problems if text.startswith(f"{CLUSTER}/broker-b: ") and "box:/store" in text]
    assert paths[BROKER].read_bytes() != before[BROKER]
    assert paths["broker-b"].read_bytes() == before["broker-b"]


def test_a_repair_with_the_store_keeps_its_metadata_true(made: JobWorld) -> None:
    store = made.store
    made.damage(UNITS, at=5)
    with pytest.raises(BadConfig, match="leave out"):
        verify(None, tier=made.tier, store=store, broker="another")
    report = verify(None, tier=made.tier, store=store, repair=True)
    assert report.is_clean


def test_a_lost_manifest_is_made_again_where_others_have_theirs(made: JobWorld) -> None:
    lost = next(made.root.rglob("payments/2/manifest.tiermq.json"))
    before = made.manifest(QueueKey(CLUSTER, BROKER, "payments", 2))
    lost.unlink()
    planned = verify(None, tier=made.tier, store=made.store, repair=True, dry_run=True)
    assert [each["state"] for each in planned.details["repairs"]] == ["planned"]
    assert not lost.exists()
    report = verify(None, tier=made.tier, store=made.store, repair=True)
    assert (report.done["repaired"], report.problems) == (1, [])
    after = made.manifest(before.key)
    assert (after.topic_id, after.max_offset, after.time_index) == (
        before.topic_id,
        before.max_offset,
        before.time_index,
    )
    assert "repairs" not in verify(None, tier=made.tier, store=made.store, repair=True).details


def test_where_nobody_has_a_manifest_none_is_made(made: JobWorld) -> None:
    for path in made.root.rglob("manifest.tiermq.json"):
        path.unlink()
    report = verify(None, tier=made.tier, repair=True)
    assert report.is_clean
    assert "repairs" not in report.details


@pytest.mark.parametrize("gone", ["the last one", "all of them"])
def test_an_index_file_that_is_gone_is_missed_and_made_again(made: JobWorld, gone: str) -> None:
    store = made.store
    sound = verify(None, tier=made.tier, store=store)
    keys = [info.key for info in made.driver.list_segments() if info.key.type is SegmentType.INDEX]
    for key in sorted(keys)[-1:] if gone == "the last one" else keys:
        made.driver.delete(key)
    found = verify(None, tier=made.tier, store=store)
    assert any("INDEX" in text and "missing_segment" in text for text in found.problems), found.problems
    repaired = verify(None, tier=made.tier, store=store, repair=True)
    assert repaired.is_clean, repaired.problems
    assert repaired.done["index_items"] >= sound.done["index_items"]


def test_a_repair_takes_lost_records_from_the_store_that_still_has_them(tmp_path: Path) -> None:
    tier, store = tiered(tmp_path)
    log = next(path for path in sorted((tmp_path / "cold").rglob("*/COMMIT_LOG/*")) if path.is_file())
    whole = log.read_bytes()
    log.write_bytes(whole[:100] + bytes(50) + whole[150:])
    assert not verify(None, tier=tier, repair=True).is_clean
    report = verify(None, tier=tier, store=store, repair=True)
    assert report.is_clean, report.problems
    assert log.read_bytes() == whole


def test_a_report_that_cannot_be_written_is_refused_by_name(made: JobWorld, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadConfig, match="--report"):
        verify(None, tier=made.tier, report_path=str(tmp_path / "file" / "table"))


def test_executors_find_what_one_process_finds(made: JobWorld, spark: SparkSession) -> None:
    made.damage()
    here = verify(None, tier=made.tier, task_bytes=400)
    reported: list[tuple[int, int]] = []
    there = verify(
        SparkRunner(spark), tier=made.tier, task_bytes=400, progress=lambda *numbers: reported.append(numbers)
    )
    assert there.problems == here.problems
    assert there.done == here.done
    assert there.master.startswith("local[2")
    assert reported[-1][0] == reported[-1][1]


def test_nothing_at_all_is_not_sound_and_everything_expired_is(made: JobWorld, tmp_path: Path) -> None:
    with pytest.raises(TierError, match=r"expected history of \*/\*/returns .* there is .*/orders, .*/payments"):
        verify(None, tier=made.tier, topic="returns")
    with pytest.raises(TierError, match="nothing at all"):
        verify(None, tier=(tmp_path / "empty").as_uri())
    for path in made.root.rglob("payments/2/*/*"):
        path.unlink()
    assert verify(None, tier=made.tier, topic="payments").done["problems"] > 0


def test_a_tier_of_a_newer_program_is_shown_by_executors_and_not_read_by_a_scan(
    made: JobWorld, spark: SparkSession
) -> None:
    path = next(made.root.rglob("orders/0/manifest.tiermq.json"))
    path.write_bytes(seal_document(json.loads(path.read_bytes())["body"], 99))
    report = verify(SparkRunner(spark), tier=made.tier)
    assert [text for text in report.problems if "expected version 2 or older, found 99" in text]
    with pytest.raises(Exception, match="expected version 2 or older, found 99"):
        messages(spark, tier=made.tier).count()


def test_far_timers_are_read_too_and_damage_in_them_is_reported_and_left_for_a_person(made: JobWorld) -> None:
    state = TieredTimerState(made.driver, CLUSTER, BROKER, Owner())
    state.ready()
    encoded = state.encode(None, [TieredTimer(1_900_000_000_000, False, b"far" * 40)])
    state.put_flush(encoded)
    sound = verify(None, tier=made.tier)
    assert sound.is_clean
    assert (sound.done["timer_objects"], sound.done["timers"]) == (1, 1)
    path = encoded.name.path(state.directory)
    torn = bytearray(encoded.data)
    torn[-20] ^= 1
    made.driver.delete_object(path)
    made.driver.put_object(path, bytes(torn))
    reported = verify(None, tier=made.tier, repair=True)
    assert not reported.is_clean
    assert any(path in problem for problem in reported.problems)
    stored = made.driver.get_object(path)
    assert stored is not None
    assert stored.data == torn
    assert verify(None, tier=made.tier, topic="orders").is_clean  # A topic alone has none.


class Owner:
    """The right to write tiered timers, for a test that has nobody to share it with."""

    writer = "test"

    def own(self) -> int:
        return 1

    def check(self) -> None:
        return
