"""What an export asks of a table, whatever its format.

A table knows its schema, and the number of its last commit. `commit` adds files and sets the number in one transaction
of the format, and only if the number is still the one that was read: so of two exports at once, one loses and has
added nothing. What the number stands for is in the journal beside the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from tiermq.errors import BadSchema, SparkError
from tiermq.spark.tables.data_place import DataPlace

APP_ID = "tiermq"
COMMIT_PROPERTY = "tiermq.commit"
ID_COLUMN = "recordId"
"""Unique and never null in a table: what rows are told apart by."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that a task has written. `least` and `most` are by column, as JSON can hold them."""

    name: str
    size: int
    rows: int
    least: dict[str, Any] = field(default_factory=dict)
    most: dict[str, Any] = field(default_factory=dict)


class ExportTable(Protocol):
    """One table, opened. Nothing is made before `commit` or `create`."""

    @property
    def kind(self) -> str: ...

    @property
    def place(self) -> DataPlace:
        """Where files and the journal lie."""
        ...

    @property
    def stages_files(self) -> bool:
        """Whether every file in the place is part of the table, so that new ones must wait elsewhere."""
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

    def create(self, schema: pa.Schema) -> None:
        """Make the table, empty. Nothing happens when it exists."""
        ...

    def commit(self, number: int, previous: int, files: Sequence[DataFile], schema: pa.Schema) -> None:
        """Add files, and make `number` the last commit, in one transaction. Raises TableConflict."""
        ...


@contextmanager
def own_errors(where: str, *kinds: type[Exception]) -> Iterator[None]:
    """What a table's library raises, as an error of this program that names the table. Raises SparkError."""
    try:
        yield
    except kinds as error:
        raise SparkError(f"{where}: {' '.join(str(error).split())}") from error


def require_same_schema(found: pa.Schema, wanted: pa.Schema, where: str) -> None:
    """Raises BadSchema, which says what differs; the order of columns does not matter, nor how texts are laid out."""
    theirs = {column.name: plain_type(column.type) for column in found}
    ours = {column.name: plain_type(column.type) for column in wanted}
    differences = [
        f"column {name}: the table has {theirs[name]}, the export {ours[name]}"
        for name in theirs.keys() & ours.keys()
        if theirs[name] != ours[name]
    ]
    differences += [f"column {name}: only the table has it" for name in theirs.keys() - ours.keys()]
    differences += [f"column {name}: only the export has it" for name in ours.keys() - theirs.keys()]
    if differences:
        raise BadSchema(
            f"{where}: the table's schema does not fit what would be exported: {'; '.join(sorted(differences))}. "
            "Export the same columns as before, change the table, or export into a new one"
        )


def plain_type(kind: pa.DataType) -> str:
    """A type without names inside and without the size of offsets, in which formats differ."""
    if pa.types.is_map(kind):
        return f"map<{plain_type(kind.key_type)}, {plain_type(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{plain_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{each.name}: {plain_type(each.type)}' for each in kind)}>"
    return str(kind).removeprefix("large_")
