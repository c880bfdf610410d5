"""Spark reads a tier and a store that the real RocketMQ wrote, column by column as RocketMQ itself reads them."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from golden import reading as golden_stores
from golden import tier_reading as golden_tiers
from tiermq.spark import messages

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - Spark's driver gives times without a zone.


def check(frame: DataFrame, facts: Iterable[dict[str, Any]]) -> int:
    """Every fact has its row, which says the same; how many facts there were."""
    rows = {(row.topic, row.queueId, row.queueOffset): row for row in frame.collect()}
    count = 0
    for fact in facts:
        row = rows[fact["topic"], fact["queue"], fact["offset"]]
        assert hashlib.sha256(bytes(row.body)).hexdigest() == fact["body_sha256"]
        # A consumer takes the mark of compression off when it decompresses; a row says what is stored.
        assert (row.flag, row.sysFlag & ~1, row.storeSize) == (fact["flag"], fact["sys_flag"] & ~1, fact["size"])
        assert row.bodyCrc == fact["body_crc"]
        assert dict(row.properties) == fact["properties"]
        assert row.uniqKey == fact["properties"].get("UNIQ_KEY")
        assert row.keys == (fact["properties"]["KEYS"].split(" ") if "KEYS" in fact["properties"] else row.keys)
        assert (row.reconsumeTimes, row._corrupt) == (fact["reconsume_times"], None)
        for moment, wanted in ((row.bornTimestamp, "born_timestamp"), (row.storeTimestamp, "store_timestamp")):
            assert (moment - EPOCH) // dt.timedelta(milliseconds=1) == fact[wanted]
        count += 1
    return count


def test_a_tier_of_rocketmq_is_a_table(spark: SparkSession) -> None:
    written = golden_tiers.WrittenTier.golden("rocketmq-5.3.3-tier")
    frame = messages(spark, tier=written.tier.absolute().as_uri())
    assert check(in_utc(frame), written.stored.values()) > 100


def test_a_store_of_rocketmq_is_a_table(spark: SparkSession, tmp_path: Path) -> None:
    golden = golden_stores.golden("rocketmq-5.3.3-clean")
    store = golden.copy_store(tmp_path / "store")
    assert check(in_utc(messages(spark, store=store)), golden.stored) == 200


def in_utc(frame: DataFrame) -> DataFrame:
    """Times as they are in UTC, whatever zone this machine is in."""
    return frame.withColumns({name: frame[name].cast("timestamp_ntz") for name in ("bornTimestamp", "storeTimestamp")})
