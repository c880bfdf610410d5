"""The options of `format("tiermq")`, in one table for the source and one for the sink, and how given options are read.

Names are those of Spark's Kafka source where it has the thing, and are found whatever their case, since Spark changes
it on the way. An option that a table does not have is an error that names the nearest one: an option that is silently
ignored is a wrong result without a sign. Predicates are options because Spark's own filter pushdown for Python sources
is not to be trusted yet: a DataFrame that is used twice gets wrong rows.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiermq.errors import BadOption
from tiermq.history.planning import PARTITION_BYTES
from tiermq.history.scan_pruning import ScanPruning
from tiermq.spark.option_values import (
    read_bool,
    read_bytes,
    read_count,
    read_delay_levels,
    read_duration_ms,
    read_offsets,
    read_queue_ids,
    read_queues,
    read_settings,
    read_tags,
    read_text,
    read_texts,
    read_time_ms,
    read_times,
)
from tiermq.spark.query_pruning import read_condition


class Use(enum.StrEnum):
    """What is being done with the options."""

    BATCH = "batch reads"
    STREAM = "streams"
    WRITE = "writes"


READS = frozenset({Use.BATCH, Use.STREAM})


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `kind` is how a document names its values, `field` what it is called in Python."""

    name: str
    field: str
    kind: str
    read: Callable[[str], Any]
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()
    uses: frozenset[Use] = READS

    def value(self, text: str, said: str) -> Any:
        """The value of a text. Raises BadOption, which names the option as given."""
        try:
            return self.read(text)
        except ValueError as error:
            raise BadOption(f"option {said}: expected {error}, found {text!r}") from None


def read_given(
    table: Sequence[Option], given: Mapping[str, str], use: Use | None, hints: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Every field of the table with its given or default value. `hints`: error texts for options of other programs.

    Without a `use`, options of any use are allowed. Raises BadOption.
    """
    by_name = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, text in given.items():
        option = by_name.get(name.lower())
        if option is None:
            raise _unknown(name, table, hints or {})
        shown = option.name if name.lower() == option.name.lower() else f"{name} (that is, {option.name})"
        if use is not None and use not in option.uses:
            raise BadOption(f"option {shown} is for {' and '.join(sorted(option.uses))} only: leave it out here")
        if option.field in said:
            raise BadOption(f"options {said[option.field]} and {name} mean the same thing: give one of them")
        said[option.field] = name
        values[option.field] = option.value(text, shown)
    return {option.field: values.get(option.field, option.default) for option in table}


def _unknown(name: str, table: Sequence[Option], hints: Mapping[str, str]) -> BadOption:
    hint = {key.lower(): text for key, text in hints.items()}.get(name.lower())
    if hint is not None:
        return BadOption(f"there is no option {name}: {hint}")
    names = {each.lower(): each for option in table for each in (option.name, *option.aliases)}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if near:
        return BadOption(f"there is no option {name}; did you mean {names[near[0]]}?")
    known = ", ".join(option.name for option in table)
    return BadOption(f"there is no option {name}; there are {known}")


_BATCH = frozenset({Use.BATCH})
_STREAM = frozenset({Use.STREAM})
_WRITE = frozenset({Use.WRITE})
_EVERY = READS | _WRITE
DEFAULT_TRIGGER_DELAY_MS = 15 * 60_000

TLS_OPTIONS: tuple[Option, ...] = (
    Option(
        "tls",
        "tls",
        "true, false",
        read_bool,
        False,
        "Whether to speak TLS with `namesrv` and its brokers.",
        uses=_EVERY,
    ),
    Option(
        "tlsCert",
        "tls_cert",
        "file",
        read_text,
        None,
        "PEM certificate to show to brokers that ask for one, on each machine; implies `tls`.",
        uses=_EVERY,
    ),
    Option(
        "tlsKey",
        "tls_key",
        "file",
        read_text,
        None,
        "PEM key of `tlsCert`, if it is in a file of its own; its password comes from `TIERMQ_TLS_KEY_PASSWORD`.",
        uses=_EVERY,
    ),
    Option(
        "tlsCa",
        "tls_ca",
        "file",
        read_text,
        None,
        "Accept brokers only whose certificate one of this PEM file signed; implies `tls`.",
        uses=_EVERY,
    ),
)

SOURCE_OPTIONS: tuple[Option, ...] = (
    Option("tier", "tier", "URL", read_text, None, "URL of the tier with the cold messages.", ("tierPath", "path")),
    Option(
        "store",
        "stores",
        "directories",
        read_texts,
        (),
        "Store directories with the hot messages, DIR or DIR=broker; several with commas.",
        ("storePath",),
    ),
    Option(
        "namesrv",
        "name_servers",
        "addresses",
        read_text,
        None,
        "Instead of both: ask brokers, which name servers know; `host:port;host:port`.",
        ("nameServer",),
    ),
    *TLS_OPTIONS,
    Option(
        "brokerName",
        "broker_names",
        "names",
        read_texts,
        (),
        "Whose the stores are, one name each or one for all; without a store: which brokers of the tier.",
    ),
    Option("clusterName", "cluster_name", "name", read_text, None, "Only this cluster; also that of the stores."),
    Option(
        "subscribe",
        "topics",
        "topics",
        read_texts,
        (),
        "Which topics. Without this, `subscribePattern` and `assign`: all.",
    ),
    Option(
        "subscribePattern",
        "topic_pattern",
        "regular expression",
        read_text,
        None,
        "Topics whose whole name it matches.",
    ),
    Option(
        "assign", "assigned", "JSON", read_queues, None, 'Which queues: `{"topic": [0, 1]}`, or by broker in between.'
    ),
    Option("queueIds", "queue_ids", "numbers", read_queue_ids, (), "Which queues of every topic: `0,2,5-7`."),
    Option(
        "startingOffsets",
        "starting_offsets",
        "earliest, latest, offset, JSON",
        read_offsets,
        None,
        (
            "Where to begin; by default `earliest`, in streams `latest`. Queues that JSON leaves out begin "
            "at the default."
        ),
    ),
    Option(
        "endingOffsets",
        "ending_offsets",
        "latest, offset, JSON",
        read_offsets,
        None,
        "Where to end, exclusive; by default `latest`.",
        uses=_BATCH,
    ),
    Option(
        "startingTimestamp",
        "starting_ms",
        "time",
        read_time_ms,
        None,
        "Messages stored at this time or later: ms since 1970, or ISO 8601 with a zone.",
    ),
    Option(
        "endingTimestamp", "ending_ms", "time", read_time_ms, None, "Messages stored before this time.", uses=_BATCH
    ),
    Option("startingOffsetsByTimestamp", "starting_times", "JSON", read_times, None, "The same by queue."),
    Option("endingOffsetsByTimestamp", "ending_times", "JSON", read_times, None, "The same by queue.", uses=_BATCH),
    Option(
        "keys",
        "keys",
        "texts",
        read_texts,
        (),
        "Messages with one of these keys, found by the index. A JSON list where a key has a comma.",
    ),
    Option(
        "tags", "tags", "texts", read_tags, (), "Messages with one of these tags: `a,b` or `a || b`.", ("tagFilter",)
    ),
    Option("columns", "columns", "names", read_texts, (), "Decode only these columns, in this order."),
    Option(
        "includeBody",
        "include_body",
        "true, false",
        read_bool,
        True,
        "Whether there is a column of bodies.",
    ),
    Option(
        "includeProperties",
        "include_properties",
        "true, false",
        read_bool,
        None,
        "Whether there is a column of properties (headers); by default yes, with `kafkaColumns` no, as in Kafka.",
        ("includeHeaders",),
    ),
    Option(
        "kafkaColumns",
        "kafka_columns",
        "true, false",
        read_bool,
        False,
        ("Columns of the Kafka source: key, value, topic, partition, offset, timestamp, timestampType, headers."),
    ),
    Option(
        "decompress",
        "decompress",
        "true, false",
        read_bool,
        True,
        "Whether bodies that a producer compressed are given in clear.",
    ),
    Option(
        "failOnDataLoss",
        "fail_on_data_loss",
        "true, false",
        read_bool,
        True,
        "Whether messages that were asked for and are gone (expired, gap, deleted topic) are an error.",
    ),
    Option(
        "minPartitions",
        "min_partitions",
        "number",
        read_count,
        0,
        "Split into at least so many tasks, where there is enough to split.",
    ),
    Option(
        "maxBytesPerPartition",
        "partition_bytes",
        "size",
        read_bytes,
        PARTITION_BYTES,
        "About so many bytes of messages per task.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "max_offsets",
        "number",
        read_count,
        None,
        "At most so many messages per micro-batch, shared fairly between queues.",
        uses=_STREAM,
    ),
    Option(
        "maxBytesPerTrigger",
        "max_bytes",
        "size",
        read_bytes,
        None,
        "At most about so many bytes per micro-batch.",
        uses=_STREAM,
    ),
    Option(
        "minOffsetsPerTrigger",
        "min_offsets",
        "number",
        read_count,
        None,
        "Begin a micro-batch once there are so many new messages, or `maxTriggerDelay` has passed.",
        uses=_STREAM,
    ),
    Option(
        "maxTriggerDelay",
        "trigger_delay_ms",
        "time span",
        read_duration_ms,
        None,
        "How long `minOffsetsPerTrigger` waits at most (15m).",
        uses=_STREAM,
    ),
    Option(
        "messageDelayLevel",
        "delays_ms",
        "time spans",
        read_delay_levels,
        (),
        "The broker's setting of this name, for `deliverTime`: `1s 5s 10m` [as its store's broker wrote it].",
    ),
    Option("scanMeter", "scan_meter", "text", read_text, None, "Set by `ScanMeter`: where workers count."),
    Option(
        "scanPruning",
        "pruning",
        "JSON",
        ScanPruning.of_text,
        None,
        "Set by `attach` and `where`: what a query's own conditions leave out. Only prunes, is never an error.",
        uses=_BATCH,
    ),
    Option(
        "scanCondition",
        "condition",
        "time zone and SQL",
        read_condition,
        None,
        "Set by the optimizer's rule: the condition of a plan, which prunes as `scanPruning` does.",
        uses=_BATCH,
    ),
    Option(
        "scanSnapshot",
        "snapshot",
        "file",
        read_text,
        None,
        "Set by the optimizer's rule: where plans of one frame keep the ends of queues.",
        uses=_BATCH,
    ),
)

SINK_OPTIONS: tuple[Option, ...] = (
    Option("store", "store", "directory", read_text, None, "The store to put into.", ("storePath", "path"), _WRITE),
    Option(
        "namesrv",
        "name_servers",
        "addresses",
        read_text,
        None,
        "Instead: send to brokers, which name servers know; `host:port;host:port`.",
        ("nameServer",),
        _WRITE,
    ),
    *TLS_OPTIONS,
    Option("topic", "topic", "name", read_text, None, "The topic of rows that have no column `topic`.", (), _WRITE),
    Option(
        "staging",
        "staging",
        "directory",
        read_text,
        None,
        (
            "Where tasks put rows until the commit; every executor and the driver must see it. By default "
            "beside the store."
        ),
        ("stagingDir",),
        _WRITE,
    ),
    Option(
        "queueCount",
        "queue_count",
        "number",
        read_count,
        4,
        "Queues that rows without `queueId` are spread over.",
        (),
        _WRITE,
    ),
    Option(
        "batchName",
        "batch_name",
        "text",
        read_text,
        None,
        "A name for a batch write: a second write of that name puts nothing.",
        (),
        _WRITE,
    ),
    Option(
        "storeSettings",
        "store_settings",
        "JSON",
        read_settings,
        None,
        'Settings of the store that its files do not contain: `{"max_hash_slot_num": 64}`.',
        (),
        _WRITE,
    ),
    Option(
        "checkpointLocation",
        "checkpoint",
        "directory",
        read_text,
        None,
        "Spark's own; only handed through.",
        (),
        _WRITE,
    ),
)

_NOT_KAFKA = "messages are read from a tier or a store directory (tier, store), or from RocketMQ's brokers (namesrv)"
# What users of other sources try first.
HINTS = {
    "kafka.bootstrap.servers": _NOT_KAFKA,
    "subExpression": "use tags for tags, and filter the DataFrame for anything else",
    "sqlFilter": "filter the DataFrame by its columns instead; properties are the column `properties`",
    "topic": "use subscribe to choose topics of a source",
    "startingOffsetsByTimestampStrategy": "a time after the last message begins at the end of the queue",
}
