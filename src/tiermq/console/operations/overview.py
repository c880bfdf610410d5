"""The overview: brokers with roles and rates, what is stored where, how far groups are behind, warnings in words."""

from __future__ import annotations

import asyncio
from typing import Any

from tiermq import __version__
from tiermq.client.cluster_client import MASTER, ClusterClient
from tiermq.clock import HOUR_MS, iso_moment
from tiermq.console.catalogue import Result, operation
from tiermq.console.operations.groups import is_own_group, list_groups
from tiermq.console.operations.topics import topic_names
from tiermq.console.sources import ANSWER_S, SILENT_S, Visit
from tiermq.errors import PeerGone, RemotingError, RequestRefused, RequestTimedOut, TierError
from tiermq.message.topic_name import DEAD_LETTER_PREFIX, is_dead_letter_topic
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_object, object_in, text_map_in
from tiermq.store.readonly.directory import StoreState
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.broker_lease import decode_lease, lease_name

GROUPS_CHECKED = 100
NAMED = 5
LAGS_S = 15.0
"""Lags of a hundred groups are a thousand requests: a live page does not ask for them every two seconds."""
LAG_WARNING = 100_000
DISK_WARNING = 0.85
REMEMBERED_MS = 24 * HOUR_MS
TIER_WARNING_MS = HOUR_MS
"""A message waits for a full batch, or tieredStoreGroupCommitTimeout (30 s); for an hour where uploads do not work."""


@operation("overview", "Brokers, topics, groups, the tier, and what needs attention, in words.")
def overview(visit: Visit) -> Result:
    brokers = visit.ask(_brokers) if visit.has_wire else []
    names = topic_names(visit, everything=True)
    dead = list(filter(is_dead_letter_topic, names))
    tables = visit.tables()
    groups = {group for _, group in tables.offsets} | set(tables.groups)
    checked = visit.sources.kept(
        ("lags", visit.credentials, visit.reads_files),
        LAGS_S,
        lambda: list_groups(visit, search=None, all=False, page=1, rows=GROUPS_CHECKED, cluster=None),
    )
    behind = sorted(checked["groups"], key=lambda row: -row["behind"])
    tier = _tier(visit) if visit.has_tier else None
    stores = _stores(visit) if visit.has_stores else []
    found = {
        "version": __version__,
        "nowMs": visit.sources.clock.now_ms(),
        "sources": {
            "nameServer": visit.sources.place.access.name_servers if visit.sources.place.access is not None else None,
            "tier": visit.sources.place.tier if visit.has_tier else None,
            "stores": [each.path for each in visit.sources.place.stores] if visit.has_stores else [],
            "tablesTakenMs": tables.taken_ms,
        },
        "brokers": brokers,
        "goneBrokers": _gone(visit, brokers),
        "stores": stores,
        "tier": tier,
        "topics": len(topic_names(visit, everything=False)) if names else 0,
        "topicsInAll": len(names),
        "deadLetterTopics": len(dead),
        "deadLetterGroups": [name.removeprefix(DEAD_LETTER_PREFIX) for name in dead[:NAMED]],
        "groups": sum(not is_own_group(group) for group in groups),
        "groupsChecked": len(checked["groups"]),
        "behind": sum(row["behind"] for row in behind),
        "mostBehind": [{"group": row["group"], "behind": row["behind"]} for row in behind[:5] if row["behind"]],
        "tierBehind": _tier_behind(brokers),
        "putPerSecond": _sum(brokers, "putPerSecond"),
        "getPerSecond": _sum(brokers, "getPerSecond"),
    }
    return {**found, "warnings": [*warnings_of(found), *tables.problems]}


def _sum(rows: list[Result], name: str) -> float | None:
    known = [row[name] for row in rows if row.get(name) is not None]
    return round(sum(known), 1) if known else None


def _tier_behind(rows: list[Result]) -> Result | None:
    """What masters have that is not in their tiers yet, and the age of the oldest; None where no broker reports it."""
    known = [row for row in rows if row["role"] == "master" and row.get("tierBehindBytes") is not None]
    if not known:
        return None
    messages = [row["tierBehindMessages"] for row in known if row["tierBehindMessages"] is not None]
    return {
        "messages": sum(messages) if messages else None,
        "bytes": sum(row["tierBehindBytes"] for row in known),
        "oldestMs": max((row["tierBehindMs"] for row in known if row["tierBehindMs"] is not None), default=None),
    }


def _gone(visit: Visit, rows: list[Result]) -> list[Result]:
    """Brokers that were registered while this console ran, and are not any more."""
    now_ms = visit.sources.clock.now_ms()
    seen = {
        name: (address, at_ms)
        for name, (address, at_ms) in visit.sources.seen_brokers.items()
        if now_ms - at_ms < REMEMBERED_MS
    }
    here = {(row["broker"], row["role"]): (row["address"], now_ms) for row in rows}
    visit.sources.seen_brokers = seen | here
    return [
        {"broker": broker, "role": role, "address": address, "lastSeenMs": at_ms}
        for (broker, role), (address, at_ms) in sorted(seen.items())
        if (broker, role) not in here
    ]


def warnings_of(found: Result) -> list[str]:
    """What needs attention, one sentence each, with what to do."""
    said = [
        f"Broker {row['broker']} ({row['role']}), at {row['address']} until {iso_moment(row['lastSeenMs'])}, is not "
        "registered any more: it has ended, or cannot reach the name server."
        for row in found["goneBrokers"]
    ]
    for row in found["brokers"]:
        name = row["broker"]
        if row["problem"]:
            said.append(f"Broker {name} ({row['role']}) at {row['address']} does not answer: {row['problem']}")
        if (row.get("diskRatio") or 0) >= DISK_WARNING:
            said.append(f"The disk of broker {name} is {row['diskRatio']:.0%} full: sends are refused when it is full.")
        if row["role"] == "master" and (row.get("tierBehindMs") or 0) >= TIER_WARNING_MS:
            said.append(
                f"Broker {name} has {row['tierBehindMessages']:,} messages that are not in the tier, the oldest since "
                f"{row['tierBehindMs'] // 60_000:,} minutes: its log has the reason."
            )
        if row["role"] == "master" and row.get("replicas") and row["inSync"] < row["replicas"]:
            said.append(f"Of {row['replicas']} replicas of broker {name}, {row['inSync']} are in sync.")
        if row.get("tierProblem"):
            said.append(f"Broker {name}: {row['tierProblem']}")
        if row.get("isElected") and not row["inSync"]:
            said.append(
                f"Broker {name} has no other replica in sync: if this one ends, too, no broker takes over. See "
                f"`tiermq broker status {name}`, and start the other replicas."
            )
    said += [
        f"The store {row['path']} was not closed: its process died, and its next start recovers it."
        for row in found["stores"]
        if row["state"] == StoreState.CRASHED.value
    ]
    if found["tier"] is not None:
        said += [f"{row['broker']}: {row['problem']}" for row in found["tier"]["leases"] if row["problem"]]
        if found["tier"]["damaged"]:
            said.append(
                f"{found['tier']['damaged']} segments of the tier have damaged objects: run `tiermq tier verify`."
            )
    if found["mostBehind"] and found["mostBehind"][0]["behind"] >= LAG_WARNING:
        worst = found["mostBehind"][0]
        said.append(f"Group {worst['group']} is {worst['behind']:,} messages behind.")
    if found["deadLetterTopics"]:
        count = found["deadLetterTopics"]
        named = ", ".join(found["deadLetterGroups"]) + (", …" if count > NAMED else "")
        has = "group has" if count == 1 else "groups have"
        said.append(f"{count} {has} dead letters ({named}): see `tiermq dlq list {found['deadLetterGroups'][0]}`.")
    return said


async def _brokers(client: ClusterClient) -> list[Result]:
    answer = await client.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
    rows = []
    for name, entry in sorted((decode_object(answer.body).get("brokerAddrTable") or {}).items()):
        table = object_in(entry, f"the entry of broker {name}")
        addresses = text_map_in(table.get("brokerAddrs") or {}, f"the addresses of broker {name}")
        rows += [(str(table.get("cluster") or ""), name, each, address) for each, address in sorted(addresses.items())]
    return list(await asyncio.gather(*(_broker(client, *row) for row in rows)))


async def _broker(client: ClusterClient, cluster: str, name: str, broker_id: str, address: str) -> Result:
    row: Result = {
        "cluster": cluster, "broker": name, "id": as_int(broker_id), "address": address,
        "role": "master" if broker_id == MASTER else "slave", "problem": "",
    }  # fmt: skip
    try:
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        await client.answers(address, ANSWER_S, SILENT_S)  # If not, asking fails at once.
        body = (await client.ask(address, code)).body
        row |= _figures(decode_object(body).get("table") or {})
        if row["role"] == "master":
            row |= await _replicas(client, address)
    except RequestRefused as error:
        if error.code != ResponseCode.NO_PERMISSION:
            row["problem"] = str(error)
    except (PeerGone, RequestTimedOut) as error:
        row["problem"] = str(error)
    return row


async def _replicas(client: ClusterClient, address: str) -> Result:
    try:
        status = decode_object((await client.ask(address, RequestCode.GET_BROKER_HA_STATUS)).body)
    except RemotingError:
        return {}  # Brokers before 5.0 do not report it.
    slaves = status.get("haConnectionInfo") or []
    return {
        "replicas": len(slaves),
        "inSync": as_int(status.get("inSyncSlaveNums")),
        "isElected": bool(status.get("isElected")),
        "replicaLagBytes": max((as_int(each.get("diff")) for each in slaves), default=0),
    }


def _figures(table: dict[str, Any]) -> Result:
    """Of the runtime statistics: rates are over 10, 60 and 600 seconds; the first is shown."""
    return {
        "version": table.get("brokerVersionDesc"),
        "sinceMs": as_int(table.get("bootTimestamp")) or None,
        "putPerSecond": _first(table.get("putTps")),
        "getPerSecond": _first(table.get("getTransferredTps")),
        "putToday": as_int(table.get("msgPutTotalTodayNow")),
        "diskRatio": _first(table.get("commitLogDiskRatio")),
        "logBytes": as_int(table.get("commitLogMaxOffset")) - as_int(table.get("commitLogMinOffset")),
        "oldestMs": _positive(as_int(table.get("earliestMessageTimeStamp"))),
        "dispatchBehindBytes": as_int(table.get("dispatchBehindBytes")),
        "tierBehindBytes": _whole(table, "tierBehindBytes"),
        "tierBehindMessages": _whole(table, "tierBehindMessages"),
        "tierBehindMs": _whole(table, "tierBehindMs"),
        "tierProblem": table.get("tierProblem") or "",
        "putLatencyP99Ms": _first(table.get("putLatency99")),
    }


def _whole(table: dict[str, Any], name: str) -> int | None:
    """None: the broker does not report it."""
    return as_int(table[name]) if name in table else None


def _positive(number: int) -> int | None:
    return number if number > 0 else None


def _first(text: object) -> float | None:
    try:
        return float(str(text).split()[0])
    except (ValueError, IndexError):
        return None


def _tier(visit: Visit) -> Result:
    listing = visit.sources.listing()
    with visit.sources.files() as history:
        leases = [lease_row(history.tier, *home, visit.sources.clock.now_ms()) for home in listing.brokers]
    return {
        "url": visit.sources.place.tier,
        "bytes": sum(info.size for info in listing.segments),
        "objects": sum(max(1, info.part_count) for info in listing.segments) + len(listing.objects),
        "segments": len(listing.segments),
        "damaged": sum(info.damage is not None for info in listing.segments),
        "topics": len({info.key.topic for info in listing.segments}),
        "leases": leases,
    }


def lease_row(tier: TierDriver, cluster: str, broker: str, now_ms: int) -> Result:
    """Who may write a broker's part of the tier."""
    row: Result = {"cluster": cluster, "broker": broker, "owner": "", "epoch": None, "untilMs": None, "problem": ""}
    name = lease_name(cluster, broker)
    stored = tier.get_object(name)
    if stored is None:
        return row
    try:
        lease = decode_lease(stored.data, name)
    except TierError as error:
        return {**row, "problem": str(error)}
    return {
        **row,
        "owner": lease.owner,
        "epoch": lease.epoch,
        "untilMs": lease.expires_ms or None,
        "isHeld": lease.is_held(now_ms),
        "renewals": lease.renewals,
    }


def _stores(visit: Visit) -> list[Result]:
    with visit.sources.stores() as stores:
        return [
            {
                "path": str(store.root),
                "state": store.state.value,
                "queues": len(store.queues()) + len(store.batch_queues()),
                "logFrom": store.min_physical_offset,
                "logTo": store.max_physical_offset,
                "logBytes": store.max_physical_offset - store.min_physical_offset,
            }
            for store in stores
        ]
