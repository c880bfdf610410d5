"""Histories by chance: hot and cold through Spark are what was put, however it lies and however it is cut."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark.source_world import SourceWorld, rows_of


def live(world: SourceWorld, seed: int, steps: int) -> None:
    """Put, copy to the tier, let local files go, kill and reopen, as chance will have it."""
    chance = random.Random(seed)
    for _ in range(steps):
        step = chance.choice(["put", "put", "put", "tier", "evict", "index", "reopen"])
        if step == "put":
            topic = chance.choice(["a", "b"])
            world.put(chance.randrange(1, 40), topic, chance.randrange(3), size=chance.choice([40, 60, 900]))
        elif step == "tier":
            world.flush_to_tier()
        elif step == "evict":
            world.flush_to_tier()
            world.evict_all()
        elif step == "index":
            world.flush_to_tier()
            world.upload_index()
        else:
            world.kill()
            world.open()


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), size=st.sampled_from(["1k", "8k", "64m"]), least=st.sampled_from(["1", "7"]))
def test_a_plan_of_any_history_has_each_message_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, size: str, least: str
) -> None:
    world = SourceWorld(tmp_path_factory.mktemp("world"))
    try:
        world.put(5, "a", 0)
        live(world, seed, 12)
        assert rows_of(world.both, maxBytesPerPartition=size, minPartitions=least) == world.wanted()
    finally:
        world.bury()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_spark_reads_any_history_once_also_while_it_goes_on(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    world = SourceWorld(tmp_path)
    try:
        world.put(5, "a", 0)
        live(world, seed, 15)
        source = spark.read.format("tiermq").options(**world.both, maxBytesPerPartition="4k", minPartitions="3")
        frame = source.load().select("topic", "queueId", "queueOffset", "body")
        before = world.wanted()
        assert sorted(tuple(row) for row in frame.collect()) == before
        # The frame is a snapshot; what moves to the tier under it is found there.
        live(world, seed + 100, 6)
        world.flush_to_tier()
        world.evict_all()
        assert sorted(tuple(row) for row in frame.collect()) == before
    finally:
        world.bury()
