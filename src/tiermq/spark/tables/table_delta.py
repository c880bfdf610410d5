"""A Delta table. The transaction that adds files also sets the version of the application `tiermq`, which is the number
of the commit; Delta keeps it through checkpoints. `deltalake` writes the log, no Spark is needed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tiermq.errors import TableConflict
from tiermq.spark.tables.data_place import DataPlace
from tiermq.spark.tables.table_contract import APP_ID, COMMIT_PROPERTY, DataFile, own_errors
from tiermq.spark.tables.table_parquet import conflict

ATTEMPTS = 5


class DeltaLakeTable:
    """Belongs to one thread."""

    kind = "delta"
    stages_files = False
    one_topic_per_file = False

    def __init__(self, place: DataPlace) -> None:
        self.place = place

    def number(self) -> int:
        table = self._open()
        return 0 if table is None else int(table.transaction_version(APP_ID) or 0)

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else pa.schema(table.schema().to_arrow())

    def create(self, schema: pa.Schema) -> None:
        if self._open() is None:
            with own_errors(self.place.url, DeltaError, OSError):
                DeltaTable.create(self._uri, schema=schema, mode="ignore", storage_options=storage_options())

    def commit(self, number: int, previous: int, files: Sequence[DataFile], schema: pa.Schema) -> None:
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.name, file.size, {}, time.time_ns() // 1_000_000, True, _stats(file)) for file in files
        ]
        for _ in range(ATTEMPTS):
            table = self._open()
            if table is None:
                raise TableConflict(f"{self.place.url}: the table went away while it was exported to; run it again")
            found = int(table.transaction_version(APP_ID) or 0)
            if found == number:
                return
            if found != previous:
                raise conflict(self.place.url, previous, found)
            # No retries inside: after a commit of somebody else it has to be looked whether it was another export.
            properties = CommitProperties(
                custom_metadata={COMMIT_PROPERTY: str(number)},
                max_commit_retries=0,
                app_transactions=[Transaction(APP_ID, number)],
            )
            try:
                table.create_write_transaction(actions, "append", schema, commit_properties=properties)
            except CommitFailedError:
                continue
            return
        raise TableConflict(f"{self.place.url}: others commit all the time, {ATTEMPTS} attempts failed; run it again")

    @property
    def _uri(self) -> str:
        return self.place.path if self.place.is_local else self.place.url

    def _open(self) -> DeltaTable | None:
        with own_errors(self.place.url, DeltaError, OSError):
            try:
                return DeltaTable(self._uri, storage_options=storage_options())
            except TableNotFoundError:
                return None


def storage_options() -> dict[str, str]:
    """What deltalake does not read from AWS_* variables by itself. Its commits are conditional puts."""
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


def delta_files(place: DataPlace) -> set[str]:
    """The names of the files that the table has now, relative to its place."""
    uris = DeltaTable(place.path if place.is_local else place.url, storage_options=storage_options()).file_uris()
    return {uri.removeprefix("file://").removeprefix(f"{place.url}/").removeprefix(f"{place.path}/") for uri in uris}
