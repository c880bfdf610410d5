"""HistoryDataset: messages of a history as a pyarrow Dataset, so that engines read only what they need.

An engine that scans a Dataset names the columns that it wants and a filter. Other columns are not decoded.
Of the filter, comparisons of topic, brokerName, queueId, queueOffset, storeTimestamp, tags and uniqKey with literals
prune segments, ranges and index look-ups before anything is read, by the rules of `pipeline/sql/query_tables`; then all
of it is applied to each row, so pruning never decides what the answer is.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pd

from tiermq.client.wire_history import open_place
from tiermq.history.arrow_schema import arrow_schema
from tiermq.history.open_history import OpenHistory
from tiermq.history.scan_pruning import ScanPruning
from tiermq.history.scan_values import ScanCounters, ScanPlan
from tiermq.pipeline.scan.read_tasks import read_tasks
from tiermq.pipeline.scan.scan_request import plan_batch
from tiermq.pipeline.scan.scan_spec import ScanSpec
from tiermq.pipeline.sql.query_tables import condition_pruning

_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_VALUE_SETS = re.compile(r"\{value_set=.*?\}", re.DOTALL)
_MOMENT_SHOWN = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?Z?(?![\w])")
_UNKNOWN = "unknown_literal()"
_COUNTED = "queueId"


class HistoryDataset(pd.Dataset):  # type: ignore[misc] # pyarrow is not followed by the checker.
    """See the module. It may be scanned again and again, and sees what is there each time. Any thread may scan it."""

    def __init__(self, spec: ScanSpec, columns: tuple[str, ...] | None = None) -> None:
        # Not the base's: its own one refuses. Everything of a Dataset that engines use is below.
        self._spec = spec
        self._schema = arrow_schema(columns)
        self.counters = ScanCounters()
        """What all scans have planned and read."""

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def plan(self, columns: list[str] | None = None, filter: Any = None) -> ScanPlan:  # noqa: A002 - pyarrow's name.
        """What a scan would read. Raises BadHistory, DataLoss, and what the tier raises."""
        spec = self._pruned(filter)
        with open_place(spec.place) as history:
            return plan_batch(history, spec, self._names(columns, filter))

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: Any = None,  # noqa: A002 - pyarrow's name.
        batch_size: int | None = None,
        **_options: Any,
    ) -> Any:
        """A pyarrow Scanner of these columns (None: all), of the rows that pass the filter."""
        names = self._names(columns, filter)
        batches = self._batches(self._pruned(filter), names, batch_size)
        return pd.Scanner.from_batches(batches, schema=arrow_schema(names), columns=columns, filter=filter)

    def to_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch."""
        batches: Iterator[pa.RecordBatch] = self.scanner(**options).to_batches()
        return batches

    def to_table(self, **options: Any) -> pa.Table:
        """All rows at once."""
        return self.scanner(**options).to_table()

    def count_rows(self, filter: Any = None, **options: Any) -> int:  # noqa: A002 - pyarrow's name.
        """How many rows there are. Without a filter no message is read for that."""
        return sum(batch.num_rows for batch in self.to_batches(columns=[_COUNTED], filter=filter, **options))

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """The first rows."""
        return self.scanner(**options).head(num_rows)

    def get_fragments(self, filter: Any = None) -> Iterator[Any]:  # noqa: A002 - pyarrow's name.
        """A history has no files that stand for themselves."""
        raise NotImplementedError("a history has no fragments: use scanner(), to_batches() or to_table()")

    def __reduce__(self) -> Any:
        return HistoryDataset, (self._spec, tuple(self._schema.names))

    def __repr__(self) -> str:
        place = self._spec.place
        where = place.tier or ", ".join(store.path for store in place.stores)
        return f"HistoryDataset({where!r}, columns={self._schema.names})"

    def _names(self, columns: list[str] | None, filter: Any) -> list[str]:  # noqa: A002
        """The columns that must be read: those wanted, and those of the filter."""
        if columns is None:
            return list(self._schema.names)
        text = "" if filter is None else str(filter)
        also = [name for name in self._schema.names if name not in columns and re.search(rf"\b{name}\b", text)]
        wanted = [name for name in columns if name in self._schema.names] + also
        return wanted or [_COUNTED if _COUNTED in self._schema.names else self._schema.names[0]]

    def _pruned(self, filter: Any) -> ScanSpec:  # noqa: A002
        if filter is None:
            return self._spec
        return replace(self._spec, pruning=self._spec.pruning.also(filter_pruning(str(filter))))

    def _batches(self, spec: ScanSpec, names: list[str], batch_size: int | None) -> Iterator[pa.RecordBatch]:
        with open_place(spec.place) as history:
            plan = plan_batch(history, spec, names)
            self.counters += plan.counters
            for batch in self._read(history, spec, plan, names):
                if batch_size is None or batch.num_rows <= batch_size:
                    yield batch
                else:
                    for at in range(0, batch.num_rows, batch_size):
                        yield batch.slice(at, batch_size)

    def _read(self, history: OpenHistory, spec: ScanSpec, plan: ScanPlan, names: list[str]) -> Iterator[pa.RecordBatch]:
        return read_tasks(
            plan.tasks,
            names,
            self.counters,
            lambda _task: history,
            decompress=spec.decompress,
            fail_on_data_loss=spec.fail_on_data_loss,
        )


def filter_pruning(text: str) -> ScanPruning:
    """What a filter of pyarrow, as its text, leaves out for certain; nothing where it is not understood."""
    literals: list[str] = []

    def literal(found: re.Match[str]) -> str:
        literals.append(found[1])
        return f" literal_{len(literals) - 1}_ "

    plain = _MOMENT_SHOWN.sub(lambda found: f"'{found[0]}'", _VALUE_SETS.sub(_UNKNOWN, _STRING.sub(literal, text)))
    for number, value in enumerate(literals):
        # Escapes and quotes mean something else in SQL: such a literal prunes nothing.
        is_plain = not set(value) & set("\\'\"")
        plain = plain.replace(f" literal_{number}_ ", f"'{value}'" if is_plain else _UNKNOWN)
    return condition_pruning(plain, dt.UTC)
