"""Options as values: what a user asked of the source or the sink, read and free of contradictions.

Invariant: options that contradict each other are refused, never ranked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tiermq.client.wire_history import WirePlace
from tiermq.errors import BadConfig, BadOption
from tiermq.history.scan_pruning import ScanPruning
from tiermq.history.scan_values import HistoryPlace, StorePlace
from tiermq.remoting.addresses import parse_name_servers
from tiermq.remoting.tls import ClientTls
from tiermq.spark.known_options import HINTS, SINK_OPTIONS, SOURCE_OPTIONS
from tiermq.spark.offsets_json import Edge, EveryQueue, QueueNumber
from tiermq.spark.option_table import Use, read_given


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a user asked of the source, read and free of contradictions."""

    tier: str | None
    stores: tuple[str, ...]
    name_servers: str | None
    tls: bool
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None
    broker_names: tuple[str, ...]
    cluster_name: str | None
    topics: tuple[str, ...]
    topic_pattern: str | None
    assigned: tuple[QueueNumber, ...] | None
    queue_ids: tuple[int, ...]
    starting_offsets: Edge | EveryQueue | tuple[QueueNumber, ...] | None
    ending_offsets: Edge | EveryQueue | tuple[QueueNumber, ...] | None
    starting_ms: int | None
    ending_ms: int | None
    starting_times: tuple[QueueNumber, ...] | None
    ending_times: tuple[QueueNumber, ...] | None
    keys: tuple[str, ...]
    tags: tuple[str, ...]
    columns: tuple[str, ...]
    include_body: bool
    include_properties: bool
    kafka_columns: bool
    decompress: bool
    fail_on_data_loss: bool
    min_partitions: int
    partition_bytes: int
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    trigger_delay_ms: int | None
    delays_ms: tuple[int, ...]
    scan_meter: str | None
    pruning: ScanPruning | None

    @classmethod
    def of(cls, given: Mapping[str, str], use: Use | None) -> Self:
        """Read what was given; without a use, every option of any read is allowed. Raises BadOption."""
        values = read_given(SOURCE_OPTIONS, given, use, HINTS)
        if values["include_properties"] is None:
            values["include_properties"] = not values["kafka_columns"]
        options = cls(**values)
        options._check_place()
        options._check_topics()
        options._check_ranges()
        options._check_rest()
        if use is Use.BATCH and options.starting_offsets is Edge.LATEST:
            raise BadOption("option startingOffsets: expected earliest or JSON, found latest, which would read nothing")
        return options

    @property
    def names_queues(self) -> bool:
        """Whether options name single queues, which must then be looked for."""
        edges = (self.assigned, self.starting_offsets, self.ending_offsets, self.starting_times, self.ending_times)
        return any(isinstance(each, tuple) for each in edges)

    @property
    def certificates(self) -> ClientTls:
        return ClientTls(self.tls_cert, self.tls_key, self.tls_ca)

    @property
    def place(self) -> HistoryPlace:
        """Where history lies. Paths are made absolute here, as tasks run in other directories."""
        if self.name_servers is not None:
            return WirePlace(name_servers=self.name_servers, tls=self.tls, certificates=self.certificates)
        names = self.broker_names or ("",)
        brokers = names if len(names) == len(self.stores) else names[:1] * len(self.stores)
        stores = []
        for text, broker in zip(self.stores, brokers, strict=True):
            path, cluster, named = _named_store(text)
            path = os.path.abspath(os.path.expanduser(path))
            stores.append(StorePlace(path, cluster or self.cluster_name or "", named or broker))
        return HistoryPlace(self.tier, tuple(stores))

    def _check_place(self) -> None:
        _check_name_servers(self.name_servers, self.tls or bool(self.certificates))
        for name, given in (("tier", self.tier), ("store", self.stores)):
            _at_most_one({name: given, "namesrv": self.name_servers}, "read files, or ask brokers")
        if self.tier is None and not self.stores and self.name_servers is None:
            raise BadOption(
                "expected to be told where messages lie: option tier (a URL such as s3://bucket/prefix or "
                "file:///directory), option store (a store directory), or both; or option namesrv (host:port)"
            )
        if self.tier is not None and not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", self.tier):
            raise BadOption(
                f"option tier: expected a URL, found {self.tier!r}; a tier in a directory is file://{self.tier}, "
                "a store directory is given with store"
            )
        if self.stores and len(self.broker_names) not in (0, 1, len(self.stores)):
            raise BadOption(
                f"option brokerName: expected one name, or one for each of the {len(self.stores)} stores, "
                f"found {len(self.broker_names)}"
            )

        named = [bool(_named_store(text)[2]) for text in self.stores]
        if any(named) and (not all(named) or self.broker_names):
            raise BadOption(
                "option store: expected the broker's name of every store (DIR=broker), or of none and then option "
                f"brokerName, found {', '.join(self.stores)} with {len(self.broker_names)} names in brokerName"
            )

    def _check_topics(self) -> None:
        _at_most_one(
            {"subscribe": self.topics, "subscribePattern": self.topic_pattern, "assign": self.assigned},
            "say which topics in one way",
        )
        _at_most_one({"assign": self.assigned, "queueIds": self.queue_ids}, "assign names queues already")
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as error:
                raise BadOption(
                    f"option subscribePattern: expected a regular expression, found {self.topic_pattern!r}: {error}"
                ) from None

    def _check_ranges(self) -> None:
        _at_most_one(
            {
                "startingOffsets": self.starting_offsets,
                "startingTimestamp": self.starting_ms,
                "startingOffsetsByTimestamp": self.starting_times,
            },
            "say where to begin in one way",
        )
        _at_most_one(
            {
                "endingOffsets": self.ending_offsets,
                "endingTimestamp": self.ending_ms,
                "endingOffsetsByTimestamp": self.ending_times,
            },
            "say where to end in one way",
        )
        if self.ending_offsets is Edge.EARLIEST:
            raise BadOption("option endingOffsets: expected latest or JSON, found earliest, which would read nothing")
        if self.starting_ms is not None and self.ending_ms is not None and self.ending_ms < self.starting_ms:
            raise BadOption(
                f"expected endingTimestamp at or after startingTimestamp, found {self.ending_ms} and {self.starting_ms}"
            )

    def _check_rest(self) -> None:
        if self.min_offsets is not None and self.max_offsets is not None and self.min_offsets > self.max_offsets:
            raise BadOption(
                f"expected minOffsetsPerTrigger of at most maxOffsetsPerTrigger, found {self.min_offsets} and "
                f"{self.max_offsets}"
            )
        if self.trigger_delay_ms is not None and self.min_offsets is None:
            raise BadOption("option maxTriggerDelay limits the waiting of minOffsetsPerTrigger: give that one, too")
        if self.columns and self.kafka_columns:
            raise BadOption("options columns and kafkaColumns both say which columns there are: give one of them")
        hidden = {"body", "value"} if not self.include_body else set()
        hidden |= {"properties", "headers"} if not self.include_properties else set()
        wanted = sorted(hidden & set(self.columns))
        if wanted:
            raise BadOption(f"option columns asks for {', '.join(wanted)}, and another option leaves that out")


_TLS_FIELDS = ("tls", "tls_cert", "tls_key", "tls_ca")
_SINK_HINTS = {"tier": "history is read-only; give option store or namesrv to write messages to a store or to brokers"}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a user asked of the sink."""

    store: str  # Empty where there are name servers.
    name_servers: str | None
    tls: bool
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None
    topic: str | None
    staging: str
    queue_count: int
    batch_name: str | None
    store_settings: str | None

    @property
    def certificates(self) -> ClientTls:
        return ClientTls(self.tls_cert, self.tls_key, self.tls_ca)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read what was given. Raises BadOption."""
        values: dict[str, Any] = read_given(SINK_OPTIONS, given, Use.WRITE, _SINK_HINTS)
        del values["checkpoint"]
        if values["name_servers"] is not None:
            return cls._over_the_wire(values)
        _check_name_servers(None, any(values[name] for name in _TLS_FIELDS))
        if values["store"] is None:
            raise BadOption(
                "expected option store, the store directory to put messages into, or option namesrv, whose brokers to "
                "send to"
            )
        values["store"] = os.path.abspath(os.path.expanduser(values["store"]))
        # Beside and not inside: a broker looks at every directory of its store.
        staging = values["staging"] or values["store"].rstrip("/") + ".staging"
        values["staging"] = os.path.abspath(os.path.expanduser(staging))
        return cls(**values)

    @classmethod
    def _over_the_wire(cls, values: dict[str, Any]) -> Self:
        _check_name_servers(values["name_servers"], False)
        own = {"store": "store", "staging": "staging", "store_settings": "storeSettings"}
        for field, name in own.items():
            _at_most_one(
                {name: values[field], "namesrv": values["name_servers"]}, "put into a store, or send to brokers"
            )
        return cls(**{**values, "store": "", "staging": ""})


def _check_name_servers(given: str | None, tls: bool) -> None:
    if given is None:
        if tls:
            raise BadOption(
                "option tls, and tlsCert, tlsKey and tlsCa, are about the brokers of namesrv: give that one, too"
            )
        return
    try:
        found = parse_name_servers(given)
    except BadConfig as error:
        raise BadOption(f"option namesrv: {str(error).removeprefix('namesrv_addr: ')}") from None
    if not found:
        raise BadOption(f"option namesrv: expected host:port, found {given!r}")


def _at_most_one(given: Mapping[str, Any], why: str) -> None:
    names = [name for name, value in given.items() if value not in (None, ())]
    if len(names) > 1:
        raise BadOption(f"options {' and '.join(names)} contradict each other: {why}")


def _named_store(text: str) -> tuple[str, str, str]:
    """`DIR`, `DIR=broker` or `DIR=cluster/broker`: directory, cluster and broker, empty where they are not said.

    A directory that is there under the whole text is that directory.
    """
    path, equals, names = text.rpartition("=")
    cluster, _, broker = names.rpartition("/")
    if not equals or not path or not broker or "/" in cluster or os.path.isdir(os.path.expanduser(text)):
        return text, "", ""
    return path, cluster, broker
