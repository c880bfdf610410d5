"""Offsets as users write them: a word, or JSON by topic, broker and queue.

    earliest | latest | 100                           of every queue; a number as far as a queue has it
    {"orders": {"broker-a": {"0": 100, "1": -1}}}     topic, broker, queue
    {"orders": {"0": 100}}                            topic, queue: where a topic has one broker
    {"orders": {"0": 1767225600000}}                  the same shapes with times, where an option is by timestamp
    {"orders": [0, 1]} {"orders": {"broker-a": [0]}}  `assign`

As with Kafka, the number -2 stands for the earliest offset and -1 for the latest one.
Every complaint says where in the text, or at which entry.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LATEST_NUMBER = -1
EARLIEST_NUMBER = -2
LONG_MAX = (1 << 63) - 1
_EXCERPT = 24


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
    """A number for one queue. `broker` is empty when it was not said; a number below 0 is an edge."""

    topic: str
    broker: str
    queue_id: int
    number: int = 0

    @property
    def queue(self) -> str:
        """The queue in words."""
        return " ".join(filter(None, [self.topic, self.broker, str(self.queue_id)]))


def read_offsets(text: str) -> Edge | EveryQueue | tuple[QueueNumber, ...]:
    """`startingOffsets`, `endingOffsets`: a word, a number or JSON with offsets."""
    word = text.strip().lower()
    if word in list(Edge):
        return Edge(word)
    if word.isascii() and word.isdigit() and int(word) <= LONG_MAX:
        return EveryQueue(int(word))
    if not word.startswith("{"):
        raise ValueError('earliest, latest, an offset, or JSON such as {"topic": {"broker-a": {"0": 100}}}')
    return tuple(_numbers(_parse(text), lowest=EARLIEST_NUMBER))


def read_times(text: str) -> tuple[QueueNumber, ...]:
    """`startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`: JSON with ms since 1970."""
    return tuple(_numbers(_parse(text), lowest=0))


def read_queues(text: str) -> tuple[QueueNumber, ...]:
    """`assign`: JSON with lists of queue ids."""
    found = []
    for topic, of_topic in _items(_parse(text), "topics"):
        brokers = {"": of_topic} if isinstance(of_topic, list) else dict(_items(of_topic, f"{topic!r}: brokers"))
        for broker, ids in brokers.items():
            where = " > ".join(repr(name) for name in (topic, broker) if name)
            if not isinstance(ids, list) or not ids:
                raise ValueError(f"a list of queue ids at {where}, found {json.dumps(ids)}")
            found += [QueueNumber(topic, broker, _queue_id(each, where)) for each in ids]
    return _without_doubles(found)


def _numbers(document: Any, lowest: int) -> Iterator[QueueNumber]:
    yield from _without_doubles(list(_numbers_of_topics(document, lowest)))


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


def _parse(text: str) -> Any:
    def pairs(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in entries]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"JSON that names everything once, found {name!r} twice")
        return dict(entries)

    try:
        return json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        before = text[max(0, error.pos - _EXCERPT) : error.pos]
        after = text[error.pos : error.pos + _EXCERPT]
        raise ValueError(f"JSON ({error.msg}, at character {error.pos + 1}: {before}<here>{after})") from None


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
