"""`tiermq group`: list, show, create, reset and delete consumer groups."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.cli.cluster_command import cluster_options, queue_of_key
from tiermq.cli.conventions import SuggestingGroup
from tiermq.client.cluster_client import Access, ClusterClient
from tiermq.client.table_pages import ask_table
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import is_retry_topic
from tiermq.pipeline.job_report import counted_noun
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_object, encode_body

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_CLUSTER = click.option("--cluster", help="Only at the brokers of this cluster [all].")
ANSWERED = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)


@click.group(cls=SuggestingGroup)
def group() -> None:
    """List, create, reset and delete consumer groups.

    \b
    Examples:
      tiermq group list
      tiermq group show audit
      tiermq group create audit --retries 3
      tiermq group reset audit orders --to first
      tiermq group delete audit --yes
    """


@group.command("list")
@cluster_options
@_CLUSTER
@_JSON
def list_groups(access: Access, cluster: str | None, as_json: bool) -> None:
    """The groups that the brokers know."""
    found = access.run(lambda client: _names(client, cluster))
    click.echo(json.dumps({"groups": found}) if as_json else "\n".join(found))


@group.command()
@click.argument("name")
@cluster_options
@_JSON
def show(access: Access, name: str, as_json: bool) -> None:
    """Show offsets, lag and clients of the group NAME."""

    async def progress(client: ClusterClient) -> dict[str, Any]:
        queues: list[dict[str, Any]] = []
        members: list[dict[str, Any]] = []
        for broker, address in sorted((await client.masters()).items()):
            members += await _members(client, broker, address, name)
            answer = await client.ask(address, RequestCode.GET_CONSUME_STATS, consumerGroup=name)
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
                    }
                )
        if not queues and not members and not await _is_known(client, name):
            raise RequestRefused(
                f"expected a group {name}, found none of that name at the brokers: `tiermq group list` lists them",
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        queues.sort(key=lambda each: (each["topic"], each["broker"], each["queueId"]))
        return {"group": name, "behind": sum(each["behind"] for each in queues), "queues": queues, "members": members}

    found = access.run(progress)
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo(f"{'topic':32} {'broker':16} {'queue':>5} {'offset':>12} {'end':>12} {'behind':>12}")
    for each in found["queues"]:
        if not is_retry_topic(each["topic"]) or each["behind"]:
            place = f"{each['topic']:32} {each['broker']:16} {each['queueId']:>5}"
            click.echo(f"{place} {each['offset']:>12,} {each['end']:>12,} {each['behind']:>12,}")
    for member in found["members"]:
        click.echo(f"member {member['clientId']} at {member['address']} ({member['language']})")
    click.echo(f"{counted_noun(found['behind'], 'message')} behind, {counted_noun(len(found['members']), 'member')}")


async def _is_known(client: ClusterClient, name: str) -> bool:
    """Whether any broker has settings of the group; also where only an administrator may ask."""
    try:
        return name in await _names(client, None)
    except RequestRefused as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise
        return True


async def _names(client: ClusterClient, cluster: str | None) -> list[str]:
    found: set[str] = set()
    for address in (await client.masters(cluster)).values():
        body = await ask_table(client, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        found.update(decode_object(body).get("subscriptionGroupTable") or {})
    return sorted(found)


async def _members(client: ClusterClient, broker: str, address: str, name: str) -> list[dict[str, Any]]:
    asked = RequestCode.GET_CONSUMER_CONNECTION_LIST
    answer = await client.ask(address, asked, expected=ANSWERED, consumerGroup=name)
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


@group.command()
@click.argument("name")
@cluster_options
@_CLUSTER
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    help="Retries before a message is a dead letter.",
)
@click.option("--disabled", is_flag=True, help="Do not allow it to consume.")
@click.option("--orderly", is_flag=True, help="Consume in order.")
@_JSON
def create(access: Access, name: str, cluster: str | None, as_json: bool, **options: Any) -> None:
    """Create or update the group NAME at every broker."""
    wanted = SubscriptionGroup(
        name,
        consume_enable=not options["disabled"],
        consume_message_orderly=options["orderly"],
        retry_max_times=options["retries"],
    )

    async def made(client: ClusterClient) -> list[str]:
        masters = await client.masters(cluster)
        for address in masters.values():
            body = encode_body(wanted.to_json())
            await client.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        return sorted(masters)

    brokers = access.run(made)
    if as_json:
        click.echo(json.dumps({"group": name, **options, "brokers": brokers}))
    else:
        click.echo(f"group {name}: at {', '.join(brokers)}")


@group.command()
@click.argument("name")
@cluster_options
@_CLUSTER
@click.option("--keep-offsets", is_flag=True, help="Keep its offsets for a later group of that name.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_JSON
def delete(access: Access, name: str, cluster: str | None, keep_offsets: bool, yes: bool, as_json: bool) -> None:
    """Delete the group NAME at every broker."""
    if not yes:
        click.confirm(f"Delete the group {name}?", abort=True, err=True)

    async def deleted(client: ClusterClient) -> list[str]:
        masters = await client.masters(cluster)
        for address in masters.values():
            fields: dict[str, Any] = {"groupName": name, "cleanOffset": not keep_offsets}
            await client.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, **fields)
        return sorted(masters)

    brokers = access.run(deleted)
    if as_json:
        click.echo(json.dumps({"group": name, "deleted": True, "keptOffsets": keep_offsets, "brokers": brokers}))
    else:
        click.echo(f"group {name}: deleted at {', '.join(brokers)}")


@group.command()
@click.argument("name")
@click.argument("topic")
@cluster_options
@click.option("--to", "goal", required=True, help="first, last, or a time in milliseconds.")
@_JSON
def reset(access: Access, name: str, topic: str, goal: str, as_json: bool) -> None:
    """Reset the offsets of the group NAME in TOPIC."""
    if goal not in ("first", "last") and not goal.isdigit():
        raise click.UsageError(f"--to: expected first, last or milliseconds, found {goal!r}")
    # A time in the future means the end of the queue.
    time_ms = 0 if goal == "first" else int(time.time() * 1000) if goal == "last" else int(goal)

    async def moved(client: ClusterClient) -> list[dict[str, Any]]:
        found = []
        for broker, address in sorted((await client.route(topic)).addresses.items()):
            fields: dict[str, Any] = {"topic": topic, "group": name, "timestamp": time_ms, "isForce": True}
            answer = await client.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
            for key, offset in (decode_object(answer.body).get("offsetTable") or {}).items():
                found.append({"broker": broker, "queueId": queue_of_key(key)[1], "offset": as_int(offset)})
        if not found:
            raise RequestRefused(f"group {name}: expected queues of {topic} to be moved in, found none")
        return sorted(found, key=lambda each: (each["broker"], each["queueId"]))

    found = access.run(moved)
    if as_json:
        click.echo(json.dumps({"group": name, "topic": topic, "queues": found}))
        return
    for each in found:
        click.echo(f"{each['broker']:24} {each['queueId']:>5} {each['offset']:>12,}")
