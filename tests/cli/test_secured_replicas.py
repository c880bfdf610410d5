"""Replicas with accounts and TLS on every port, as their users run them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.brokers import send_command
from cli.standbys import FAST, ask_master
from interop.controller_set import ControllerProcess
from servers.certificates import Certificates
from servers.loopback import free_ports
from servers.serving import Following, Serving
from tiermq.cli.main import cli
from tiermq.errors import RemotingError
from tiermq.message.record import decode_records
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.remoting.permissions import AccessFile, Credentials
from tiermq.replication.ha_stream import HEADER, REPORT
from waiting import until

ACCOUNTS = """
[[accounts]]
accessKey = "root"
secretKey = "a long secret"
admin = true
"""
ROOT = Credentials("root", "a long secret")
SELDOM_MS = 600_000


class Secured:
    """A name server and certificates; servers and clients with both kinds of security."""

    def __init__(self, path: Path, world: ExitStack) -> None:
        self.path, self._world = path, world
        self.made = Certificates(path / "certificates", "server", "client")
        self.accounts = path / "acl.toml"
        self.accounts.write_text(ACCOUNTS)
        config = NameServerConfig(bind_address="127.0.0.1", listen_port=0)
        names = NameServer(config, tls=self.made.settings("server"), acl=AccessFile(self.accounts))
        self.names = world.enter_context(names)
        self.name_server = f"127.0.0.1:{names.port}"
        self.words = (*self.made.server_words("server"), "--acl", str(self.accounts))

    def serving(self, name: str, *words: str, **settings: object) -> Serving:
        more = {**FAST, "ha_tls_enable": True, "master_sync_interval": SELDOM_MS, **settings}
        made = Serving(self.path / name, "--namesrv", self.name_server, *words, *self.words, **more)
        self._world.callback(made.kill)
        made.start()
        return made

    def ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
        host, _, port = address.rpartition(":")
        context = self.made.client("client").context()
        with BlockingClient(host, int(port), tls=context, credentials=ROOT, timeout_s=60.0) as client:
            return client.request(command)

    def ask_master(self, address: str, command: RemotingCommand) -> RemotingCommand:
        return ask_master(address, command, tls=self.made.client("client").context(), credentials=ROOT)

    def masters(self) -> list[str]:
        answer = self.ask(self.name_server, RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        table = decode_object(answer.body)["brokerAddrTable"].get("b1", {"brokerAddrs": {}})
        return [str(address) for number, address in table["brokerAddrs"].items() if number == "0"]

    def create_topic(self, address: str, name: str) -> None:
        ext = {"topic": name, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
        answer = self.ask_master(address, RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext))
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def send(self, address: str, body: bytes) -> None:
        answer = self.ask_master(address, send_command("T", body))
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def is_acknowledged(self, address: str, body: bytes) -> bool:
        try:
            return self.ask(address, send_command("T", body)).code == ResponseCode.SUCCESS
        except RemotingError:
            return False

    def has_topic(self, address: str, name: str) -> bool:
        answer = self.ask_master(address, RemotingCommand(RequestCode.GET_TOPIC_CONFIG, ext={"topic": name}))
        return answer.code == ResponseCode.SUCCESS


@contextmanager
def secured(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", ROOT.access_key)
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", ROOT.secret_key)
    with ExitStack() as world:
        yield Secured(path, world)


def test_standbys_with_accounts_and_tls_hand_over_and_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secured(tmp_path, monkeypatch) as at:

        def tool(*words: str) -> Result:
            return CliRunner().invoke(cli, [*words, "-n", at.name_server, *at.made.client_words("client")])

        def in_sync(of: Serving) -> list[int]:
            result = tool("broker", "status", of.address, "--json")
            assert result.exit_code in (0, 1), f"{result.output}\n{result.exception!r}"  # 1: it is no master.
            [found] = json.loads(result.stdout)["replicas"]
            members: list[int] = found["election"]["inSync"] if found["role"] == "master" else []
            return members

        standby = ("--standby", "--lease", f"file://{tmp_path}/lease")
        a, b = at.serving("a", *standby), at.serving("b", *standby)
        until(lambda: in_sync(a) == [1, 2])
        at.create_topic(a.address, "T")
        at.send(a.address, b"0")
        demoted = tool("broker", "demote", "b1")
        assert demoted.exit_code == 0, f"{demoted.output}\n{demoted.exception!r}"
        until(lambda: at.masters() == [b.address])
        until(lambda: in_sync(b) == [1, 2])
        at.send(b.address, b"1")
        at.create_topic(b.address, "U")
        b.kill()
        until(lambda: at.masters() == [a.address])
        at.send(a.address, b"2")
        assert at.has_topic(a.address, "U")


def test_brokers_of_a_controller_with_accounts_and_tls_are_notified_and_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secured(tmp_path, monkeypatch) as at:
        controller = ControllerProcess(f"file://{tmp_path}/state", words=at.words)
        at._world.callback(controller.stop)
        mode = {
            "enable_controller_mode": True,
            "controller_addr": controller.address,
            "sync_broker_metadata_period": SELDOM_MS,  # So that only a notification tells of a new master.
            "broker_heartbeat_interval": 200,
        }
        a, b = at.serving("a", **mode), at.serving("b", **mode)

        def in_sync() -> set[int]:
            answer = at.ask(
                controller.address, RemotingCommand(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["b1"]')
            )
            found = decode_object(answer.body)["replicasInfoTable"].get("b1", {"inSyncReplicas": []})
            return {each["brokerId"] for each in found["inSyncReplicas"]}

        until(lambda: in_sync() == {1, 2})
        at.create_topic(a.address, "T")
        at.send(a.address, b"0")
        a.kill()
        until(lambda: at.is_acknowledged(b.address, b"1"))
        assert at.has_topic(b.address, "T")


def test_a_master_with_accounts_and_tls_on_both_ports_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secured(tmp_path, monkeypatch) as at:
        master = at.serving("a", ha_listen_port=0)
        at.create_topic(master.address, "T")
        for number in range(10):
            at.send(master.address, b"%d" % number)
        tier = ("--tier", (tmp_path / "tier").as_uri(), "--namesrv", at.name_server, "--broker", "b1")
        words = ["follow", str(tmp_path / "none"), *tier, "--tls"]
        refused = CliRunner().invoke(cli, words)
        assert refused.exit_code == 2
        assert "certificate" in refused.output
        with Following(tmp_path / "shadow", *tier, *at.made.client_words("client")) as shadow:
            shadow.progress(
                lambda reported: reported["connected"] and reported["copiedTo"] > 0 and reported["notUploaded"] == 0
            )
            fields = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32}
            more = {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}
            ext = {name: str(value) for name, value in {**fields, **more}.items()}
            host, _, port = shadow.ready["address"].rpartition(":")

            def pulled() -> int:
                with BlockingClient(host, int(port), timeout_s=60.0) as client:
                    answer = client.request(RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext))
                return len(list(decode_records(bytes(answer.body)))) if answer.code == ResponseCode.SUCCESS else 0

            until(lambda: pulled() == 10)


def test_the_ha_port_listens_where_it_is_told_and_serves_only_the_addresses_that_are_allowed(tmp_path: Path) -> None:
    [port] = free_ports(1)
    places = {"ha_listen_port": port, "ha_bind_address": "127.0.0.3", "ha_allowed_addresses": "127.0.0.2,127.0.1.0/24"}
    with Serving(tmp_path / "a", broker_role="SYNC_MASTER", **places):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        for source, is_served in (("127.0.0.2", True), ("127.0.1.77", True), ("127.0.0.1", False)):
            with socket.create_connection(("127.0.0.3", port), source_address=(source, 0)) as slave:
                try:
                    slave.sendall(REPORT.pack(0))
                    answered = slave.recv(HEADER.size)
                except ConnectionResetError:
                    answered = b""
                assert bool(answered) == is_served, source
