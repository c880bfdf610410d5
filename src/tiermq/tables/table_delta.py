"""A Delta table. The transaction that adds files also sets the version of the application `tiermq`, which is the number
of the commit; Delta keeps it through checkpoints. `deltalake` writes the log, no Spark is needed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import ClassVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tiermq.errors import TableConflict
from tiermq.tables.data_place import DataPlace
from tiermq.tables.table_contract import (
    APP_ID,
    ATTEMPTS,
    COMMIT_PROPERTY,
    DataFile,
    ExpiredFiles,
    conflict,
    own_errors,
    rewritten,
)


class DeltaLakeTable:
    """Belongs to one thread."""

    kind = "delta"
    stages_files = False
    one_topic_per_file = False
    refusals: ClassVar = {
        "widen": "delta-rs does not write tables with type widening; export into a new table, or use iceberg:"
    }

    def __init__(self, place: DataPlace) -> None:
        self.place = place

    def number(self) -> int:
        table = self._open()
        return 0 if table is None else int(table.transaction_version(APP_ID) or 0)

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else pa.schema(table.schema().to_arrow())

    def create(self, schema: pa.Schema, identifier: str = "") -> None:  # noqa: ARG002 - the signature is shared
        if self._open() is None:
            with own_errors(self.place.url, DeltaError, OSError):
                DeltaTable.create(self._uri, schema=schema, mode="ignore", storage_options=storage_options())

    def evolve(self, schema: pa.Schema) -> None:
        table = self._open()
        assert table is not None, "it is created first"
        known = {field.name for field in table.schema().fields}
        new = pa.schema([field for field in schema if field.name not in known])
        if new.names:
            with own_errors(self.place.url, DeltaError):
                table.alter.add_columns(Schema.from_arrow(new).fields)

    def files(self) -> dict[str, int]:
        table = self._open()
        return {} if table is None else live_files(table)

    def commit(
        self, number: int, previous: int, files: Sequence[DataFile], schema: pa.Schema, removed: Sequence[str] = ()
    ) -> None:
        def is_done(table: DeltaTable) -> bool:
            found = int(table.transaction_version(APP_ID) or 0)
            if found not in (number, previous):
                raise conflict(self.place.url, previous, found)
            return found == number

        mark = {COMMIT_PROPERTY: str(number)}
        self._write(files, removed, schema, is_done, mark, [Transaction(APP_ID, number)])

    def replace(self, files: Sequence[DataFile], removed: Sequence[str], schema: pa.Schema) -> None:
        self._write(files, removed, schema, lambda _table: False, {}, [])

    def partitions(self) -> list[list[str]]:
        table = self._open()
        if table is not None and table.metadata().partition_columns:
            return []  # Of another program: its files cannot be distinguished by their names.
        return [sorted(self.files())]

    def expire(self, keep_hours: int, now_ms: int, *, dry_run: bool) -> ExpiredFiles:
        table = self._open()
        assert table is not None, "only a table that exists expires"
        with own_errors(self.place.url, DeltaError, OSError):
            names = table.vacuum(keep_hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
            if not dry_run:
                table.cleanup_metadata()
        oldest_ms = now_ms - keep_hours * 3_600_000
        versions = sum(each["timestamp"] < oldest_ms for each in table.history()[1:])
        return ExpiredFiles(versions if names else 0, tuple(unquote(name) for name in names))

    def _write(
        self,
        files: Sequence[DataFile],
        removed: Sequence[str],
        schema: pa.Schema,
        is_done: Callable[[DeltaTable], bool],
        mark: dict[str, str],
        transactions: list[Transaction],
    ) -> None:
        now_ms, is_change = time.time_ns() // 1_000_000, bool(transactions)
        for _ in range(ATTEMPTS):
            table = self._open()
            if table is None:
                raise TableConflict(f"{self.place.url}: the table was deleted during the export; run it again")
            if is_done(table):
                return
            sizes = live_files(table) if removed else {}
            if gone := set(removed) - sizes.keys():
                raise rewritten(self.place.url, gone)
            actions: list[AddAction | RemoveAction] = [
                RemoveAction(name, is_change, now_ms, sizes[name], {}) for name in removed
            ]
            actions += [AddAction(file.name, file.size, {}, now_ms, is_change, _stats(file)) for file in files]
            # No retries inside: after a concurrent commit it must be checked whether that was another export.
            properties = CommitProperties(
                custom_metadata=mark or None, max_commit_retries=0, app_transactions=transactions or None
            )
            try:
                table.create_write_transaction(actions, "append", schema, commit_properties=properties)
            except CommitFailedError:
                continue
            return
        raise TableConflict(
            f"{self.place.url}: {ATTEMPTS} attempts to commit failed because of other writers; run it again"
        )

    @property
    def _uri(self) -> str:
        self.place.require_credentials()
        return self.place.path if self.place.is_local else self.place.url

    def _open(self) -> DeltaTable | None:
        with own_errors(self.place.url, DeltaError, OSError):
            try:
                return DeltaTable(self._uri, storage_options=storage_options())
            except TableNotFoundError:
                return None


def storage_options() -> dict[str, str]:
    """Options that deltalake does not read from AWS_* variables. Its commits are conditional puts."""
    options: dict[str, str] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    if endpoint:
        options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": os.environ.get("AWS_REGION", "us-east-1")}
        if endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
    if os.environ.get("AWS_ACCESS_KEY_ID") or endpoint:
        options["conditional_put"] = "etag"
    return options


def _stats(file: DataFile) -> str:
    return json.dumps({"numRecords": file.rows, "minValues": file.least, "maxValues": file.most, "nullCount": {}})


def live_files(table: DeltaTable) -> dict[str, int]:
    """The table's files, relative to its location, with their sizes."""
    actions = pa.table(table.get_add_actions())
    names, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    return {unquote(name): size for name, size in zip(names, sizes, strict=True)}
