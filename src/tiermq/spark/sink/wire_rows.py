"""Rows as messages for brokers, sent by the task that has them.

Each message has a unique key derived from its batch, its partition, its number there, and its contents. So a task
that is run again can ask brokers which of its rows they have. The first send of a partition is answered before the
others leave: when its first row is nowhere, none of the partition is anywhere, and nothing more is asked.

A repetition whose rows come in another order, or are others, has other keys: it sends rows again rather than lose one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from tiermq.client.cluster_client import Access, BlockingCluster, QueuePlace
from tiermq.client.producer import Outgoing, Producer
from tiermq.errors import IllegalMessage
from tiermq.message import properties as names
from tiermq.message.properties import get_text_property
from tiermq.spark.options import SinkOptions
from tiermq.spark.sink.staged_rows import BatchName, staged_row

GROUP = "tiermq_spark"
_ALONE = tuple(
    f"{name}\x01".encode()
    for name in (names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC)
)


@dataclass(frozen=True)
class SentRows(WriterCommitMessage):  # type: ignore[misc] # PySpark is not followed by the checker.
    """A task's result for the driver: its rows, and how many of them it had to send."""

    name: BatchName
    partition: int
    rows: int = 0
    sent: int = 0


def send_rows(
    batches: Iterable[pa.RecordBatch],
    name: BatchName,
    partition: int,
    options: SinkOptions,
    now_ms: int,
    *,
    is_repeated: bool,
) -> SentRows:
    """Send the messages of a partition; when this returns, brokers have acknowledged each.

    Raises IllegalMessage for a row that cannot be a message, RemotingError when brokers refuse or cannot be reached.
    """
    assert options.name_servers is not None
    rows = sent = 0
    access = Access.of_environment(options.name_servers, tls=options.tls, certificates=options.certificates)
    with BlockingCluster(access) as cluster:
        producer = Producer(cluster.client, GROUP)
        places: dict[str, list[QueuePlace]] = {}
        for batch in batches:
            given = batch.to_pylist()
            for topic in {str(row.get("topic") or options.topic or "") for row in given} - {"", *places}:
                places[topic] = cluster.run(producer.places(topic))
            messages = [
                outgoing(row, name.mark(partition, rows + at), partition + rows + at, options, now_ms, places)
                for at, row in enumerate(given)
            ]
            if messages and rows == 0 and not is_repeated:
                first = messages[0]
                is_repeated = cluster.run(producer.find_stored(first, is_strict=False)) is not None
                if not is_repeated:
                    sent += cluster.run(producer.send_all(messages[:1]))
                    messages = messages[1:]
            sent += cluster.run(producer.send_all(messages, ask_first=is_repeated))
            rows += len(given)
    return SentRows(name, partition, rows, sent)


def outgoing(
    row: dict[str, Any],
    mark: str,
    turn: int,
    options: SinkOptions,
    now_ms: int,
    places: dict[str, list[QueuePlace]],
) -> Outgoing:
    """The message of a row, and where it goes. Raises IllegalMessage."""
    # A row that was read somewhere has a key of its own there; here it is another message, which a repetition of the
    # task must be able to ask for.
    given = {key: value for key, value in dict(row.get("properties") or ()).items() if key != names.UNIQ_KEY}
    own = places.get(row.get("topic") or options.topic or "", [])
    other = {**row, "properties": given, "uniqKey": None}
    staged = staged_row(other, mark, turn, replace(options, queue_count=len(own) or 1), now_ms)
    if row.get("queueId") is None:
        place = own[staged["queueId"]]
    else:
        fitting = [each for each in own if each.queue_id == staged["queueId"]]
        if not fitting:
            there = ", ".join(str(each.queue_id) for each in own)
            raise IllegalMessage(
                f"row {mark}: expected a queue of topic {staged['topic']!r}, which has {there}, found queueId "
                f"{staged['queueId']}"
            )
        place = fitting[turn % len(fitting)]
    encoded, body = staged["properties"], staged["body"]
    key = get_text_property(encoded, names.UNIQ_KEY) or ""
    alone = any(name in encoded for name in _ALONE)
    return Outgoing(staged["topic"], place, body, encoded, key, staged["bornMs"], alone, staged["flag"])
