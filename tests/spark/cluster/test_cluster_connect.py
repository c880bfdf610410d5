"""Jobs, scans and the sink by a Spark Connect session, whose server runs them on a cluster whose executors die."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from small_store import SIZES
from spark.cluster.cluster_worlds import Expectation, happened, world_on
from spark.cluster.connect_server import ConnectServer
from spark.cluster.driver_process import DriverProcess
from spark.cluster.standalone import StandaloneCluster
from spark.source_world import SourceWorld
from tables.table_world import TableWorld
from tiermq.store.local_store import LocalStore

pytest.importorskip("grpc_status", reason="a client of Spark Connect needs grpcio and grpcio-status")
pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1_800)]
KINDS = ["executor", "twice", "worker", "executor"]


@pytest.fixture(scope="module")
def client(
    cluster: StandaloneCluster, driver: DriverProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DriverProcess]:
    """A process whose session is a remote one."""
    driver.stop()  # The cluster has two processors, and an application that runs keeps them.
    folder = tmp_path_factory.mktemp("connect")
    with ConnectServer(cluster.master, folder / "server", {}) as server:
        made = DriverProcess(server.url, folder / "client")
        yield made
        made.stop()


def faults_in(path: Path, name: str) -> str:
    folder = path / name
    folder.mkdir()
    return str(folder)


def test_an_offload_whose_executors_die_changes_nothing(
    client: DriverProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world = world_on("files", tmp_path, request)
    expected = Expectation(world, tmp_path / "engine")
    given: dict[str, Any] = {"place": world.place(), "tier": world.tier, "folder": faults_in(tmp_path, "faults")}
    report = client.call("offload", **given, kinds=KINDS)
    assert happened(report["faults"], KINDS)
    assert (report["problems"], report["done"]["messages"]) == ([], 300)
    expected.check(world)


def test_an_export_whose_executors_die_has_every_message_once(client: DriverProcess, tmp_path: Path) -> None:
    world = TableWorld(tmp_path)
    world.put(240, queues=4)
    given: dict[str, Any] = {"name": "export", "store": str(world.store), **world.to, "file_bytes": 2_000}
    report = client.call("job", **given, folder=faults_in(tmp_path, "faults"), kinds=KINDS)
    assert happened(report["faults"], KINDS)
    assert report["problems"] == []
    assert world.rows() == world.wanted()


def test_a_scan_a_write_and_a_stream_whose_executors_die_have_each_row_once(
    client: DriverProcess, tmp_path: Path
) -> None:
    world = SourceWorld(tmp_path)
    try:
        for queue_id in range(3):
            world.put(120, "orders", queue_id)
        world.flush_to_tier()
        rows = [[topic, queue_id, offset, body.hex()] for topic, queue_id, offset, body in world.wanted()]
        assert client.call("scan", options=world.both, folder=faults_in(tmp_path, "a"), kinds=KINDS) == rows
        places: dict[str, Any] = {"checkpoint": str(tmp_path / "checkpoint"), "parquet": str(tmp_path / "rows")}
        kinds = ["executor", "twice", "worker"]
        client.call("stream", options=world.both, folder=faults_in(tmp_path, "b"), kinds=kinds, **places)
        assert client.call("read_parquet", path=places["parquet"]) == rows
        commits = Path(faults_in(tmp_path, "commits"))
        (commits / "spared").touch()
        sink: dict[str, Any] = {"store": str(tmp_path / "copy"), "settings": json.dumps(SIZES), "name": "once"}
        client.call("write", options=world.both, folder=faults_in(tmp_path, "c"), kinds=kinds, **sink)
    finally:
        world.bury()
    with LocalStore.open(tmp_path / "copy", background=False, **SIZES) as store:
        assert sum(store.max_offset("copy", queue_id) for queue_id in range(2)) == len(rows)
