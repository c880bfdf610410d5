"""docs/migration.md keeps its word: each way's commands move a real RocketMQ broker to TierMQ, and back again."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.peer import Peer
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, Distribution, Server, Unavailable, fetch
from interop.two_brokers import await_registered
from servers.loopback import free_ports
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import encode_body

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1_800)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
WAYS = re.findall(r"^## (\d\. .*?)$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
QUEUES = 4
MESSAGES = 400
CONSUMED = 7


def commands(way: str) -> list[str]:
    fences = re.findall(r"^```console\n(.*?)^```$", way, re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for fence in fences for line in fence.splitlines()]


class Home:
    """What an operator of RocketMQ has: its programs, a file of settings, a store; and a name server that runs."""

    def __init__(self, path: Path, distribution: Distribution) -> None:
        self.path, self.store = path, path / "store"
        self._distribution = distribution
        self.names, self._port, self.here, self._metrics = free_ports(4)
        self._ha = free_ports(1)[0]
        self.master = f"127.0.0.1:{self._port}"
        self._write("mqadmin", "exec", "org.apache.rocketmq.tools.command.MQAdminStartup")
        self._write("mqbroker", f"echo $$ > {path}/broker.pid; exec", "org.apache.rocketmq.broker.BrokerStartup")
        shutdown = path / "rocketmq" / "bin" / "mqshutdown"
        shutdown.write_text(f"kill $(cat {path}/broker.pid)\n")
        (path / "broker.conf").write_text(
            f"brokerClusterName={CLUSTER_NAME}\nbrokerName={BROKER_NAME}\nbrokerId=0\nbrokerRole=ASYNC_MASTER\n"
            f"bindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nlistenPort={self._port}\nhaListenPort={self._ha}\n"
            f"namesrvAddr=127.0.0.1:{self.names}\nstorePathRootDir={self.store}\n"
            f"storePathCommitLog={self.store}/commitlog\nmappedFileSizeCommitLog=1048576\n"
            # On a busy machine a broker refuses what waited for more than 200 ms; a wheel of 37 MiB tells nothing.
            "waitTimeMillsInSendQueue=60000\ntimerWheelEnable=false\n"
        )

    def _write(self, name: str, how: str, main_class: str) -> None:
        bin_path = self.path / "rocketmq" / "bin"
        bin_path.mkdir(parents=True, exist_ok=True)
        java = shlex.join(self._distribution.java(self.path / "home", main_class))
        (bin_path / name).write_text(f'{how} {java} "$@"\n')

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "NAMESRV_ADDR": f"127.0.0.1:{self.names}",
            "ROCKETMQ_HOME": str(self.path / "rocketmq"),
            "MASTER": self.master,
            "STORE": str(self.store),
            "HERE": "127.0.0.1",
            "PORT": str(self.here),
            "METRICS_PORT": str(self._metrics),
            "TIER": (self.path / "tier").as_uri(),
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """A name server and a broker of RocketMQ; at the end whatever broker of it runs then is stopped."""
        home = self.path / "home"
        home.mkdir()
        (home / "namesrv.conf").write_text(
            f"listenPort={self.names}\nbindAddress=127.0.0.1\nkvConfigPath={home}/kv.json\n"
        )
        java = self._distribution.java(
            home, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(home / "namesrv.conf")
        )
        names = Server(java, home / "namesrv.out")
        pid = self.path / "broker.pid"
        try:
            names.await_boot()
            script = str(self.path / "rocketmq" / "bin" / "mqbroker")
            broker = Server(["sh", script, "-c", str(self.path / "broker.conf")], home / "broker.out")
            try:
                broker.await_boot()
                await_registered("127.0.0.1", self.names)
                yield
            finally:
                broker.stop()
        finally:
            if pid.exists():
                end(int(pid.read_text()))
            names.stop()

    def peer(self) -> Peer:
        address = (f"127.0.0.1:{self.names}", CLUSTER_NAME, BROKER_NAME, self.master)
        return Peer(self._distribution.java(self.path / "home", "Peer", *address, heap="256m"), self.path / "peer.err")

    def commit(self) -> None:
        """The group `audit` has consumed some messages of one queue."""
        made = RemotingCommand(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body({"groupName": "audit"})
        )
        fields = {"consumerGroup": "audit", "topic": "orders", "queueId": "1", "commitOffset": str(CONSUMED)}
        with BlockingClient("127.0.0.1", self._port, timeout_s=60) as client:
            assert client.request(made).code == 0
            assert client.request(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields)).code == 0


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return


def sent(peer: Peer) -> set[bytes]:
    bodies = [b"order %d " % number + b"." * 9_000 for number in range(MESSAGES)]
    peer.create_topic("orders", QUEUES)
    for number, body in enumerate(bodies):
        peer.send({"topic": "orders", "queue": number % QUEUES, "body": body, "keys": [f"order-{number}"]})
    return set(bodies)


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
@pytest.mark.parametrize(("title", "way"), WAYS, ids=[title[:1] for title, _ in WAYS])
def test_the_commands_move_a_broker_to_tiermq_and_back(version: str, title: str, way: str, tmp_path: Path) -> None:
    assert len(WAYS) == 3
    try:
        home = Home(tmp_path, fetch(version))
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ here: {reason}")
    # Nothing that a script has started outlives it, whatever becomes of it.
    script = "\n".join(["set -eo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' ERR", "set -x", *commands(way)])
    with home.running():
        peer = home.peer()
        try:
            bodies = sent(peer)
        finally:
            peer.close()
        home.commit()
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path, env=home.environment, capture_output=True, text=True, check=False, start_new_session=True,
        )  # fmt: skip
        logs = "".join(f"\n== {each.name}\n{each.read_text()[-2_000:]}" for each in sorted(tmp_path.glob("*.log")))
        assert f"1 {CONSUMED}" in (tmp_path / "audit.before").read_text().splitlines(), "it compares something"
        assert done.returncode == 0, f"{title}\n{done.stdout[-2_000:]}\n{done.stderr[-4_000:]}\n{logs}"
        peer = home.peer()
        try:
            read = [each for queue in range(QUEUES) for each in peer.read("orders", queue)]
            found = peer.query("orders", "order-5")
        finally:
            peer.close()
    assert {each["body"] for each in read} == bodies | {b"sent to TierMQ"}
    assert len(read) == MESSAGES + 1
    assert [each["body"] for each in found] == [next(body for body in bodies if body.startswith(b"order 5 "))]
