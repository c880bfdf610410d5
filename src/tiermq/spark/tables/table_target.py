"""From `parquet:/lake/orders`, `delta:s3://bucket/orders` or `iceberg:lake.orders` to an open table.

What a format needs is imported when it is asked for; without it, the error says what to install.
"""

from __future__ import annotations

from tiermq.errors import BadOption
from tiermq.spark.tables.data_place import DataPlace
from tiermq.spark.tables.table_contract import ExportTable

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
            from tiermq.spark.tables.table_delta import DeltaLakeTable

            return DeltaLakeTable(DataPlace.of(where))
        if kind == "iceberg":
            from tiermq.spark.tables.table_iceberg import IcebergTable

            if catalog is None or "." not in where or "/" in where:
                raise BadOption(
                    "expected iceberg:<namespace>.<table> and a catalogue, such as sqlite:////lake/catalog.db or the "
                    f"name of one that pyiceberg knows, found {to!r} and {catalog!r}"
                )
            return IcebergTable(where, catalog, warehouse)
    except ImportError as error:
        raise BadOption(f"{to}: {error}; install what tables need: pip install 'tiermq[tables]'") from error
    from tiermq.spark.tables.table_parquet import ParquetTable

    return ParquetTable(DataPlace.of(where))
