"""docs/migration.md keeps its word: its commands move RocketMQ's broker, and its slave, to TierMQ, and back again."""

from __future__ import annotations

import json
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
from servers.preloaded import Preloaded
from tiermq import LocalStore
from tiermq.errors import StoreLocked
from tiermq.files.store_lock import StoreLock
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import encode_body
from waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1_800)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
SECTIONS = re.findall(r"^## (.*?)$(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
WAYS = [(title, way) for title, way in SECTIONS if title[0].isdigit()]
QUEUES = 4
MESSAGES = 400
CONSUMED = 7


def commands(way: str) -> list[str]:
    fences = re.findall(r"^```console\n(.*?)^```$", way, re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for fence in fences for line in fence.splitlines()]


class Home:
    """What an operator of RocketMQ has: its programs, a file of settings, a store; and a name server that runs.

    With a `master` it is the machine of its slave.
    """

    def __init__(self, path: Path, distribution: Distribution, master: Home | None = None) -> None:
        self.path, self.store = path, path / "store"
        self._distribution = distribution
        names, self._port, self.here, self._metrics, self._ha = free_ports(5)
        self.names: int = names if master is None else master.names
        self.conf = path / ("broker.conf" if master is None else "slave.conf")
        role = "brokerId=0\nbrokerRole=ASYNC_MASTER" if master is None else "brokerId=1\nbrokerRole=SLAVE"
        (path / "home").mkdir(parents=True)
        self.master = f"127.0.0.1:{self._port}"
        self._write("mqadmin", "exec", "org.apache.rocketmq.tools.command.MQAdminStartup")
        self._write("mqbroker", f"echo $$ > {path}/broker.pid; exec", "org.apache.rocketmq.broker.BrokerStartup")
        shutdown = path / "rocketmq" / "bin" / "mqshutdown"
        shutdown.write_text(f"kill $(cat {path}/broker.pid)\n")
        self.conf.write_text(
            f"brokerClusterName={CLUSTER_NAME}\nbrokerName={BROKER_NAME}\n{role}\n"
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
    def running(self) -> Iterator[Server]:
        """A name server and a broker of RocketMQ; at the end whatever broker of it runs then is stopped."""
        home = self.path / "home"
        (home / "namesrv.conf").write_text(
            f"listenPort={self.names}\nbindAddress=127.0.0.1\nkvConfigPath={home}/kv.json\n"
        )
        java = self._distribution.java(
            home, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(home / "namesrv.conf")
        )
        names = Server(java, home / "namesrv.out")
        try:
            names.await_boot()
            with self.broker() as broker:
                await_registered("127.0.0.1", self.names)
                yield broker
        finally:
            names.stop()

    @contextmanager
    def broker(self) -> Iterator[Server]:
        script = str(self.path / "rocketmq" / "bin" / "mqbroker")
        broker = Server(["sh", script, "-c", str(self.conf)], self.path / "home" / "broker.out")
        try:
            broker.await_boot()
            yield broker
        finally:
            broker.stop()
            pid = self.path / "broker.pid"
            if pid.exists():
                end(int(pid.read_text()))

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


def followed(way: str, environment: dict[str, str], path: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    """What came out of the commands of a section, and the logs that they left."""
    # Nothing that a script has started outlives it, whatever becomes of it.
    script = "\n".join(["set -eo pipefail", "trap 'kill $(jobs -p) 2>/dev/null || true' ERR", "set -x", *commands(way)])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=path, env=environment, capture_output=True, text=True, check=False, start_new_session=True,
    )  # fmt: skip
    return done, "".join(f"\n== {each.name}\n{each.read_text()[-2_000:]}" for each in sorted(path.glob("*.log")))


def is_closed(store: Path) -> bool:
    """RocketMQ releases its lock after it has removed `abort`."""
    try:
        StoreLock(str(store / "lock")).release()
    except StoreLocked:
        return False
    return not (store / "abort").exists()


def log_end(address: str) -> str:
    host, _, port = address.partition(":")
    with BlockingClient(host, int(port), timeout_s=60) as client:
        answer = client.request(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
    table: dict[str, str] = json.loads(bytes(answer.body))["table"]
    return table["commitLogMaxOffset"]


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
@pytest.mark.parametrize(("title", "way"), WAYS, ids=[title[:1] for title, _ in WAYS])
def test_the_commands_move_a_broker_to_tiermq_and_back(version: str, title: str, way: str, tmp_path: Path) -> None:
    assert len(WAYS) == 3
    try:
        home = Home(tmp_path, fetch(version))
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ here: {reason}")
    with home.running():
        peer = home.peer()
        try:
            bodies = sent(peer)
        finally:
            peer.close()
        home.commit()
        done, logs = followed(way, home.environment, tmp_path)
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


@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_the_commands_move_a_slave_after_its_master_and_back(version: str, tmp_path: Path) -> None:
    [way] = [way for title, way in SECTIONS if title == "A slave"]
    try:
        distribution = fetch(version)
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ here: {reason}")
    home = Home(tmp_path / "master", distribution)
    slave = Home(tmp_path / "slave", distribution, master=home)
    environment = {**slave.environment, "MASTER": home.master, "PORT": slave.master.partition(":")[2]}
    with home.running() as master, slave.broker():
        peer = home.peer()
        try:
            peer.create_topic("orders", QUEUES)
            peer.send({"topic": "orders", "queue": 0, "body": b"first"})
            # RocketMQ's master sends an empty slave its newest file only: here that is the first.
            until(lambda: log_end(slave.master) == log_end(home.master))
            bodies = {b"first"} | sent(peer)
        finally:
            peer.close()
        until(lambda: log_end(slave.master) == log_end(home.master))
        master.stop()  # It has moved already, by way 1.
        moved = Preloaded(["serve", "-c", str(home.conf), "--json"])
        try:
            assert json.loads(moved.stdout.readline())["event"] == "ready"
            done, logs = followed(way, environment, slave.path)
            assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-4_000:]}\n{logs}"
        finally:
            moved.terminate()
            moved.communicate()
    until(lambda: is_closed(slave.store))
    with LocalStore.open(slave.store, mapped_file_size_commit_log=1_048_576) as store:
        found = [message.body for message in store.read("orders")]
    assert set(found) == bodies | {b"sent to TierMQ", b"and to RocketMQ"}
    assert len(found) == MESSAGES + 3
