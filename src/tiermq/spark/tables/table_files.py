"""The data files of an exported table, in an order in which every queue's messages come one after the other.

A file says in its footer which offsets of which queues it has (`RANGES`). Files of one export are in order by their
names; a later export may have filled what lies before, so names alone do not tell.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import pyarrow.parquet as pq

from tiermq.errors import BadOption, BadSchema
from tiermq.spark.tables.commit_journal import FOLDER
from tiermq.spark.tables.data_place import DataPlace, FoundFile
from tiermq.spark.tables.exported_ranges import ExportedRanges
from tiermq.spark.tables.table_target import open_table

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
    """Where the table lies, its files in order, and what is to be noted about the order.

    Raises BadOption when there is no such table, and BadSchema when a column misses.
    """
    table = open_table(to, catalog=catalog)
    if not table.number() and table.schema() is None:
        raise BadOption(f"{to}: expected a table that was exported, found none; export to it first")
    place = table.place
    names = None
    if table.kind == "delta":
        from tiermq.spark.tables.table_delta import delta_files

        names = delta_files(place)
    elif table.kind == "iceberg":
        from tiermq.spark.tables.table_iceberg import iceberg_files

        names = iceberg_files(to.partition(":")[2], catalog or "", place)
    files = {
        file.name: file
        for file in place.files()
        if file.name.endswith(".parquet")
        and not file.name.startswith(f"{FOLDER}/")
        and (names is None or file.name in names)
    }
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
    told = (metadata.metadata or {}).get(RANGES)
    ranges = ExportedRanges() if told is None else ExportedRanges.of_json(json.loads(told))
    return _Footer(frozenset(metadata.schema.to_arrow_schema().names), ranges)


def _base(name: str) -> str:
    return name.rsplit("/", 1)[-1]
