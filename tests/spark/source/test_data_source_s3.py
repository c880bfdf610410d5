"""Spark over a real S3 server, in a session of its own: workers learn of credentials from their environment."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from scenarios.broker_world import BrokerWorld
from servers.seaweedfs import SeaweedFS, Unavailable
from tiermq.tier.driver.tier_url import open_driver

PROGRAM = """
import sys
from tiermq.spark import get_spark, messages, ScanMeter

url, store, folder = sys.argv[1:4]
spark = get_spark("local[2]")
meter = ScanMeter(spark)
both = dict(tier=url, store=store, brokerName="broker-a")
frame = messages(spark, **both, topic="orders", maxBytesPerPartition="4k", meter=meter)
print("rows", frame.count(), frame.select("queueId", "queueOffset").distinct().count(), meter.counters.requests > 0)
print("key", [bytes(row.body).split()[2] for row in messages(spark, **both, keys="key-7").select("body").collect()])
source = spark.readStream.format("tiermq").options(**both, startingOffsets="earliest", maxOffsetsPerTrigger="100")
query = source.load().select("queueId", "queueOffset").writeStream.format("parquet").option(
    "path", folder + "/rows").option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
print("stream", spark.read.parquet(folder + "/rows").distinct().count())
spark.stop()
"""


@pytest.mark.slow
def test_a_tier_on_s3_is_read_in_batches_by_key_and_as_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        server = SeaweedFS(tmp_path / "server")
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    with server:
        server.create_bucket("history")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://history/{uuid.uuid4().hex}"
        world = BrokerWorld(tmp_path, open_driver(url))
        try:
            world.open()
            for queue_id in range(2):
                world.put(120, "orders", queue_id)
            world.store.flush_to_tier()
            world.put(30, "orders", 0)
            command = [sys.executable, "-c", PROGRAM, url, str(world.disk), str(tmp_path)]
            done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
        finally:
            world.bury()
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["rows 270 270 True", "key [b'7']", "stream 270"]
