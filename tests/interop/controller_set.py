"""Our controllers as processes, and brokers of RocketMQ in controller mode, for tests of elections."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, SMALL_FILES, Distribution, Server
from servers.loopback import free_ports
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object

LOOK_S = 0.05


def until(is_so: Callable[[], object]) -> None:
    while not is_so():
        time.sleep(LOOK_S)  # The peer is a process of its own: it reports no event that could be waited for.


class ControllerProcess:
    """`tiermq controller` in a process of its own."""

    def __init__(self, state: str, port: int = 0) -> None:
        command = [sys.executable, "-m", "tiermq.cli", "controller", "--state", state, "--port", str(port), "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.port = int(ready["port"])
        self.address = f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def ask_controller(address: str, code: int, body: bytes = b"", **ext: object) -> RemotingCommand:
    host, _, port = address.rpartition(":")
    fields = {name: str(value) for name, value in ext.items()}
    with BlockingClient(host, int(port), timeout_s=60) as client:
        return client.request(RemotingCommand(code, ext=fields, body=body))


def sync_state(address: str) -> dict[str, Any]:
    """What a controller knows about the set: master, epoch, ids in sync, ids alive."""
    body = json.dumps([BROKER_NAME]).encode()
    answer = ask_controller(address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body)
    found = decode_object(answer.body)["replicasInfoTable"].get(BROKER_NAME)
    if found is None:
        return {"master": None, "epoch": 0, "in_sync": set(), "alive": set()}
    everybody = [*found["inSyncReplicas"], *found["notInSyncReplicas"]]
    return {
        "master": found.get("masterBrokerId"),
        "epoch": found["masterEpoch"],
        "in_sync": {each["brokerId"] for each in found["inSyncReplicas"]},
        "alive": {each["brokerId"] for each in everybody if each["alive"]},
    }


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
