"""`messages(...)`: a DataFrame of messages from Python values instead of option texts, and what its plan would read.

    frame = messages(spark, tier="s3://bucket/prefix", topic="orders", keys="order-42", since=yesterday)
    explain_scan(tier="s3://bucket/prefix", topic="orders", since=yesterday)

Each call makes a frame of its own with a plan of its own: conditions that are given here are never mixed up with those
of another frame, and they prune segments, ranges and index look-ups before anything is read.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from tiermq.client.wire_history import open_place
from tiermq.errors import BadOption
from tiermq.history.losses import describe
from tiermq.history.planning import bundle_tasks
from tiermq.history.scan_pruning import ScanPruning
from tiermq.history.scan_values import ScanCounters, ScanPlan
from tiermq.spark.option_table import Use
from tiermq.spark.option_values import read_time_ms, time_ms
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.batch_reader import plan_batch
from tiermq.spark.source.data_source import FORMAT, TierMQDataSource
from tiermq.spark.source.query_tables import condition_pruning
from tiermq.spark.source.scan_meter import METER_OPTION, ScanMeter, counted, describe_counters
from tiermq.spark.source.scan_request import columns_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Texts = str | Iterable[str]
Moment = dt.datetime | int | str
Path = str | os.PathLike[str]
PRUNING_OPTION = "scanPruning"


def messages(
    spark: SparkSession,
    *,
    tier: str | None = None,
    store: Path | Iterable[Path] | None = None,
    namesrv: str | None = None,
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

    A store is a directory, or `DIR=broker` with its broker's name.
    `since` is inclusive and `until` exclusive, by store time; times without a zone are of the session's zone.
    `offsets` is (from, to) for every queue, either of which may be None, or the same by topic and queue:
    `{"orders": {0: (100, 200)}}`. `where` is a condition in SQL: its rows are those of `.where(…)`, and what it says of
    topic, broker, queue, offset, store time, tags and keys prunes before anything is read. `options` are options of the
    source by name, such as `brokerName` or `minPartitions`.
    Raises BadOption and UnknownColumn at once; what is wrong with the history is told when the frame is used.
    """
    spark.dataSource.register(TierMQDataSource)
    zone = session_zone(spark)
    given = option_texts(
        tier=tier, store=store, namesrv=namesrv, topic=topic, keys=keys, tags=tags, queues=queues, since=since,
        until=until, offsets=offsets, columns=columns, zone=zone, **options,
    )  # fmt: skip
    columns_of(SourceOptions.of(given, Use.BATCH))
    if meter is not None:
        given[METER_OPTION] = meter.option
    if where is None:
        return spark.read.format(FORMAT).options(**given).load()
    own = SourceOptions.of(given, Use.BATCH).pruning or ScanPruning()
    given[PRUNING_OPTION] = own.also(condition_pruning(where, zone)).as_text()
    return spark.read.format(FORMAT).options(**given).load().where(where)


@dataclass(frozen=True, slots=True)
class ScanExplanation:
    """What a scan would do. `counters` has no reads of messages in it: nothing was read but what planning needs."""

    plan: ScanPlan
    partitions: int

    @property
    def counters(self) -> ScanCounters:
        return self.plan.counters

    def __str__(self) -> str:
        lines = [f"tasks     {len(self.plan.tasks):,} in {counted(self.partitions, 'partition')}"]
        lines += [line for line in describe_counters(self.counters).splitlines() if not line.startswith("rows")]
        lines += [f"lost      {describe(loss)}" for loss in self.plan.losses]
        return "\n".join(lines)


def explain_scan(*, show: bool = True, **arguments: Any) -> ScanExplanation:
    """Plan what `messages` with these arguments would read, here and now, and print it. Needs no Spark.

    Losses are listed, not raised, unless `failOnDataLoss=True` is among the arguments.
    """
    given = {"failOnDataLoss": False, **arguments}
    options = SourceOptions.of(option_texts(**given), Use.BATCH)
    with open_place(options.place) as history:
        plan = plan_batch(history, options, columns_of(options))
    bundles = bundle_tasks(plan.tasks, max_bytes=options.partition_bytes, min_bundles=options.min_partitions)
    explanation = ScanExplanation(plan, len(bundles))
    if show:
        print(explanation)
    return explanation


def option_texts(
    *,
    tier: str | None = None,
    store: Path | Iterable[Path] | None = None,
    namesrv: str | None = None,
    topic: Texts | re.Pattern[str] | None = None,
    keys: Texts | None = None,
    tags: Texts | None = None,
    queues: int | Iterable[int] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    offsets: Any = None,
    columns: Texts | None = None,
    zone: dt.tzinfo | None = None,
    **options: Any,
) -> dict[str, str]:
    """The options of the source for Python values."""
    stores = [store] if isinstance(store, str | os.PathLike) else list(store or ())
    given = {
        "tier": tier,
        "namesrv": namesrv,
        "store": _texts(os.path.abspath(os.path.expanduser(path)) for path in stores) if stores else None,
        "subscribePattern" if isinstance(topic, re.Pattern) else "subscribe": (
            topic.pattern if isinstance(topic, re.Pattern) else _texts(topic)
        ),
        "keys": _texts(keys),
        "tags": _texts(tags),
        "columns": _texts(columns),
        "queueIds": None if queues is None else ",".join(map(str, [queues] if isinstance(queues, int) else queues)),
        "startingTimestamp": None if since is None else str(_moment_ms(since, zone)),
        "endingTimestamp": None if until is None else str(_moment_ms(until, zone)),
        "startingOffsets": _edge(offsets, 0),
        "endingOffsets": _edge(offsets, 1),
        **{name: _plain(value) for name, value in options.items()},
    }
    return {name: value for name, value in given.items() if value is not None}


def _texts(given: Texts | None) -> str | None:
    """A list as JSON, so that entries may hold commas; one text is one entry, whatever is in it."""
    return None if given is None else json.dumps([given] if isinstance(given, str) else list(given))


def _plain(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, list | tuple | set | frozenset):
        return json.dumps(list(value))
    return None if value is None else str(value)


def _moment_ms(moment: Moment, zone: dt.tzinfo | None) -> int:
    if isinstance(moment, str) and not moment.isdigit():
        try:
            moment = dt.datetime.fromisoformat(moment)
        except ValueError:
            return read_time_or_complain(str(moment))
    if isinstance(moment, dt.datetime):
        return time_ms(moment if moment.tzinfo is not None else moment.replace(tzinfo=zone or dt.UTC))
    return int(moment)


def read_time_or_complain(text: str) -> int:
    """A moment from a text that is no ISO time. Raises BadOption."""
    try:
        return read_time_ms(text)
    except ValueError as error:
        raise BadOption(f"since and until: expected {error}, found {text!r}") from None


def _edge(offsets: Any, side: int) -> str | None:
    """One side of pairs of offsets, as the option that says it."""
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping):
        number = _pair(offsets)[side]
        return None if number is None else str(number)
    sides = _edge_of(offsets, side)
    return json.dumps(sides) if sides is not None else None


def _edge_of(offsets: Any, side: int) -> Any:
    """The same mapping with one number of each pair; what says nothing of this side is left out."""
    if not isinstance(offsets, Mapping):
        return _pair(offsets)[side]
    inner = {str(name): _edge_of(each, side) for name, each in offsets.items()}
    return {name: each for name, each in inner.items() if each is not None} or None


def _pair(offsets: Any) -> tuple[int | None, int | None]:
    if (
        isinstance(offsets, tuple | list)
        and len(offsets) == 2
        and all(each is None or type(each) is int for each in offsets)
    ):
        return offsets[0], offsets[1]
    raise BadOption(
        f"offsets: expected (from, to), or such pairs by topic and queue as in {{'orders': {{0: (100, 200)}}}}, "
        f"found {offsets!r}"
    )


def session_zone(spark: SparkSession) -> dt.tzinfo:
    name = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    return dt.UTC if name in ("UTC", "Z") else ZoneInfo(name)
