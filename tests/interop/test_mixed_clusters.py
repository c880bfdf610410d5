"""Our broker at RocketMQ's name server, and RocketMQ's broker at ours: RocketMQ's clients notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.java_client import JavaClient, bodies
from interop.rocketmq import SMALL_FILES, Cluster, Distribution
from servers.serving import Serving
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("java-clients")]

BODIES = [f"order {number}" for number in range(20)]


class OurNameServer(Cluster):
    """A real broker that knows no name server but ours."""

    def __init__(self, distribution: Distribution, scratch: Path) -> None:
        config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(scratch / "kv.json"))
        self.ours = NameServer(config)
        self.ours.start()
        super().__init__(distribution, scratch / "store", scratch / "home", SMALL_FILES)

    def _broker_settings(self, store: Path) -> dict[str, object]:
        return {**super()._broker_settings(store), "namesrvAddr": f"127.0.0.1:{self.ours.port}"}

    def stop(self) -> None:
        super().stop()
        self.ours.stop()

    def crash(self) -> None:
        super().crash()
        self.ours.stop()


class RealNameServer(Cluster):
    """RocketMQ's name server; its broker is there too and is asked nothing."""

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self._name_server_port}"


@contextmanager
def our_broker_at_their_name_server(distribution: Distribution, path: Path) -> Iterator[str]:
    with (
        RealNameServer(distribution, path / "theirs", path / "home", SMALL_FILES) as cluster,
        Serving(path / "store", "--namesrv", cluster.name_server, broker_cluster_name="Ours") as served,
    ):
        assert served.name_server == cluster.name_server
        yield cluster.name_server


@contextmanager
def their_broker_at_our_name_server(distribution: Distribution, path: Path) -> Iterator[str]:
    with OurNameServer(distribution, path) as cluster:
        yield f"127.0.0.1:{cluster.ours.port}"


@pytest.mark.parametrize("cluster", [our_broker_at_their_name_server, their_broker_at_our_name_server])
def test_java_clients_send_and_receive(distribution: Distribution, tmp_path: Path, cluster: object) -> None:
    assert callable(cluster)
    with cluster(distribution, tmp_path) as name_server:
        client = JavaClient(distribution, name_server, tmp_path)
        # One queue of one broker's own topic, which only that broker registers.
        topic = "b1" if cluster is our_broker_at_their_name_server else "broker-a"
        sent = client.run(topic=topic, group="P", bodies=BODIES, awaitRoute=True)
        assert {event["sent"]["status"] for event in sent} == {"SEND_OK"}
        assert sorted(bodies(client.run(topic=topic, group="G", receive=len(BODIES)))) == sorted(BODIES)
