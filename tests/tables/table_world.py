"""A store with messages to export, and tables read back as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tiermq import Message
from tiermq.pipeline.export.job import export
from tiermq.pipeline.job_report import JobReport
from tiermq.store.local_store import LocalStore
from tiermq.tables.table_iceberg import open_catalog

Place = tuple[str, int, int]
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 64,
    "max_index_num": 20_000,
}


class TableWorld:
    """One store directory, closed between puts, and one table of a kind."""

    def __init__(self, path: Path, kind: str = "parquet") -> None:
        self.path = path
        self.kind = kind
        self.store = path / "store"
        self.root = path / "lake" / "orders"
        self.sent: list[Place] = []
        self.catalog = f"sqlite:///{path}/lake/catalog.db"

    @property
    def to(self) -> dict[str, Any]:
        if self.kind == "iceberg":
            return {"to": "iceberg:lake.orders", "catalog": self.catalog, "warehouse": str(self.path)}
        return {"to": f"{self.kind}:{self.root}"}

    def put(self, count: int, topic: str = "orders", queues: int = 2, body: str = '{"id": %d}') -> None:
        with LocalStore.open(self.store, background=False, **SETTINGS) as store:
            for number in range(count):
                text = body % number if "%d" in body else body
                result = store.put(Message(topic, text.encode(), number % queues, tags="t", keys=[f"k{number}"]))
                assert result.ok
                self.sent.append((topic, number % queues, result.queue_offset))
            store.dispatch_now()
            store.flush()

    def export(self, runner: Any = None, **more: Any) -> JobReport:
        return export(runner, store=self.store, **{**self.to, **more})

    def table(self) -> pa.Table:
        if self.kind == "delta":
            return pa.table(DeltaTable(str(self.root)).to_pyarrow_table())
        if self.kind == "iceberg":
            return open_catalog(self.catalog, None).load_table("lake.orders").scan().to_arrow()
        files = sorted(self.root.glob("*.parquet"))
        return pa.concat_tables([pq.read_table(file) for file in files])

    def rows(self) -> list[Place]:
        """Which messages the table has: each as often as it is in there."""
        table = self.table()
        columns = (table.column(name).to_pylist() for name in ("topic", "queueId", "queueOffset"))
        return sorted(zip(*columns, strict=True))

    def bad_rows(self) -> list[dict[str, Any]]:
        root = Path(str(self.root) + "_bad")
        return [row for file in sorted(root.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]

    def wanted(self) -> list[Place]:
        return sorted(self.sent)
