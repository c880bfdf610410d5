"""A directory of Parquet files as a table.

    <place>/part-….parquet                 committed files, and nothing else that a reader would take for data
    <place>/_tiermq/head.tiermq.json       the number of the last commit: replacing it is the commit
    <place>/_tiermq/staging/….parquet      files of tasks; readers pass over names that begin with an underscore

A commit is the replacement of the head, if it is still the one that was read. Files are moved to their places after it;
an export that dies in between is finished by the next one. So a reader never sees a message twice, and may see a
commit's files come one after the other: who needs all or nothing takes Delta or Iceberg.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from tiermq.errors import BadOption, ManifestConflict, TableConflict
from tiermq.spark.tables.commit_journal import FOLDER, CommitJournal
from tiermq.spark.tables.data_place import DataPlace
from tiermq.spark.tables.table_contract import DataFile

HEAD = "head.tiermq.json"


class ParquetTable:
    """Belongs to one thread."""

    kind = "parquet"
    stages_files = True
    one_topic_per_file = False

    def __init__(self, place: DataPlace) -> None:
        self.place = place
        self._journal = CommitJournal(place)

    def number(self) -> int:
        head = self._journal.driver.get_object(HEAD)
        return 0 if head is None else int(json.loads(head.data)["number"])

    def schema(self) -> pa.Schema | None:
        number = self.number()
        if number:
            return self._journal.read(number).schema
        strangers = [file.name for file in self.place.files() if not file.name.startswith(f"{FOLDER}/")]
        if strangers:
            raise BadOption(
                f"{self.place.url}: expected an empty directory, or a table that was exported before, found "
                f"{strangers[0]} and no {FOLDER}/{HEAD}; choose another directory"
            )
        return None

    def create(self, schema: pa.Schema) -> None:
        """A directory comes with its first file."""

    def commit(self, number: int, previous: int, files: Sequence[DataFile], schema: pa.Schema) -> None:  # noqa: ARG002 - the signature is shared
        head = self._journal.driver.get_object(HEAD)
        found = 0 if head is None else int(json.loads(head.data)["number"])
        if found == number:
            return
        if found != previous:
            raise conflict(self.place.url, previous, found)
        try:
            document = json.dumps({"number": number}).encode()
            self._journal.driver.put_object(HEAD, document, expected=None if head is None else head.version)
        except ManifestConflict:
            raise conflict(self.place.url, previous, self.number()) from None


def conflict(where: str, expected: int, found: int) -> TableConflict:
    return TableConflict(
        f"{where}: expected commit {expected} to be the last, found {found}: another export of this table is at work. "
        "Nothing of this one was added; run it again when the other has ended"
    )
