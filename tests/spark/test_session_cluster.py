"""The source, the stream and the sink on executors that are processes of their own, one of which is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark.source_world import SourceWorld

PROGRAM = """
import os, signal, sys
from pathlib import Path
from tiermq.spark import get_spark, messages

folder, url, store = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = get_spark("local-cluster[2,1,1024]")
spark.sparkContext.setLogLevel("OFF")
flag = folder / "killed"


def kill_once(batches):
    for batch in batches:
        if not flag.exists():
            flag.touch()
            os.kill(os.getppid(), signal.SIGKILL)  # The daemon of this executor's workers,
            os.kill(os.getpid(), signal.SIGKILL)  # and this worker with it.
        yield batch


frame = messages(spark, tier=url, store=store, brokerName="broker-a", topic="orders", maxBytesPerPartition="4k")
assert frame.rdd.getNumPartitions() > 4
rows = frame.select("queueId", "queueOffset", "body")
rows = rows.mapInArrow(kill_once, "queueId int, queueOffset long, body binary")
print("rows", rows.count(), rows.distinct().count(), flag.exists())

rows.selectExpr("body", "queueId").write.format("tiermq").mode("append").options(
    store=str(folder / "copy"), topic="copy").save()
source = spark.readStream.format("tiermq").options(store=str(folder / "copy"), startingOffsets="earliest")
query = source.option("maxOffsetsPerTrigger", "150").load().select("queueId", "queueOffset", "body").writeStream.format(
    "parquet").option("path", str(folder / "rows")).option(
    "checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
query.awaitTermination()
copied = spark.read.parquet(str(folder / "rows"))
print("copied", copied.count(), copied.select("queueId", "queueOffset").distinct().count())
spark.stop()
"""


@pytest.mark.slow
def test_a_cluster_whose_workers_are_killed_reads_and_writes_each_message_once(tmp_path: Path) -> None:
    world = SourceWorld(tmp_path)
    try:
        for queue_id in range(3):
            world.put(120, "orders", queue_id)
        world.flush_to_tier()
        world.evict_all()
        world.put(40, "orders", 0)
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), world.url, str(world.disk)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        world.bury()
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["rows 400 400 True", "copied 400 400"]
