"""Makes and opens the golden corpora of what jobs of our own versions write: `tests/golden/jobs-<version>.tar.xz`.

    .venv/bin/python tests/golden/jobs_corpus.py          makes that of this version; each release gets one, for ever

    store/        of a broker, closed in order: MESSAGES orders with keys, two of each key
    tier/         to which `pipeline offload --namesrv` has copied them, with the list of changed manifests
    table/        `pipeline export` of them to Parquet
    latest/       `pipeline export --upsert` of them to Delta: the last of each key
    checkpoint/   of a stream of Spark over the tier, which has read them

A checkpoint belongs to a tier, by its URL: `opened` writes that of the unpacked one into it, in place of HOME.
"""

from __future__ import annotations

import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from golden.tiermq_corpus import SMALL, TIMER_FREE, run, without_owner
from servers.serving import Serving
from tiermq import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HERE = Path(__file__).parent
PARTS = ("store", "tier", "table", "latest", "checkpoint")
MESSAGES = 30
KEYS = 15
QUEUES = 3
HOME = "/home-of-the-corpus"
SCHEMA = "number int, customer int"


def tier_of(path: Path) -> str:
    return f"{(path / 'tier').as_uri()}?driver=object"


def broker_of(path: Path) -> Serving:
    return Serving(path / "store", **{**SMALL, **TIMER_FREE})


def send(name_server: str, numbers: range) -> None:
    for number in numbers:
        body = f'{{"number": {number}, "customer": {number % KEYS}}}'
        words = ("--queue", str(number % KEYS % QUEUES), "--key", f"customer-{number % KEYS}")
        run(name_server, "produce", "orders", body, *words)


def run_jobs(name_server: str, path: Path) -> None:
    """Copy what the broker has into the tier, and that into both tables."""
    tier = tier_of(path)
    run(name_server, "pipeline", "offload", "--namesrv", name_server, "--tier", tier, "--master", "here")
    words = ("pipeline", "export", "--tier", tier, "--topic", "orders", "--body", "json", "--schema", SCHEMA)
    run(name_server, *words, "--to", f"parquet:{path / 'table'}", "--master", "here")
    run(name_server, *words, "--to", f"delta:{path / 'latest'}", "--upsert", "--buckets", "1", "--master", "here")


def stream(spark: SparkSession, path: Path) -> list[int]:
    """The messages, by their numbers, that the stream with this checkpoint has not read yet."""
    read: list[int] = []

    def take(frame: DataFrame, _: int) -> None:
        found = frame.selectExpr("get_json_object(string(body), '$.number') as number").collect()
        read.extend(int(row["number"]) for row in found)

    frame = spark.readStream.format("tiermq").option("tier", tier_of(path)).option("subscribe", "orders")
    writer = frame.option("startingOffsets", "earliest").load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return sorted(read)


def move(path: Path, old: str, new: str) -> None:
    """Give the offsets of the checkpoint another home."""
    for each in (path / "checkpoint" / "offsets").iterdir():
        if each.name.isdigit():
            text = each.read_text()
            assert old in text
            each.write_text(text.replace(old, new))
            each.with_name(f".{each.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum.


def corpora() -> list[Path]:
    return sorted(HERE.glob("jobs-*.tar.xz"))


def opened(corpus: Path, into: Path) -> None:
    with tarfile.open(corpus) as packed:
        packed.extractall(into, filter="data")
    move(into, HOME, str(into))


def make(spark: SparkSession) -> Path:
    """That of this version."""
    target = HERE / f"jobs-{__version__}.tar.xz"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        with broker_of(path) as served:
            run(served.name_server, "topic", "create", "orders", "--queues", str(QUEUES))
            send(served.name_server, range(MESSAGES))
            run_jobs(served.name_server, path)
        assert stream(spark, path) == list(range(MESSAGES))
        move(path, directory, HOME)
        with tarfile.open(target, "w:xz") as packed:
            for name in PARTS:
                packed.add(path / name, name, filter=without_owner)
    return target


if __name__ == "__main__":
    from tiermq.spark import get_spark

    made = make(get_spark("local[1]"))
    sys.stdout.write(f"{made}: {os.path.getsize(made)} bytes\n")
