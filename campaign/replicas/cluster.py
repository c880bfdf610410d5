"""The processes of a round: three `tiermq serve --standby`, their name server, and S3 where the lease is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from campaign.networks.proxy import CLEAR, Proxy, Weather
from campaign.replicas.namespaces import HUB, STORE, Machine, make_hub
from servers.seaweedfs import SeaweedFS
from tiermq.errors import RemotingError
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver

REPLICAS = 3
PORT = 10911
TERM_S = 4.0
STATUS_S = 5.0
END_S = 15.0
"""After so long a replica that was asked to end is killed, as a supervisor does."""
BUCKET = "replicas"
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 1_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
}
"""Small files, so that they roll; a store is opened with them when its replica has ended."""
SHORT: dict[str, Any] = {
    "master_lease_term": round(TERM_S * 1000),
    "master_lease_renewal": 1_000,
    "master_lease_margin": 600,
    "master_lease_look": 300,
    "master_sync_interval": 500,
    "register_name_server_period": 1_000,
    "ha_send_heartbeat_interval": 400,
    "ha_housekeeping_interval": 3_000,
    "ha_max_time_slave_not_catchup": 3_000,
    "slave_timeout": 2_000,
}
"""As short as three processes keep them on two cores that do other work, too."""
PROMPT: dict[str, Any] = {"tiered_store_group_commit_timeout": 200}
LAGGING: dict[str, Any] = {
    "tiered_store_group_commit_timeout": 15_000,
    "tiered_store_group_commit_count": 1_000_000,
    "tiered_store_group_commit_size": 256 * 1024 * 1024,
}
"""Of a run's messages the tier has few."""
CLEANING: dict[str, Any] = {
    "file_reserved_time": 0,
    "delete_commit_log_files_interval": 1,
    "clean_resource_interval": 300,
    "tier_follow_interval": 1_000,
}
"""With requests to clean (329)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a cluster is set up. `kind`: "directory" (lease in a directory), "lease" (in S3), or "tier" (all of it).
    `cleans`: with a tier, files of the log may be deleted as soon as they are full. `lags`: uploads are far behind.
    """

    kind: str
    flush: str
    in_sync_replicas: int
    cleans: bool = False
    lags: bool = False
    slave_reads: bool = False


class Replica:
    """One machine and its process. Used by one thread."""

    def __init__(self, number: int, scratch: Path, words: list[str], environment: dict[str, str], plan: Plan) -> None:
        self.machine = Machine(number)
        self.store = scratch / f"replica-{number}"
        self.log = scratch / f"replica-{number}.log"
        self.exits = 0
        self.is_stopped = False
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        host = self.machine.address
        settings = {**SIZES, **SHORT, "broker_name": "b1", "bind_address": host, "broker_ip1": host}
        settings |= {"flush_disk_type": plan.flush, "in_sync_replicas": plan.in_sync_replicas}
        settings["slave_read_enable"] = plan.slave_reads
        if plan.kind == "tier":
            settings |= LAGGING if plan.lags else PROMPT
        if plan.cleans:
            settings |= CLEANING
        path = scratch / f"replica-{number}.toml"
        path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
        self._command = [*self.machine.inside, "setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tiermq.cli"]
        self._command += ["serve", str(self.store), "-c", str(path), "--json", "--port", str(PORT), "--standby", *words]

    @property
    def address(self) -> str:
        return f"{self.machine.address}:{PORT}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns at once."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)

    def keep_running(self) -> None:
        """Start it again if it has ended by itself, as a supervisor does."""
        if self._process is not None and self._process.poll() is not None:
            self.exits += 1
            self.start()

    def stop(self) -> None:
        """SIGSTOP: it does nothing until `go_on`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            self.is_stopped = True

    def go_on(self) -> None:
        if self._process is not None and self.is_stopped:
            self._process.send_signal(signal.SIGCONT)
        self.is_stopped = False

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, and wait for it. Twice does no harm."""
        self.go_on()
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def status(self) -> dict[str, Any]:
        """What it reports of its role; empty when it does not answer."""
        try:
            with BlockingClient(self.machine.address, PORT, timeout_s=STATUS_S) as client:
                found: dict[str, Any] = decode_object(client.request(RemotingCommand(RequestCode.GET_BROKER_ROLE)).body)
        except (RemotingError, OSError, ValueError):
            return {}
        return found


class Cluster:
    """See the module. In a thread that has left its network; used by that thread, except for `master_address`."""

    def __init__(self, scratch: Path, plan: Plan) -> None:
        self._scratch, self.plan = scratch, plan
        self._stack = ExitStack()
        self.replicas: list[Replica] = []
        self._environment: dict[str, str] = {}
        self._proxy: Proxy | None = None

    def __enter__(self) -> Self:
        try:
            make_hub()
            self._names = self._stack.enter_context(NameServer(NameServerConfig(bind_address=HUB, listen_port=0)))
            words, environment = ["--namesrv", f"{HUB}:{self._names.port}"], dict[str, str]()
            if self.plan.kind == "directory":
                words += ["--lease", f"file://{self._scratch / 'lease'}"]
            else:
                environment = self._environment = self._start_store()
                words += ["--lease" if self.plan.kind == "lease" else "--tier", f"s3://{BUCKET}/round"]
            for number in range(1, REPLICAS + 1):
                replica = Replica(number, self._scratch, words, environment, self.plan)
                self.replicas.append(replica)
                self._stack.callback(replica.machine.close)
                self._stack.callback(replica.end)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start_store(self) -> dict[str, str]:
        server = self._stack.enter_context(SeaweedFS(self._scratch / "s3"))
        server.create_bucket(BUCKET)
        self._proxy = Proxy("127.0.0.1", int(server.endpoint.rpartition(":")[2]), listen_host=STORE)
        self._stack.callback(self._proxy.close)
        return {**server.environment, "AWS_ENDPOINT_URL": f"http://{self._proxy.address}"}

    def tier(self) -> TierDriver | None:
        """Of the replicas, to read it; None without one."""
        url = f"s3://{BUCKET}/round"
        return open_driver(url, environment=self._environment, reads=True) if self.plan.kind == "tier" else None

    def set_store(self, weather: Weather = CLEAR) -> None:
        """How the object store is reached from now on."""
        if self._proxy is not None:
            self._proxy.set(weather)

    def master_address(self) -> str:
        """As the name server has it; empty without one. Any thread of the hub may call."""
        with BlockingClient(HUB, self._names.port, timeout_s=STATUS_S) as client:
            answer = client.request(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        table = decode_object(answer.body)["brokerAddrTable"].get("b1", {"brokerAddrs": {}})
        return str(table["brokerAddrs"].get("0", ""))

    def master(self) -> Replica | None:
        """The one that is the master for certain; None while there is none."""
        for each in self.replicas:
            if each.is_running and not each.is_stopped and each.status().get("mayAcknowledge"):
                return each
        return None

    def heal(self) -> None:
        """End every fault, and start what was killed."""
        self.set_store()
        for each in self.replicas:
            each.machine.heal()
            each.go_on()
            if not each.is_running:
                each.start()

    def why_not_equal(self) -> str:
        """What is missing until all replicas are in sync and have the same log; empty when nothing is."""
        for each in self.replicas:
            each.keep_running()
        found = [each.status() for each in self.replicas]
        masters = [each for each in found if each.get("role") == "master" and each.get("mayAcknowledge")]
        if len(masters) != 1 or not all(found):
            return f"roles {[each.get('role', 'none') for each in found]}, {[each.get('problem') for each in found]}"
        members = masters[0]["election"]["inSync"]
        ends = [each["logEnd"] for each in found]
        if len(members) != len(found) or len(set(ends)) > 1 or masters[0]["confirmedOffset"] != ends[0]:
            return f"in sync {members}, logs up to {ends}, {[each.get('problem') for each in found]}"
        return ""
