"""Options as values: what a user asked of the source or the sink, read and free of contradictions.

    option texts ─► SourceOptions: a ScanSpec, and what only Spark has: columns, limits of a micro-batch, a meter

Invariant: options that contradict each other are refused, never ranked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from tiermq.client.wire_history import WirePlace
from tiermq.errors import BadConfig, BadOption
from tiermq.history.arrow_schema import COLUMNS, check_columns
from tiermq.history.scan_values import HistoryPlace
from tiermq.message.topic_name import topic_problem
from tiermq.pipeline.scan.queue_offsets import Edge
from tiermq.pipeline.scan.scan_request import BODY_COLUMNS
from tiermq.pipeline.scan.scan_spec import PRUNES_NOTHING, ScanSpec, at_most_one, store_places
from tiermq.remoting.client import parse_name_servers
from tiermq.remoting.tls import ClientTls
from tiermq.spark.option_table import HINTS, SINK_OPTIONS, SOURCE_OPTIONS, Use, read_given

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_PROPERTY_COLUMNS = frozenset({"properties", "headers"})


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a user asked of the source. `columns` are those that were named; `column_names` all that exist."""

    scan: ScanSpec
    columns: tuple[str, ...]
    include_body: bool
    include_properties: bool
    kafka_columns: bool
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    trigger_delay_ms: int | None
    scan_meter: str | None

    @classmethod
    def of(cls, given: Mapping[str, str], use: Use | None) -> Self:
        """Read what was given; without a use, every option of any read is allowed. Raises BadOption."""
        values = read_given(SOURCE_OPTIONS, given, use, HINTS)
        if values["include_properties"] is None:
            values["include_properties"] = not values["kafka_columns"]
        names = [each.name for each in fields(ScanSpec) if each.name in values]
        pruning = (values["pruning"] or PRUNES_NOTHING).also(values["condition"] or PRUNES_NOTHING)
        scan = ScanSpec(
            place=_place(values),
            brokers=() if values["stores"] else values["broker_names"],
            **{**{name: values[name] for name in names}, "pruning": pruning},
        )
        scan.require_place()
        options = cls(scan, **{each.name: values[each.name] for each in fields(cls) if each.name != "scan"})
        options._check_batches()
        options._check_columns()
        if use is Use.BATCH and scan.starting_offsets is Edge.LATEST:
            raise BadOption("option startingOffsets: expected earliest or JSON, found latest, which would read nothing")
        return options

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of the table. Raises UnknownColumn."""
        if self.columns:
            return check_columns(self.columns)
        return tuple(
            name for name in (KAFKA_COLUMNS if self.kafka_columns else COLUMNS) if name not in self.hidden_columns
        )

    @property
    def hidden_columns(self) -> frozenset[str]:
        """Those that `includeBody` and `includeProperties` leave out."""
        hidden = frozenset() if self.include_body else BODY_COLUMNS
        return hidden if self.include_properties else hidden | _PROPERTY_COLUMNS

    def _check_batches(self) -> None:
        if self.min_offsets is not None and self.max_offsets is not None and self.min_offsets > self.max_offsets:
            raise BadOption(
                f"expected minOffsetsPerTrigger of at most maxOffsetsPerTrigger, found {self.min_offsets} and "
                f"{self.max_offsets}"
            )
        if self.trigger_delay_ms is not None and self.min_offsets is None:
            raise BadOption("option maxTriggerDelay limits the waiting of minOffsetsPerTrigger: give that one, too")

    def _check_columns(self) -> None:
        if self.columns and self.kafka_columns:
            raise BadOption("options columns and kafkaColumns both say which columns there are: give one of them")
        wanted = sorted(self.hidden_columns & set(self.columns))
        if wanted:
            raise BadOption(f"option columns asks for {', '.join(wanted)}, and another option leaves that out")


def _place(values: Mapping[str, Any]) -> HistoryPlace:
    """Where history is stored."""
    certificates, cluster = _certificates(values), values["cluster_name"] or ""
    _check_name_servers(values["name_servers"], values["tls"] or bool(certificates))
    for name, given in (("tier", values["tier"]), ("store", values["stores"])):
        at_most_one({name: given, "namesrv": values["name_servers"]}, "read files, or ask brokers")
    if values["name_servers"] is not None:
        servers = values["name_servers"]
        return WirePlace(cluster=cluster, name_servers=servers, tls=values["tls"], certificates=certificates)
    return HistoryPlace(values["tier"], store_places(values["stores"], values["broker_names"], cluster), cluster)


def _certificates(values: Mapping[str, Any]) -> ClientTls:
    return ClientTls(values["tls_cert"], values["tls_key"], values["tls_ca"])


_SINK_HINTS = {"tier": "history is read-only; give option store or namesrv to write messages to a store or to brokers"}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a user asked of the sink."""

    store: str  # Empty where there are name servers.
    name_servers: str | None
    tls: bool
    certificates: ClientTls
    topic: str | None
    staging: str
    queue_count: int
    batch_name: str | None
    store_settings: dict[str, Any] | None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read what was given. Raises BadOption."""
        values: dict[str, Any] = read_given(SINK_OPTIONS, given, Use.WRITE, _SINK_HINTS)
        if values["topic"] is not None and (problem := topic_problem(values["topic"])):
            raise BadOption(f"option topic: {problem}")
        values["certificates"] = _certificates(values)
        for name in ("checkpoint", "tls_cert", "tls_key", "tls_ca"):
            del values[name]
        if values["name_servers"] is not None:
            return cls._over_the_wire(values)
        _check_name_servers(None, values["tls"] or bool(values["certificates"]))
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
            at_most_one(
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
        raise BadOption(f"option namesrv: {error}") from None
    if not found:
        raise BadOption(f"option namesrv: expected host:port, found {given!r}")
