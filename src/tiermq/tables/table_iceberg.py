"""An Iceberg table in a catalogue that pyiceberg knows. The transaction that adds files also sets the table's property
`tiermq.commit`, the number of the commit; the snapshot has it in its summary as well.

    catalog="sqlite:////lake/catalog.db", warehouse="file:///lake"      a catalogue in a file, made when it is not there
    catalog="prod"                                                      a catalogue of .pyiceberg.yaml or PYICEBERG_*

A table that is made here is partitioned by topic, says that its files are sorted by broker, topic, queue and offset,
and has `recordId` as its identifier field, as far as it has these columns. The catalogue in a file is called `tiermq`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import IdentityTransform

from tiermq.errors import BadOption, TableConflict
from tiermq.spark.tables.data_place import DataPlace
from tiermq.spark.tables.table_contract import COMMIT_PROPERTY, ID_COLUMN, DataFile, own_errors
from tiermq.spark.tables.table_parquet import conflict

ATTEMPTS = 5
RETRIES = "commit.retry.num-retries"
SQLITE = "sqlite:///"
SORTED_BY = ("brokerName", "topic", "queueId", "queueOffset")
"""As tasks write rows: queues in their order, each by its offsets."""


class IcebergTable:
    """Belongs to one thread."""

    kind = "iceberg"
    stages_files = False

    def __init__(self, name: str, catalog: str, warehouse: str | None = None) -> None:
        self._name = name
        self._catalog = open_catalog(catalog, warehouse)
        self._warehouse = warehouse_of(catalog, warehouse)

    @property
    def place(self) -> DataPlace:
        """The table's own location; before it is made, the one that it gets."""
        table = self._open()
        if table is not None:
            return DataPlace.of(table.location())
        if self._warehouse is None:
            raise BadOption(
                f"iceberg table {self._name}: expected it to exist, or a warehouse to make it in, found neither"
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

    def create(self, schema: pa.Schema) -> None:
        if self._open() is None:
            place = self.place
            with own_errors(f"iceberg table {self._name}", OSError):
                self._catalog.create_namespace_if_not_exists(self._name.rsplit(".", 1)[0])
                with (
                    suppress(TableAlreadyExistsError),
                    self._catalog.create_table_transaction(self._name, schema=schema, location=place.url) as made,
                ):
                    _lay_out(made, schema)

    def commit(self, number: int, previous: int, files: Sequence[DataFile], schema: pa.Schema) -> None:  # noqa: ARG002 - the signature is shared
        for _ in range(ATTEMPTS):
            table = self._open()
            if table is None:
                raise TableConflict(f"iceberg table {self._name} went away while it was exported to; run it again")
            found = int(table.properties.get(COMMIT_PROPERTY, "0"))
            if found == number:
                return
            if found != previous:
                raise conflict(self._name, previous, found)
            left_behind = table.properties.get(RETRIES) == "0" and COMMIT_PROPERTY in table.properties
            # A retry inside would not look whether another export was the reason. Not stored: this is our copy.
            table.metadata.properties[RETRIES] = "0"
            paths = [f"{self.place.url}/{file.name}" for file in files]
            mark = {COMMIT_PROPERTY: str(number)}
            try:
                with _quietly(), table.transaction() as change:
                    change.set_properties(mark)
                    if left_behind:  # By exports of older versions, in the table itself.
                        change.remove_properties(RETRIES)
                    # Their names are random: nobody has added them before, and to look would read every manifest.
                    change.add_files(paths, snapshot_properties=mark, check_duplicate_files=False)
            except CommitFailedException:
                continue
            return
        raise TableConflict(f"iceberg table {self._name}: others commit all the time; run it again")

    def _open(self) -> Any:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None


def _lay_out(made: Any, schema: pa.Schema) -> None:
    """Partition, order and identity of a new table, by those columns that it has."""
    if "topic" in schema.names:
        with made.update_spec() as spec:
            spec.add_identity("topic")
    order = [name for name in SORTED_BY if name in schema.names]
    if order:
        with made.update_sort_order() as change:
            for name in order:
                change.asc(name, IdentityTransform(), NullOrder.NULLS_FIRST)
    if ID_COLUMN in schema.names:
        with made.update_schema() as change:
            change.set_identifier_fields(ID_COLUMN)


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
    from sqlalchemy.exc import SQLAlchemyError

    path = catalog.removeprefix(SQLITE)
    with own_errors(f"catalogue {path}", SQLAlchemyError, OSError):
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        place = str(warehouse_of(catalog, warehouse))
        return load_catalog("tiermq", type="sql", uri=catalog, warehouse=place, **s3_properties())


def s3_properties() -> dict[str, str]:
    """What pyiceberg does not read from AWS_* variables by itself; keys it takes from there as everybody does."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else None)
    found = {"s3.endpoint": endpoint, "s3.region": region}
    return {name: value for name, value in found.items() if value}


def warehouse_of(catalog: str, warehouse: str | None) -> str | None:
    """Where tables are made: as said, or beside a catalogue that is a file."""
    if warehouse is not None:
        return DataPlace.of(warehouse).url
    if catalog.startswith(SQLITE):
        return DataPlace.of(os.path.dirname(os.path.abspath(catalog.removeprefix(SQLITE)))).url
    return None


def iceberg_files(name: str, catalog: str, place: DataPlace) -> set[str]:
    """The names of the files that the table has now, relative to its place."""
    tasks = open_catalog(catalog, None).load_table(name).scan().plan_files()
    return {task.file.file_path.removeprefix(f"{place.url}/") for task in tasks}
