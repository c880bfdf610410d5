"""The journal of a table: documents that count once the table points to them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tiermq.errors import FutureManifest, ManifestConflict, TableConflict
from tiermq.tables.commit_journal import (
    KEPT_COMMITS,
    ORPHAN_AGE_MS,
    STAGING,
    Commit,
    CommitJournal,
    ExportedRanges,
    Move,
    next_number,
)
from tiermq.tables.data_place import DataPlace
from tiermq.tier.names import QueueKey

RANGES = ExportedRanges({QueueKey("c", "b", "t", 0): [(0, 5), (7, 9)]})
SCHEMA = pa.schema([("a", pa.int64())])
NOW_MS = 10 * ORPHAN_AGE_MS


@pytest.fixture
def journal(tmp_path: Path) -> CommitJournal:
    return CommitJournal(DataPlace.of(str(tmp_path / "t")))


def commit(number: int, made_ms: int = NOW_MS) -> Commit:
    return Commit(number, RANGES, SCHEMA, ("a.parquet",), (Move("s/a", "a", True),), 5, 1, made_ms)


def test_a_commit_comes_back_as_it_was_written(journal: CommitJournal) -> None:
    journal.write(commit(7))
    assert journal.read(7) == commit(7)


def test_numbers_grow_and_no_two_runs_have_the_same() -> None:
    numbers = {next_number(5 << 31) for _ in range(50)}
    assert len(numbers) == 50
    assert {number >> 31 for number in numbers} == {6}


def test_a_document_is_never_written_over(journal: CommitJournal) -> None:
    journal.write(commit(7))
    with pytest.raises(ManifestConflict):
        journal.write(Commit(7, ExportedRanges(), SCHEMA))


def test_a_table_whose_document_is_gone_is_not_guessed_at(journal: CommitJournal) -> None:
    with pytest.raises(TableConflict, match="is not there"):
        journal.read(9)


def test_a_document_of_a_newer_program_is_refused() -> None:
    document = json.loads(commit(1).encode()) | {"format": 3}
    with pytest.raises(FutureManifest, match="format 3"):
        Commit.decode(json.dumps(document).encode())


def test_a_sweep_keeps_what_counts_and_what_may_still_count(journal: CommitJournal) -> None:
    for number in range(1, KEPT_COMMITS + 5):
        journal.write(commit(number))
    current = KEPT_COMMITS + 4
    journal.write(commit(current + 1, NOW_MS))
    journal.write(commit(current + 2, NOW_MS - ORPHAN_AGE_MS - 1))
    with journal.place.create(f"{STAGING}/a") as stream:
        stream.write(b"x")
    modified_ms = journal.place.files(STAGING)[0].modified_ms
    journal.sweep(current, NOW_MS)
    left = [int(name.split("/")[1].split(".")[0]) for name in journal.driver.list_objects("commits/")]
    assert left == [*range(4, current + 1), current + 1]
    assert journal.place.files(STAGING) == [] or modified_ms >= NOW_MS - ORPHAN_AGE_MS
    journal.sweep(current, modified_ms + ORPHAN_AGE_MS + 1)
    assert journal.place.files(STAGING) == []
