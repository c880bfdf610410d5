"""The schema: which settings SQLite needs so that a commit stays cheap."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from tiermq.tier.metadata.database import MIGRATIONS


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(":memory:")
    for step in MIGRATIONS:
        for statement in step:
            opened.execute(statement)
    yield opened
    opened.close()


def plan(connection: sqlite3.Connection, statement: str) -> str:
    return " ".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + statement))


QUEUE = "topic = '' AND queue_id = 0 AND broker = '' AND cluster = ''"


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE segment SET size = 1 WHERE {QUEUE} AND type = 0 AND base = 0",
        f"SELECT base FROM segment WHERE {QUEUE} AND type = 1 ORDER BY base DESC LIMIT 1",
        "SELECT sum(size) FROM segment WHERE topic = ''",
        "SELECT * FROM segment WHERE status = 2",
        f"UPDATE queue SET epoch = 1 WHERE {QUEUE}",
        f"SELECT queue_offset FROM time_entry WHERE {QUEUE} ORDER BY queue_offset",
    ],
)
def test_no_statement_of_a_commit_or_a_sweep_scans_or_sorts(connection: sqlite3.Connection, statement: str) -> None:
    text = plan(connection, statement)
    assert "SEARCH" in text
    assert "SCAN" not in text
    assert "TEMP B-TREE" not in text


def test_the_topic_counter_starts_before_the_first_id(connection: sqlite3.Connection) -> None:
    assert connection.execute("SELECT value FROM counter").fetchall() == [(-1,)]
