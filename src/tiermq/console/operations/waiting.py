"""Messages that wait: delayed ones and timers, open transactions, and dead letters of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import chain
from pathlib import Path
from typing import Any

from tiermq.client.cluster_client import ClusterClient
from tiermq.client.dead_letters import DeadLetter, Resending, Wanted, dead_letters
from tiermq.client.delayed_messages import ReadBounds, cancel_in_tier, cancel_timer, delayed_messages, timers_in_tier
from tiermq.console.catalogue import Kind, Parameter, Result, operation
from tiermq.console.json_case import camel
from tiermq.console.message_reading import sent_dicts
from tiermq.console.operations.groups import GROUP
from tiermq.console.operations.topics import TOPIC
from tiermq.console.sources import Visit, answering
from tiermq.delivery.transactions.open_halves import open_halves
from tiermq.delivery.transactions.transaction_fate import transaction_fate
from tiermq.delivery.waiting_view import WaitingView
from tiermq.errors import BadRequest

TIMERS_READ = 10_000
"""Records of a broker's timers that one answer reads."""
LIMIT = Parameter("limit", "Messages at most.", Kind.WHOLE, default=100, low=1, high=1_000)


@operation(
    "delayed.list",
    "Delayed messages and timers that wait, the next first: at brokers or in store directories, and in a tier.",
    LIMIT,
)
def list_delayed(visit: Visit, *, limit: int) -> Result:
    with visit.sources.queries.run(None) as running:
        bounds = ReadBounds(limit + 1, TIMERS_READ, lambda: bool(running.why))
        found = _delayed(visit, limit, bounds)
        running.why = ""  # What was found is an answer.
    return found


def _delayed(visit: Visit, limit: int, bounds: ReadBounds) -> Result:
    if visit.has_wire:
        here = visit.ask(lambda client: _delayed_at_brokers(client, limit + 1, bounds))
    else:
        visit.require_files()
        here = _soonest(_until(bounds, _delayed_in_stores(visit), "the store directories"), limit + 1)
    rows = here
    if visit.has_tier:
        # What a broker has taken out of its tier and not delivered yet is in both.
        known = {(row["topic"], row["uniqueKey"]) for row in here if row["uniqueKey"]}
        with visit.sources.own_files() as history:
            far = (
                {**camel(each.to_dict()), "waitsIn": "tier"}
                for each in timers_in_tier(history.tier, visit.sources.clock.now_ms())
                if (each.waiting.topic, each.waiting.unique_key) not in known
            )
            rows = _soonest(chain(here, _until(bounds, far, "the tier")), limit + 1)
    return {
        "messages": rows[:limit],
        "isCut": len(rows) > limit,
        # Delay levels and near timers are in a broker's own files, which no tier has.
        "isPartial": not visit.has_wire and not visit.has_stores,
        "notes": [f"{each}; `tiermq delayed ls` reads everything" for each in bounds.notes],
    }


def _until(bounds: ReadBounds, rows: Iterator[Result], where: str) -> Iterator[Result]:
    """The rows until reading has to end, which is noted."""
    for row in rows:
        if bounds.is_over():
            bounds.notes.append(f"what waits in {where} was not read to its end")
            return
        yield row


def _soonest(rows: Iterable[Result], count: int) -> list[Result]:
    return nsmallest(count, rows, key=lambda row: row["deliverMs"])


async def _delayed_at_brokers(client: ClusterClient, count: int, bounds: ReadBounds) -> list[Result]:
    masters = await answering(client, await client.masters())
    found = [each async for each in delayed_messages(client, masters=masters, bounds=bounds)]
    return _soonest(({**camel(each.to_dict()), "waitsIn": "broker"} for each in found), count)


def _delayed_in_stores(visit: Visit) -> Iterator[Result]:
    for store in visit.sources.place.stores:
        with WaitingView(store.path) as view:
            for each in chain(view.timers(), view.levels()):
                yield {"broker": store.broker, **camel(each.to_dict()), "waitsIn": "store"}


@operation(
    "delayed.cancel",
    "Cancel the timers of a topic with a unique key, wherever they wait.",
    TOPIC,
    Parameter("uniqueKey", "The unique key of the message.", is_required=True),
    changes=True,
)
def cancel_delayed(visit: Visit, *, topic: str, uniqueKey: str) -> Result:  # noqa: N803 - the name of the parameter
    done = visit.ask(lambda client: cancel_timer(client, topic, uniqueKey))
    if not done and visit.has_tier:
        with visit.sources.own_files() as history:
            far = timers_in_tier(history.tier, visit.sources.clock.now_ms())
            done = [each for each in far if (each.waiting.topic, each.waiting.unique_key) == (topic, uniqueKey)]
        visit.ask(lambda client: cancel_in_tier(client, done))
    return {"topic": topic, "uniqueKey": uniqueKey, "cancelled": [camel(each.to_dict()) for each in done]}


@operation(
    "transaction.list",
    "Open transactions of the store directories, oldest first: sent, and neither committed nor rolled back.",
    Parameter("topic", "Only transactions of this topic."),
    Parameter("group", "Only transactions of this producer group."),
    LIMIT,
)
def list_transactions(visit: Visit, *, topic: str | None, group: str | None, limit: int) -> Result:
    visit.require_files()
    if not visit.has_stores:
        raise BadRequest("transactions are listed from a store directory: start the console with --store")
    rows: list[Result] = []
    for store in visit.sources.place.stores:
        rows += [
            {"broker": store.broker, **camel(half.to_dict())}
            for half in open_halves(Path(store.path))
            if topic in (None, half.topic) and group in (None, half.producer_group)
        ]
    rows.sort(key=lambda row: row["bornMs"])
    return {"transactions": rows[:limit], "isCut": len(rows) > limit}


@operation(
    "transaction.show",
    "How a transaction ended: committed, rolled back, given up, open. From a store directory or a tier.",
    Parameter("id", "The transaction's id, which is the unique key of its message.", is_required=True),
)
def show_transaction(visit: Visit, *, id: str) -> Result:  # noqa: A002 - the name of the parameter
    visit.require_files()
    with visit.sources.files() as history:
        found = transaction_fate(history, id)
    if found is None:
        raise BadRequest(f"expected a transaction {id[:80]}, found none of that id in the store and the tier")
    return camel(found.to_dict())


def _wanted(topic: str | None, since: int | None, key: str | None) -> Wanted:
    return Wanted(origin_topic=topic or None, since_ms=since or 0, key=key or None)


_FROM = (
    Parameter("topic", "Only those that were sent to this topic."),
    Parameter("since", "Only those that died at this time or later.", Kind.MOMENT),
    Parameter("key", "Only those with this key, unique key or id."),
)


@operation("dlq.list", "The dead letters of a group.", GROUP, *_FROM, LIMIT)
def list_dead_letters(
    visit: Visit, *, group: str, topic: str | None, since: int | None, key: str | None, limit: int
) -> Result:
    found = visit.ask(lambda client: _dead_letters(client, group, _wanted(topic, since, key), limit + 1))
    losses: list[str] = []
    bodies = sent_dicts((letter.message for letter in found[:limit]), losses)
    rows = [
        {
            "at": letter.name,
            "broker": letter.place.broker_name,
            "topic": letter.origin_topic,
            "originId": letter.origin_id,
            "tries": letter.tries,
            "message": message,
        }
        for letter, message in zip(found[:limit], bodies, strict=True)
    ]
    return {"group": group, "letters": rows, "isCut": len(found) > limit, "losses": losses}


async def _dead_letters(client: ClusterClient, group: str, wanted: Wanted, most: int) -> list[DeadLetter]:
    await answering(client, await client.masters())
    found = []
    async for letter in dead_letters(client, group, wanted):
        found.append(letter)
        if len(found) >= most:
            break
    return found


@operation(
    "dlq.resend", "Send dead letters of a group again, each once.", GROUP, *_FROM, LIMIT,
    changes=True,
)  # fmt: skip
def resend_dead_letters(
    visit: Visit, *, group: str, topic: str | None, since: int | None, key: str | None, limit: int
) -> Result:
    async def sent(client: ClusterClient) -> Any:
        letters = await _dead_letters(client, group, _wanted(topic, since, key), limit)
        return await Resending(client, group).resend(letters)

    done = visit.ask(sent)
    return {
        "group": group,
        "sent": [each.name for each in done.sent],
        "already": [each.name for each in done.already],
        "unreadable": [{"at": each.name, "reason": each.reason} for each in done.unreadable],
        "unconfirmed": done.unconfirmed,
    }
