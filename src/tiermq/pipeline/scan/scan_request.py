"""From options to a scan request: which queues, from where, to where. On the driver, before anything is read.

What options name must exist: a topic, a queue or a broker that is not there is an error that names what is.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from tiermq.client.wire_history import WireCatalog, catalog_of
from tiermq.errors import BadHistory, BadOption
from tiermq.history.arrow_batch import decode_run
from tiermq.history.arrow_schema import COLUMNS, check_columns
from tiermq.history.catalog import Catalog, QueueHistory
from tiermq.history.open_history import OpenHistory
from tiermq.history.planning import plan_scan
from tiermq.history.reading import read_task
from tiermq.history.scan_values import EVER_MS, OffsetBounds, ScanCounters, ScanRequest
from tiermq.spark.offsets_json import LATEST_NUMBER, Edge, EveryQueue, QueueNumber
from tiermq.spark.options import SourceOptions
from tiermq.tier.names import QueueKey

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_BODY_COLUMNS = frozenset({"body", "value"})
_PROPERTY_COLUMNS = frozenset({"properties", "headers"})
NOTHING = OffsetBounds(0, 0)


def columns_of(options: SourceOptions) -> tuple[str, ...]:
    """The columns that options ask for. Raises UnknownColumn."""
    if options.columns:
        return check_columns(options.columns)
    hidden = frozenset() if options.include_body else _BODY_COLUMNS
    hidden |= frozenset() if options.include_properties else _PROPERTY_COLUMNS
    return tuple(name for name in (KAFKA_COLUMNS if options.kafka_columns else COLUMNS) if name not in hidden)


def base_request(options: SourceOptions, columns: Sequence[str]) -> ScanRequest:
    """What is wanted as far as options alone can tell; `bounded_request` adds offsets."""
    assigned = options.assigned or ()
    return ScanRequest(
        topics=frozenset(options.topics or (each.topic for each in assigned)),
        topic_pattern=options.topic_pattern,
        brokers=frozenset() if options.stores else frozenset(options.broker_names),
        queue_ids=frozenset(options.queue_ids),
        begin_ms=options.starting_ms or 0,
        # Ours is inclusive, that of users is not: so ranges of time join without overlap.
        end_ms=EVER_MS if options.ending_ms is None else options.ending_ms - 1,
        keys=frozenset(options.keys),
        tags=frozenset(options.tags),
        include_body=bool(_BODY_COLUMNS & set(columns)),
        delays_ms=options.delays_ms,
    )


def open_catalog(
    history: OpenHistory,
    options: SourceOptions,
    request: ScanRequest,
    *,
    named: ScanRequest | None = None,
    may_be_empty: bool = False,
) -> Catalog:
    """The catalogue of what is wanted. Raises BadHistory for a topic, broker or assigned queue that does not exist.

    `named` is what must exist, where that is less than the request. Also for topics that cannot be read as history,
    and, unless it `may_be_empty`, for a tier that holds nothing.
    """
    catalog = catalog_of(history, request)
    if not may_be_empty:
        require_tier(catalog, options)
    catalog.require_readable()
    check_topics(catalog, named or request)
    for each in options.assigned or ():
        catalog.find(each.topic, each.queue_id, each.broker or None)
    return catalog


def require_tier(catalog: Catalog, options: SourceOptions) -> None:
    """Raises BadHistory when the tier holds nothing: a wrong URL must not pass for an empty table.

    Beside a store an empty tier is that of a broker which has uploaded nothing yet, unless the store itself begins
    later: then its older messages should be in the tier.
    """
    if options.tier is None or not catalog.has_empty_tier:
        return
    late = next((queue for queue in catalog.queues() if queue.hot_min > 0), None)
    if options.stores and late is None:
        return
    why = ""
    if late is not None:
        why = f" (the store has {late.key.topic!r}, queue {late.key.queue_id}, only from offset {late.hot_min} on)"
    raise BadHistory(
        f"{options.tier}: expected the history of a broker{why}, found none; check the address (`tiermq tier ls` shows "
        "what is there), or offload a store to it first"
    )


def check_topics(catalog: Catalog, request: ScanRequest) -> None:
    """Raises BadHistory when a topic or broker that was named is not there."""
    brokers = sorted({broker for _, broker in catalog.brokers})
    for broker in sorted(request.brokers - set(brokers)):
        raise BadHistory(f"there is no broker {broker!r} in the history; there are {_listed(brokers)}")
    missing = sorted(request.topics - set(catalog.topics()))
    if missing:
        everything = catalog_of(catalog.history).topics()
        near = difflib.get_close_matches(missing[0], everything, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        where = f" (with queues {_listed(sorted(request.queue_ids))})" if request.queue_ids else ""
        raise BadHistory(
            f"there is no topic {missing[0]!r}{where} in the history; {hint}There are {_listed(everything)}"
        )


def bounded_request(options: SourceOptions, request: ScanRequest, catalog: Catalog) -> ScanRequest:
    """The request of a batch read, with the offsets that options ask for."""
    chosen = assigned_queues(options, catalog)
    bounds = {queue.key: NOTHING for queue in catalog.queues() if queue.key not in chosen}
    starts = starting_offsets(options, catalog)
    ends = _ending_offsets(options, catalog)
    for key in starts.keys() | ends.keys():
        if key in chosen:
            bounds[key] = OffsetBounds(starts.get(key), ends.get(key))
    return replace(request, bounds=bounds)


def assigned_queues(options: SourceOptions, catalog: Catalog) -> set[QueueKey]:
    """The queues that are to be read: those of the catalogue, or those of them that `assign` names."""
    if options.assigned is None:
        return {queue.key for queue in catalog.queues()}
    named: set[QueueKey] = set()
    for each in options.assigned:
        named |= {
            queue.key
            for queue in catalog.queues()
            if (queue.key.topic, queue.key.queue_id) == (each.topic, each.queue_id)
            and each.broker in ("", queue.key.broker)
        }
    return named


def starting_offsets(options: SourceOptions, catalog: Catalog) -> dict[QueueKey, int]:
    """Where queues begin that options say something about, other than by a time for all."""
    if options.starting_times is not None:
        return _offsets_at(options.starting_times, "startingOffsetsByTimestamp", catalog)
    return _numbers(options.starting_offsets, "startingOffsets", catalog)


def _ending_offsets(options: SourceOptions, catalog: Catalog) -> dict[QueueKey, int]:
    if options.ending_times is not None:
        return _offsets_at(options.ending_times, "endingOffsetsByTimestamp", catalog)
    return _numbers(options.ending_offsets, "endingOffsets", catalog)


def _numbers(
    given: Edge | EveryQueue | tuple[QueueNumber, ...] | None, option: str, catalog: Catalog
) -> dict[QueueKey, int]:
    if given is None or given is Edge.LATEST:
        return {queue.key: queue.max_offset for queue in catalog.queues()} if given else {}
    if isinstance(given, Edge):
        return {queue.key: queue.min_offset for queue in catalog.queues()}
    if isinstance(given, EveryQueue):
        # Said of all queues at once, so it is no loss when one of them has not got that far.
        return {queue.key: min(max(given.number, queue.min_offset), queue.max_offset) for queue in catalog.queues()}
    found = {}
    for each in given:
        queue = _named_queue(each, option, catalog)
        edge = queue.max_offset if each.number == LATEST_NUMBER else queue.min_offset
        found[queue.key] = each.number if each.number >= 0 else edge
    return found


def _offsets_at(given: tuple[QueueNumber, ...], option: str, catalog: Catalog) -> dict[QueueKey, int]:
    named = [(_named_queue(each, option, catalog), each.number) for each in given]
    return {queue.key: first_offset_at(catalog, queue, moment_ms) for queue, moment_ms in named}


def _named_queue(each: QueueNumber, option: str, catalog: Catalog) -> QueueHistory:
    try:
        return catalog.find(each.topic, each.queue_id, each.broker or None)
    except BadHistory as error:
        raise BadOption(f"option {option}: {error}") from error


def first_offset_at(catalog: Catalog, queue: QueueHistory, moment_ms: int) -> int:
    """The first message of a queue that was stored at this time or later; its end when there is none."""
    if isinstance(catalog, WireCatalog):
        return catalog.offset_at(queue, moment_ms)
    request = ScanRequest(
        topics=frozenset({queue.key.topic}),
        brokers=frozenset({queue.key.broker}),
        queue_ids=frozenset({queue.key.queue_id}),
        begin_ms=moment_ms,
        include_body=False,
    )
    for task in plan_scan(catalog, request, loss_is_error=False).tasks:
        if task.queue != queue.key:
            continue
        for run in read_task(catalog.history, task, ScanCounters()):
            for batch in decode_run(run, ["queueOffset"], task.request, max_rows=1, check_crc=False):
                return int(batch.column(0)[0].as_py())
    return queue.max_offset


def _listed(names: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown or "none"
