"""Every job over a real S3 server: tier and tables in buckets, the way from a store to a table and back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.fs
import pytest

from servers.seaweedfs import SeaweedFS, Unavailable
from tiermq import LocalStore, Message
from tiermq.spark.jobs.compact import compact
from tiermq.spark.jobs.expire import expire
from tiermq.spark.jobs.export import export
from tiermq.spark.jobs.offload import offload
from tiermq.spark.jobs.reindex import reindex
from tiermq.spark.jobs.replay import replay
from tiermq.spark.jobs.verify import verify
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import SegmentType

pytestmark = pytest.mark.slow
COUNT = 300
TIER = "s3://history/t"


@pytest.fixture
def buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server with two buckets, and a store that has something to be moved."""
    try:
        server = SeaweedFS(tmp_path / "server")
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    with LocalStore.open(tmp_path / "store", background=False, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(COUNT):
            store.put(Message("orders", b'{"id": %d}' % number, number % 2, keys=[f"key-{number}"]))
        store.dispatch_now()
    with server:
        for name in ("history", "lake"):
            server.create_bucket(name)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield tmp_path


def test_the_way_from_a_store_into_tables_and_back(buckets: Path) -> None:
    store = f"{buckets / 'store'}=prod/broker-a"
    copied = offload([store], TIER, index="later")
    assert (copied.done["messages"], copied.problems) == (COUNT, [])
    assert reindex(None, tier=TIER, store=store, slots=50).done["keys"] == COUNT
    for job in (compact, verify):
        assert job(None, tier=TIER, store=store).is_clean
    assert expire(tier=TIER, keep_hours=24, store=store).is_clean
    mend_what_is_deleted(store)
    tables: dict[str, dict[str, Any]] = {
        "parquet": {"to": "parquet:s3://lake/p"},
        "delta": {"to": "delta:s3://lake/d"},
        "iceberg": {"to": "iceberg:lake.t", "catalog": f"sqlite:///{buckets}/c.db"},
    }
    for kind, table in tables.items():
        more = {"warehouse": "s3://lake/w"} if kind == "iceberg" else {}
        made = export(None, tier=TIER, **table, **more)
        assert (made.done["messages"], made.problems) == (COUNT, []), kind
        assert export(None, tier=TIER, **table, **more).planned["messages"] == 0
        into = buckets / f"from-{kind}"
        given = {"table": table["to"], "catalog": table.get("catalog"), "record": buckets / f"record-{kind}"}
        done = replay(None, into=into, offsets=(10, 20), **given)
        assert (done.done["messages"], done.problems) == (20, []), kind
        with LocalStore.open(into, background=False) as opened:
            bodies = [message.body for message in opened.get("orders", 1, 0, 32).messages]
        assert bodies == [b'{"id": %d}' % number for number in range(21, 41, 2)]
    system = pyarrow.fs.S3FileSystem(endpoint_override=endpoint(), scheme="http", region="us-east-1")
    offsets = pyarrow.dataset.dataset("lake/p", filesystem=system, format="parquet").to_table(columns=["queueOffset"])
    assert pc.sum(offsets["queueOffset"]).as_py() == 2 * sum(range(COUNT // 2))


def mend_what_is_deleted(store: str) -> None:
    """Records come from the store again, units and manifests from the records."""
    driver = open_driver(TIER)
    for info in list(driver.list_segments()):
        if (info.key.queue.queue_id, info.key.type) in ((0, SegmentType.COMMIT_LOG), (1, SegmentType.CONSUME_QUEUE)):
            driver.delete(info.key)
    driver.delete_object(next(name for name in driver.list_objects("") if "orders/1/manifest" in name))
    report = verify(None, tier=TIER, store=store, repair=True)
    assert report.details["problems_before"] > 0
    assert report.is_clean, report.problems
    assert verify(None, tier=TIER, store=store).is_clean


def endpoint() -> str:
    return os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
