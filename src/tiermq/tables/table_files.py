"""Tables that exports write: opening one, Parquet directories, and data files in the order of each queue's messages.

    parquet:/lake/orders, delta:s3://bucket/orders, iceberg:lake.orders ─► open_table

A format's libraries are imported on use; if missing, the error names what to install.
A file's footer has its queues and offsets (`RANGES`). Files of one export are in order by their
names; a later export may have filled earlier ranges, so names are not enough.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from tiermq.errors import BadOption, BadSchema, ManifestConflict, install_hint
from tiermq.tables.commit_journal import FOLDER, CommitJournal, ExportedRanges
from tiermq.tables.data_place import DataPlace, FoundFile
from tiermq.tables.table_contract import DataFile, ExpiredFiles, ExportTable, conflict

HEAD = "head.tiermq.json"


class ParquetTable:
    """A directory of Parquet files as a table. Belongs to one thread.

        <place>/part-….parquet                 committed files, and no other data files
        <place>/_tiermq/head.tiermq.json       the number of the last commit: replacing it is the commit
        <place>/_tiermq/staging/….parquet      files of tasks; readers skip names that begin with an underscore

    A commit is the replacement of the head, if it is unchanged since it was read. Files are moved into the table after
    it; an export that dies in between is finished by the next one. So a reader never sees a message twice, and may see
    a commit's files come one after the other: for atomic commits use Delta or Iceberg.
    """

    kind = "parquet"
    stages_files = True
    one_topic_per_file = False
    refusals: ClassVar = {
        "upsert": "files of a Parquet directory cannot be replaced in one step; use delta: or iceberg:",
        "columns": "a Parquet directory has no schema of its own; use delta: or iceberg:",
        "widen": "a Parquet directory has no schema of its own; use iceberg:",
        "maintain": "files of a Parquet directory cannot be replaced in one step; export with a larger --file-mib",
    }

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

    def create(self, schema: pa.Schema, identifier: str = "") -> None:
        """A directory comes with its first file."""

    def evolve(self, schema: pa.Schema) -> None:
        raise NotImplementedError(self.refusals["columns"])

    def files(self) -> dict[str, int]:
        found = self.place.files()
        return {file.name: file.size for file in found if not file.name.startswith(f"{FOLDER}/")}

    def commit(
        self,
        number: int,
        previous: int,
        files: Sequence[DataFile],  # noqa: ARG002 - the signature is shared
        schema: pa.Schema,  # noqa: ARG002 - the signature is shared
        removed: Sequence[str] = (),
    ) -> None:
        assert not removed, self.refusals["upsert"]
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

    def replace(self, files: Sequence[DataFile], removed: Sequence[str], schema: pa.Schema) -> None:
        raise NotImplementedError(self.refusals["maintain"])

    def partitions(self) -> list[list[str]]:
        return [sorted(self.files())]

    def expire(self, keep_hours: int, now_ms: int, *, dry_run: bool) -> ExpiredFiles:
        raise NotImplementedError(self.refusals["maintain"])


KINDS = ("parquet", "delta", "iceberg")


def open_table(to: str, *, catalog: str | None = None, warehouse: str | None = None) -> ExportTable:
    """The table at `to`, which need not exist. Raises BadOption."""
    kind, colon, where = to.partition(":")
    if not colon or kind not in KINDS or not where:
        raise BadOption(
            f"expected a table such as parquet:/lake/orders, delta:s3://bucket/orders or iceberg:lake.orders, "
            f"found {to!r}"
        )
    if kind != "iceberg" and (catalog or warehouse):
        raise BadOption(f"a catalogue and a warehouse are for iceberg tables, found them with {to!r}; leave them out")
    try:
        if kind == "delta":
            from tiermq.tables.table_delta import DeltaLakeTable

            return DeltaLakeTable(DataPlace.of(where))
        if kind == "iceberg":
            from tiermq.tables.table_iceberg import IcebergTable

            if catalog is None or "." not in where or "/" in where:
                raise BadOption(
                    "expected iceberg:<namespace>.<table> and a catalogue, such as sqlite:////lake/catalog.db or the "
                    f"name of one that pyiceberg knows, found {to!r} and {catalog!r}"
                )
            return IcebergTable(where, catalog, warehouse)
    except ImportError as error:
        raise BadOption(f"{to}: {error}; install what tables need: {install_hint('tables')}") from error
    return ParquetTable(DataPlace.of(where))


RANGES = b"tiermq.ranges"
"""The name in a footer's metadata of what `ExportedRanges.as_json` gives."""
READ_THREADS = 8


@dataclass(frozen=True, slots=True)
class _Footer:
    columns: frozenset[str]
    ranges: ExportedRanges


def table_files(
    to: str, catalog: str | None, columns: Sequence[str]
) -> tuple[DataPlace, list[FoundFile], tuple[str, ...]]:
    """The location of the table, its files in order, and notes about the order.

    Raises BadOption when there is no such table, and BadSchema when a column misses.
    """
    table = open_table(to, catalog=catalog)
    if not table.number() and table.schema() is None:
        raise BadOption(f"{to}: expected a table that was exported, found none; export to it first")
    place = table.place
    names = table.files()
    files = {file.name: file for file in place.files() if file.name.endswith(".parquet") and file.name in names}
    with ThreadPoolExecutor(READ_THREADS, thread_name_prefix="table-footers") as pool:
        footers = dict(zip(files, pool.map(lambda name: _footer(place, name), files), strict=True))
    for name, footer in footers.items():
        missing = [column for column in columns if column not in footer.columns]
        if missing:
            raise BadSchema(
                f"{to}: a replay needs the columns {', '.join(columns)}, and {name} has no {', '.join(missing)}; "
                "export the table with them (--keep-body where bodies were made columns)"
            )
    order, notes = in_order({name: footer.ranges for name, footer in footers.items()})
    return place, [files[name] for name in order], notes


def in_order(ranges: Mapping[str, ExportedRanges]) -> tuple[list[str], tuple[str, ...]]:
    """Files so that of each queue what comes first is first; where that leaves a choice, by their own names."""
    before: dict[str, set[str]] = {name: set() for name in ranges}
    for queue in {queue for each in ranges.values() for queue in each.queues()}:
        holding = sorted((each.of(queue)[0], name) for name, each in ranges.items() if each.of(queue))
        for (_, first), (_, second) in pairwise(holding):
            before[second].add(first)
    behind: dict[str, set[str]] = {name: set() for name in ranges}
    for name, firsts in before.items():
        for first in firsts:
            behind[first].add(name)
    ready = [(_base(name), name) for name, firsts in before.items() if not firsts]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(name)
        for follower in behind[name]:
            before[follower].discard(name)
            if not before[follower]:
                heapq.heappush(ready, (_base(follower), follower))
    crossed = sorted(set(ranges) - set(order), key=_base)
    if not crossed:
        return order, ()
    note = f"{len(crossed)} files of the table hold queues crosswise: they come in the order in which they were made"
    return [*order, *crossed], (note,)


def _footer(place: DataPlace, name: str) -> _Footer:
    with place.open(name) as stream:
        metadata = pq.read_metadata(stream)
    return _Footer(frozenset(metadata.schema.to_arrow_schema().names), ranges_of(metadata))


def ranges_of(metadata: pq.FileMetaData) -> ExportedRanges:
    """The queues and offsets of a file, by its footer; none if another program wrote it."""
    found = (metadata.metadata or {}).get(RANGES)
    return ExportedRanges() if found is None else ExportedRanges.of_json(json.loads(found))


def _base(name: str) -> str:
    return name.rsplit("/", 1)[-1]
