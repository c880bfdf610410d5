"""Where queues begin and end: of brokers where there are any, else of store directories and of a tier's listing.

A listing is exact about bytes; offsets are those of the segments of units, so the begin may be a little early. That is
enough for a list of ten thousand topics, and costs no request for each queue.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tiermq.client.cluster_client import ClusterClient
from tiermq.console.sources import Visit, answering
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import RequestRefused
from tiermq.history.scan_values import DEFAULT_BROKER
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_object
from tiermq.store.tier_continuation import recorded_names
from tiermq.tier.names import SegmentType

QueueName = tuple[str, int]
"""Broker and queue id."""
AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """Messages [min, max) of one queue, and when the newest was stored; -1: not known."""

    low: int
    high: int
    updated_ms: int = -1

    @property
    def messages(self) -> int:
        return max(0, self.high - self.low)


def queue_of_key(key: str) -> tuple[str, int, str]:
    """Topic, queue id, broker name: RocketMQ writes a queue as the key of a JSON table. Raises RequestRefused."""
    try:
        found = json.loads(key)
        return str(found["topic"]), as_int(found["queueId"]), str(found["brokerName"])
    except (ValueError, KeyError, TypeError) as error:
        raise RequestRefused(f"expected a queue as the key of a table, found {key[:80]!r}") from error


def queue_bounds(visit: Visit, topics: Iterable[str]) -> dict[str, dict[QueueName, Bounds]]:
    """The queues of these topics; a topic that is nowhere has none."""
    wanted = list(dict.fromkeys(topics))
    if visit.has_wire:
        return visit.ask(lambda client: _over_the_wire(client, wanted))
    return _of_files(visit, wanted)


async def _over_the_wire(client: ClusterClient, topics: list[str]) -> dict[str, dict[QueueName, Bounds]]:
    places = asyncio.Semaphore(AT_ONCE)

    here = await answering(client, {str(each): each for each in (await client.master_table()).addresses.values()})

    async def of(topic: str) -> dict[QueueName, Bounds]:
        async with places:
            route = await client.find_route(topic)
            found = {}
            for broker, address in {} if route is None else route.addresses.items():
                if address not in here:
                    continue
                try:
                    found.update(await topic_stats(client, broker, address, topic))
                except RequestRefused as error:
                    if error.code != ResponseCode.NO_PERMISSION:
                        raise  # A list has topics that the account may not read, without their figures.
            return found

    return dict(zip(topics, await asyncio.gather(*(of(topic) for topic in topics)), strict=True))


async def topic_stats(client: ClusterClient, broker: str, address: str, topic: str) -> dict[QueueName, Bounds]:
    """What one broker has of a topic; nothing when it does not know it any more."""
    known = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
    answer = await client.ask(address, RequestCode.GET_TOPIC_STATS_INFO, expected=known, topic=topic)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return {}
    return {
        (broker, queue_of_key(key)[1]): Bounds(
            as_int(each.get("minOffset")), as_int(each.get("maxOffset")), as_int(each.get("lastUpdateTimestamp"), -1)
        )
        for key, each in (decode_object(answer.body).get("offsetTable") or {}).items()
    }


def _of_files(visit: Visit, topics: list[str]) -> dict[str, dict[QueueName, Bounds]]:
    visit.require_files()
    wanted = set(topics)
    found: dict[str, dict[QueueName, Bounds]] = {topic: {} for topic in topics}
    with visit.sources.stores() as stores:
        for place, store in zip(visit.sources.place.stores, stores, strict=True):
            broker = place.broker or next((name for _, name in recorded_names(place.path)), DEFAULT_BROKER)
            for topic, queue_id in (*store.queues(), *store.batch_queues()):
                if topic in wanted:
                    low, high = store.bounds(topic, queue_id)
                    newest_ms = store.store_time_of(topic, queue_id, high - 1) if high > low else -1
                    found[topic][broker, queue_id] = Bounds(low, high, newest_ms)
    if visit.has_tier:
        for topic, queues in tiered_bounds(visit).items():
            for name, cold in queues.items() if topic in wanted else ():
                hot = found[topic].get(name)
                if hot is None:
                    found[topic][name] = cold
                else:
                    found[topic][name] = Bounds(min(hot.low, cold.low), max(hot.high, cold.high), hot.updated_ms)
    return found


def tiered_bounds(visit: Visit) -> Mapping[str, Mapping[QueueName, Bounds]]:
    """The queues of a tier by its listing alone: the offsets for which it has units."""
    found: dict[str, dict[QueueName, Bounds]] = defaultdict(dict)
    for info in visit.sources.listing().segments:
        if info.key.type is SegmentType.CONSUME_QUEUE:
            name = (info.key.broker, info.key.queue_id)
            low, high = info.key.base // UNIT_BYTES, (info.key.base + info.size) // UNIT_BYTES
            before = found[info.key.topic].get(name)
            found[info.key.topic][name] = (
                Bounds(low, high) if before is None else Bounds(min(low, before.low), max(high, before.high))
            )
    return found
