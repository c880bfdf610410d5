"""ScanSpec: what to scan. Where history is stored, which queues, from where to where, which messages.

    spec = scan_spec(tier="s3://bucket/prefix", topic="orders", since="2026-01-31T00:00:00Z")

Jobs and plans take a ScanSpec. `scan_spec` makes one of Python values, `tiermq.spark.options` of option texts; both
reject contradictions, and rank nothing.
"""

from __future__ import annotations

import datetime as dt
import json
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiermq.clock import time_ms
from tiermq.errors import BadOption
from tiermq.history.planning import PARTITION_BYTES
from tiermq.history.scan_pruning import ScanPruning
from tiermq.history.scan_values import HistoryPlace, StorePlace
from tiermq.pipeline.scan.queue_offsets import (
    Edge,
    EveryQueue,
    QueueNumber,
    QueueOffsets,
    as_document,
    queue_numbers,
)

Texts = str | Iterable[str]
Moment = dt.datetime | int | str
Path = str | os.PathLike[str]
NOWHERE = HistoryPlace()
PRUNES_NOTHING = ScanPruning()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """See the module. Empty tuples and None mean no restriction. Raises BadOption for contradictions.

    `starting_ms` is inclusive and `ending_ms` exclusive, by store time. `brokers` chooses brokers of the tier.
    `pruning` is what a query's own conditions leave out; it never causes an error. `snapshot` is the file of one that
    several plans share.
    """

    place: HistoryPlace = NOWHERE
    brokers: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assigned: tuple[QueueNumber, ...] | None = None
    queue_ids: tuple[int, ...] = ()
    starting_offsets: QueueOffsets | None = None
    ending_offsets: QueueOffsets | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    starting_times: tuple[QueueNumber, ...] | None = None
    ending_times: tuple[QueueNumber, ...] | None = None
    keys: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    delays_ms: tuple[int, ...] = ()
    pruning: ScanPruning = PRUNES_NOTHING
    snapshot: str | None = None
    fail_on_data_loss: bool = True
    decompress: bool = True
    min_partitions: int = 0
    partition_bytes: int = PARTITION_BYTES

    def __post_init__(self) -> None:
        self._check_topics()
        self._check_ranges()

    @property
    def is_of_everything(self) -> bool:
        """Whether it names no topic, queue, broker, key, tag, time or condition."""
        named = (
            self.brokers, self.topics, self.topic_pattern, self.names_queues, self.queue_ids, self.keys, self.tags,
            self.delays_ms,
        )  # fmt: skip
        is_timed = self.starting_ms is not None or self.ending_ms is not None
        return not any(named) and not is_timed and self.pruning == PRUNES_NOTHING

    @property
    def names_queues(self) -> bool:
        """Whether single queues are named, which must then be looked for."""
        edges = (self.assigned, self.starting_offsets, self.ending_offsets, self.starting_times, self.ending_times)
        return any(isinstance(each, tuple) for each in edges)

    def require_place(self) -> None:
        """Raises BadOption when there is no tier, no store and no cluster to read, or the tier is no URL."""
        if replace(self.place, cluster="") == NOWHERE:
            raise BadOption(
                "expected the location of messages: option tier (a URL such as s3://bucket/prefix or "
                "file:///directory), option store (a store directory), or both; or option namesrv (host:port)"
            )
        tier = self.place.tier
        if tier is not None and not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", tier):
            raise BadOption(
                f"option tier: expected a URL, found {tier!r}; a tier in a directory is file://{tier}, "
                "a store directory is given with store"
            )

    def as_texts(self) -> dict[str, str]:
        """What is set, by the names of the source's options: for Spark, and for the record of a replay.

        Not in it: `decompress`, sizes of partitions, pruning, snapshot and name servers, which neither needs.
        """
        stores = [f"{store.path}={store.cluster}/{store.broker}" if store.cluster else store.path
                  for store in self.place.stores]  # fmt: skip
        brokers = [store.broker for store in self.place.stores if store.broker and not store.cluster]
        texts = {
            "tier": self.place.tier,
            "store": _listed(stores),
            "brokerName": _listed(brokers or self.brokers),
            "clusterName": self.place.cluster or None,
            "subscribe": _listed(self.topics),
            "subscribePattern": self.topic_pattern,
            "keys": _listed(self.keys),
            "tags": _listed(self.tags),
            "queueIds": ",".join(map(str, self.queue_ids)) or None,
            "startingOffsets": _offsets_text(self.starting_offsets),
            "endingOffsets": _offsets_text(self.ending_offsets),
            "startingTimestamp": None if self.starting_ms is None else str(self.starting_ms),
            "endingTimestamp": None if self.ending_ms is None else str(self.ending_ms),
        }
        return {name: text for name, text in texts.items() if text is not None}

    def _check_topics(self) -> None:
        at_most_one(
            {"subscribe": self.topics, "subscribePattern": self.topic_pattern, "assign": self.assigned},
            "say which topics in one way",
        )
        at_most_one({"assign": self.assigned, "queueIds": self.queue_ids}, "assign names queues already")
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as error:
                raise BadOption(
                    f"option subscribePattern: expected a regular expression, found {self.topic_pattern!r}: {error}"
                ) from None

    def _check_ranges(self) -> None:
        for side, edges in (
            ("begin", {"startingOffsets": self.starting_offsets, "startingTimestamp": self.starting_ms,
                       "startingOffsetsByTimestamp": self.starting_times}),
            ("end", {"endingOffsets": self.ending_offsets, "endingTimestamp": self.ending_ms,
                     "endingOffsetsByTimestamp": self.ending_times}),
        ):  # fmt: skip
            at_most_one(edges, f"say where to {side} in one way")
        if self.ending_offsets is Edge.EARLIEST:
            raise BadOption("option endingOffsets: expected latest or JSON, found earliest, which would read nothing")
        if self.starting_ms is not None and self.ending_ms is not None and self.ending_ms < self.starting_ms:
            raise BadOption(
                f"expected endingTimestamp at or after startingTimestamp, found {self.ending_ms} and {self.starting_ms}"
            )


def scan_spec(
    *,
    tier: str | None = None,
    store: Path | Iterable[Path] | None = None,
    broker: Texts | None = None,
    cluster: str | None = None,
    topic: Texts | re.Pattern[str] | None = None,
    keys: Texts | None = None,
    tags: Texts | None = None,
    queues: int | Iterable[int] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    offsets: Any = None,
    zone: dt.tzinfo | None = None,
) -> ScanSpec:
    """The specification of Python values. Raises BadOption.

    A store is a directory, `DIR=broker` or `DIR=cluster/broker`. `broker` names the brokers of the stores, one for each
    or one for all; without a store, which brokers of the tier. `cluster` is that of the stores, and the only one read.
    Times without a zone are of `zone`, or else UTC.
    `offsets` is (from, to) for every queue, either of which may be None, or the same by topic and queue:
    `{"orders": {0: (100, 200)}}`.
    """
    names = _texts("broker", broker)
    stores = [store] if isinstance(store, str | os.PathLike) else list(store or ())
    return ScanSpec(
        place=HistoryPlace(tier, store_places([os.fspath(path) for path in stores], names, cluster), cluster or ""),
        brokers=() if stores else names,
        topics=() if isinstance(topic, re.Pattern) else _texts("topic", topic),
        topic_pattern=topic.pattern if isinstance(topic, re.Pattern) else None,
        keys=_texts("keys", keys),
        tags=_tags(tags),
        queue_ids=_queue_ids(queues),
        starting_ms=None if since is None else moment_ms(since, zone),
        ending_ms=None if until is None else moment_ms(until, zone),
        starting_offsets=_edge(offsets, 0),
        ending_offsets=_edge(offsets, 1),
    )


def store_places(
    stores: Sequence[str], brokers: Sequence[str] = (), cluster: str | None = None
) -> tuple[StorePlace, ...]:
    """Store directories and whose they are. Paths are absolute: tasks run in other directories. Raises BadOption."""
    if stores and len(brokers) not in (0, 1, len(stores)):
        raise BadOption(
            f"option brokerName: expected one name, or one for each of the {len(stores)} stores, found {len(brokers)}"
        )
    named = [named_store(text) for text in stores]
    if any(broker for _, _, broker in named) and (not all(broker for _, _, broker in named) or brokers):
        raise BadOption(
            "option store: expected the broker's name of every store (DIR=broker), or of none and then option "
            f"brokerName, found {', '.join(stores)} with {len(brokers)} names in brokerName"
        )
    given = brokers if len(brokers) == len(stores) else [*brokers, ""][:1] * len(stores)
    return tuple(
        StorePlace(os.path.abspath(os.path.expanduser(path)), own or cluster or "", broker or name)
        for (path, own, broker), name in zip(named, given, strict=True)
    )


def named_store(text: str) -> tuple[str, str, str]:
    """`DIR`, `DIR=broker` or `DIR=cluster/broker`: directory, cluster and broker, empty where they are not given.

    A directory that exists under the whole text is that directory.
    """
    path, equals, names = text.rpartition("=")
    cluster, _, broker = names.rpartition("/")
    if not equals or not path or not broker or "/" in cluster or os.path.isdir(os.path.expanduser(text)):
        return text, "", ""
    return path, cluster, broker


def at_most_one(given: Mapping[str, Any], why: str) -> None:
    """Raises BadOption when more than one of them is set."""
    names = [name for name, value in given.items() if value not in (None, ())]
    if len(names) > 1:
        raise BadOption(f"options {' and '.join(names)} contradict each other: {why}")


def moment_ms(moment: Moment, zone: dt.tzinfo | None = None) -> int:
    """A moment in ms since 1970: a number, a time, or an ISO text. Raises BadOption."""
    if isinstance(moment, str) and not moment.isdigit():
        try:
            moment = dt.datetime.fromisoformat(moment)
        except ValueError:
            raise BadOption(
                "since and until: expected milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z, found "
                f"{moment!r}"
            ) from None
    if isinstance(moment, dt.datetime):
        return time_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=zone or dt.UTC))
    return int(moment)


def _texts(name: str, given: Texts | None) -> tuple[str, ...]:
    """One text is one entry, whatever is in it."""
    listed = () if given is None else given
    entries = (listed,) if isinstance(listed, str) or not isinstance(listed, Iterable) else tuple(listed)
    if not all(isinstance(entry, str) and entry for entry in entries):
        raise BadOption(f"{name}: expected texts that are not empty, found {given!r}")
    return tuple(dict.fromkeys(entries))


def _queue_ids(given: int | Iterable[int] | None) -> tuple[int, ...]:
    listed = () if given is None else given
    entries = tuple(listed) if isinstance(listed, Iterable) else (listed,)
    try:
        numbers = tuple(dict.fromkeys(map(operator.index, entries)))
    except TypeError:
        numbers = (-1,)
    if min(numbers, default=0) < 0:
        raise BadOption(f"queues: expected the number of a queue, or several such as [0, 1], found {given!r}")
    return numbers


def _tags(given: Texts | None) -> tuple[str, ...]:
    """Also as RocketMQ's subscriptions write them, `a || b`; `*` is every tag."""
    if isinstance(given, str):
        given = [tag.strip() for tag in given.split("||")]
    tags = _texts("tags", given)
    return () if tags == ("*",) else tags


def _listed(texts: Sequence[str]) -> str | None:
    """As JSON, so that entries may hold commas."""
    return json.dumps(list(texts)) if texts else None


def _offsets_text(offsets: QueueOffsets | None) -> str | None:
    if isinstance(offsets, tuple):
        return json.dumps(as_document(offsets))
    return None if offsets is None else str(offsets.number if isinstance(offsets, EveryQueue) else offsets.value)


def _edge(offsets: Any, side: int) -> QueueOffsets | None:
    """One side of pairs of offsets."""
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping):
        number = _pair(offsets)[side]
        return None if number is None else EveryQueue(number)
    document = _side_of(offsets, side)
    try:
        return None if document is None else queue_numbers(document)
    except ValueError as error:
        raise BadOption(f"offsets: expected {error}") from None


def _side_of(offsets: Any, side: int) -> Any:
    """The same mapping with one number of each pair; entries without this side are left out."""
    if not isinstance(offsets, Mapping):
        return _pair(offsets)[side]
    inner = {str(name): _side_of(each, side) for name, each in offsets.items()}
    return {name: each for name, each in inner.items() if each is not None} or None


def _pair(offsets: Any) -> tuple[int | None, int | None]:
    if (
        isinstance(offsets, tuple | list)
        and len(offsets) == 2
        and all(each is None or type(each) is int for each in offsets)
    ):
        low, high = offsets
        if low is not None and high is not None and low > high:
            raise BadOption(f"expected offsets (from, to) with from before to, found ({low}, {high})")
        return low, high
    raise BadOption(
        f"offsets: expected (from, to), or such pairs by topic and queue as in {{'orders': {{0: (100, 200)}}}}, "
        f"found {offsets!r}"
    )
