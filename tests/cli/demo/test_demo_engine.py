"""Who copies: a job, with Spark or without, and why there is no Spark is said in words."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tiermq import Message
from tiermq.cli.demo import engine
from tiermq.cli.demo.broker import Place, store_settings
from tiermq.cli.demo.orders import LIST_MESSAGES, TOPIC, DemoFailed
from tiermq.errors import JavaMissing, install_hint
from tiermq.pipeline.job_report import JobReport
from tiermq.store.local_store import LocalStore


def test_the_job_copies_beside_whoever_has_the_store_and_only_what_is_new(tmp_path: Path) -> None:
    place = Place(tmp_path / "store", (tmp_path / "tier").as_uri(), tmp_path / "table")
    plain = engine.PlainEngine(1_000)
    with LocalStore.open(place.store, **store_settings(1_000)) as store:
        for queue_id, count in ((0, 5), (1, 3)):
            store.put_many([Message(TOPIC, b"an order", queue_id) for _ in range(count)])
            store.dispatch_now()
            assert plain.copy(place) == count
        assert plain.copy(place) == 0
    assert plain.query(place) is None
    assert plain.find(place, "order-1") is None
    assert plain.export(place) is None
    assert plain.ask_brokers("127.0.0.1:9", "paid") is None
    plain.close()


def test_a_copy_that_does_not_get_through_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = JobReport("offload", "s3://bucket")
    report.problems.append("no answer since noon")
    monkeypatch.setattr("tiermq.pipeline.offload.job.offload", lambda *_, **__: report)
    place = Place(tmp_path, "s3://bucket", tmp_path)
    with pytest.raises(DemoFailed, match="s3://bucket: no answer since noon"):
        engine.PlainEngine(1).copy(place)


def test_rows_of_the_same_tag_are_added_up() -> None:
    rows = [
        {"tags": "paid", "tier": "hot", "messages": 1, "cents": 10, "checksum": 100},
        {"tags": "paid", "tier": "cold", "messages": 2, "cents": 20, "checksum": 200},
        {"tags": "open", "tier": "cold", "messages": 4, "cents": 40, "checksum": 400},
    ]
    tally = engine.tally_of(rows)
    assert (tally.count, tally.checksum) == (7, 700)
    assert tally.by_tag == {"paid": (3, 30), "open": (4, 40)}


def test_without_pyspark_its_name_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name))
    assert f"pyspark not installed here; {install_hint('spark')}" in str(engine.why_no_spark("local[*]"))


def test_without_java_what_was_looked_at_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise JavaMissing("expected a Java, found none")

    monkeypatch.setattr("tiermq.spark.java.find_java", missing)
    assert engine.why_no_spark("local[*]") == "expected a Java, found none"


def test_whoever_wants_no_spark_gets_none() -> None:
    assert engine.why_no_spark("here") == "--master here was given"


def test_a_task_that_starts_a_worker_loads_what_a_copy_needs() -> None:
    assert engine.warm_up(1) == 1 + LIST_MESSAGES


def test_what_started_processes_complain_of_goes_to_a_file_and_what_we_say_does_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    with engine.errors_into(log):
        subprocess.run([sys.executable, "-c", "import sys; print('a child', file=sys.stderr)"], check=True)
        print("we ourselves", file=sys.stderr)
    subprocess.run([sys.executable, "-c", "import sys; print('a later child', file=sys.stderr)"], check=True)
    assert log.read_text() == "a child\n"
    assert capfd.readouterr().err.splitlines() == ["we ourselves", "a later child"]


def test_a_session_that_does_not_start_is_a_failure_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(master: str, **_: Any) -> None:
        os.write(2, b"WARNING: an incubator\nno room for a heap\n\tat org.example.Main\n")
        raise OSError("the gateway did not come up.")

    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr("tiermq.spark.session.get_spark", refuse)
    with pytest.raises(DemoFailed, match=r"local\[9\]: the gateway did not come up. no room for a heap$"):
        engine.SparkEngine("local[9]", 1, tmp_path / "log")
