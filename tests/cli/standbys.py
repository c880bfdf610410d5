"""Replicas of one broker as processes (`tiermq serve --standby`), and a producer that finds the master."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from click.testing import CliRunner

from broker.brokers import send_command
from broker.consuming import pull_fields
from servers.serving import Serving
from tiermq.cli.main import cli
from tiermq.errors import RemotingError
from tiermq.message.record import decode_records
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from waiting import until

FAST: dict[str, object] = {
    "master_lease_term": 3_000,
    "master_lease_renewal": 700,
    "master_lease_margin": 600,
    "master_lease_look": 200,
    "master_sync_interval": 200,
    "register_name_server_period": 500,
    "slave_timeout": 60_000,  # A replica that gets no processor for seconds is no failure.
}
RETRY_S = 0.02
"""Between two tries of a producer."""
SUBSCRIBED = {"sysFlag": 4, "subscription": "*", "expressionType": "TAG"}


class Replicas:
    """See the module."""

    def __init__(self, path: Path, names: NameServer, place: tuple[str, str], **settings: object) -> None:
        self.path, self.names = path, names
        self.name_server = f"127.0.0.1:{names.port}"
        self._words = ("--namesrv", self.name_server, "--standby", *place)
        self._settings = {**FAST, **settings}
        self.serving: dict[str, Serving] = {}

    def start(self, name: str) -> Serving:
        if name not in self.serving:
            self.serving[name] = Serving(self.path / name, *self._words, **self._settings)
        self.serving[name].start()
        return self.serving[name]

    def status(self, of: Serving) -> dict[str, Any]:
        """What it reports; a role of "unknown" when it does not answer."""
        result = CliRunner().invoke(cli, ["broker", "status", f"127.0.0.1:{of.port}", "--json", "-n", self.name_server])
        found: dict[str, Any] = json.loads(result.stdout)["replicas"][0]
        return found

    def is_master(self, of: Serving) -> bool:
        found = self.status(of)
        return bool(found["role"] == "master" and found["mayAcknowledge"])

    def in_sync(self, of: Serving) -> list[int]:
        """The recorded set, of a master."""
        found = self.status(of)
        members: list[int] = found["election"]["inSync"] if found["role"] == "master" else []
        return members

    def master(self) -> str:
        """The address that the name server has; empty without one."""
        with BlockingClient("127.0.0.1", self.names.port) as client:
            answer = client.request(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        table = decode_object(answer.body)["brokerAddrTable"].get("b1", {"brokerAddrs": {}})
        return str(table["brokerAddrs"].get("0", ""))

    def run(self, *words: str, code: int = 0) -> dict[str, Any]:
        result = CliRunner().invoke(cli, [*words, "--json", "-n", self.name_server])
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        found: dict[str, Any] = json.loads(result.stdout) if result.stdout.startswith("{") else {"said": result.output}
        return found

    def stop(self) -> None:
        for each in self.serving.values():
            if each.process is not None:
                each.process.send_signal(signal.SIGCONT)
            each.kill()


@contextlib.contextmanager
def replicas(path: Path, *place: str, **settings: object) -> Iterator[Replicas]:
    with NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0)) as names:
        made = Replicas(path, names, (place[0], place[1]), **settings)
        try:
            yield made
        finally:
            made.stop()


class Sending:
    """A producer that sends numbered messages to queue 0 of the master, one after the other, and never gives up."""

    def __init__(self, of: Replicas) -> None:
        self.acknowledged: dict[int, bytes] = {}
        """Bodies by queue offset."""
        self.gaps_s: list[float] = []
        """Times between two acknowledgements."""
        self.conflicts: list[str] = []
        self._of = of
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def more(self, count: int = 20) -> None:
        """Wait for that many further acknowledgements."""
        wanted = len(self.acknowledged) + count
        until(lambda: len(self.acknowledged) >= wanted)

    def _run(self) -> None:
        number, last_s = 0, time.monotonic()
        while not self._over.wait(RETRY_S):
            try:
                address = self._of.master()
                if not address:
                    continue
                host, _, port = address.rpartition(":")
                with BlockingClient(host, int(port), timeout_s=2.0) as client:
                    while not self._over.is_set():
                        body = b"%d" % number
                        answer = client.request(send_command("T", body))
                        if answer.code != ResponseCode.SUCCESS:
                            break
                        number += 1
                        offset = int(answer.ext["queueOffset"])
                        if offset in self.acknowledged:
                            self.conflicts.append(f"{offset}: {self.acknowledged[offset]!r} and {body!r}")
                        self.acknowledged[offset] = body
                        now_s = time.monotonic()
                        self.gaps_s.append(now_s - last_s)
                        last_s = now_s
            except (RemotingError, OSError):
                continue


def ask_master(address: str, command: RemotingCommand, **secured: Any) -> RemotingCommand:
    """A master's answer. One that gets no processor for longer than its short lease refuses meanwhile, or drops what it
    cannot send; it goes on once it has renewed the lease.
    """
    host, _, port = address.rpartition(":")
    answers: list[RemotingCommand] = []

    def is_answered() -> bool:
        with contextlib.suppress(RemotingError), BlockingClient(host, int(port), timeout_s=60.0, **secured) as client:
            answers.append(client.request(command))
        return bool(answers) and answers[-1].code != ResponseCode.SERVICE_NOT_AVAILABLE

    until(is_answered)
    return answers[-1]


def messages(address: str, topic: str = "T") -> dict[int, bytes]:
    """All messages of queue 0 at a broker, by offset: pulled over the wire."""
    found: dict[int, bytes] = {}
    offset = 0
    while True:
        ext = {name: str(value) for name, value in {**pull_fields(offset), **SUBSCRIBED, "topic": topic}.items()}
        answer = ask_master(address, RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext))
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        for each in decode_records(bytes(answer.body)):
            found[each.queue_offset] = each.body
        offset = int(answer.ext["nextBeginOffset"])


def check(sending: Sending, found: dict[int, bytes]) -> None:
    """No acknowledged message is lost or elsewhere, and offsets are unbroken."""
    assert not sending.conflicts
    assert {offset: found.get(offset) for offset in sending.acknowledged} == sending.acknowledged
    assert sorted(found) == list(range(len(found)))
