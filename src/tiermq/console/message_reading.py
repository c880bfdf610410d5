"""Messages of files, of a tier and of brokers alike: by offset, key, time and id, with the record's bytes and place.

A scan is planned by `tiermq.history` and read until enough was found; nothing is left at a broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tiermq.client.cluster_client import ClusterClient
from tiermq.client.wire_history import catalog_of, read_placed_task
from tiermq.console.json_case import camel
from tiermq.console.sources import Visit, answering
from tiermq.errors import CorruptRecord
from tiermq.history.catalog import Catalog
from tiermq.history.key_lookup import KeyIndex
from tiermq.history.planning import plan_scan
from tiermq.history.scan_values import Loss, RowFilter, ScanCounters, ScanRequest, Side, describe
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.names import QueueKey

BODY_BYTES_MAX = 16 << 20
"""What a body is decompressed to at most: four kilobytes can claim to be many megabytes."""
LIST_BYTES_MAX = 32 << 20
"""Bodies of one list."""


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

    @property
    def place(self) -> dict[str, Any]:
        return {"broker": self.queue.broker, "side": self.side.value, "segment": self.segment}


def sent_dicts(messages: Iterable[StoredMessage], losses: list[str]) -> list[dict[str, Any]]:
    """Messages for JSON, with bodies as long as there is room for them; what is left out is a line in `losses`."""
    rows, room, count = [], LIST_BYTES_MAX, 0
    for message in messages:
        row = camel(message.to_sent_dict(max_bytes=min(max(0, room), BODY_BYTES_MAX)))
        if len(row["body"]) > room:
            row |= {"body": "", "bodyEncoding": "left out"}
            count += 1
        room -= len(row["body"])
        rows.append(row)
    if count:
        losses.append(
            f"bodies of {count} messages are left out: a list has {LIST_BYTES_MAX >> 20} MiB of them at most; ask for "
            "fewer messages, or for each by its offset"
        )
    return rows


@contextmanager
def catalog_for(
    visit: Visit, request: ScanRequest, *, is_long: bool = False, is_live: bool = False
) -> Iterator[Catalog]:
    """Files where the visit may read them, else brokers. `is_long`: by files of its own, so that no page waits.

    `is_live`: brokers rather than a tier alone, which has no messages of now.
    """
    if visit.has_stores or (visit.has_tier and not (is_live and visit.has_wire)):
        with visit.sources.own_files() if is_long else visit.sources.files() as history:
            yield catalog_of(history, request)
    else:
        here = visit.ask(_answering)
        named = frozenset(here) if visit.problems() else frozenset[str]()
        with visit.wire_history() as history:
            yield catalog_of(history, replace(request, brokers=request.brokers or named))


async def _answering(client: ClusterClient) -> dict[str, str]:
    return await answering(client, await client.masters())


def find_messages(
    catalog: Catalog,
    request: ScanRequest,
    losses: list[str],
    *,
    accepts: Callable[[StoredMessage], bool] | None = None,
    each_queue: int | None = None,
    check: Callable[[], None] | None = None,
) -> Iterator[FoundMessage]:
    """The messages that a request wants, queue by queue, so many of each. What is missing or damaged is a line in
    `losses`. `check` is called before each read, and may raise.

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
    counts: Counter[QueueKey] = Counter()
    for task in plan.tasks:
        if each_queue is not None and counts[task.queue] >= each_queue:
            continue
        for run in read_placed_task(catalog.history, task, counters, lose):
            if check is not None:
                check()
            buffer = memoryview(run.buffer)
            for start, size in zip(run.starts, run.sizes, strict=True):
                record = bytes(buffer[int(start) : int(start) + int(size)])
                try:
                    message = decode_record(record)
                except CorruptRecord as error:
                    losses.append(f"{run.queue.logical_path} in {run.segment}: {error}")
                    continue
                if not wanted.matches(message) or (accepts is not None and not accepts(message)):
                    continue
                yield FoundMessage(run.queue, message, record, run.side, run.segment)
                counts[run.queue] += 1
                if counts[run.queue] == each_queue:
                    break
            if each_queue is not None and counts[run.queue] >= each_queue:
                break
