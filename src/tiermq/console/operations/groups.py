"""Consumer groups: list, show, reset with a preview, create, delete."""

from __future__ import annotations

import asyncio
from typing import Any

from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.client.cluster_client import ClusterClient
from tiermq.client.queue_access import QueueAccess
from tiermq.client.table_pages import ask_table
from tiermq.clock import SystemClock, iso_moment, read_moment_ms
from tiermq.console.catalogue import Kind, Parameter, Result, operation
from tiermq.console.copied_commands import reset_command
from tiermq.console.operations.topics import OF_CLUSTER, PAGE, ROWS, SEARCH, TOPIC, lag_of, page_of
from tiermq.console.queue_bounds import Bounds, QueueName, queue_bounds, queue_of_key
from tiermq.console.sources import Tables, Visit, answering
from tiermq.errors import BadRequest, RemotingError, RequestRefused
from tiermq.message.topic_name import PREDEFINED_GROUPS, is_broker_group, is_retry_topic
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_object, encode_body

GROUP = Parameter("group", "The name of the group.", is_required=True)
ANSWERED = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
AT_ONCE = 32
MEMBERS_ASKED = 50
MEMBER_S = 3.0
LOPSIDED = 0.5


@operation(
    "group.list",
    "The consumer groups, a page at a time, with their topics, lag and members.",
    SEARCH,
    Parameter("all", "Also groups of the broker itself.", Kind.FLAG, default=False),
    PAGE,
    ROWS,
    OF_CLUSTER,
)
def list_groups(visit: Visit, *, search: str | None, all: bool, page: int, rows: int, cluster: str | None) -> Result:  # noqa: A002 - the name of the parameter
    tables = visit.tables()
    if cluster is not None and visit.has_wire:
        visit.ask(lambda client: client.masters(cluster))  # Raises for an unknown cluster.
    names, about = page_of(group_names(tables, everything=all), search, page, rows)
    topics: dict[str, list[str]] = {name: [] for name in names}
    for topic, group in tables.offsets:
        if group in topics:
            topics[group].append(topic)
    bounds = queue_bounds(visit, {topic for found in topics.values() for topic in found})
    members = visit.ask(lambda client: _member_counts(client, names)) if visit.has_wire else {}
    listed = []
    for name in names:
        lags = [lag_of(bounds[topic], tables.offsets[topic, name]) for topic in topics[name]]
        listed.append(
            {
                "group": name,
                "topics": sum(not is_retry_topic(topic) for topic in topics[name]),
                "behind": sum(lags),
                "members": members.get(name),
                "settings": _shown_settings(tables.groups.get(name)),
            }
        )
    return {"groups": listed, **about}


def group_names(tables: Tables, *, everything: bool) -> list[str]:
    """All names, of groups with settings or offsets."""
    known = {group for _, group in tables.offsets} | set(tables.groups)
    return sorted(name for name in known if everything or not is_own_group(name))


def is_own_group(name: str) -> bool:
    """Whether every broker has a group of this name."""
    return name in PREDEFINED_GROUPS or is_broker_group(name)


def _shown_settings(settings: Any) -> Result | None:
    if settings is None:
        return None
    return {
        "consumeEnable": settings.get("consumeEnable", True),
        "orderly": settings.get("consumeMessageOrderly", False),
        "retries": settings.get("retryMaxTimes", 16),
    }


async def _member_counts(client: ClusterClient, names: list[str]) -> dict[str, int]:
    places = asyncio.Semaphore(AT_ONCE)
    masters = await answering(client, await client.masters())

    async def of(name: str) -> int:
        async with places:
            ids: set[str] = set()
            for broker, address in masters.items():
                ids |= {str(each["clientId"]) for each in await members_of(client, broker, address, name)}
            return len(ids)

    try:
        return dict(zip(names, await asyncio.gather(*(of(name) for name in names)), strict=True))
    except RequestRefused as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise
        return {}


async def members_of(client: ClusterClient, broker: str, address: str, name: str) -> list[dict[str, Any]]:
    """The clients of a group that are connected to a broker."""
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    answer = await client.ask(address, code, expected=ANSWERED, consumerGroup=name)
    if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return []
    return [
        {
            "clientId": each.get("clientId"),
            "address": each.get("clientAddr"),
            "language": each.get("language"),
            "broker": broker,
        }
        for each in decode_object(answer.body).get("connectionSet") or []
    ]


@operation("group.show", "One group: offset, end and lag of each queue, and its members.", GROUP)
def show_group(visit: Visit, *, group: str) -> Result:
    if visit.has_wire:
        found = visit.ask(lambda client: _progress(client, group))
    else:
        tables = visit.tables()
        topics = [topic for topic, name in tables.offsets if name == group]
        if not topics and group not in tables.groups:
            raise _unknown(group)
        bounds = queue_bounds(visit, topics)
        queues = [
            _row(topic, name, each, tables.offsets[topic, group].get(name))
            for topic in topics
            for name, each in bounds[topic].items()
        ]
        found = {"queues": queues, "members": [], "balance": None}
    found["queues"].sort(key=lambda each: (each["topic"], each["broker"], each["queueId"]))
    settings = visit.tables().groups.get(group)
    return {
        "group": group,
        "behind": sum(each["behind"] for each in found["queues"]),
        "reasons": reasons_of(
            found["queues"], found["members"] if visit.has_wire else None, found["balance"], settings
        ),
        **found,
    }


def reasons_of(
    queues: list[dict[str, Any]], members: list[dict[str, Any]] | None, balance: Result | None, settings: Any
) -> list[str]:
    """Why a group is behind, in words, the most likely first; nothing when it is not. `members` None: not known."""
    behind = sum(row["behind"] for row in queues)
    if not behind:
        return []
    said = []
    if settings is not None and not settings.get("consumeEnable", True):
        said.append("The group is disabled: brokers refuse its pulls (consumeEnable=false).")
    if members is not None and not members:
        said.append("No member is connected: nothing is consumed.")
    if balance is not None and balance["withoutMember"]:
        said.append(f"{balance['withoutMember']} queues have no member that consumes them: see the members below.")
    late = [row for row in queues if row["behind"]]
    worst = max(late, key=lambda row: row["behind"])
    name = f"queue {worst['queueId']} of {worst['topic']} at {worst['broker']}"
    if len(late) > 1 and worst["behind"] >= LOPSIDED * behind:
        said.append(
            f"{worst['behind'] / behind:.0%} of it is in {name}: its member is slow or gone, or keys are skewed."
        )
    retries = sum(row["behind"] for row in late if is_retry_topic(row["topic"]))
    if retries:
        said.append(f"{retries:,} of it are retries: its members give messages back.")
    seen = [row["lastConsumedMs"] for row in late if row.get("lastConsumedMs")]
    if seen:
        said.append(
            f"The message that it consumed last, where it is the furthest behind, was stored {iso_moment(min(seen))}."
        )
    return said or [
        f"It is {behind:,} messages behind, in {len(late)} queues alike: its members are slower than senders."
    ]


def _row(topic: str, name: QueueName, bounds: Bounds, offset: int | None) -> Result:
    at = bounds.low if offset is None else offset
    broker, queue_id = name
    return {
        "topic": topic, "broker": broker, "queueId": queue_id, "offset": at, "end": bounds.high,
        "behind": max(0, bounds.high - at),
    }  # fmt: skip


async def _progress(client: ClusterClient, group: str) -> Result:
    queues: list[dict[str, Any]] = []
    members: list[dict[str, Any]] = []
    masters = sorted((await answering(client, await client.masters())).items())
    for broker, address in masters:
        members += await members_of(client, broker, address, group)
        answer = await client.ask(address, RequestCode.GET_CONSUME_STATS, consumerGroup=group)
        for key, offsets in (decode_object(answer.body).get("offsetTable") or {}).items():
            topic, queue_id, _ = queue_of_key(key)
            end, at = as_int(offsets.get("brokerOffset")), as_int(offsets.get("consumerOffset"))
            queues.append(
                {
                    "topic": topic,
                    "broker": broker,
                    "queueId": queue_id,
                    "offset": at,
                    "end": end,
                    "behind": max(0, end - at),
                    "lastConsumedMs": as_int(offsets.get("lastTimestamp")) or None,
                }
            )
    if not queues and not members and not await _is_known(client, group, [address for _, address in masters]):
        raise _unknown(group)
    return {"queues": queues, "members": members, "balance": await _balance(client, group, queues, members)}


async def _balance(
    client: ClusterClient, group: str, queues: list[dict[str, Any]], members: list[dict[str, Any]]
) -> Result:
    """Which member has which queue, as the members answer. Adds `owner` to the queues, `queues` to the members."""
    masters = await client.masters()

    async def held_by(member: dict[str, Any]) -> set[tuple[str, str, int]] | None:
        fields: dict[str, Any] = {"consumerGroup": group, "clientId": member["clientId"], "jstackEnable": False}
        address = masters[member["broker"]]
        try:
            answer = await client.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, timeout_s=MEMBER_S, **fields)
        except RemotingError:
            return None  # Not for this account, or the member does not answer: a gRPC client without a stream.
        held = set()
        for key in decode_object(answer.body).get("mqTable") or {}:
            topic, queue_id, broker = queue_of_key(key)
            held.add((topic, broker, queue_id))
        return held

    asked = members[:MEMBERS_ASKED]
    answers = await asyncio.gather(*(held_by(each) for each in asked))
    owners: dict[tuple[str, str, int], set[str]] = {}
    for member, held in zip(asked, answers, strict=True):
        member["queues"] = None if held is None else len(held)
        for name in held or ():
            owners.setdefault(name, set()).add(str(member["clientId"]))
    for row in queues:
        row["owner"] = ", ".join(sorted(owners.get((row["topic"], row["broker"], row["queueId"]), ())))
    known = [each for each in answers if each is not None]
    free = [row for row in queues if not row["owner"] and not is_retry_topic(row["topic"])]
    return {
        "members": len({each["clientId"] for each in members}),
        "answered": len(known),
        "withoutMember": len(free) if known else None,
        "words": _balance_words(members, known, free),
    }


def _balance_words(members: list[dict[str, Any]], known: list[Any], free: list[dict[str, Any]]) -> str:
    if not members:
        return "No member is connected: nothing is consumed."
    if not known:
        return "The members do not tell which queues they have."
    idle = sum(not held for held in known)
    text = f"{len(known)} of {len(members)} connections reported which queues they have."
    if free:
        text += f" {len(free)} queues have no member: a rebalance has not reached them, or a member does not answer."
    if idle:
        text += f" {idle} of them have no queue: there are more members than queues."
    return text


@operation("producer.list", "The producers that are connected, by their groups. Brokers do not know their topics.")
def list_producers(visit: Visit) -> Result:
    async def asked(client: ClusterClient) -> list[Result]:
        rows = []
        for broker, address in sorted((await answering(client, await client.masters())).items()):
            found = decode_object((await client.ask(address, RequestCode.GET_ALL_PRODUCER_INFO)).body)
            rows += [
                {
                    "group": group,
                    "clientId": each.get("clientId"),
                    "address": str(each.get("remoteIP") or "").lstrip("/"),
                    "language": each.get("language"),
                    "broker": broker,
                    "lastSeenMs": as_int(each.get("lastUpdateTimestamp")) or None,
                }
                for group, clients in sorted((found.get("data") or {}).items())
                for each in clients
            ]
        return rows

    return {"producers": visit.ask(asked)}


def _unknown(group: str) -> RequestRefused:
    return RequestRefused(
        f"expected a group {group}, found none of that name at the brokers: `tiermq group list` lists them",
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )


async def _is_known(client: ClusterClient, group: str, addresses: list[str]) -> bool:
    """Whether any broker has settings of the group; also where only an administrator may ask."""
    for address in addresses:
        try:
            body = await ask_table(client, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            if group in (decode_object(body).get("subscriptionGroupTable") or {}):
                return True
        except RequestRefused as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            return True
    return False


# Changes


@operation(
    "group.preview",
    "What a reset of offsets would do to each queue: what it would skip, and what it would repeat.",
    GROUP,
    TOPIC,
    Parameter(
        "to",
        "first, last, or a time: milliseconds, ISO 8601 (UTC unless it has a zone), or an age such as 1h.",
        is_required=True,
    ),
)
def preview_reset(visit: Visit, *, group: str, topic: str, to: str) -> Result:
    goal_ms = goal_of(to)

    async def previewed(client: ClusterClient) -> list[Result]:
        route = await client.route(topic)
        progress = await _progress(client, group)
        at = {(row["broker"], row["queueId"]): row["offset"] for row in progress["queues"] if row["topic"] == topic}
        rows = []
        for place in route.readable:
            queue = QueueAccess(client, topic, place)
            low, high = await queue.bounds()
            goal = (
                low if to == "first" else high if to == "last" else min(max(await queue.offset_at(goal_ms), low), high)
            )
            now = max(low, at.get((place.broker_name, place.queue_id), low))
            rows.append(
                {
                    "broker": place.broker_name,
                    "queueId": place.queue_id,
                    "offset": now,
                    "goal": goal,
                    "skipped": max(0, goal - now),
                    "repeated": max(0, now - goal),
                }
            )
        return sorted(rows, key=lambda row: (row["broker"], row["queueId"]))

    queues = visit.ask(previewed)
    return {
        "group": group,
        "topic": topic,
        "to": to,
        "toMs": None if to in ("first", "last") else goal_ms,
        "skipped": sum(row["skipped"] for row in queues),
        "repeated": sum(row["repeated"] for row in queues),
        "queues": queues,
        "command": reset_command(visit, group, topic, to if to in ("first", "last") else str(goal_ms)),
    }


def goal_of(to: str) -> int:
    """The time that a reset names; 0 for the first message, now for the last. Raises BadRequest."""
    now_ms = SystemClock().now_ms()
    if to in ("first", "last"):
        return 0 if to == "first" else now_ms
    try:
        return read_moment_ms(to, now_ms)
    except ValueError as error:
        raise BadRequest(f"to: expected first, last or a time: {error}") from error


@operation(
    "group.reset",
    "Reset the offsets of a group in a topic. `group.preview` reports what that would skip or repeat.",
    GROUP,
    TOPIC,
    Parameter("to", "first, last, or a time.", is_required=True),
    changes=True,
)
def reset_group(visit: Visit, *, group: str, topic: str, to: str) -> Result:
    # A time in the future means the end of the queue.
    time_ms = goal_of(to)

    async def moved(client: ClusterClient) -> list[Result]:
        found = []
        for broker, address in sorted((await client.route(topic)).addresses.items()):
            fields: dict[str, Any] = {"topic": topic, "group": group, "timestamp": time_ms, "isForce": True}
            answer = await client.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
            for key, offset in (decode_object(answer.body).get("offsetTable") or {}).items():
                found.append({"broker": broker, "queueId": queue_of_key(key)[1], "offset": as_int(offset)})
        if not found:
            raise RequestRefused(f"group {group}: expected queues of {topic} to be moved in, found none")
        return sorted(found, key=lambda each: (each["broker"], each["queueId"]))

    queues = visit.ask(moved)
    visit.sources.forget()
    return {"group": group, "topic": topic, "queues": queues}


@operation(
    "group.create",
    "Create or update a group at every broker.",
    GROUP,
    Parameter("retries", "Retries before a message is a dead letter.", Kind.WHOLE, default=16),
    Parameter("disabled", "Do not allow it to consume.", Kind.FLAG, default=False),
    Parameter("orderly", "Consume in order.", Kind.FLAG, default=False),
    Parameter("attributes", "Changes of attributes: +name=value,-name."),
    OF_CLUSTER,
    changes=True,
)
def create_group(
    visit: Visit,
    *,
    group: str,
    retries: int,
    disabled: bool,
    orderly: bool,
    attributes: str | None,
    cluster: str | None,
) -> Result:
    changes = (each.partition("=") for each in (attributes or "").split(",") if each)
    wanted = SubscriptionGroup(
        group,
        consume_enable=not disabled,
        consume_message_orderly=orderly,
        retry_max_times=retries,
        attributes={name: value for name, _, value in changes},
    )

    async def made(client: ClusterClient) -> list[str]:
        masters = await client.masters(cluster)
        for address in masters.values():
            body = encode_body(wanted.to_json())
            await client.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        return sorted(masters)

    brokers = visit.ask(made)
    visit.sources.forget()
    return {"group": group, "brokers": brokers}


@operation(
    "group.delete",
    "Delete a group at every broker.",
    GROUP,
    Parameter("keepOffsets", "Keep its offsets for a later group of that name.", Kind.FLAG, default=False),
    OF_CLUSTER,
    changes=True,
)
def delete_group(visit: Visit, *, group: str, keepOffsets: bool, cluster: str | None) -> Result:  # noqa: N803 - the name of the parameter
    async def deleted(client: ClusterClient) -> list[str]:
        masters = await client.masters(cluster)
        for address in masters.values():
            fields: dict[str, Any] = {"groupName": group, "cleanOffset": not keepOffsets}
            await client.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, **fields)
        return sorted(masters)

    brokers = visit.ask(deleted)
    visit.sources.forget()
    return {"group": group, "deleted": True, "keptOffsets": keepOffsets, "brokers": brokers}
