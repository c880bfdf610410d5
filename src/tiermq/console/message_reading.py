"""Messages of files, of a tier and of brokers alike: by offset, key, time and id, with the record's bytes and place.

A scan is planned by `tiermq.history` and read until enough was found; nothing is left at a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tiermq.client.wire_history import catalog_of, read_placed_task
from tiermq.console.json_case import camel
from tiermq.console.sources import Visit
from tiermq.errors import CorruptRecord
from tiermq.history.catalog import Catalog
from tiermq.history.key_lookup import KeyIndex
from tiermq.history.planning import plan_scan
from tiermq.history.scan_values import Loss, RowFilter, ScanCounters, ScanRequest, Side, describe
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.names import QueueKey


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message, its bytes, and where it was read."""

    queue: QueueKey
    message: StoredMessage
    record: bytes
    side: Side
    segment: str

    def moment(self) -> tuple[int, int, int]:
        """The order in which messages were stored; within a queue that of its offsets."""
        return self.message.store_timestamp_ms, self.message.queue_id, self.message.queue_offset

    def to_dict(self) -> dict[str, Any]:
        return {
            **camel(self.message.to_sent_dict()),
            "broker": self.queue.broker,
            "side": self.side.value,
            "segment": self.segment,
        }


@contextmanager
def catalog_for(visit: Visit, request: ScanRequest) -> Iterator[Catalog]:
    """Files where the visit may read them, else brokers."""
    if visit.has_files:
        with visit.sources.files() as history:
            yield catalog_of(history, request)
    else:
        with visit.wire_history() as history:
            yield catalog_of(history, request)


def find_messages(catalog: Catalog, request: ScanRequest, losses: list[str]) -> Iterator[FoundMessage]:
    """The messages that a request wants, queue by queue. What is missing or damaged is a line in `losses`.

    Raises BadHistory, and what the driver or a broker raises.
    """
    lookup = KeyIndex(catalog, request) if request.keys and (catalog.place.stores or catalog.place.tier) else None
    plan = plan_scan(catalog, request, loss_is_error=False, lookup=lookup)
    wanted = RowFilter.of(request)

    def lose(loss: Loss) -> None:
        losses.append(describe(loss))

    for loss in plan.losses:
        lose(loss)
    counters = ScanCounters()
    for task in plan.tasks:
        for run in read_placed_task(catalog.history, task, counters, lose):
            buffer = memoryview(run.buffer)
            for start, size in zip(run.starts, run.sizes, strict=True):
                record = bytes(buffer[int(start) : int(start) + int(size)])
                try:
                    message = decode_record(record)
                except CorruptRecord as error:
                    losses.append(f"{run.queue.logical_path} in {run.segment}: {error}")
                    continue
                if wanted.matches(message):
                    yield FoundMessage(run.queue, message, record, run.side, run.segment)
