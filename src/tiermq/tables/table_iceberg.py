"""An Iceberg table in a catalogue that pyiceberg knows. The transaction that adds files also sets the table's property
`tiermq.commit`, the number of the commit; the snapshot has it in its summary as well.

    catalog="sqlite:////lake/catalog.db", warehouse="file:///lake"      a catalogue in a file, made when it is not there
    catalog="prod"                                                      a catalogue of .pyiceberg.yaml or PYICEBERG_*

A table created here is partitioned by topic, declares its sort order (broker, topic, queue, offset),
and has `recordId` as its identifier field, as far as it has these columns. The catalogue in a file is called `tiermq`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import _parquet_files_to_data_files
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import IdentityTransform

from tiermq.errors import BadOption, TableConflict
from tiermq.tables.data_place import DataPlace
from tiermq.tables.table_contract import (
    ATTEMPTS,
    COMMIT_PROPERTY,
    ID_COLUMN,
    DataFile,
    ExpiredFiles,
    conflict,
    own_errors,
    rewritten,
)

RETRIES = "commit.retry.num-retries"
NAME_MAPPING = "schema.name-mapping.default"
SQLITE = "sqlite:///"
SORTED_BY = ("brokerName", "topic", "queueId", "queueOffset")
"""As tasks write rows: queues in their order, each by its offsets."""


class CheckedFiles(PyArrowFileIO):
    """Metadata files of a table in the catalogue in a file. Without credentials a bucket is refused, as for data."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> Any:
        kind = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}.get(scheme, scheme)
        DataPlace(f"{kind}://{netloc or ''}").require_credentials()
        return super()._initialize_fs(scheme, netloc)


class IcebergTable:
    """Belongs to one thread."""

    kind = "iceberg"
    stages_files = False
    refusals: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, catalog: str, warehouse: str | None = None) -> None:
        self._name = name
        self._catalog = open_catalog(catalog, warehouse)
        self._warehouse = warehouse_of(catalog, warehouse)

    @property
    def place(self) -> DataPlace:
        """The table's own location; before it is created, its future location."""
        table = self._open()
        if table is not None:
            return DataPlace.of(table.location())
        if self._warehouse is None:
            raise BadOption(
                f"iceberg table {self._name}: expected it to exist, or a warehouse to create it in, found neither"
            )
        return DataPlace.of(f"{self._warehouse}/{self._name.replace('.', '/')}")

    @property
    def one_topic_per_file(self) -> bool:
        """Whether it is partitioned by topic, or will be."""
        table = self._open()
        if table is None:
            return True
        source = {field.field_id: field.name for field in table.schema().fields}
        return any(
            source.get(part.source_id) == "topic" and isinstance(part.transform, IdentityTransform)
            for part in table.spec().fields
        )

    def number(self) -> int:
        table = self._open()
        return 0 if table is None else int(table.properties.get(COMMIT_PROPERTY, "0"))

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else table.schema().as_arrow()

    def create(self, schema: pa.Schema, identifier: str = ID_COLUMN) -> None:
        if self._open() is None:
            place = self.place
            with own_errors(f"iceberg table {self._name}", OSError):
                self._catalog.create_namespace_if_not_exists(self._name.rsplit(".", 1)[0])
                with (
                    suppress(TableAlreadyExistsError),
                    self._catalog.create_table_transaction(self._name, schema=schema, location=place.url) as made,
                ):
                    _lay_out(made, schema, identifier)

    def evolve(self, schema: pa.Schema) -> None:
        with own_errors(f"iceberg table {self._name}", ValueError), self._open().update_schema() as change:
            change.union_by_name(schema)

    def files(self) -> dict[str, int]:
        table = self._open()
        return {} if table is None else {name: file.file_size_in_bytes for name, file in _live_files(table).items()}

    def commit(
        self,
        number: int,
        previous: int,
        files: Sequence[DataFile],
        schema: pa.Schema,  # noqa: ARG002 - the signature is shared
        removed: Sequence[str] = (),
    ) -> None:
        def is_done(table: Any) -> bool:
            found = int(table.properties.get(COMMIT_PROPERTY, "0"))
            if found not in (number, previous):
                raise conflict(self._name, previous, found)
            return found == number

        self._write(files, removed, is_done, {COMMIT_PROPERTY: str(number)})

    def replace(self, files: Sequence[DataFile], removed: Sequence[str], schema: pa.Schema) -> None:  # noqa: ARG002
        self._write(files, removed, lambda _table: False, {})

    def partitions(self) -> list[list[str]]:
        table = self._open()
        groups: dict[Any, list[str]] = {}
        for name, file in sorted(_live_files(table).items()) if table is not None else ():
            if file.spec_id == table.spec().spec_id:
                groups.setdefault(tuple(file.partition), []).append(name)
        return list(groups.values())

    def expire(self, keep_hours: int, now_ms: int, *, dry_run: bool) -> ExpiredFiles:
        """Files younger than this stay, also without a snapshot: a running export may add them."""
        table = self._open()
        before_ms = now_ms - keep_hours * 3_600_000
        heads = {ref.snapshot_id for ref in table.refs().values()}
        old = [
            each.snapshot_id
            for each in table.snapshots()
            if each.timestamp_ms < before_ms and each.snapshot_id not in heads
        ]
        if old and not dry_run:
            with own_errors(f"iceberg table {self._name}", CommitFailedException):
                table.maintenance.expire_snapshots().by_ids(old).commit()
            table = self._open()
        place = self.place
        kept = _referenced(table, set(old))
        names = tuple(
            file.name
            for file in place.files()
            if file.name.startswith(("data/", "metadata/"))
            and file.name.endswith((".parquet", ".avro"))
            and file.modified_ms < before_ms
            and f"{place.url}/{file.name}" not in kept
        )
        for name in () if dry_run else names:
            place.remove(name)
        return ExpiredFiles(len(old), names)

    def _write(
        self, files: Sequence[DataFile], removed: Sequence[str], is_done: Callable[[Any], bool], mark: dict[str, str]
    ) -> None:
        for _ in range(ATTEMPTS):
            table = self._open()
            if table is None:
                raise TableConflict(f"iceberg table {self._name} was deleted during the export; run it again")
            if is_done(table):
                return
            live = _live_files(table) if removed else {}
            if gone := set(removed) - live.keys():
                raise rewritten(self._name, gone)
            left_behind = table.properties.get(RETRIES) == "0" and COMMIT_PROPERTY in table.properties
            # A retry inside would not look whether another export was the reason. Not stored: this is our copy.
            table.metadata.properties[RETRIES] = "0"
            paths = [f"{self.place.url}/{file.name}" for file in files]
            try:
                with _quietly(), table.transaction() as change:
                    if mark:
                        change.set_properties(mark)
                    if left_behind:  # By exports of older versions, in the table.
                        change.remove_properties(RETRIES)
                    if removed:
                        _replace(change, [live[name] for name in removed], paths, mark)
                    else:
                        # Their names are random: they were not added before, and a check would read every manifest.
                        change.add_files(paths, snapshot_properties=mark, check_duplicate_files=False)
            except CommitFailedException:
                continue
            return
        raise TableConflict(f"iceberg table {self._name}: the commit conflicts with other writers; run it again")

    def _open(self) -> Any:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None


def _lay_out(made: Any, schema: pa.Schema, identifier: str) -> None:
    """Partition, order and identity of a new table, by those columns that it has."""
    if "topic" in schema.names:
        with made.update_spec() as spec:
            spec.add_identity("topic")
    order = [name for name in SORTED_BY if name in schema.names]
    if order:
        with made.update_sort_order() as change:
            for name in order:
                change.asc(name, IdentityTransform(), NullOrder.NULLS_FIRST)
    if identifier in schema.names:
        with made.update_schema() as change:
            change.set_identifier_fields(identifier)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without a warning for each column of each file that has no statistics: which have some is chosen with care."""
    logger = logging.getLogger("pyiceberg.io.pyarrow")

    def is_news(entry: logging.LogRecord) -> bool:
        return "statistics missing" not in str(entry.msg)

    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)


def open_catalog(catalog: str, warehouse: str | None) -> Catalog:
    """Raises BadOption."""
    if not catalog.startswith(SQLITE):
        try:
            return load_catalog(catalog, **({"warehouse": warehouse} if warehouse else {}))
        except ValueError as error:
            raise BadOption(
                f"catalogue {catalog!r}: expected sqlite:////file.db, or one that pyiceberg knows (.pyiceberg.yaml), "
                f"found none: {error}"
            ) from error
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.exc import SQLAlchemyError

    path = catalog.removeprefix(SQLITE)
    with own_errors(f"catalogue {path}", SQLAlchemyError, OSError):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        place = str(warehouse_of(catalog, warehouse))
        files = {PY_IO_IMPL: f"{CheckedFiles.__module__}.{CheckedFiles.__qualname__}"}
        made = load_catalog("tiermq", type="sql", uri=catalog, warehouse=place, **files, **s3_properties())
        assert isinstance(made, SqlCatalog)
        # Its own engine keeps connections open until the collector finds them: here each ends with its transaction.
        made.engine.dispose()
        made.engine = create_engine(catalog, poolclass=NullPool)
        return made


def s3_properties() -> dict[str, str]:
    """Options that pyiceberg does not read from AWS_* variables; it does read access keys."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else None)
    found = {"s3.endpoint": endpoint, "s3.region": region}
    return {name: value for name, value in found.items() if value}


def warehouse_of(catalog: str, warehouse: str | None) -> str | None:
    """The warehouse: as given, or beside a catalog that is a file."""
    if warehouse is not None:
        return DataPlace.of(warehouse).url
    if catalog.startswith(SQLITE):
        return DataPlace.of(os.path.dirname(os.path.abspath(catalog.removeprefix(SQLITE)))).url
    return None


def _live_files(table: Any) -> dict[str, Any]:
    """The table's files by their names, relative to its location."""
    place = DataPlace.of(table.location())
    return {task.file.file_path.removeprefix(f"{place.url}/"): task.file for task in table.scan().plan_files()}


def _referenced(table: Any, without: set[int]) -> set[str]:
    """Every file that a snapshot needs, but for these snapshots: data, manifests, and lists of manifests."""
    found: set[str] = set()
    for snapshot in table.snapshots():
        if snapshot.snapshot_id in without:
            continue
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return found


def _replace(change: Any, removed: Sequence[Any], paths: list[str], mark: dict[str, str]) -> None:
    """Remove files and add others as one snapshot."""
    if change.table_metadata.name_mapping() is None:  # Files have no ids of columns, as those that `add_files` adds.
        change.set_properties({NAME_MAPPING: change.table_metadata.schema().name_mapping.model_dump_json()})
    with change.update_snapshot(snapshot_properties=mark).overwrite() as snapshot:
        for file in removed:
            snapshot.delete_data_file(file)
        for file in _parquet_files_to_data_files(change.table_metadata, paths, change._table.io):
            snapshot.append_data_file(file)
