"""The whole demo on Spark, small: copy, evict, SQL over hot and cold, one key, a table, restore."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tiermq.cli.demo.account import Timeline, bytes_on_disk
from tiermq.cli.demo.broker import Place
from tiermq.cli.demo.page import page
from tiermq.cli.demo.run import Demo

MESSAGES = 4_000


@pytest.mark.crash
def test_spark_copies_asks_and_exports_all_that_was_put(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(tmp_path / "store", (tmp_path / "tier").as_uri(), tmp_path / "table")
    timeline = Timeline(lambda: bytes_on_disk(place.store), lambda: bytes_on_disk(tmp_path / "tier"))
    with timeline:
        account = Demo(place, MESSAGES, None, "local[2]", lambda _: None).run(timeline)
    assert [step.name for step in account.steps] == [
        "put", "recover", "spark", "copy", "evict", "read", "sql", "export", "rest", "restore",
    ]  # fmt: skip
    assert len(account.checks) == 5
    assert {(check.count, check.checksum) for check in account.checks[1:]} == {(account.messages, account.checksum)}
    assert {row.tier for row in account.sql} == {"hot", "cold"}
    assert sum(row.messages for row in account.sql if row.tier == "cold") == account.fact("copy", "copied")
    assert account.log_files_evicted >= 3
    # Of six index files' worth of messages the newest may not be indexed yet, and is scanned.
    assert account.fact("sql", "key_bytes_read") < account.tier_bytes / 5
    assert 0 < account.fact("sql", "broker_rows") < account.messages / 8, "the brokers left other tags out"
    assert account.table_files >= 1
    assert spark.read.parquet(str(place.table)).count() == account.messages
    assert "SQL over" in page(account, timeline)
    assert spark.range(3).count() == 3, "a session that ran before the demo runs on"
