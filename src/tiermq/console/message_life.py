"""One message's life: born, stored, replicated, tiered, sealed, delivered to whom, retries, dead letters, exports.

As far as its own properties, the brokers, offsets of groups, the tier's manifests and journals of tables know it.
What no source of the console can know is left out.
"""

from __future__ import annotations

import itertools

from tiermq.client.cluster_client import ClusterClient
from tiermq.client.queue_access import find_by_key
from tiermq.console.catalogue import Result
from tiermq.console.message_reading import FoundMessage, catalog_for, find_messages
from tiermq.console.sources import Visit, answering
from tiermq.errors import RemotingError, TierError, TierMQError
from tiermq.history.scan_values import ScanRequest
from tiermq.message import properties as names
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import dead_letter_topic, retry_topic
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.json_dialect import as_int, decode_object
from tiermq.tier.metadata.offset_history import DAY_MS, points_of_day

COPIES_MAX = 20


def _event(event: str, at_ms: int | None, text: str) -> Result:
    return {"event": event, "atMs": at_ms, "text": text}


def life_of(visit: Visit, found: FoundMessage) -> list[Result]:
    """Events in the order in which they happen to a message; `atMs` is None where nothing recorded the time."""
    message = found.message
    where = f"by {found.queue.broker}, queue {message.queue_id}, offset {message.queue_offset}"
    events = [
        _event("born", message.born_timestamp_ms, f"at {message.born_host}"),
        _event("stored", message.store_timestamp_ms, where),
    ]
    if origin := message.get_property(names.ORIGIN_MESSAGE_ID):
        events.append(_event("given back", None, f"a retry of {origin}, try {message.reconsume_times}"))
    if origin := message.get_property(names.DLQ_ORIGIN_TOPIC):
        events.append(_event("resent", None, f"a dead letter of {origin} that was sent again"))
    if visit.has_wire:
        events += _replicated(visit, found)
    if visit.has_tier:
        events += _tiered(visit, found)
    events += _delivered(visit, found)
    return events + _exported(visit, found)


def _replicated(visit: Visit, found: FoundMessage) -> list[Result]:
    broker = found.queue.broker
    end = found.message.physical_offset + len(found.record)

    async def looked(client: ClusterClient) -> list[Result]:
        masters = await client.masters()
        # A store directory without a recorded name, beside the only broker, is that broker's.
        address = masters.get(broker) or (next(iter(masters.values())) if len(masters) == 1 else None)
        if address is None:
            return []
        try:
            status = decode_object((await client.ask(address, RequestCode.GET_BROKER_HA_STATUS)).body)
        except RemotingError:
            return []  # Not for this account, or a broker before 5.0.
        slaves = status.get("haConnectionInfo") or []
        if not slaves:
            return [_event("not replicated", None, f"{broker} has no replica that is connected")]
        having = [str(each.get("addr")) for each in slaves if as_int(each.get("slaveAckOffset")) >= end]
        name = "replicated" if having else "not replicated"
        return [_event(name, None, f"{len(having)} of {len(slaves)} replicas have it: {', '.join(having) or 'none'}")]

    return visit.ask(looked)


def _tiered(visit: Visit, found: FoundMessage) -> list[Result]:
    key, offset = found.queue, found.message.queue_offset
    with visit.sources.topic_catalog(key.topic) as catalog:
        same = [each for each in catalog.queues() if each.key.queue_id == key.queue_id]
    queue = next((each for each in same if each.key.broker == key.broker or len(same) == 1), None)
    if queue is None or not queue.cold_min <= offset < queue.cold_max:
        return [_event("not tiered", None, "only the broker's disk has it so far")]
    log = next((log for log in queue.logs if log.begin_offset <= offset < log.end_offset), None)
    if log is None:
        return [_event("tiered", None, "the tier has it; its manifest does not name the segment")]
    events = [_event("tiered", None, f"in {log.key.path}, {log.size:,} bytes")]
    if log.sealed_ms:
        events.append(_event("sealed", log.sealed_ms, "the segment is complete, with its checksum"))
    return events


def _delivered(visit: Visit, found: FoundMessage) -> list[Result]:
    """What each group that has offsets of the topic did with it."""
    message, name = found.message, (found.queue.broker, found.message.queue_id)
    events: list[Result] = []
    for (topic, group), offsets in sorted(visit.tables().offsets.items()):
        if topic != message.topic:
            continue
        at = offsets.get(name)
        if at is None and len({broker for broker, _ in offsets}) == 1:
            at = next((offset for (_, queue_id), offset in offsets.items() if queue_id == message.queue_id), None)
        if at is not None and at > message.queue_offset:
            at_ms, when = _consumed_at(visit, found, group)
            events.append(_event("delivered", at_ms, f"to {group}, whose offset is {at:,}{when}"))
        elif at is not None:
            before = message.queue_offset - at
            events.append(_event("waiting", None, f"for {group}, {before:,} messages before it"))
        if message.unique_key:
            for each in _copies(visit, retry_topic(group), message.unique_key):
                text = f"given back by {group}, try {each.reconsume_times}"
                events.append(_event("retried", each.store_timestamp_ms, text))
            for each in _copies(visit, dead_letter_topic(group), message.unique_key):
                text = f"given up by {group} after {each.reconsume_times} tries"
                events.append(_event("dead letter", each.store_timestamp_ms, text))
    return events


def _consumed_at(visit: Visit, found: FoundMessage, group: str) -> tuple[int | None, str]:
    """When the history of offsets saw the group beyond the message, and in words how exact that is."""
    if not visit.has_tier:
        return None, ""
    message = found.message
    key, queue, from_ms = f"{message.topic}@{group}", str(message.queue_id), message.store_timestamp_ms
    brokers = visit.sources.listing().brokers
    own = [each for each in brokers if each[1] == found.queue.broker] or brokers[:1]
    with visit.sources.files() as history:
        for cluster, broker in own:
            for day_ms in (from_ms, from_ms + DAY_MS):
                try:
                    points = points_of_day(history.tier, cluster, broker, day_ms)
                except TierError as error:
                    return None, f" (when is not known: {error})"
                for point in points:
                    if point.taken_ms >= from_ms and point.offsets.get(key, {}).get(queue, -1) > message.queue_offset:
                        return point.taken_ms, ", by then at the latest"
    return None, ""


def _copies(visit: Visit, topic: str, unique_key: str) -> list[StoredMessage]:
    """The messages of a retry or dead letter topic with a unique key, oldest first."""
    if visit.has_wire:

        async def looked(client: ClusterClient) -> list[StoredMessage]:
            route = await client.find_route(topic)
            copies: list[StoredMessage] = []
            here = await answering(client, route.addresses) if route is not None else {}
            for address in sorted(set(here.values())):
                copies += await find_by_key(client, address, topic, unique_key, unique=True)
            return copies

        found = visit.ask(looked)
    else:
        request = ScanRequest(topics=frozenset({topic}), keys=frozenset({unique_key}))
        with catalog_for(visit, request) as catalog:
            if not catalog.queues():
                return []
            rows = itertools.islice(find_messages(catalog, request, []), COPIES_MAX)
            found = [each.message for each in rows]
    return sorted(found[:COPIES_MAX], key=lambda each: each.store_timestamp_ms)


def _exported(visit: Visit, found: FoundMessage) -> list[Result]:
    """Which of the console's tables have it, by their journals."""
    if not visit.reads_files or not visit.sources.place.tables:
        return []
    from tiermq.tables.commit_journal import CommitJournal
    from tiermq.tables.table_files import open_table

    message, events = found.message, []
    for place in visit.sources.place.tables:
        try:
            table = open_table(place)
            number = table.number()
            journal = CommitJournal(table.place)
            try:
                ranges = journal.read(number).ranges if number else None
            finally:
                journal.close()
        except TierMQError as error:
            events.append(_event("export not known", None, f"{place}: {error}"))
            continue
        has_it = ranges is not None and any(
            not ranges.missing(key, message.queue_offset, message.queue_offset + 1)
            for key in ranges.queues()
            if (key.topic, key.queue_id) == (message.topic, message.queue_id)
            and (key.broker == found.queue.broker or len({each.broker for each in ranges.queues()}) == 1)
        )
        events.append(_event("exported" if has_it else "not exported", None, f"{'in' if has_it else 'to'} {place}"))
    return events
