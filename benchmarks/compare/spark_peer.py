"""Spark, asked the same of every side: how many messages there are and how many bytes their bodies have.

One session serves all sides in turns, so they have the same settings and the same warm JVM. It is one of
`tiermq.spark.get_spark`, on all cores.

    kind=tiermq    format("tiermq") over the broker's tier and its store directory: hot and cold as one table
    kind=rocketmq  the JSON lines that a consumer has written, with the schema given, so that nothing is inferred
    kind=limit     the same number of bodies of the same size in Parquet files, uncompressed, which lie there already
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "topic string, queueId int, queueOffset bigint, msgId string, bornTimestamp bigint, storeTimestamp bigint, "
    "body string"
)


class Queries:
    """`run kind= messages= bytes= …` asks until everything is there (`peer_process.Served`)."""

    def __init__(self) -> None:
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            raise SystemExit("expected prepare before run")
        return self._spark

    def prepare(self, parameters: dict[str, str]) -> dict[str, Any]:
        """Start Spark, and write the limit's files: `messages=` rows of `body_bytes=` to `parquet=`."""
        from tiermq.spark.session import get_spark
        from tiermq.spark.source.data_source import TierMQDataSource

        self._spark = get_spark("local[*]", app="bench compare")
        self._spark.dataSource.register(TierMQDataSource)
        rows = self._spark.range(int(parameters["messages"]))
        bodies = rows.selectExpr(f"cast(rpad(id, {int(parameters['body_bytes'])}, 'x') as binary) as body")
        writing = bodies.write.option("compression", "uncompressed").option("parquet.enable.dictionary", "false")
        writing.parquet(parameters["parquet"])
        return {"spark": self._spark.version, "master": self._spark.sparkContext.master}

    def reset(self, parameters: dict[str, str]) -> None:
        """Nothing is left of a round: every query plans again."""

    def run(self, parameters: dict[str, str]) -> tuple[int, int]:
        """Ask until every message is there. Raises SystemExit when there is more than that, or never will be."""
        expected = (int(parameters["messages"]), int(parameters["bytes"]))
        found = self._ask(parameters)
        while found < expected and parameters["kind"] == "tiermq":  # The broker dispatches what it has answered.
            found = self._ask(parameters)
        if found != expected:
            raise SystemExit(f"expected {expected} messages and bytes in {parameters}, found {found}")
        return found

    def _ask(self, parameters: dict[str, str]) -> tuple[int, int]:
        frame = {"tiermq": self._tiermq, "rocketmq": self._rocketmq, "limit": self._limit}[parameters["kind"]](
            parameters
        )
        row = frame.selectExpr("count(*)", "sum(length(body))").first()
        assert row is not None
        return int(row[0]), int(row[1] or 0)

    def _tiermq(self, parameters: dict[str, str]) -> DataFrame:
        reading = self.spark.read.format("tiermq").option("subscribe", parameters["topic"]).option("columns", "body")
        for name in ("tier", "store", "brokerName"):
            reading = reading.option(name, parameters[name])
        return reading.load()

    def _rocketmq(self, parameters: dict[str, str]) -> DataFrame:
        return self.spark.read.schema(SCHEMA).json(parameters["files"]).selectExpr("unbase64(body) as body")

    def _limit(self, parameters: dict[str, str]) -> DataFrame:
        return self.spark.read.parquet(parameters["parquet"])

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()
