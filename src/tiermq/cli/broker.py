"""`tiermq broker`: roles of the replicas of a broker: status, promote, demote; drain, before a broker is taken away."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import time
from collections.abc import Collection
from typing import Any

import click

from tiermq.cli.cluster_command import cluster_options
from tiermq.cli.conventions import SuggestingGroup
from tiermq.cli.option_values import Span
from tiermq.client.cluster_client import Access, ClusterClient
from tiermq.errors import RemotingError
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.json_dialect import decode_object

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_TIMEOUT = click.option(
    "--timeout", "timeout_s", type=Span(), default="30s", show_default=True, help="How long to wait."
)
LOST_QUEUES_SHOWN = 20
ROLE_LOOK_S = 0.05
ASK_S = 3.0
DRAIN_LOOK_S = 0.5
DRAIN_ASK_S = 60.0
EMPTY_LOOKS = 2
"""A send that was under way when sends were closed may come after the first."""


@click.group(cls=SuggestingGroup)
def broker() -> None:
    """Show and change the roles of the replicas of a broker; empty a broker into its tier.

    Replicas are started with `tiermq serve --standby`. A lease in the tier, or in a shared directory, decides which
    of them is the master. When a master dies, a replica in sync takes over by itself.

    \b
    Examples:
      tiermq broker status orders-a
      tiermq broker demote orders-a              hand over before maintenance
      tiermq broker promote 10.0.0.12:10911      make this replica the master
      tiermq broker drain orders-a               before it is taken away for good
    """


@broker.command()
@click.argument("name", metavar="NAME|HOST:PORT")
@cluster_options
@_JSON
def status(access: Access, name: str, as_json: bool) -> None:
    """Show role, epoch, lease, replicas and cut tails.

    NAME is that of the broker, or the address of one replica. A cut tail is a file with messages of a replaced
    master that were never acknowledged as safe. Look at it with `tiermq dump`, then remove it.

    Exit code: 0 if a replica is the master and may acknowledge, 1 otherwise.
    """
    found = access.run(lambda cluster: _statuses(cluster, name))
    has_master = any(each.get("role") == "master" and each.get("mayAcknowledge") for each in found)
    if as_json:
        click.echo(json.dumps({"broker": name, "hasMaster": has_master, "replicas": found}))
    else:
        for each in found:
            click.echo(_words(each))
        if not has_master:
            click.echo(
                "only this replica was asked, and it is not the master: give the broker's name to ask all"
                if _is_address(name)
                else "no replica is known to be the master"
            )
    raise SystemExit(0 if has_master else 1)


@broker.command()
@click.argument("address", metavar="HOST:PORT")
@cluster_options
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Take over although this replica was not in sync, once no other holds the lease: what it lacks is lost.",
)
@_TIMEOUT
@_JSON
def promote(access: Access, address: str, accept_loss: bool, timeout_s: float, as_json: bool) -> None:
    """Make the replica at HOST:PORT the master.

    The master hands over: it refuses sends, waits until the replicas in sync have everything, and releases the lease.
    Nothing is lost. If it does not answer, the replica takes over by itself once the lease has ended.
    """

    async def change(cluster: ClusterClient) -> dict[str, Any]:
        await cluster.ask(
            address, RequestCode.PROMOTE_BROKER, timeout_s=20.0, acceptLoss="true" if accept_loss else None
        )
        return await _wait_for_role(cluster, address, "master", timeout_s)

    _change(access, change, as_json)


@broker.command()
@click.argument("name", metavar="NAME|HOST:PORT")
@cluster_options
@click.option("--successor", type=click.IntRange(1), help="Id of the replica that takes over [any in sync].")
@_TIMEOUT
@_JSON
def demote(access: Access, name: str, successor: int | None, timeout_s: float, as_json: bool) -> None:
    """Let the master of the broker NAME hand over to a replica.

    It follows the new master. Use it before maintenance. The master refuses sends, waits until the replicas in sync
    have everything, and releases the lease. It stays the master, with an error, if no other replica is in sync.
    """

    async def change(cluster: ClusterClient) -> dict[str, Any]:
        address = name if _is_address(name) else (await cluster.masters()).get(name)
        if address is None:
            raise RemotingError(f"expected a master of broker {name} at the name server, found none")
        await cluster.ask(address, RequestCode.DEMOTE_BROKER, timeout_s=20.0, successor=successor)
        return await _wait_for_role(cluster, address, "slave", timeout_s)

    _change(access, change, as_json)


@broker.command()
@click.argument("name", metavar="NAME|HOST:PORT")
@cluster_options
@click.option("--unread", is_flag=True, help="Do not wait for consumers: they read the rest from the tier.")
@click.option(
    "--leave", "left_topics", metavar="PATTERN", multiple=True,
    help="Do not wait for these topics, which are never uploaded: their messages are lost with the disk.",
)  # fmt: skip
@click.option("--cancel", is_flag=True, help="Let the broker take messages again.")
@click.option("--timeout", "timeout_s", type=Span(), default="10m", show_default=True, help="How long to wait.")
@_JSON
def drain(
    access: Access, name: str, unread: bool, left_topics: tuple[str, ...], cancel: bool, timeout_s: float, as_json: bool
) -> None:
    """Empty the broker NAME into its tier.

    Afterwards it can be taken away with its disk. Its master refuses sends from then on, and name servers show its
    topics as readable only, so that producers go to other brokers. Deliveries, retries and reads go on. The command
    waits until consumers have everything, nothing waits in the broker's own log (delayed messages, timers, open
    transactions, popped messages), and every message is in the tier, compared byte for byte. Then stop the process
    (SIGTERM writes the last tables), and delete its disk. Sends are refused until the process ends, or --cancel.

    Exit code: 0 if nothing is left, 1 otherwise; what is left is printed.
    """
    found = access.run(lambda cluster: _drain(cluster, name, unread, left_topics, cancel, timeout_s))
    left = _left(found, unread, left_topics)
    is_done = bool(cancel or (found["closed"] and not left))
    if as_json:
        click.echo(json.dumps({**found, "left": left, "drained": is_done and not cancel}))
    elif cancel:
        click.echo(f"{found['broker']}: takes messages again")
    elif is_done:
        click.echo(
            f"{found['broker']}: drained: {found['tier']} has every message, compared byte for byte; stop it now"
        )
    else:
        click.echo("\n".join([f"{found['broker']}: not drained:", *(f"  {each}" for each in left)]))
    raise SystemExit(0 if is_done else 1)


async def _drain(
    cluster: ClusterClient, name: str, unread: bool, left_topics: Collection[str], cancel: bool, timeout_s: float
) -> dict[str, Any]:
    """Ask until nothing is left, twice, or the time is over; the last answer. A new master is closed, too."""
    deadline_s = time.monotonic() + timeout_s
    said: list[str] = []
    empty_looks = 0
    while True:
        address = name if _is_address(name) else (await cluster.masters()).get(name)
        if address is None:
            raise RemotingError(f"expected a master of broker {name} at the name server, found none")
        close = "false" if cancel else "true"
        answer = await cluster.ask(address, RequestCode.DRAIN_BROKER, timeout_s=DRAIN_ASK_S, close=close)
        found = decode_object(answer.body)
        left = _left(found, unread, left_topics)
        empty_looks = 0 if left else empty_looks + 1
        if cancel or empty_looks == EMPTY_LOOKS or (left and time.monotonic() >= deadline_s):
            return found
        if left and left != said:
            click.echo(f"waiting: {'; '.join(left)}", err=True)
            said = left
        await asyncio.sleep(DRAIN_LOOK_S)


def _left(found: dict[str, Any], unread: bool, left_topics: Collection[str]) -> list[str]:
    """What keeps a broker from being taken away, as lines."""
    lines = [f"{kind}: {count:,}" for kind, count in found["held"].items()]
    missing = found["notUploaded"]
    if missing["messages"]:
        lines.append(f"not in the tier: {missing['messages']:,} messages of {missing['queues']:,} queues")
    if missing["stopped"]:
        lines.append(
            f"of these, {missing['stopped']:,} are never uploaded: the tier has other messages under their numbers"
        )
    if found["notProven"] and not missing["messages"]:
        lines.append(f"not compared with the tier's copy: {found['notProven']}")
    if found["trouble"]:
        lines.append(f"the tier: {found['trouble']}")
    for topic, count in found["localOnly"].items():
        if not any(fnmatch.fnmatchcase(topic, pattern) for pattern in left_topics):
            lines.append(f"only on the disk, since it is never uploaded: {count:,} messages of {topic}")
    if not unread:
        lines += [
            f"not consumed: {each['messages']:,} messages of {each['topic']} by {each['group']}"
            for each in found["behind"]
        ]
    return lines


def _change(access: Access, change: Any, as_json: bool) -> None:
    began_s = time.monotonic()
    found = access.run(change)
    seconds = round(time.monotonic() - began_s, 3)
    click.echo(json.dumps({**found, "seconds": seconds}) if as_json else f"{_words(found)}, after {seconds:.1f} s")


def _is_address(name: str) -> bool:
    return name.rpartition(":")[2].isdigit() and ":" in name


async def _statuses(cluster: ClusterClient, name: str) -> list[dict[str, Any]]:
    if _is_address(name):
        addresses = [name]
    else:
        answer = await cluster.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        known = decode_object(answer.body).get("brokerAddrTable") or {}
        if name not in known:
            raise RemotingError(
                f"expected broker {name} at the name server, found {', '.join(sorted(known)) or 'none'}. Replicas that "
                "change roles are not registered for a moment: try again, or name one by HOST:PORT"
            )
        addresses = [str(each) for _, each in sorted(known[name]["brokerAddrs"].items())]
    return list(await asyncio.gather(*(_status(cluster, each) for each in addresses)))


async def _status(cluster: ClusterClient, address: str) -> dict[str, Any]:
    try:
        answer = await cluster.ask(address, RequestCode.GET_BROKER_ROLE, timeout_s=ASK_S)
        return decode_object(answer.body)
    except RemotingError as error:
        return {"address": address, "role": "unknown", "problem": str(error)}


async def _wait_for_role(cluster: ClusterClient, address: str, role: str, timeout_s: float) -> dict[str, Any]:
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = await _status(cluster, address)
        if found["role"] == role and (role != "master" or found["mayAcknowledge"]):
            return found
        if time.monotonic() > deadline_s:
            raise RemotingError(
                f"{address}: expected it to be the {role} within {timeout_s:g} s, found {found['role']}: "
                f"{found.get('problem') or (found.get('election') or {}).get('whyNotMaster') or 'no reason is known'}"
            )
        await asyncio.sleep(ROLE_LOOK_S)


def _words(found: dict[str, Any]) -> str:
    if found["role"] == "unknown":
        return f"{found['address']}: does not answer: {found['problem']}"
    election = found["election"]
    parts = [f"{found['address']}: {found['role']}, replica {found['replicaId']}, epoch {found['epoch']}"]
    if election.get("isMine"):
        parts.append(f"may acknowledge for {election['leftMs'] / 1000:.1f} s unless it renews")
        parts.append(f"in sync: {', '.join(map(str, election['inSync']))}")
    elif election.get("holder"):
        parts.append(f"the master is replica {election['holder']} at {election['address']}, which has the lease")
        if election.get("whyNotMaster"):
            parts.append(f"this replica does not take over: {election['whyNotMaster']}")
    elif election.get("whyNotMaster"):
        parts.append(f"the lease is free; not taken: {election['whyNotMaster']}")
    elif election.get("kind") == "controller":
        parts.append(f"controller {election['leader'] or '(none answers)'}: replica {election['master']} is the master")
        parts.append(f"in sync: {', '.join(map(str, election['inSync'])) or 'none'}")
    parts.append(f"log up to {found['logEnd']}, confirmed up to {found['confirmedOffset']}")
    parts += _loss(election.get("lost"), found.get("restored"))
    parts += [f"slave {each['address']} is {each['behindBytes']} bytes behind" for each in found["slaves"]]
    parts += [f"cut tail {each['path']}" for each in found["cutTails"]]
    parts += [f"problem: {each}" for each in (found["problem"], election.get("problem")) if each]
    return ", ".join(parts)


def _loss(lost: dict[str, Any] | None, restored: dict[str, Any] | None) -> list[str]:
    """What a take-over has cost: the messages that had reached neither its log nor the tier."""
    parts = []
    if lost:
        parts.append(
            f"it became the master with loss accepted: its own log lacked physical offsets {lost['fromOffset']} to "
            f"{lost['toOffset']} of epoch {lost['epoch']}"
            if lost["fromOffset"] < lost["toOffset"]
            else f"it became the master with a loss of epoch {lost['epoch']}"
        )
        if lost["queues"] is not None:
            ranges = [
                f"{each['topic']}-{each['queueId']} {each['fromOffset']} to {each['toOffset'] - 1}"
                for each in lost["queues"][:LOST_QUEUES_SHOWN]
            ]
            if (more := len(lost["queues"]) - LOST_QUEUES_SHOWN) > 0:
                ranges.append(f"{more:,} more queues, which --json lists")
            parts.append(f"lost: {lost['messages']:,} messages" + (f" ({'; '.join(ranges)})" if ranges else ""))
        parts.append(f"not known: {'; '.join(lost['unknown'])}")
    if restored:
        parts.append(f"restored from the tier: {restored['messages']:,} messages of {restored['queues']} queues")
        parts += [f"not restored: {each}" for each in restored["remarks"]]
    return parts
