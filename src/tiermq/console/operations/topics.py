"""Topics: list, show, map, create, alter, delete."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tiermq.client.cluster_client import ClusterClient
from tiermq.console.catalogue import Kind, Parameter, Result, operation
from tiermq.console.hot_cold_map import spans_of
from tiermq.console.queue_bounds import Bounds, QueueName, queue_bounds, topic_stats
from tiermq.console.sources import Tables, Visit, answering
from tiermq.console.verifications import damaged_segments, verifications
from tiermq.errors import BadRequest, RequestRefused, StoreError
from tiermq.message.topic_name import AUTO_CREATE_TOPIC, is_dead_letter_topic, is_retry_topic, is_system_topic
from tiermq.namesrv.topic_config import PERM_INHERIT, retention_of
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_object
from tiermq.tier.names import INDEX_TOPIC
from tiermq.tier.retention.retention_plan import KEPT_FOR_EVER, Kept

if TYPE_CHECKING:
    from tiermq.history.catalog import Catalog, QueueHistory

PERMISSIONS = {"rw": 6, "r": 4, "w": 2}
PAGE_ROWS = 50
PAGE_ROWS_MAX = 1_000
TOPIC = Parameter("topic", "The name of the topic.", is_required=True)
OF_CLUSTER = Parameter("cluster", "Only at the brokers of this cluster.")
PAGE = Parameter("page", "The page of a long list, from 1.", Kind.WHOLE, default=1, low=1)
ROWS = Parameter("rows", "Rows of a page.", Kind.WHOLE, default=PAGE_ROWS, low=1, high=PAGE_ROWS_MAX)
SEARCH = Parameter("search", "Only names that contain this text, whatever its case.")


def is_hidden(name: str) -> bool:
    """Whether a list of user topics leaves it out, also for brokers that are offline."""
    return is_system_topic(name) or is_retry_topic(name) or is_dead_letter_topic(name)


def page_of(names: list[str], search: str | None, page: int, rows: int) -> tuple[list[str], Result]:
    """The names of one page, and what a reader needs to find the others."""
    part = (search or "").lower()
    found = [name for name in names if part in name.lower()] if part else names
    begin = (page - 1) * rows
    return found[begin : begin + rows], {"total": len(found), "page": page, "pages": max(1, -(-len(found) // rows))}


def topic_names(visit: Visit, *, everything: bool) -> list[str]:
    """All names, from everything that the visit may read."""
    found: set[str] = set()
    system: set[str] = set()
    if visit.has_wire:
        names, system = visit.ask(lambda client: _names_at_brokers(client, with_system=not everything))
        found |= names
    if visit.has_files:
        if not visit.has_wire:
            tables = visit.sources.tables().topics
            found |= set(tables)
            # Clusters and brokers are topics, too, by which clients find them; they have this permission.
            system |= {name for name, table in tables.items() if as_int(table.get("perm")) & PERM_INHERIT}
            system |= {name for name in found if name.endswith("_REPLY_TOPIC")}
        if visit.has_tier:
            found |= {info.key.topic for info in visit.sources.listing().segments} - {INDEX_TOPIC}
        if visit.has_stores:
            with visit.sources.stores() as stores:
                found |= {topic for store in stores for topic, _ in (*store.queues(), *store.batch_queues())}
    return sorted(name for name in found if everything or (name not in system and not is_hidden(name)))


async def _names_at_brokers(client: ClusterClient, *, with_system: bool) -> tuple[set[str], set[str]]:
    answer = await client.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    names = {str(name) for name in decode_object(answer.body).get("topicList") or []}
    system: set[str] = set()
    masters = {str(each): each for each in (await client.master_table()).addresses.values()} if with_system else {}
    for address in await answering(client, masters):
        answer = await client.ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        system.update(decode_object(answer.body).get("topicList") or [])
    return names, system


@operation(
    "topic.list",
    "The topics, a page at a time, each with its messages, its bytes in the tier and how far groups are behind.",
    SEARCH,
    Parameter("all", "Also system, retry and dead letter topics.", Kind.FLAG, default=False),
    PAGE,
    ROWS,
)
def list_topics(visit: Visit, *, search: str | None, all: bool, page: int, rows: int) -> Result:  # noqa: A002 - the name of the parameter
    names, about = page_of(topic_names(visit, everything=all), search, page, rows)
    bounds = queue_bounds(visit, names)
    tables = visit.tables()
    stored: Counter[str] = Counter()
    objects: Counter[str] = Counter()
    if visit.has_tier:
        for info in visit.sources.listing().segments:
            stored[info.key.topic] += info.size
            objects[info.key.topic] += max(1, info.part_count)
    lags = _lags(tables, bounds)
    return {
        "topics": [
            {
                "topic": name,
                "queues": len(bounds[name]),
                "messages": sum(each.messages for each in bounds[name].values()) if bounds[name] else None,
                "lastMs": max((each.updated_ms for each in bounds[name].values() if each.updated_ms > 0), default=None),
                "tierBytes": stored[name] if visit.has_tier else None,
                "tierObjects": objects[name] if visit.has_tier else None,
                "groups": len(lags.get(name, {})),
                "behind": max(lags.get(name, {}).values(), default=0),
            }
            for name in names
        ],
        **about,
    }


def _lags(tables: Tables, bounds: dict[str, dict[QueueName, Bounds]]) -> dict[str, dict[str, int]]:
    """Topic, group → messages that the group has not consumed."""
    found: dict[str, dict[str, int]] = {}
    for (topic, group), offsets in tables.offsets.items():
        if topic in bounds:
            found.setdefault(topic, {})[group] = lag_of(bounds[topic], offsets)
    return found


def lag_of(bounds: dict[QueueName, Bounds], offsets: Any) -> int:
    """Messages behind the offsets of a group. A queue that it never committed counts from its first message."""
    return sum(
        max(0, each.high - max(each.low, offsets[name])) if name in offsets else each.messages
        for name, each in bounds.items()
    )


# One topic


@operation("topic.show", "One topic: its queues, where their messages are, retention, settings and groups.", TOPIC)
def show_topic(visit: Visit, *, topic: str) -> Result:
    found: list[dict[str, Any]] = []
    retention: dict[str, Any] = {}
    if visit.has_wire:
        found, retention = visit.ask(lambda client: _at_brokers(client, topic))
    tables = visit.tables()
    settings = tables.topics.get(topic)
    bounds = {(row["broker"], row["queueId"]): Bounds(row["minOffset"], row["maxOffset"]) for row in found}
    if visit.has_files:
        with visit.sources.topic_catalog(topic) as catalog:
            _add_sides(found, catalog.queues(), is_alone=not visit.has_wire)
        if not visit.has_wire:
            bounds = {(row["broker"], row["queueId"]): Bounds(row["minOffset"], row["maxOffset"]) for row in found}
            if settings is not None:
                hours, size = retention_of(settings.get("attributes") or {})
                retention = {
                    "": {
                        "tier": True,
                        "own": max(hours, size) > 0,
                        "hours": max(hours, 0) or None,
                        "maxBytes": max(size, 0) or None,
                        "words": _own_words(hours, size),
                    }
                }
    if not found and settings is None:
        raise BadRequest(f"expected the topic {topic[:200]}, found none of that name here: the list of topics has all")
    found.sort(key=lambda row: (row["broker"], row["queueId"]))
    lags = _lags(tables, {topic: bounds}).get(topic, {})
    return {
        "topic": topic,
        "messages": sum(row["maxOffset"] - row["minOffset"] for row in found),
        "queues": found,
        "retention": retention,
        "settings": dict(settings) if settings is not None else None,
        "groups": [{"group": group, "behind": behind} for group, behind in sorted(lags.items())],
        "tierBytes": sum(row.get("tierBytes") or 0 for row in found) if visit.has_tier else None,
    }


def _own_words(hours: int, size: int) -> str:
    return str(Kept.by(hours, size, -1, -1)) if max(hours, size) > 0 else "the broker's setting"


def _add_sides(rows: list[dict[str, Any]], queues: list[QueueHistory], *, is_alone: bool) -> None:
    known = {(row["broker"], row["queueId"]): row for row in rows}
    # A store without recorded names, beside the only broker of the topic, is that broker's.
    brokers = {row["broker"] for row in rows}
    for queue in queues:
        broker = queue.key.broker
        if not is_alone and broker not in brokers and len(brokers) == 1:
            broker = next(iter(brokers))
        row = known.get((broker, queue.key.queue_id))
        if row is None:
            row = {"broker": broker, "queueId": queue.key.queue_id, "minOffset": queue.min_offset,
                   "maxOffset": queue.max_offset}  # fmt: skip
            rows.append(row)
        row |= {
            "coldMin": queue.cold_min if queue.has_cold else None,
            "coldMax": queue.cold_max if queue.has_cold else None,
            "hotMin": queue.hot_min if queue.hot_max > queue.hot_min else None,
            "hotMax": queue.hot_max if queue.hot_max > queue.hot_min else None,
            "tierBytes": queue.cold_bytes + sum(unit.size for unit in queue.units),
            "localBytes": (queue.hot_max - queue.hot_min) * queue.hot_record_bytes,
            "segments": len(queue.logs),
            "gaps": len(queue.gaps),
        }


async def _at_brokers(client: ClusterClient, topic: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    found, kept = [], {}
    for broker, address in sorted((await answering(client, (await client.route(topic)).addresses)).items()):
        for (_, queue_id), bounds in (await topic_stats(client, broker, address, topic)).items():
            found.append(
                {
                    "broker": broker,
                    "address": address,
                    "queueId": queue_id,
                    "minOffset": bounds.low,
                    "maxOffset": bounds.high,
                    "lastUpdateMs": max(0, bounds.updated_ms),
                }
            )
        try:
            kept[broker] = await _kept_by(client, address, topic)
        except RequestRefused as error:  # The account may read the topic but not the broker's settings.
            is_secret = error.code == ResponseCode.NO_PERMISSION
            kept[broker] = {"error": "only an administrator may ask for it" if is_secret else str(error)}
    return found, kept


async def _settings(client: ClusterClient, address: str, topic: str) -> dict[str, Any]:
    return decode_object((await client.ask(address, RequestCode.GET_TOPIC_CONFIG, topic=topic)).body)


async def _kept_by(client: ClusterClient, address: str, topic: str) -> dict[str, Any]:
    """The topic's tier retention: its own attributes, else the broker's settings."""
    attributes = (await _settings(client, address, topic)).get("attributes") or {}
    text = bytes((await client.ask(address, RequestCode.GET_BROKER_CONFIG)).body).decode()
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if "tieredStoreFileReservedTime" not in settings:
        return {"tier": False}
    is_on = settings.get("tieredStoreDeleteFileEnable") != "false"
    own = (as_int(attributes.get("reserve.time", -1)), as_int(attributes.get("reserve.bytes", -1)))
    default = (as_int(settings["tieredStoreFileReservedTime"]), as_int(settings.get("tierMaxBytesPerTopic", -1)))
    kept = Kept.by(*own, *default) if is_on else KEPT_FOR_EVER
    return {"tier": True, "own": max(own) > 0, "hours": kept.hours, "maxBytes": kept.max_bytes, "words": str(kept)}


@operation(
    "topic.map", "The hot/cold map: for each queue, which messages are where, as ranges of offsets with times.", TOPIC
)
def map_topic(visit: Visit, *, topic: str) -> Result:
    visit.require_files()
    with visit.sources.topic_catalog(topic) as catalog:
        queues = catalog.queues()
        damaged = damaged_segments(verifications(visit, catalog.history.tier), topic) if visit.has_tier else {}
        if not queues:
            raise BadRequest(
                f"expected the topic {topic[:200]} in the tier or the store, found no messages of it there"
            )
        return {
            "topic": topic,
            "queues": [
                {
                    "broker": queue.key.broker,
                    "queueId": queue.key.queue_id,
                    "minOffset": queue.min_offset,
                    "maxOffset": queue.max_offset,
                    "spans": [span.to_dict() for span in spans_of(queue, newest_ms(catalog, queue), damaged)],
                    "segments": [
                        {
                            "path": log.key.path,
                            "bytes": log.size,
                            "status": log.status.name.lower(),
                            "fromOffset": log.begin_offset if log.begin_offset >= 0 else None,
                            "toOffset": log.end_offset if log.end_offset >= 0 else None,
                            "crc32": log.crc32,
                        }
                        for log in queue.logs
                    ],
                    "remarks": [str(each) for each in catalog.remarks(queue.key)],
                }
                for queue in queues
            ],
        }


def newest_ms(catalog: Catalog, queue: QueueHistory) -> int | None:
    """When the newest message of a queue was stored, if the store has it."""
    if queue.store is None or queue.hot_max <= queue.hot_min:
        return None
    try:
        store = catalog.history.store(queue.store.path)
        return store.store_time_of(queue.key.topic, queue.key.queue_id, queue.hot_max - 1)
    except StoreError:
        return None


# Changes


@operation(
    "topic.create",
    "Create or update a topic at every broker.",
    TOPIC,
    Parameter("queues", "Queues at each broker.", Kind.WHOLE, default=8, low=1, high=65_535),
    Parameter("perm", "Permission of clients.", default="rw", choices=tuple(PERMISSIONS)),
    Parameter("order", "An ordered topic.", Kind.FLAG, default=False),
    Parameter("attributes", "Changes of attributes: +name=value,-name."),
    OF_CLUSTER,
    changes=True,
)
def create_topic(
    visit: Visit, *, topic: str, queues: int, perm: str, order: bool, attributes: str | None, cluster: str | None
) -> Result:
    brokers, is_known = visit.ask(
        lambda client: client.create_topic(
            topic, queues, perm=PERMISSIONS[perm], order=order, attributes=attributes or None, cluster=cluster
        )
    )
    visit.sources.forget()
    return {"topic": topic, "queues": queues, "brokers": brokers, "knownEverywhere": is_known}


@operation(
    "topic.alter",
    "Change attributes of a topic; queues and permissions stay.",
    TOPIC,
    Parameter("attributes", "name=value,name=value, such as reserve.time=8760 (hours in the tier).", is_required=True),
    OF_CLUSTER,
    changes=True,
)
def alter_topic(visit: Visit, *, topic: str, attributes: str, cluster: str | None) -> Result:
    wanted = {}
    for each in attributes.split(","):
        name, equals, value = each.strip().lstrip("+").partition("=")
        if not equals or not name:
            raise BadRequest(f"attributes: expected name=value, found {each[:80]!r}")
        wanted[name] = value

    async def altered(client: ClusterClient) -> list[str]:
        addresses = (await client.route(topic)).addresses
        masters = await client.masters(cluster)
        changed = sorted(broker for broker in masters if broker in addresses)
        for broker in changed:
            known = await _settings(client, masters[broker], topic)
            await client.ask(
                masters[broker],
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic=topic,
                defaultTopic=AUTO_CREATE_TOPIC,
                readQueueNums=known["readQueueNums"],
                writeQueueNums=known["writeQueueNums"],
                perm=known["perm"],
                topicFilterType=known.get("topicFilterType", "SINGLE_TAG"),
                topicSysFlag=known.get("topicSysFlag", 0),
                order=known.get("order", False),
                attributes=",".join(f"+{key}={value}" for key, value in wanted.items()),
            )
        return changed

    brokers = visit.ask(altered)
    visit.sources.forget()
    return {"topic": topic, "attributes": wanted, "brokers": brokers}


@operation("topic.delete", "Delete a topic and its messages, at every broker.", TOPIC, OF_CLUSTER, changes=True)
def delete_topic(visit: Visit, *, topic: str, cluster: str | None) -> Result:
    async def deleted(client: ClusterClient) -> list[str]:
        await client.route(topic)  # An unknown name is most likely a typing error.
        masters = await client.masters(cluster)
        for address in masters.values():
            await client.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
        await client.tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=topic)
        return sorted(masters)

    brokers = visit.ask(deleted)
    visit.sources.forget()
    return {"topic": topic, "deleted": True, "brokers": brokers}
