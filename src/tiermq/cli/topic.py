"""`tiermq topic`: which topics there are, what they hold, making and deleting them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import click

from tiermq.cli.cluster_options import cluster_options
from tiermq.cli.queue_keys import queue_of_key
from tiermq.client.access import Access
from tiermq.client.cluster_client import ClusterClient
from tiermq.message.topic_name import AUTO_CREATE_TOPIC, is_dead_letter_topic, is_retry_topic, is_system_topic
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.json_dialect import as_int, decode_object

PERMISSIONS = {"rw": 6, "r": 4, "w": 2}
KNOWN_WITHIN_S, LOOK_AGAIN_S = 5.0, 0.02
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_CLUSTER = click.option("--cluster", help="Only at the brokers of this cluster [all].")


@click.group()
def topic() -> None:
    """Look at topics, make them, delete them.

    \b
    Examples:
      tiermq topic list
      tiermq topic create orders --queues 8
      tiermq topic show orders
      tiermq topic delete orders --yes
    """


@topic.command("list")
@cluster_options
@click.option("--all", "everything", is_flag=True, help="Also those of the system, and of retries and dead letters.")
@_JSON
def list_topics(access: Access, everything: bool, as_json: bool) -> None:
    """The topics that the name server knows."""

    async def names(cluster: ClusterClient) -> list[str]:
        answer = await cluster.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        found = sorted(decode_object(answer.body).get("topicList") or [])
        if everything:
            return found
        system: set[str] = set()
        for address in (await cluster.masters()).values():
            told = await cluster.ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            system.update(decode_object(told.body).get("topicList") or [])
        return [name for name in found if name not in system and not _is_hidden(name)]

    found = access.run(names)
    if as_json:
        click.echo(json.dumps({"topics": found}))
    else:
        for name in found:
            click.echo(name)


@topic.command()
@click.argument("name")
@cluster_options
@click.option("--queues", type=click.IntRange(1), default=8, show_default=True, help="At each broker.")
@click.option("--perm", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True, help="What clients may.")
@click.option("--order", is_flag=True, help="An ordered topic.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Such as queue.type=BatchCQ.")
@_CLUSTER
@_JSON
def create(access: Access, name: str, as_json: bool, **options: Any) -> None:
    """Make the topic NAME at every broker, or change it where it is."""
    attributes = ",".join(f"+{each}" for each in options["attributes"])

    async def made(cluster: ClusterClient) -> list[str]:
        masters = await cluster.masters(options["cluster"])
        for address in masters.values():
            await cluster.ask(
                address,
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic=name,
                defaultTopic=AUTO_CREATE_TOPIC,
                readQueueNums=options["queues"],
                writeQueueNums=options["queues"],
                perm=PERMISSIONS[options["perm"]],
                topicFilterType="SINGLE_TAG",
                topicSysFlag=0,
                order=options["order"],
                attributes=attributes or None,
            )
        await _known(cluster, name, set(masters))
        return sorted(masters)

    brokers = access.run(made)
    if as_json:
        click.echo(json.dumps({"topic": name, "queues": options["queues"], "brokers": brokers}))
    else:
        click.echo(f"topic {name}: {options['queues']} queues at {', '.join(brokers)}")


async def _known(cluster: ClusterClient, name: str, brokers: set[str]) -> None:
    """Until the name server knows the topic at these brokers, which tell it after they have answered."""
    deadline = time.monotonic() + KNOWN_WITHIN_S
    while time.monotonic() < deadline:
        route = await cluster.find_route(name)
        if route is not None and brokers <= set(route.addresses):
            return
        await asyncio.sleep(LOOK_AGAIN_S)
    click.echo(f"topic {name}: the name server does not know it everywhere yet", err=True)


@topic.command()
@click.argument("name")
@cluster_options
@_CLUSTER
@click.option("--yes", is_flag=True, help="Do not ask.")
@_JSON
def delete(access: Access, name: str, cluster: str | None, yes: bool, as_json: bool) -> None:
    """Delete the topic NAME and its messages, at every broker."""
    if not yes:
        click.confirm(f"Delete the topic {name} and all its messages?", abort=True, err=True)

    async def deleted(client: ClusterClient) -> list[str]:
        await client.route(name)  # A name that nobody knows is most likely a slip of the pen.
        masters = await client.masters(cluster)
        for address in masters.values():
            await client.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)
        await client.tell_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic=name)
        return sorted(masters)

    brokers = access.run(deleted)
    if as_json:
        click.echo(json.dumps({"topic": name, "deleted": True, "brokers": brokers}))
    else:
        click.echo(f"topic {name}: deleted at {', '.join(brokers)}")


@topic.command()
@click.argument("name")
@cluster_options
@_JSON
def show(access: Access, name: str, as_json: bool) -> None:
    """The queues of the topic NAME: where they are, and from which offset to which."""

    async def queues(cluster: ClusterClient) -> list[dict[str, Any]]:
        found = []
        for broker, address in sorted((await cluster.route(name)).addresses.items()):
            answer = await cluster.ask(address, RequestCode.GET_TOPIC_STATS_INFO, topic=name)
            for key, offsets in (decode_object(answer.body).get("offsetTable") or {}).items():
                found.append(
                    {
                        "broker": broker,
                        "address": address,
                        "queueId": queue_of_key(key)[1],
                        "minOffset": as_int(offsets.get("minOffset")),
                        "maxOffset": as_int(offsets.get("maxOffset")),
                        "lastUpdateMs": as_int(offsets.get("lastUpdateTimestamp")),
                    }
                )
        return sorted(found, key=lambda each: (each["broker"], each["queueId"]))

    found = access.run(queues)
    messages = sum(each["maxOffset"] - each["minOffset"] for each in found)
    if as_json:
        click.echo(json.dumps({"topic": name, "messages": messages, "queues": found}))
        return
    click.echo(f"{'broker':24} {'queue':>5} {'first':>12} {'next':>12} {'messages':>12}")
    for each in found:
        count = each["maxOffset"] - each["minOffset"]
        place = f"{each['broker']:24} {each['queueId']:>5}"
        click.echo(f"{place} {each['minOffset']:>12,} {each['maxOffset']:>12,} {count:>12,}")
    click.echo(f"{messages:,} messages in {len(found)} queues")


def _is_hidden(name: str) -> bool:
    """Whether a list of users' topics leaves it out: of brokers that are away, too."""
    return is_system_topic(name) or is_retry_topic(name) or is_dead_letter_topic(name)
