"""Time travel: topics and groups as they were at a time, and a replay from there.

Offsets of queues come from store times of messages, and are exact for one topic; a list of topics takes them from the
time index of the tier and of the brokers, and is near. Offsets of groups come from the points that a broker keeps in
its tier (`tier/metadata/offset_history.py`): every ten minutes while a group commits.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

from tiermq.client.cluster_client import ClusterClient
from tiermq.client.dead_letters import PRODUCER_GROUP
from tiermq.client.producer import Outgoing, Producer
from tiermq.console.catalogue import Kind, Parameter, Result, operation
from tiermq.console.hot_cold_map import times_of
from tiermq.console.message_reading import FoundMessage, catalog_for, find_messages
from tiermq.console.operations.messages import copy_of
from tiermq.console.operations.topics import PAGE, SEARCH, TOPIC, newest_ms, page_of, topic_names
from tiermq.console.queue_bounds import QueueName
from tiermq.console.sources import Visit
from tiermq.errors import BadRequest, TierError
from tiermq.history.catalog import Catalog
from tiermq.history.scan_values import ScanRequest
from tiermq.message.topic_name import is_retry_topic
from tiermq.tier.metadata.offset_history import offsets_at

ROWS = Parameter("rows", "Topics of a page.", Kind.WHOLE, default=20, low=1, high=100)
AT = Parameter("at", "The time.", Kind.MOMENT, is_required=True)
REPLAY_MAX = 10_000
COPIES_AT_ONCE = 32


@dataclass(slots=True)
class _Then:
    """One topic at a time: by queue the first message that is here now, the one behind the last then, and now's end."""

    queues: dict[QueueName, tuple[int, int, int]] = field(default_factory=dict)
    times: list[int] = field(default_factory=list)


@operation(
    "history.show",
    "Topics and groups as they were at a time: messages by then, offsets of queues, offsets and lag of groups.",
    AT,
    Parameter("topic", "Only this topic, exactly; without it, a page of all topics, from their time indexes."),
    SEARCH,
    PAGE,
    ROWS,
)
def show_history(visit: Visit, *, at: int, topic: str | None, search: str | None, page: int, rows: int) -> Result:
    names = [topic] if topic else topic_names(visit, everything=False)
    names, about = page_of(names, None if topic else search, page, rows)
    with catalog_for(visit, ScanRequest(topics=frozenset(names), begin_ms=1)) as catalog:
        found = _topics_then(catalog, at, is_exact=topic is not None)
    if topic and not found:
        raise BadRequest(f"expected the topic {topic[:200]}, found no messages of it here: the list of topics has all")
    groups, taken, problems = _groups_then(visit, at)
    now_ms = visit.sources.clock.now_ms()
    times = [each for then in found.values() for each in then.times]
    return {
        "atMs": at,
        "nowMs": now_ms,
        "beginMs": min(times, default=None),
        "isExact": topic is not None,
        "groupsTakenMs": min(taken.values(), default=None),
        "problems": problems,
        "topics": [_topic_row(name, found.get(name, _Then()), groups) for name in names],
        **about,
    }


def _topics_then(catalog: Catalog, at: int, *, is_exact: bool) -> dict[str, _Then]:
    found: dict[str, _Then] = defaultdict(_Then)
    for queue in catalog.queues():
        times = times_of(queue, newest_ms(catalog, queue) if catalog.place.stores else None)
        if is_exact:
            # Imported here: it needs Arrow.
            from tiermq.pipeline.scan.scan_request import first_offset_at

            then = first_offset_at(catalog, queue, at + 1)
        else:
            then = times.offset_after(at, queue.max_offset)
        then = min(max(then, queue.min_offset), queue.max_offset)
        found[queue.key.topic].queues[queue.key.broker, queue.key.queue_id] = queue.min_offset, then, queue.max_offset
        if times.range_ms is not None:
            found[queue.key.topic].times += times.range_ms
    return found


Groups = dict[str, dict[str, dict[QueueName, int]]]


def _groups_then(visit: Visit, at: int) -> tuple[Groups, dict[str, int], list[str]]:
    """Topic → group → queue → offset, when each broker noted them, and why some are not known."""
    groups: Groups = defaultdict(lambda: defaultdict(dict))
    taken: dict[str, int] = {}
    if not visit.has_tier:
        return groups, taken, ["Offsets of groups as they were are kept in a tier: start the console with --tier."]
    problems = []
    brokers = visit.sources.listing().brokers
    with visit.sources.files() as history:
        for cluster, broker in brokers:
            try:
                point = offsets_at(history.tier, cluster, broker, at)
            except TierError as error:
                problems.append(str(error))
                continue
            if point is None:
                problems.append(f"The offsets of groups at {broker} are not known for that time.")
                continue
            taken[broker] = point.taken_ms
            for key, offsets in point.offsets.items():
                topic, _, group = key.rpartition("@")
                for queue, offset in offsets.items():
                    groups[topic][group][broker, int(queue)] = offset
    return groups, taken, problems


def _topic_row(name: str, then: _Then, groups: Groups) -> Result:
    return {
        "topic": name,
        "messages": sum(at for _, at, _ in then.queues.values()),
        "readable": sum(at - low for low, at, _ in then.queues.values()),
        "since": sum(end - at for _, at, end in then.queues.values()),
        "queues": [
            {"broker": broker, "queueId": queue_id, "firstNow": low, "offset": at, "endNow": end}
            for (broker, queue_id), (low, at, end) in sorted(then.queues.items())
        ],
        "groups": [
            {
                "group": group,
                "behind": sum(max(0, at - offsets.get(queue, low)) for queue, (low, at, _) in then.queues.items()),
                "queues": [
                    {"broker": broker, "queueId": queue_id, "offset": offset}
                    for (broker, queue_id), offset in sorted(offsets.items())
                ],
            }
            for group, offsets in sorted(groups.get(name, {}).items())
            if not is_retry_topic(name)
        ],
    }


@operation(
    "history.replay",
    "Send the messages of a range of time again, into another topic, in the order of each queue.",
    TOPIC,
    Parameter("to", "The topic that gets them; it exists, and is another one.", is_required=True),
    Parameter("begin", "Stored at this time or later.", Kind.MOMENT, is_required=True),
    Parameter("end", "Stored at this time or before; without it, until now.", Kind.MOMENT),
    Parameter(
        "limit", "Messages at most. `tiermq pipeline replay` has no limit, and continues what was interrupted.",
        Kind.WHOLE, default=1_000, low=1, high=REPLAY_MAX,
    ),
    changes=True,
)  # fmt: skip
def replay(visit: Visit, *, topic: str, to: str, begin: int, end: int | None, limit: int) -> Result:
    if to == topic:
        raise BadRequest("to: expected another topic, found the same: a replay into itself has no end")
    until = visit.sources.clock.now_ms() if end is None else end
    request = ScanRequest(topics=frozenset({topic}), begin_ms=begin, end_ms=until)
    losses: list[str] = []
    with catalog_for(visit, request) as catalog:
        found = nsmallest(
            limit + 1, find_messages(catalog, request, losses, each_queue=limit + 1), key=FoundMessage.moment
        )

    async def sent(client: ClusterClient) -> dict[str, Any]:
        producer = Producer(client, PRODUCER_GROUP)
        places = await producer.places(to)
        queues: dict[QueueName, list[Outgoing]] = defaultdict(list)
        now_ms = visit.sources.clock.now_ms()
        for each in found[:limit]:
            copy = copy_of(each.message, to, places, now_ms)
            queues[copy.place.broker_name, copy.place.queue_id].append(copy)
        for copies in queues.values():
            for first in range(0, len(copies), COPIES_AT_ONCE):
                await producer.send_batch(copies[first : first + COPIES_AT_ONCE])
        return {"queues": len(queues)}

    done = visit.ask(sent)
    return {
        "topic": topic,
        "to": to,
        "beginMs": begin,
        "endMs": until,
        "sent": len(found[:limit]),
        "isCut": len(found) > limit,
        "losses": losses[:20],
        **done,
    }
