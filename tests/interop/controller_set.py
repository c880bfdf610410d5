"""Our controllers as processes, and brokers of RocketMQ in controller mode, for tests of elections."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, SMALL_FILES, Distribution, Server
from servers.loopback import free_ports
from servers.preloaded import Preloaded
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object

OPENINGS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util", "java.net", "java.math")
)
"""What the controller's own serialisation needs on a newer Java."""


class ControllerProcess:
    """`tiermq controller` in a process of its own."""

    def __init__(self, state: str, port: int = 0, words: tuple[str, ...] = ()) -> None:
        self.process = Preloaded(["controller", "--state", state, "--port", str(port), "--json", *words])
        ready = json.loads(self.process.stdout.readline())
        self.port = int(ready["port"])
        self.address = f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


def ask_controller(address: str, code: int, body: bytes = b"", **ext: object) -> RemotingCommand:
    host, _, port = address.rpartition(":")
    fields = {name: str(value) for name, value in ext.items()}
    with BlockingClient(host, int(port), timeout_s=60) as client:
        return client.request(RemotingCommand(code, ext=fields, body=body))


def _replicas(address: str) -> dict[str, Any] | None:
    body = json.dumps([BROKER_NAME]).encode()
    answer = ask_controller(address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body)
    table = decode_object(answer.body)["replicasInfoTable"] if len(answer.body) else {}  # It may have no leader yet.
    found: dict[str, Any] | None = table.get(BROKER_NAME)
    return found


def known_brokers(address: str) -> set[int]:
    """The ids of the set, whatever their state."""
    found = _replicas(address)
    assert found is not None
    return {each["brokerId"] for each in (*found["inSyncReplicas"], *found["notInSyncReplicas"])}


def sync_state(address: str) -> dict[str, Any]:
    """What a controller knows about the set: master, epoch, ids in sync, ids alive."""
    found = _replicas(address)
    if found is None:
        return {"master": None, "epoch": 0, "in_sync": set(), "alive": set()}
    everybody = [*found["inSyncReplicas"], *found["notInSyncReplicas"]]
    return {
        "master": found.get("masterBrokerId"),
        "epoch": found["masterEpoch"],
        "in_sync": {each["brokerId"] for each in found["inSyncReplicas"]},
        "alive": {each["brokerId"] for each in everybody if each["alive"]},
    }


class JavaController:
    """RocketMQ's own controller, one process that is its whole quorum."""

    def __init__(self, distribution: Distribution, path: Path) -> None:
        [port] = free_ports(1)
        path.mkdir(parents=True, exist_ok=True)
        self.address = f"127.0.0.1:{port}"
        settings = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": path / "state",
            "mappedFileSize": 16 * 1024 * 1024,
        }
        (path / "controller.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        opened = replace(distribution, options=(*distribution.options, *OPENINGS))
        command = ("org.apache.rocketmq.controller.ControllerStartup", "-c", str(path / "controller.conf"))
        self._server = Server(opened.java(path, *command), path / "controller.out")
        self._server.await_boot()

    def stop(self) -> None:
        self._server.stop()


class ControlledBroker:
    """`tiermq serve` in controller mode, as its user runs it."""

    def __init__(self, path: Path, name_server: int, controllers: str, **settings: object) -> None:
        self.store, self._home = path / "store", path / "home"
        self._home.mkdir(parents=True, exist_ok=True)
        [self._port] = free_ports(1)
        self.address = f"127.0.0.1:{self._port}"
        lines = {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": BROKER_NAME,
            "brokerIP1": "127.0.0.1",
            "listenPort": self._port,
            "haListenPort": 0,
            "fastListenPort": "ON",
            "namesrvAddr": f"127.0.0.1:{name_server}",
            "enableControllerMode": "true",
            "controllerAddr": controllers,
            "allAckInSyncStateSet": "true",
            "masterSyncInterval": 500,
            "timerWheelEnable": "false",
            **SMALL_FILES,
            **settings,
        }
        (self._home / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        words = ("serve", str(self.store), "-c", str(self._home / "broker.conf"), "--json", "--verbose")
        self._command = words
        self.process: Preloaded | None = None
        self.events: list[dict[str, Any]] = []

    def start(self) -> None:
        with (self._home / "errors").open("ab") as errors:
            self.process = Preloaded(self._command, stderr=errors)
        ready = threading.Event()
        threading.Thread(target=self._read, args=(self.process, ready), daemon=True).start()
        ready.wait()
        assert any(each["event"] == "ready" for each in self.events), (self._home / "errors").read_text()[-4000:]

    def _read(self, process: Preloaded, ready: threading.Event) -> None:
        with process.stdout:
            for line in process.stdout:
                self.events.append(json.loads(line))
                if self.events[-1]["event"] == "ready":
                    ready.set()
        ready.set()

    def stop(self, *, kill: bool = False) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill() if kill else process.terminate()
            process.wait()


class ControlledJavaBroker:
    """A broker of RocketMQ in controller mode, in a process of its own."""

    def __init__(
        self, distribution: Distribution, path: Path, name_server: int, controllers: str, **settings: object
    ) -> None:
        self.store, self._home = path / "store", path / "home"
        self._home.mkdir(parents=True, exist_ok=True)
        [self._port] = free_ports(1)
        self.address = f"127.0.0.1:{self._port}"
        lines = {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": BROKER_NAME,
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self._port,
            "haListenPort": self._port + 1,
            "namesrvAddr": f"127.0.0.1:{name_server}",
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "storePathEpochFile": self.store / "epochFileCheckpoint",
            "storePathBrokerIdentity": self.store / "brokerIdentity",
            "timerWheelEnable": "false",
            "enableControllerMode": "true",
            "controllerAddr": controllers,
            "allAckInSyncStateSet": "true",
            "registerNameServerPeriod": 10_000,
            "waitTimeMillsInSendQueue": 60_000,
            **SMALL_FILES,
            **settings,
        }
        (self._home / "broker.conf").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        command = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(self._home / "broker.conf"))
        self._command = distribution.java(self._home, *command)
        self.server: Server | None = None

    def start(self) -> None:
        self.server = Server(self._command, self._home / "broker.out")
        self.server.await_boot()

    def stop(self, *, kill: bool = False) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.kill() if kill else server.stop()
