"""What an export needs of a table, in any format.

A table knows its schema, and the number of its last commit. `commit` adds and removes files and sets the number in one
transaction of the format, and only if the number is unchanged since it was read: so of two concurrent exports, one
fails and has added nothing. What the number stands for is in the journal beside the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from tiermq.errors import SparkError, TableConflict
from tiermq.tables.data_place import DataPlace

APP_ID = "tiermq"
COMMIT_PROPERTY = "tiermq.commit"
ATTEMPTS = 5
"""Attempts of a commit that conflicts with other writers."""
ID_COLUMN = "recordId"
"""Unique and never null in a table: the key of rows."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that a task has written. `least` and `most` are by column, as JSON can hold them."""

    name: str
    size: int
    rows: int
    least: dict[str, Any] = field(default_factory=dict)
    most: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpiredFiles:
    """Versions that were dropped, and files that were deleted; of a dry run, would be."""

    versions: int
    files: tuple[str, ...]


class ExportTable(Protocol):
    """One table, opened. Nothing is created before `commit` or `create`."""

    @property
    def kind(self) -> str: ...

    @property
    def place(self) -> DataPlace:
        """The location of files and journal."""
        ...

    @property
    def stages_files(self) -> bool:
        """Whether every file of the location is part of the table, so that new ones are staged elsewhere."""
        ...

    @property
    def one_topic_per_file(self) -> bool:
        """Whether a file may have messages of one topic only, as the table is partitioned so."""
        ...

    def number(self) -> int:
        """Of the last commit, as it is now; 0 when there was none."""
        ...

    def schema(self) -> pa.Schema | None:
        """The table's own schema; None when there is no table, or one that has none of its own."""
        ...

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why the format cannot do something: `upsert`, `columns` (add some), `widen` (a type), `maintain`."""
        ...

    def create(self, schema: pa.Schema, identifier: str = ID_COLUMN) -> None:
        """Make the table, empty. Nothing happens when it exists. `identifier` is the column that is unique."""
        ...

    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns that the table lacks, and widen types, as far as `refusals` allows."""
        ...

    def files(self) -> dict[str, int]:
        """The data files of the table now, relative to its location, with their sizes."""
        ...

    def commit(
        self, number: int, previous: int, files: Sequence[DataFile], schema: pa.Schema, removed: Sequence[str] = ()
    ) -> None:
        """Add files, remove others, and make `number` the last commit, in one transaction. Raises TableConflict."""
        ...

    def replace(self, files: Sequence[DataFile], removed: Sequence[str], schema: pa.Schema) -> None:
        """Put files in the place of others that have the same rows; an export may commit meanwhile.

        Raises TableConflict when one of them is no part of the table any more.
        """
        ...

    def partitions(self) -> list[list[str]]:
        """The names of the table's files, those together that one file could replace."""
        ...

    def expire(self, keep_hours: int, now_ms: int, *, dry_run: bool) -> ExpiredFiles:
        """Drop versions older than this, and the files of the location that no version has any more."""
        ...


@contextmanager
def own_errors(where: str, *kinds: type[Exception]) -> Iterator[None]:
    """What a table's library raises, as an error of this program that names the table. Raises SparkError."""
    try:
        yield
    except kinds as error:
        raise SparkError(f"{where}: {' '.join(str(error).split())}") from error


def plain_type(kind: pa.DataType) -> str:
    """A type without names inside and without the size of offsets, in which formats differ."""
    if pa.types.is_map(kind):
        return f"map<{plain_type(kind.key_type)}, {plain_type(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{plain_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{each.name}: {plain_type(each.type)}' for each in kind)}>"
    return str(kind).removeprefix("large_")


def conflict(where: str, expected: int, found: int) -> TableConflict:
    return TableConflict(
        f"{where}: expected commit {expected} to be the last, found {found}: another export of this table is running. "
        "Nothing of this one was added; run it again when the other has ended"
    )


def rewritten(where: str, names: Iterable[str]) -> TableConflict:
    return TableConflict(
        f"{where}: {sorted(names)[0]} is not in the table any more: another program has rewritten it meanwhile. "
        "Nothing was committed; run it again"
    )
