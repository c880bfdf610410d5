"""The options of `format("tiermq")`, in one table for the source and one for the sink.

Names are those of Spark's Kafka source where it has the thing. Predicates are options because Spark's own filter
pushdown for Python sources is not to be trusted yet: a DataFrame that is used twice gets wrong rows.
"""

from __future__ import annotations

from tiermq.history.scan_pruning import ScanPruning
from tiermq.spark.offsets_json import read_offsets, read_queues, read_times
from tiermq.spark.option_table import Option, Use
from tiermq.spark.option_values import (
    read_bool,
    read_bytes,
    read_count,
    read_delay_levels,
    read_duration_ms,
    read_queue_ids,
    read_tags,
    read_text,
    read_texts,
    read_time_ms,
)

_BATCH = frozenset({Use.BATCH})
_STREAM = frozenset({Use.STREAM})
_WRITE = frozenset({Use.WRITE})
DEFAULT_PARTITION_BYTES = 64 << 20
DEFAULT_TRIGGER_DELAY_MS = 15 * 60_000

SOURCE_OPTIONS: tuple[Option, ...] = (
    Option("tier", "tier", "URL", read_text, None, "Where cold messages lie.", ("tierPath", "path")),
    Option(
        "store",
        "stores",
        "directories",
        read_texts,
        (),
        "Where hot messages lie, DIR or DIR=broker; several with commas.",
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
    Option("tls", "tls", "true, false", read_bool, False, "Whether to speak TLS with `namesrv` and its brokers."),
    Option(
        "tlsCert",
        "tls_cert",
        "file",
        read_text,
        None,
        "PEM certificate to show to brokers that ask for one, on each machine; implies `tls`.",
    ),
    Option(
        "tlsKey",
        "tls_key",
        "file",
        read_text,
        None,
        "PEM key of `tlsCert`, if it is in a file of its own; its password comes from `TIERMQ_TLS_KEY_PASSWORD`.",
    ),
    Option(
        "tlsCa",
        "tls_ca",
        "file",
        read_text,
        None,
        "Accept brokers only whose certificate one of this PEM file signed; implies `tls`.",
    ),
    Option(
        "brokerName",
        "broker_names",
        "names",
        read_texts,
        (),
        "Whose the stores are, one name each or one for all; without a store: which brokers of the tier.",
    ),
    Option("clusterName", "cluster_name", "name", read_text, None, "The cluster of the stores."),
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
        DEFAULT_PARTITION_BYTES,
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
        "Wait until there are so many messages,",
        uses=_STREAM,
    ),
    Option(
        "maxTriggerDelay",
        "trigger_delay_ms",
        "time span",
        read_duration_ms,
        None,
        "or until so much time has passed (15m).",
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
    Option(
        "tls",
        "tls",
        "true, false",
        read_bool,
        False,
        "Whether to speak TLS with `namesrv` and its brokers.",
        (),
        _WRITE,
    ),
    Option(
        "tlsCert",
        "tls_cert",
        "file",
        read_text,
        None,
        "PEM certificate to show to brokers that ask for one, on each machine; implies `tls`.",
        (),
        _WRITE,
    ),
    Option(
        "tlsKey",
        "tls_key",
        "file",
        read_text,
        None,
        "PEM key of `tlsCert`, if it is in a file of its own; its password comes from `TIERMQ_TLS_KEY_PASSWORD`.",
        (),
        _WRITE,
    ),
    Option(
        "tlsCa",
        "tls_ca",
        "file",
        read_text,
        None,
        "Accept brokers only whose certificate one of this PEM file signed; implies `tls`.",
        (),
        _WRITE,
    ),
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
        read_text,
        None,
        'Settings of the store where its files do not tell them: `{"max_hash_slot_num": 64}`.',
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
