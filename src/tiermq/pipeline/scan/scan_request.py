"""From a ScanSpec to a scan request and its plan: which queues, from where, to where. Before anything is read.

What a spec names must exist: a topic, a queue or a broker that does not is an error that lists those that do.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tiermq.client.wire_history import WireCatalog, catalog_of
from tiermq.clock import EVER_MS
from tiermq.errors import BadHistory, BadOption
from tiermq.history.arrow_batch import decode_run
from tiermq.history.catalog import Catalog, QueueHistory
from tiermq.history.open_history import OpenHistory
from tiermq.history.planning import KeyLookup, plan_scan
from tiermq.history.reading import read_task
from tiermq.history.scan_values import OffsetBounds, ScanCounters, ScanPlan, ScanRequest
from tiermq.pipeline.scan.queue_offsets import LATEST_NUMBER, Edge, EveryQueue, QueueNumber, QueueOffsets
from tiermq.pipeline.scan.scan_spec import ScanSpec
from tiermq.tier.names import QueueKey

# Snapshot: where queues ended when a frame first looked at them, for all plans that are made of the frame.
#
#     {"topics": ["rare"], "ends": [["c", "b", "rare", 0, 1000]]}      one line for each look that found something new
#     {"topics": null, "ends": [["c", "b", "often", 0, 90000]]}        null: at all topics
#
# Invariants: lines are only added, under the lock of the file. A queue has one end. A queue of a topic that was looked
# at and that is not listed came later: it is not in the snapshot.


@dataclass(slots=True)
class _Seen:
    ends: dict[QueueKey, int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    everything: bool = False

    def has(self, queue: QueueKey) -> bool:
        return self.everything or queue.topic in self.topics or queue in self.ends

    def add(self, topics: Iterable[str] | None, ends: Iterable[tuple[QueueKey, int]]) -> None:
        self.ends |= ends
        self.everything |= topics is None
        self.topics |= set(topics or ())


def within_snapshot(
    path: str, request: ScanRequest, queues: Iterable[QueueHistory], topics: frozenset[str] | None
) -> ScanRequest:
    """The request up to where the snapshot ends. What it has not seen yet becomes part of it as it is now.

    `queues` are all of these topics; None: all of all topics.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        seen = _Seen()
        for line in file:
            look = json.loads(line)
            seen.add(look["topics"], [(QueueKey(*key), end) for *key, end in look["ends"]])
        queues = list(queues)
        new = [(queue.key, queue.max_offset) for queue in queues if not seen.has(queue.key)]
        if new or not (seen.everything or (topics is not None and topics <= seen.topics)):
            ends = [[key.cluster, key.broker, key.topic, key.queue_id, end] for key, end in new]
            file.write(json.dumps({"topics": topics and sorted(topics), "ends": ends}) + "\n")
            seen.add(topics, new)
    bounds = dict(request.bounds)
    for queue in queues:
        before, end = bounds.get(queue.key, OffsetBounds()), seen.ends.get(queue.key, 0)
        if queue.max_offset > end and (before.to_offset is None or before.to_offset > end):
            begin = before.from_offset or 0
            bounds[queue.key] = replace(before, to_offset=end) if begin < end else OffsetBounds(0, 0)
    return replace(request, bounds=bounds)


BODY_COLUMNS = frozenset({"body", "value"})
NOTHING = OffsetBounds(0, 0)
_CHECK_ADDRESS = "check the address (`tiermq tier ls` shows what is there), or offload a store to it first"


def base_request(spec: ScanSpec, columns: Sequence[str]) -> ScanRequest:
    """The request from the spec only; `bounded_request` adds offsets."""
    assigned = spec.assigned or ()
    return ScanRequest(
        topics=frozenset(spec.topics or (each.topic for each in assigned)),
        topic_pattern=spec.topic_pattern,
        brokers=frozenset(spec.brokers),
        queue_ids=frozenset(spec.queue_ids),
        begin_ms=spec.starting_ms or 0,
        # Ours is inclusive, that of users is not: so ranges of time join without overlap.
        end_ms=EVER_MS if spec.ending_ms is None else spec.ending_ms - 1,
        keys=frozenset(spec.keys),
        tags=frozenset(spec.tags),
        include_body=bool(BODY_COLUMNS & set(columns)),
        delays_ms=spec.delays_ms,
    )


def open_catalog(
    history: OpenHistory,
    spec: ScanSpec,
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
        require_tier(catalog, spec)
    catalog.require_readable()
    check_topics(catalog, named or request)
    for each in spec.assigned or ():
        catalog.find(each.topic, each.queue_id, each.broker or None)
    return catalog


def require_tier(catalog: Catalog, spec: ScanSpec) -> None:
    """Raises BadHistory when the tier holds nothing: a wrong URL must not pass for an empty table.

    Beside a store an empty tier is that of a broker which has uploaded nothing yet, unless the store begins
    later: then its older messages should be in the tier.
    """
    if spec.place.tier is None or not catalog.has_empty_tier:
        return
    late = next((queue for queue in catalog.queues() if queue.hot_min > 0), None)
    if spec.place.stores and late is None:
        return
    why = ""
    if late is not None:
        why = f" (the store has {late.key.topic!r}, queue {late.key.queue_id}, only from offset {late.hot_min} on)"
    raise BadHistory(f"{spec.place.tier}: expected the history of a broker{why}, found none; {_CHECK_ADDRESS}")


def require_queues(catalog: Catalog, spec: ScanSpec) -> None:
    """Raises BadHistory when a tier alone was given and has no queue: that is more often a wrong address than news."""
    if spec.place.tier is not None and not spec.place.stores and not catalog.queues():
        raise BadHistory(f"{spec.place.tier}: expected the history of a broker, found none; {_CHECK_ADDRESS}")


def check_topics(catalog: Catalog, request: ScanRequest) -> None:
    """Raises BadHistory when a cluster, topic or broker that was named is not there."""
    wanted, clusters = catalog.place.cluster, sorted({cluster for cluster, _ in catalog.brokers})
    if wanted not in ("", *clusters):
        raise BadHistory(f"there is no cluster {wanted!r} in the history; there are {_listed(clusters)}")
    brokers = sorted({broker for cluster, broker in catalog.brokers if wanted in ("", cluster)})
    for broker in sorted(request.brokers - set(brokers)):
        raise BadHistory(f"there is no broker {broker!r} in the history; there are {_listed(brokers)}")
    missing = sorted(request.topics - set(catalog.topics()))
    if missing:
        everything = catalog_of(catalog.history).topics()
        near = difflib.get_close_matches(missing[0], everything, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        where = f" (with queues {_listed(sorted(request.queue_ids))})" if request.queue_ids else ""
        raise BadHistory(
            f"there is no topic {missing[0]!r}{where} in the history{hint or '.'} There are {_listed(everything)}"
        )


def bounded_request(spec: ScanSpec, request: ScanRequest, catalog: Catalog) -> ScanRequest:
    """The request of a batch read, with the offsets that the spec asks for."""
    chosen = assigned_queues(spec, catalog)
    bounds = {queue.key: NOTHING for queue in catalog.queues() if queue.key not in chosen}
    starts = starting_offsets(spec, catalog)
    ends = _ending_offsets(spec, catalog)
    for key in starts.keys() | ends.keys():
        if key in chosen:
            bounds[key] = OffsetBounds(starts.get(key), ends.get(key))
    return replace(request, bounds=bounds)


def assigned_queues(spec: ScanSpec, catalog: Catalog) -> set[QueueKey]:
    """The queues that are to be read: those of the catalogue, or those of them that `assign` names."""
    if spec.assigned is None:
        return {queue.key for queue in catalog.queues()}
    named: set[QueueKey] = set()
    for each in spec.assigned:
        named |= {
            queue.key
            for queue in catalog.queues()
            if (queue.key.topic, queue.key.queue_id) == (each.topic, each.queue_id)
            and each.broker in ("", queue.key.broker)
        }
    return named


def starting_offsets(spec: ScanSpec, catalog: Catalog) -> dict[QueueKey, int]:
    """The start of queues that the spec sets, other than by a time for all."""
    if spec.starting_times is not None:
        return _offsets_at(spec.starting_times, "startingOffsetsByTimestamp", catalog)
    return _numbers(spec.starting_offsets, "startingOffsets", catalog)


def _ending_offsets(spec: ScanSpec, catalog: Catalog) -> dict[QueueKey, int]:
    if spec.ending_times is not None:
        return _offsets_at(spec.ending_times, "endingOffsetsByTimestamp", catalog)
    return _numbers(spec.ending_offsets, "endingOffsets", catalog)


def _numbers(given: QueueOffsets | None, option: str, catalog: Catalog) -> dict[QueueKey, int]:
    if given is None or given is Edge.LATEST:
        return {queue.key: queue.max_offset for queue in catalog.queues()} if given else {}
    if isinstance(given, Edge):
        return {queue.key: queue.min_offset for queue in catalog.queues()}
    if isinstance(given, EveryQueue):
        # Given for all queues at once, so a shorter queue is no loss.
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
    """The first message of a queue that was stored at this time or later; its max offset if there is none."""
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


def plan_batch(history: OpenHistory, spec: ScanSpec, columns: Sequence[str]) -> ScanPlan:
    """The plan of a batch read as things are now. What looking at the catalogue has cost is in its counters."""
    request = base_request(spec, columns)
    pruning = spec.pruning
    if pruning.excludes(request):
        return ScanPlan((), ScanCounters())
    named, request = request, request if spec.names_queues else pruning.on_topics(request)
    # Topics that the spec names must exist; those that a query compares with need not.
    catalog = open_catalog(history, spec, request, named=replace(named, topics=named.topics & request.topics))
    request = bounded_request(spec, request, catalog)
    if spec.snapshot is not None:
        request = within_snapshot(spec.snapshot, request, catalog.queues(), pruning.topics)
    plan = plan_with(catalog, spec, pruning.applied(request))
    counters = plan.counters
    counters += catalog.counters
    return plan


def plan_with(catalog: Catalog, spec: ScanSpec, request: ScanRequest) -> ScanPlan:
    """A plan with the sizes and the strictness that the spec asks for."""
    return plan_scan(
        catalog,
        request,
        min_partitions=spec.min_partitions,
        max_bytes_per_partition=spec.partition_bytes,
        loss_is_error=spec.fail_on_data_loss,
        lookup=_key_lookup(catalog, request),
    )


def _key_lookup(catalog: Catalog, request: ScanRequest) -> KeyLookup | None:
    """The key lookup; None without keys, and over the wire, where every row is checked."""
    if not request.keys or isinstance(catalog, WireCatalog):
        return None
    from tiermq.history.key_lookup import KeyIndex

    return KeyIndex(catalog, request)


def _listed(names: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in names[:20])
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown or "none"
