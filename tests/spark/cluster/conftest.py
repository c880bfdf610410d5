"""A cluster, a driver on it and an S3 server, once for all tests in this directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.seaweedfs import SeaweedFS, Unavailable
from spark.cluster.driver_process import DriverProcess
from spark.cluster.standalone import StandaloneCluster

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and {"cluster", "driver"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("spark-cluster"))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS | None]:
    """None where there is no such server; a test that needs it says so."""
    try:
        with SeaweedFS(tmp_path_factory.mktemp("s3")) as server:
            server.create_bucket("history")
            yield server
    except Unavailable:
        yield None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, s3_server: SeaweedFS | None) -> Iterator[StandaloneCluster]:
    environment = {} if s3_server is None else s3_server.environment
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), environment) as running:
        yield running


@pytest.fixture(scope="session")
def driver(
    tmp_path_factory: pytest.TempPathFactory, cluster: StandaloneCluster, s3_server: SeaweedFS | None
) -> Iterator[DriverProcess]:
    environment = {} if s3_server is None else s3_server.environment
    made = DriverProcess(cluster.master, tmp_path_factory.mktemp("driver"), environment)
    yield made
    made.stop()


@pytest.fixture
def s3(s3_server: SeaweedFS | None, monkeypatch: pytest.MonkeyPatch) -> SeaweedFS:
    """The server, with its credentials in this process's environment."""
    if s3_server is None:
        pytest.skip("no real S3 server here: the program 'weed' is missing")
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    """An empty folder in which processes note the faults that they have made."""
    folder = tmp_path / "faults"
    folder.mkdir()
    return folder
