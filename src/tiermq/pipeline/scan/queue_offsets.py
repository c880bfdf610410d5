"""Offsets of queues: an end of every queue, one number for all, or numbers by topic, broker and queue.

    {"orders": {"broker-a": {"0": 100, "1": -1}}}     topic, broker, queue
    {"orders": {"0": 100}}                            topic, queue: where a topic has one broker
    {"orders": {"0": 1767225600000}}                  the same shapes with times
    {"orders": [0, 1]} {"orders": {"broker-a": [0]}}  queues without a number

As with Kafka, the number -2 stands for the earliest offset and -1 for the latest one.
A document that is wrong is a ValueError that names the entry.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tiermq.settings import LONG_MAX

LATEST_NUMBER = -1
EARLIEST_NUMBER = -2


class Edge(enum.StrEnum):
    """An end of every queue."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class EveryQueue:
    """One offset for every queue."""

    number: int


@dataclass(frozen=True, slots=True)
class QueueNumber:
    """A number for one queue. `broker` is empty if not given; a number below 0 is an edge."""

    topic: str
    broker: str
    queue_id: int
    number: int = 0

    @property
    def queue(self) -> str:
        """The queue as text."""
        return " ".join(filter(None, [self.topic, self.broker, str(self.queue_id)]))


QueueOffsets = Edge | EveryQueue | tuple[QueueNumber, ...]
"""Where queues begin or end."""


def queue_numbers(document: Any, *, lowest: int = EARLIEST_NUMBER) -> tuple[QueueNumber, ...]:
    """Offsets by queue; with `lowest=0` times in ms since 1970. Raises ValueError."""
    return _without_doubles(list(_numbers_of_topics(document, lowest)))


def queue_list(document: Any) -> tuple[QueueNumber, ...]:
    """Queues by topic and broker, without numbers. Raises ValueError."""
    found = []
    for topic, of_topic in _items(document, "topics"):
        brokers = {"": of_topic} if isinstance(of_topic, list) else dict(_items(of_topic, f"{topic!r}: brokers"))
        for broker, ids in brokers.items():
            where = " > ".join(repr(name) for name in (topic, broker) if name)
            if not isinstance(ids, list) or not ids:
                raise ValueError(f"a list of queue ids at {where}, found {json.dumps(ids)}")
            found += [QueueNumber(topic, broker, _queue_id(each, where)) for each in ids]
    return _without_doubles(found)


def as_document(numbers: Iterable[QueueNumber]) -> dict[str, Any]:
    """The document of numbers, which `queue_numbers` reads."""
    document: dict[str, Any] = {}
    for each in numbers:
        queues = document.setdefault(each.topic, {})
        if each.broker:
            queues = queues.setdefault(each.broker, {})
        queues[str(each.queue_id)] = each.number
    return document


def _numbers_of_topics(document: Any, lowest: int) -> Iterator[QueueNumber]:
    for topic, of_topic in _items(document, "topics"):
        entries = list(_items(of_topic, f"{topic!r}: brokers or queues"))
        if all(isinstance(value, dict) for _, value in entries):
            for broker, of_broker in entries:
                for queue, number in _items(of_broker, f"{topic!r} > {broker!r}: queues"):
                    where = f"{topic!r} > {broker!r}"
                    yield QueueNumber(topic, broker, _queue_id(queue, where), _number(number, lowest, where, queue))
        else:
            for queue, number in entries:
                yield QueueNumber(topic, "", _queue_id(queue, repr(topic)), _number(number, lowest, repr(topic), queue))


def _items(value: Any, what: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict) or not value:
        raise ValueError(f"a JSON object of {what.rpartition(': ')[2]}{_at(what)}, found {json.dumps(value)}")
    for name, inner in value.items():
        if not name:
            raise ValueError(f"names that are not empty{_at(what)}")
        yield name, inner


def _at(what: str) -> str:
    where, _, _ = what.rpartition(": ")
    return f" at {where}" if where else ""


def _queue_id(value: Any, where: str) -> int:
    text = str(value) if not isinstance(value, bool) else ""
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"queue ids of 0 or more at {where}, found {json.dumps(value)}")
    return int(text)


def _number(value: Any, lowest: int, where: str, queue: str) -> int:
    if type(value) is not int or not lowest <= value <= LONG_MAX:
        wanted = "milliseconds since 1970" if lowest == 0 else "an offset (-2 for the earliest, -1 for the latest)"
        raise ValueError(f"{wanted} at {where} > {queue!r}, found {json.dumps(value)}")
    return value


def _without_doubles(found: list[QueueNumber]) -> tuple[QueueNumber, ...]:
    seen: set[tuple[str, str, int]] = set()
    for each in found:
        name = (each.topic, each.broker, each.queue_id)
        if name in seen:
            raise ValueError(f"each queue once, found queue {each.queue} twice")
        seen.add(name)
    return tuple(found)
