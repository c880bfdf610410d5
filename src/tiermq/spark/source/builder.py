"""`messages(...)`: a DataFrame of messages from Python values instead of option texts, and what its plan would read.

    frame = messages(spark, tier="s3://bucket/prefix", topic="orders", keys="order-42", since=yesterday)
    explain_scan(tier="s3://bucket/prefix", topic="orders", since=yesterday)

Each call makes a frame of its own with a plan of its own: conditions that are given here are never mixed up with those
of another frame, and they prune segments, ranges and index look-ups before anything is read.
"""

from __future__ import annotations

import datetime as dt
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tiermq.errors import BadOption
from tiermq.history.arrow_schema import ALIASES, COLUMNS
from tiermq.pipeline.scan.explain import ScanExplanation, explain
from tiermq.pipeline.scan.scan_spec import Moment, Path, Texts, scan_spec
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.query_pruning import prune_queries, zone_of
from tiermq.spark.source.scan_meter import METER_OPTION, ScanMeter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PRUNING_OPTION = "scanPruning"
_TYPED = frozenset(inspect.signature(scan_spec).parameters)


def messages(
    spark: SparkSession,
    *,
    tier: str | None = None,
    store: Path | Iterable[Path] | None = None,
    namesrv: str | None = None,
    broker: Texts | None = None,
    topic: Texts | re.Pattern[str] | None = None,
    keys: Texts | None = None,
    tags: Texts | None = None,
    queues: int | Iterable[int] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    offsets: Any = None,
    columns: Texts | None = None,
    where: str | None = None,
    meter: ScanMeter | None = None,
    **options: Any,
) -> DataFrame:
    """Messages of a tier, of stores, of both, or of the brokers that a name server knows, with one row per message.

    A store is a directory, or `DIR=broker` with its broker's name, unless `broker` names it.
    `since` is inclusive and `until` exclusive, by store time; times without a zone are of the session's zone.
    `offsets` is (from, to) for every queue, either of which may be None, or the same by topic and queue:
    `{"orders": {0: (100, 200)}}`. `where` is a condition in SQL: its rows are those of `.where(…)`, and its
    conditions on topic, broker, queue, offset, store time, tags and keys prune before anything is read; it may name
    columns that are not among `columns`. `options` are options of the source by name, such as `minPartitions`.
    Raises BadOption and UnknownColumn at once; errors of the history are raised when the frame is used.
    """
    from tiermq.pipeline.sql.query_tables import condition_pruning
    from tiermq.spark.source.data_source import FORMAT, TierMQDataSource

    spark.dataSource.register(TierMQDataSource)
    prune_queries(spark)
    zone = session_zone(spark)
    given = option_texts(
        tier=tier, store=store, namesrv=namesrv, broker=broker, topic=topic, keys=keys, tags=tags, queues=queues,
        since=since, until=until, offsets=offsets, columns=columns, zone=zone, **options,
    )  # fmt: skip
    read = SourceOptions.of(given, Use.BATCH)
    read.column_names  # noqa: B018 - raises UnknownColumn.
    if meter is not None:
        given[METER_OPTION] = meter.option
    if where is None:
        return spark.read.format(FORMAT).options(**given).load()
    given[PRUNING_OPTION] = read.scan.pruning.also(condition_pruning(where, zone)).as_text()
    if not read.columns:
        return spark.read.format(FORMAT).options(**given).load().where(where)
    given["columns"] = json.dumps([*read.columns, *_also_named(where, read)])
    return spark.read.format(FORMAT).options(**given).load().where(where).select(*read.columns)


def _also_named(condition: str, options: SourceOptions) -> list[str]:
    """Columns that a condition names beside those that are asked for. A word that only looks like one does no harm."""
    words = {word.lower() for word in re.findall(r"\w+", condition)}
    known = [name for name in (*COLUMNS, *ALIASES) if name not in options.hidden_columns]
    return [name for name in known if name.lower() in words and name not in options.columns]


def explain_scan(*, show: bool = True, **arguments: Any) -> ScanExplanation:
    """Plan what `messages` with these arguments would read, here and now, and print it. Needs no Spark.

    Losses are listed, not raised, unless `failOnDataLoss=True` is among the arguments.
    """
    options = SourceOptions.of(option_texts(**{"failOnDataLoss": False, **arguments}), Use.BATCH)
    explanation = explain(options.scan, options.column_names)
    if show:
        print(explanation)
    return explanation


def option_texts(*, columns: Texts | None = None, **arguments: Any) -> dict[str, str]:
    """The options by which Spark hands arguments of `messages` to the source. Raises BadOption."""
    spec = scan_spec(**{name: value for name, value in arguments.items() if name in _TYPED})
    named = {name: value for name, value in arguments.items() if name not in _TYPED}
    named["columns"] = [columns] if isinstance(columns, str) else columns and list(columns)
    return spec.as_texts() | {name: _plain(value) for name, value in named.items() if value is not None}


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, list | tuple | set | frozenset):
        return json.dumps(list(value))
    return str(value)


def session_zone(spark: SparkSession) -> dt.tzinfo:
    name = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    zone = zone_of(name)
    if zone is None:
        raise BadOption(f"the session's time zone: expected one such as Europe/Berlin or +02:00, found {name}")
    return zone
