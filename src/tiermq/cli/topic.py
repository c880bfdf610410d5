"""`tiermq topic`: list, show, create, alter and delete topics."""

from __future__ import annotations

import json
from typing import Any

import click

from tiermq.cli.cluster_command import cluster_options, queue_of_key
from tiermq.cli.conventions import SuggestingGroup
from tiermq.cli.option_values import parse_bytes, parse_hours
from tiermq.client.cluster_client import Access, ClusterClient
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import AUTO_CREATE_TOPIC, is_dead_letter_topic, is_retry_topic, is_system_topic
from tiermq.pipeline.job_report import counted_noun
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_object
from tiermq.tier.retention.retention_plan import FOR_EVER_HOURS, KEPT_FOR_EVER, Kept

PERMISSIONS = {"rw": 6, "r": 4, "w": 2}
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_CLUSTER = click.option("--cluster", help="Only at the brokers of this cluster [all].")


@click.group(cls=SuggestingGroup)
def topic() -> None:
    """List, create, change and delete topics.

    \b
    Examples:
      tiermq topic list
      tiermq topic create orders --queues 8 --retention 365d
      tiermq topic alter orders --retention forever
      tiermq topic show orders
      tiermq topic delete orders --yes
    """


@topic.command("list")
@cluster_options
@click.option("--all", "everything", is_flag=True, help="Include system, retry and dead letter topics.")
@_JSON
def list_topics(access: Access, everything: bool, as_json: bool) -> None:
    """List the topics that the name server knows."""

    async def names(cluster: ClusterClient) -> list[str]:
        answer = await cluster.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        found = sorted(decode_object(answer.body).get("topicList") or [])
        if everything:
            return found
        system: set[str] = set()
        for address in (await cluster.masters()).values():
            answer = await cluster.ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            system.update(decode_object(answer.body).get("topicList") or [])
        return [name for name in found if name not in system and not _is_hidden(name)]

    found = access.run(names)
    if as_json:
        click.echo(json.dumps({"topics": found}))
    else:
        for name in found:
            click.echo(name)


_RETENTION = click.option(
    "--retention",
    metavar="TIME",
    help="How long the tier keeps its messages: 72h, 365d, 8w, 10y, forever [the broker's setting].",
)
_RETENTION_BYTES = click.option(
    "--retention-bytes",
    metavar="SIZE",
    help="Maximum bytes that the tier keeps, such as 500G [the broker's setting].",
)


@topic.command()
@click.argument("name")
@cluster_options
@click.option("--queues", type=click.IntRange(1), default=8, show_default=True, help="Queues at each broker.")
@click.option(
    "--perm", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True, help="Permission of clients."
)
@click.option("--order", is_flag=True, help="Create an ordered topic.")
@click.option(
    "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Attribute, such as queue.type=BatchCQ."
)
@_RETENTION
@_RETENTION_BYTES
@_CLUSTER
@_JSON
def create(access: Access, name: str, as_json: bool, **options: Any) -> None:
    """Create or update the topic NAME at every broker."""
    kept = _retention_attributes(options)
    attributes = ",".join(f"+{each}" for each in (*options["attributes"], *(f"{k}={v}" for k, v in kept.items())))

    brokers, is_known = access.run(
        lambda cluster: cluster.create_topic(
            name,
            options["queues"],
            perm=PERMISSIONS[options["perm"]],
            order=options["order"],
            attributes=attributes or None,
            cluster=options["cluster"],
        )
    )
    if not is_known:
        click.echo(f"topic {name}: the name server does not know it everywhere yet", err=True)
    if as_json:
        click.echo(json.dumps({"topic": name, "queues": options["queues"], "brokers": brokers}))
    else:
        click.echo(f"topic {name}: {counted_noun(options['queues'], 'queue')} at {', '.join(brokers)}")


@topic.command()
@click.argument("name")
@cluster_options
@_RETENTION
@_RETENTION_BYTES
@click.option(
    "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Attribute, such as message.type=FIFO."
)
@_CLUSTER
@_JSON
def alter(access: Access, name: str, as_json: bool, **options: Any) -> None:
    """Change attributes of the topic NAME. Queues and permissions stay.

    \b
    Examples:
      tiermq topic alter orders --retention 365d --retention-bytes 500G
      tiermq topic alter orders --retention default
    """
    wanted = _retention_attributes(options)
    for each in options["attributes"]:
        key, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"expected NAME=VALUE after --attribute, found {each!r}")
        wanted[key] = value
    if not wanted:
        raise click.UsageError("expected --retention, --retention-bytes or --attribute, found none")

    async def altered(cluster: ClusterClient) -> list[str]:
        addresses = (await cluster.route(name)).addresses
        masters = await cluster.masters(options["cluster"])
        changed = sorted(broker for broker in masters if broker in addresses)
        for broker in changed:
            known = await _settings(cluster, masters[broker], name)
            await cluster.ask(
                masters[broker],
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic=name,
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

    brokers = access.run(altered)
    if as_json:
        click.echo(json.dumps({"topic": name, "attributes": wanted, "brokers": brokers}))
    else:
        words = ", ".join(f"{key}={value}" for key, value in wanted.items())
        click.echo(f"topic {name}: {words} at {', '.join(brokers)}")


def _retention_attributes(options: dict[str, Any]) -> dict[str, str]:
    """The attributes that the options request. Raises UsageError."""
    found = {}
    if (text := options["retention"]) is not None:
        hours = {"forever": FOR_EVER_HOURS, "default": -1}.get(text.strip().lower())
        words = ", or the word forever or default"
        found["reserve.time"] = str(parse_hours("--retention", text, words) if hours is None else hours)
    if (text := options["retention_bytes"]) is not None:
        is_default = text.strip().lower() == "default"
        words = ", or the word default"
        found["reserve.bytes"] = str(-1 if is_default else parse_bytes("--retention-bytes", text, words))
    return found


async def _settings(cluster: ClusterClient, address: str, name: str) -> dict[str, Any]:
    return decode_object((await cluster.ask(address, RequestCode.GET_TOPIC_CONFIG, topic=name)).body)


async def _kept_by(cluster: ClusterClient, address: str, name: str) -> dict[str, Any]:
    """The topic's tier retention: its own attributes, else the broker's settings."""
    attributes = (await _settings(cluster, address, name)).get("attributes") or {}
    text = bytes((await cluster.ask(address, RequestCode.GET_BROKER_CONFIG)).body).decode()
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if "tieredStoreFileReservedTime" not in settings:
        return {"tier": False}
    is_on = settings.get("tieredStoreDeleteFileEnable") != "false"
    own = (as_int(attributes.get("reserve.time", -1)), as_int(attributes.get("reserve.bytes", -1)))
    default = (as_int(settings["tieredStoreFileReservedTime"]), as_int(settings.get("tierMaxBytesPerTopic", -1)))
    kept = Kept.by(*own, *default) if is_on else KEPT_FOR_EVER
    return {"tier": True, "own": max(own) > 0, "hours": kept.hours, "maxBytes": kept.max_bytes, "words": str(kept)}


@topic.command()
@click.argument("name")
@cluster_options
@_CLUSTER
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_JSON
def delete(access: Access, name: str, cluster: str | None, yes: bool, as_json: bool) -> None:
    """Delete the topic NAME and its messages, at every broker."""
    if not yes:
        click.confirm(f"Delete the topic {name} and all its messages?", abort=True, err=True)

    async def deleted(client: ClusterClient) -> list[str]:
        await client.route(name)  # An unknown name is most likely a typing error.
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
    """Show queues, offsets and tier retention of the topic NAME."""

    async def queues(cluster: ClusterClient) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
        found, kept = [], {}
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
            try:
                kept[broker] = await _kept_by(cluster, address, name)
            except RequestRefused as error:  # The account may read the topic but not the broker's settings.
                is_secret = error.code == ResponseCode.NO_PERMISSION
                kept[broker] = {"error": "only an administrator may ask for it" if is_secret else str(error)}
        return sorted(found, key=lambda each: (each["broker"], each["queueId"])), kept

    found, kept = access.run(queues)
    messages = sum(each["maxOffset"] - each["minOffset"] for each in found)
    if as_json:
        click.echo(json.dumps({"topic": name, "messages": messages, "queues": found, "retention": kept}))
        return
    click.echo(f"{'broker':24} {'queue':>5} {'first':>12} {'next':>12} {'messages':>12}")
    for each in found:
        count = each["maxOffset"] - each["minOffset"]
        place = f"{each['broker']:24} {each['queueId']:>5}"
        click.echo(f"{place} {each['minOffset']:>12,} {each['maxOffset']:>12,} {count:>12,}")
    click.echo(f"{counted_noun(messages, 'message')} in {counted_noun(len(found), 'queue')}")
    for broker, row in kept.items():
        if row.get("tier"):
            click.echo(f"kept in the tier of {broker}: {row['words']} ({'its own' if row['own'] else 'by default'})")
        elif "error" in row:
            click.echo(f"kept in the tier of {broker}: not known, {row['error']}")


def _is_hidden(name: str) -> bool:
    """Whether a list of user topics leaves it out, also for brokers that are offline."""
    return is_system_topic(name) or is_retry_topic(name) or is_dead_letter_topic(name)
