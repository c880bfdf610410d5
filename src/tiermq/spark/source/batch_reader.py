"""The batch reader: one fresh plan for one DataFrame.

`partitions` runs in a process of Spark beside the driver, `read` in workers. They share nothing but the partition, so
an error is a text by the time a user sees it: it must say everything itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tiermq.client.wire_history import WireCatalog, open_place
from tiermq.history.catalog import Catalog
from tiermq.history.open_history import OpenHistory
from tiermq.history.planning import KeyLookup, plan_scan
from tiermq.history.scan_pruning import ScanPruning
from tiermq.history.scan_values import ScanCounters, ScanPlan, ScanRequest
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.scan_meter import reporting
from tiermq.spark.source.scan_partition import partitions_of, read_partition
from tiermq.spark.source.scan_request import base_request, bounded_request, open_catalog
from tiermq.spark.worker import freeze_once


class TierMQReader(DataSourceReader):  # type: ignore[misc] # PySpark is not followed by the checker.
    """Reads what options ask for, with the columns of the schema."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan. Raises BadHistory, DataLoss, and what the tier raises."""
        with open_place(self.options.place) as history:
            return list(partitions_of(plan_batch(history, self.options, self.columns), self.columns, self.options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return metered(partition, self.options.scan_meter)


def plan_batch(history: OpenHistory, options: SourceOptions, columns: Sequence[str]) -> ScanPlan:
    """The plan of a batch read as things are now. What looking at the catalogue has cost is in its counters."""
    request = base_request(options, columns)
    pruning = options.pruning or ScanPruning()
    if pruning.excludes(request):
        return ScanPlan((), ScanCounters())
    named, request = request, request if options.names_queues else pruning.on_topics(request)
    # Topics that options name must exist; those that a query compares with need not.
    catalog = open_catalog(history, options, request, named=replace(named, topics=named.topics & request.topics))
    plan = plan_with(catalog, options, pruning.applied(bounded_request(options, request, catalog)))
    counters = plan.counters
    counters += catalog.counters
    return plan


def plan_with(catalog: Catalog, options: SourceOptions, request: ScanRequest) -> ScanPlan:
    """A plan with the sizes and the strictness that options ask for."""
    return plan_scan(
        catalog,
        request,
        min_partitions=options.min_partitions,
        max_bytes_per_partition=options.partition_bytes,
        loss_is_error=options.fail_on_data_loss,
        lookup=key_lookup(catalog, request),
    )


def key_lookup(catalog: Catalog, request: ScanRequest) -> KeyLookup | None:
    """How keys become places; None when no key is asked for, and over the wire, where every row is looked at."""
    if not request.keys or isinstance(catalog, WireCatalog):
        return None
    from tiermq.history.key_lookup import KeyIndex

    return KeyIndex(catalog, request)


def metered(partition: InputPartition, meter: str | None) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in a worker; what it took is reported to the meter, if there is one."""
    freeze_once()
    counters = ScanCounters()
    with reporting(meter) as report:
        for batch in read_partition(partition, counters):
            report(counters)  # Before Spark has the rows: it may want no more of them.
            yield batch
        report(counters)
