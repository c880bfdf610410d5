"""Who copies: the dispatcher waits until it is told, and why there is no Spark is said in words."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tiermq import TieredStore
from tiermq.cli import demo_engine as engine
from tiermq.cli.demo_orders import LIST_MESSAGES
from tiermq.cli.demo_producers import DemoFailed, put_list, store_settings
from tiermq.errors import JavaMissing


def test_the_dispatcher_copies_when_it_is_told_and_only_what_is_new(tmp_path: Path) -> None:
    place = engine.Place(tmp_path / "store", (tmp_path / "tier").as_uri(), tmp_path / "table")
    told: list[tuple[int, int]] = []
    settings = store_settings(1_000) | engine.tier_settings(1_000)
    with TieredStore.open(place.store, tier=place.tier, broker_name=engine.BROKER, **settings) as store:
        store.pause_tiering()
        embedded = engine.EmbeddedEngine()
        put_list(store, 0, 0)
        assert embedded.copy(store, place, lambda *numbers: told.append(numbers)) == LIST_MESSAGES
        put_list(store, 1, 0)
        assert embedded.copy(store, place, lambda *numbers: told.append(numbers)) == LIST_MESSAGES
        assert embedded.copy(store, place, lambda *numbers: told.append(numbers)) == 0
        assert embedded.query(place) is embedded.find(place, "order-1") is embedded.export(place) is None
        embedded.close()
    assert told == [(1, 1)] * 3


def test_a_copy_that_does_not_get_through_is_a_failure(tmp_path: Path) -> None:
    class Stuck:
        tier = type("Tier", (), {"files": ()})

        def resume_tiering(self) -> None: ...

        def tier_now(self) -> bool:
            return False

        def status(self) -> dict[str, Any]:
            return {"tier": "no answer since noon"}

    place = engine.Place(tmp_path, "s3://bucket", tmp_path)
    with pytest.raises(DemoFailed, match="s3://bucket: no answer since noon"):
        engine.EmbeddedEngine().copy(Stuck(), place, lambda *_: None)


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
    assert "pyspark not installed here; pip install 'tiermq[spark]'" in str(engine.why_no_spark("local[*]"))


def test_without_java_what_was_looked_at_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise JavaMissing("expected a Java, found none")

    monkeypatch.setattr("tiermq.spark.java.find_java", missing)
    assert engine.why_no_spark("local[*]") == "expected a Java, found none"


def test_whoever_wants_no_spark_gets_none() -> None:
    assert engine.why_no_spark("here") == "--master here was given"


@pytest.mark.parametrize("messages", [1, 10_000, 10_000_000])
def test_index_files_are_small_enough_to_be_full(messages: int) -> None:
    keys = engine.tier_settings(messages)["tiered_store_index_file_max_index_num"]
    assert keys == 256 or keys * engine.INDEX_FILES <= messages


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
