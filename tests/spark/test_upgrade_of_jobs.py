"""What jobs of every version that was ever made have left is continued: a tier, tables, a stream's checkpoint.

The corpora are in `tests/golden/jobs-*.tar.xz`; what is promised is in docs/upgrade.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from golden.jobs_corpus import KEYS, MESSAGES, broker_of, corpora, opened, run_jobs, send, stream
from test_upgrade import documents
from tiermq import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MORE = 3
CORPORA = corpora()


def commits(path: Path) -> list[int]:
    """The versions of the commits of a table."""
    found = sorted((path / "_tiermq" / "commits").glob("*.tiermq.json"))
    return [json.loads(each.read_text())["format"] for each in found]


def test_every_version_has_a_corpus_of_its_jobs() -> None:
    assert f"jobs-{__version__}.tar.xz" in [each.name for each in CORPORA]


@pytest.mark.parametrize("corpus", CORPORA, ids=[each.name for each in CORPORA])
def test_jobs_and_a_stream_go_on_where_an_earlier_version_ended(
    spark: SparkSession, tmp_path: Path, corpus: Path
) -> None:
    opened(corpus, tmp_path)
    before = documents(tmp_path / "tier")
    assert {"changes.tiermq.json", "manifest.tiermq.json"} <= before.keys()
    assert (commits(tmp_path / "table"), commits(tmp_path / "latest")) == ([1], [2])
    assert stream(spark, tmp_path) == []
    with broker_of(tmp_path) as served:
        send(served.name_server, range(MESSAGES, MESSAGES + MORE))
        run_jobs(served.name_server, tmp_path)
    assert stream(spark, tmp_path) == list(range(MESSAGES, MESSAGES + MORE))
    table = pq.read_table(tmp_path / "table", columns=["number"])
    assert sorted(table["number"].to_pylist()) == list(range(MESSAGES + MORE))
    latest = DeltaTable(tmp_path / "latest").to_pyarrow_table(columns=["number"])
    assert sorted(latest["number"].to_pylist()) == list(range(MESSAGES + MORE - KEYS, MESSAGES + MORE))
    assert documents(tmp_path / "tier") == before  # An older program refuses a document of a higher version.
    assert (commits(tmp_path / "table"), commits(tmp_path / "latest")) == ([1, 1], [2, 2])
