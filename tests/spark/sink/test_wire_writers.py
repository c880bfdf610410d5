"""`df.write` and `df.writeStream` to brokers, and back by `spark.read` and `spark.readStream`, by Spark itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import waiting
from servers.serving import Serving
from tiermq.cli.main import cli
from tiermq.remoting.tls import make_self_signed
from tiermq.spark.source.data_source import FORMAT, TierMQDataSource
from tiermq.testing import LocalBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "store", tier=(tmp_path / "tier").as_uri()) as made:
        made.create_topic("orders", queues=3)
        made.create_topic("copies", queues=2)
        yield made


def numbers(spark: SparkSession, count: int) -> DataFrame:
    spark.dataSource.register(TierMQDataSource)
    return spark.range(count).selectExpr("cast(id as string) as body", "'t' as tags", "concat('k', id) as keys")


def stored(broker: LocalBroker, topic: str = "orders") -> list[int]:
    return sorted(int(message.body) for message in broker.messages(topic))


def test_a_named_batch_is_written_once_and_read_back_hot_and_cold(spark: SparkSession, broker: LocalBroker) -> None:
    wire = {"namesrv": broker.name_server}
    rows = numbers(spark, 1000)
    for _ in range(2):
        rows.write.format(FORMAT).mode("append").options(**wire, topic="orders", batchName="b1").save()
        broker.broker.parts.local.dispatch_now()
    assert stored(broker) == list(range(1000))
    broker.broker.parts.store.flush_to_tier()  # type: ignore[union-attr] # It has a tier.
    rows.limit(10).write.format(FORMAT).mode("append").options(**wire, topic="orders").save()
    broker.broker.parts.local.dispatch_now()
    frame = spark.read.format(FORMAT).options(**wire, subscribe="orders", minPartitions="4").load()
    assert frame.count() == 1010
    assert frame.selectExpr("sum(int(string(body)))").first()[0] == sum(range(1000)) + sum(range(10))
    assert {row["tier"] for row in frame.select("tier").distinct().collect()} == {"wire"}
    one = spark.read.format(FORMAT).options(**wire, subscribe="orders", keys="k777").load()
    assert [row["body"] for row in one.collect()] == [b"777"]


def test_a_stream_from_brokers_to_brokers_goes_on_and_repeats_nothing(
    spark: SparkSession, broker: LocalBroker, tmp_path: Path
) -> None:
    wire = {"namesrv": broker.name_server}
    numbers(spark, 100).write.format(FORMAT).mode("append").options(**wire, topic="orders").save()
    broker.broker.parts.local.dispatch_now()
    source = (
        spark.readStream.format(FORMAT)
        .options(**wire, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="40")
        .load()
        .selectExpr("body", "tags")
    )

    def run() -> None:
        query = (
            source.writeStream.format(FORMAT)
            .options(**wire, topic="copies", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert stored(broker, "copies") == list(range(100))
    # Spark forgets that the last batch was done, as when its driver dies before it wrote so down.
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    numbers(spark, 7).write.format(FORMAT).mode("append").options(**wire, topic="orders").save()
    broker.broker.parts.local.dispatch_now()
    run()
    assert stored(broker, "copies") == sorted([*range(100), *range(7)])


def test_rows_are_written_and_read_by_a_client_certificate_where_brokers_ask_for_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Executors and the driver both show it; without it, or to a server that it does not know, nothing is written."""
    paths = {}
    for name in ("server", "client", "stranger"):
        made = make_self_signed(name)
        paths[name] = str(tmp_path / f"{name}.pem")
        Path(paths[name]).write_text(made.certificate + made.key)
    secured = ("--tls", "enforcing", "--tls-cert", paths["server"], "--tls-trusted", paths["client"])
    with Serving(tmp_path / "served", *secured) as served:
        place = {"namesrv": served.name_server, "tlsCa": paths["server"]}
        shown = {**place, "tlsCert": paths["client"]}
        signed = ["-n", served.name_server, "--tls-cert", paths["client"], "--tls-ca", paths["server"]]
        for topic in ("orders", "copies"):
            found = CliRunner().invoke(cli, ["topic", "create", topic, "--queues", "3", *signed])
            assert found.exit_code == 0, found.output
        rows = numbers(spark, 500).repartition(3)
        for wrong in (place, {**place, "tlsCert": paths["stranger"]}, {**shown, "tlsCa": paths["stranger"]}):
            with pytest.raises(PySparkException):
                rows.write.format(FORMAT).mode("append").options(**wrong, topic="orders").save()
        rows.write.format(FORMAT).mode("append").options(**shown, topic="orders", batchName="b1").save()
        frame = spark.read.format(FORMAT).options(**shown, subscribe="orders").load()
        waiting.until(lambda: frame.count() >= 500)
        assert sorted(int(row["body"]) for row in frame.collect()) == list(range(500))
        query = (
            spark.readStream.format(FORMAT)
            .options(**shown, subscribe="orders", startingOffsets="earliest")
            .load()
            .selectExpr("body", "tags")
            .writeStream.format(FORMAT)
            .options(**shown, topic="copies", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        copies = spark.read.format(FORMAT).options(**shown, subscribe="copies").load()
        waiting.until(lambda: copies.count() >= 500)
        assert sorted(int(row["body"]) for row in copies.collect()) == list(range(500))
