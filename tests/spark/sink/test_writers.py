"""`df.write` and `df.writeStream` into a store, through a real session."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark.sink.sink_world import QUERY, SETTINGS, bodies, make_store, sink_options, staged, stored
from tiermq.errors import BadOption
from tiermq.files.store_lock import StoreLock
from tiermq.spark.sink.batch_commit import write_intent
from tiermq.spark.sink.writers import discard, named_query


def save(frame: DataFrame, path: Path, mode: str = "append", **more: str) -> None:
    options = {"store": str(path / "store"), "storeSettings": SETTINGS, **more}
    frame.write.format("tiermq").mode(mode).options(**options).save()


def test_a_frame_becomes_messages(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path)
    row = ("orders", "text", "paid", ["a", "b"], {"colour": "red"}, 2, dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    schema = (
        "topic string, body string, tags string, keys array<string>, properties map<string,string>, queueId int, "
        "deliverTime timestamp"
    )
    save(spark.createDataFrame([row], schema), tmp_path)
    (message,) = stored(tmp_path, "orders")
    assert (message.body, message.queue_id, message.tags, message.properties["colour"]) == (b"text", 2, "paid", "red")
    assert message.properties["TIMER_DELIVER_MS"] == "1767225600000"
    assert [path.name for path in (tmp_path / "store.staging").iterdir()] == []


def test_rows_of_the_source_are_written_back_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path)
    born = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    row = ("orders", b"text", "paid", ["a"], {"colour": "red"}, 2, born, 7, "KEY")
    schema = (
        "topic string, body binary, tags string, keys array<string>, properties map<string,string>, queueId int, "
        "bornTimestamp timestamp, flag int, uniqKey string"
    )
    save(spark.createDataFrame([row], schema), tmp_path)
    read = spark.read.format("tiermq").option("store", str(tmp_path / "store")).load()
    assert read.select("recordId", "msgId").head() == ("broker-a/orders/2/0", "KEY")
    save(read, tmp_path)
    first, second = stored(tmp_path, "orders")
    for name in ("body", "tags", "keys", "flag", "born_timestamp_ms", "queue_id", "unique_key"):
        assert getattr(first, name) == getattr(second, name), name
    assert second.properties["colour"] == "red"


def test_many_partitions_are_one_batch_and_a_name_makes_it_one_for_ever(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path)
    frame = spark.range(100, numPartitions=4).selectExpr("concat('row ', id) body")
    for _ in range(2):
        save(frame, tmp_path, topic="T", batchName="first")
    assert sorted(m.body for m in stored(tmp_path)) == sorted(f"row {n}".encode() for n in range(100))
    assert {message.queue_id for message in stored(tmp_path)} == {0, 1, 2, 3}
    save(frame, tmp_path, topic="T")
    assert len(stored(tmp_path)) == 200


def test_a_task_that_fails_and_is_run_again_puts_its_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path)
    flag = tmp_path / "failed"

    def fails_once(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            yield batch
            if number == 0 and not flag.exists():
                flag.touch()
                raise RuntimeError("the first attempt dies after its first rows")

    frame = spark.range(50, numPartitions=2).mapInArrow(fails_once, "id long").selectExpr("string(id) body")
    save(frame, tmp_path, topic="T")
    assert flag.exists()
    assert sorted(int(message.body) for message in stored(tmp_path)) == list(range(50))


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ("id", {"topic": "T"}, "a message to write has no column id"),
        ("string(id) body", {}, "a column topic or an option topic"),
        ("string(id) body", {"topic": "T", "topik": "x"}, "there is no option topik; did you mean topic?"),
        ("id body", {"topic": "T"}, "column body: expected binary or string, found bigint"),
        ("string(id) body", {"topic": "x y"}, "option topic: the topic 'x y' contains illegal characters"),
    ],
)
def test_what_does_not_fit_is_reported_on_the_driver(
    spark: SparkSession, tmp_path: Path, columns: str, options: dict[str, str], expected: str
) -> None:
    with pytest.raises(PySparkException) as raised:
        save(spark.range(1).selectExpr(columns), tmp_path, **options)
    assert expected in str(raised.value)
    assert not (tmp_path / "store").exists()


def test_a_store_is_appended_to_only_and_not_while_a_broker_has_it(spark: SparkSession, tmp_path: Path) -> None:
    make_store(tmp_path)
    frame = spark.range(1).selectExpr("string(id) body")
    with pytest.raises(PySparkException, match="expected mode append"):
        save(frame, tmp_path, "overwrite", topic="T")
    lock = StoreLock(str(tmp_path / "store" / "lock"))
    try:
        with pytest.raises(PySparkException, match="one writer: stop that process"):
            save(frame, tmp_path, topic="T")
    finally:
        lock.release()


def test_a_stream_of_one_store_into_another_puts_each_message_once_over_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    origin, target = tmp_path / "a", tmp_path / "b"
    make_store(origin)
    make_store(target)
    for round_number in range(2):
        rows = spark.range(30).selectExpr(f"concat('{round_number} ', id) body")
        save(rows, origin, topic="T")
        source = spark.readStream.format("tiermq").option("store", str(origin / "store")).option("subscribe", "T")
        frame = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "20").load()
        query = (
            frame.selectExpr("body", "queueId", "tags").writeStream.format("tiermq").outputMode("append")
            .option("store", str(target / "store")).option("topic", "copy").option("storeSettings", SETTINGS)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        assert sorted(m.body for m in stored(target, "copy")) == sorted(m.body for m in stored(origin))
    # A checkpoint that lost its last commit repeats the batch under the same number: nothing is put twice.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    for file in (tmp_path / "checkpoint" / "commits").glob(f".{commits[-1].name}.crc"):
        file.unlink()
    query = (
        frame.selectExpr("body", "queueId", "tags").writeStream.format("tiermq").outputMode("append")
        .option("store", str(target / "store")).option("topic", "copy").option("storeSettings", SETTINGS)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert sorted(m.body for m in stored(target, "copy")) == sorted(m.body for m in stored(origin))


def test_an_abort_removes_what_was_staged_unless_a_commit_has_begun(tmp_path: Path) -> None:
    options = sink_options(tmp_path)
    files = staged(options, QUERY, bodies("a"))
    write_intent(QUERY, options, files, {})
    discard(files, options)
    assert Path(files[0].path).exists()
    (QUERY.directory(options.staging) / "intent.json").unlink()
    discard(files, options)
    assert not Path(files[0].path).exists()


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (("'x y' topic", "'b' body"), "the topic 'x y' contains illegal characters"),
        (("'T' topic", "repeat('x', 5000000) body"), "found MESSAGE_ILLEGAL"),
    ],
)
def test_a_batch_that_is_refused_leaves_nothing_staged(
    spark: SparkSession, tmp_path: Path, row: tuple[str, str], expected: str
) -> None:
    make_store(tmp_path)
    with pytest.raises(PySparkException) as raised:
        save(spark.range(1).selectExpr(*row), tmp_path)
    assert expected in str(raised.value)
    staging = tmp_path / "store.staging"
    assert list(staging.rglob("*")) == []
    assert stored(tmp_path) == []


def test_a_name_of_a_batch_is_a_name_of_a_directory() -> None:
    assert named_query("2026-01-01.orders") == "named-2026-01-01.orders"
    with pytest.raises(BadOption, match="option batchName"):
        named_query("../x")
