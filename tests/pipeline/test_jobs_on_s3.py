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
from deltalake import DeltaTable

from pipeline.offload.offload_world import SMALL
from pipeline.offload.offload_world import TIER as SMALL_TIER
from pipeline.offload.wire_world import CLUSTER, fill, wire_world
from servers.seaweedfs import SeaweedFS, Unavailable
from tiermq import Message
from tiermq.pipeline import worker_cache
from tiermq.pipeline.compact.job import compact
from tiermq.pipeline.expire.job import expire
from tiermq.pipeline.export.job import export
from tiermq.pipeline.maintain.job import maintain
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.reindex.job import reindex
from tiermq.pipeline.replay.job import replay
from tiermq.pipeline.verify.job import verify
from tiermq.store.local_store import LocalStore
from tiermq.tables.body_format import BodyFormat
from tiermq.tables.table_delta import storage_options
from tiermq.tables.table_files import open_table
from tiermq.tables.table_iceberg import open_catalog as load_iceberg
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
        monkeypatch.setattr(worker_cache, "_drivers", {})  # They are of the server of another test.
        yield tmp_path


def test_running_brokers_are_copied_into_a_bucket_in_two_runs_with_the_bytes_of_their_directories(
    buckets: Path,
) -> None:
    with wire_world(buckets, 2) as world:
        world.tier = TIER
        for turn, count in enumerate((200, 100)):
            for broker in world.brokers:
                fill(broker, count, seed=turn)
            report = world.offload()
            assert (report.problems, report.done["messages"]) == ([], 2 * count)
        wire = world.segments()
        stores = [f"{broker.directory}={CLUSTER}/broker-{number}" for number, broker in enumerate(world.brokers)]
        offload(stores, "s3://lake/t", settings=SMALL, config=SMALL_TIER)
        world.tier = "s3://lake/t"
        assert world.segments() == wire
        assert verify(None, tier=TIER).is_clean


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
        more: dict[str, Any] = {"warehouse": "s3://lake/w"} if kind == "iceberg" else {}
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


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_upserts_and_maintenance_of_tables_in_a_bucket(buckets: Path, kind: str) -> None:
    places: dict[str, dict[str, Any]] = {
        "delta": {"to": "delta:s3://lake/u"},
        "iceberg": {"to": "iceberg:lake.u", "catalog": f"sqlite:///{buckets}/c.db", "warehouse": "s3://lake/w"},
    }
    to = places[kind]
    rule: dict[str, Any] = {"upsert": True, "key": "id", "body": BodyFormat.of("json", "id bigint"), "buckets": 3}
    assert export(None, store=buckets / "store", **to, **rule).done["upserted"] == COUNT
    with LocalStore.open(buckets / "store", background=False, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(0, COUNT, 2):
            store.put(Message("orders", b"", 0, keys=[str(number)]))
        store.dispatch_now()
    done = export(None, store=buckets / "store", **to, **rule).done
    assert (done["deleted"], done["upserted"]) == (COUNT // 2, 0)
    table = open_table(**to)
    before = {file.name for file in table.place.files("data")}
    kept = {("table" if name == "to" else name): value for name, value in to.items()}
    gone = maintain(None, **kept, keep_hours=0, force=True).done["old_files"]
    assert gone >= 3
    left = {file.name for file in table.place.files("data")}
    assert left == set(table.files()) < before
    if kind == "delta":
        rows = DeltaTable("s3://lake/u", storage_options=storage_options()).to_pyarrow_table()
    else:
        rows = load_iceberg(to["catalog"], to["warehouse"]).load_table("lake.u").scan().to_arrow()
    assert sorted(rows.column("id").to_pylist()) == list(range(1, COUNT, 2))
