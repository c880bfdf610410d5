"""Fleet: six masters in three clusters, an S3 server, a Spark cluster and a continuous offload of all into one bucket.

    rocketmq-5.3, rocketmq-5.5     two unmodified brokers each, at one name server
    tiermq                         two `tiermq serve` that follow the bucket, and evict what is proven there
    SeaweedFS                      the bucket
    two Spark workers, one driver  in mount namespaces in which every broker's directory is empty
    SteadyLoad                     RocketMQ's own producer on all six brokers

Any process but the name server, the producer and the Spark master may be killed; `Fleet` starts it again. A driver that
gave up (a bucket that was away for long) is started again, as a service manager would do it.
Used by one thread.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from campaign.environment import environment
from campaign.fleets.load import SteadyLoad
from campaign.kills.brokers import SMALL_TIER
from campaign.kills.processes import descendants, kill, kind_of
from interop.rocketmq import SMALL_FILES, Cluster, Distribution, fetch
from interop.rocketmq import Unavailable as NoRocketMQ
from servers.seaweedfs import SeaweedFS
from servers.seaweedfs import missing as missing_server
from servers.serving import Serving
from spark.cluster.standalone import StandaloneCluster, without_sight_of
from tiermq.message.record import decode_records
from tiermq.message.topic_name import TOOLS_GROUP
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

VERSIONS = ("5.3.3", "5.5.0")
TOPIC, QUEUES = "orders", 2
BUCKET = "fleet"
TIER = f"s3://{BUCKET}/history"
NEVER = 99
"""As an hour for RocketMQ's `deleteWhen`: its retention works when it is asked to."""
ROCKETMQ_SETTINGS = {
    **SMALL_FILES,
    "mappedFileSizeCommitLog": 256 * 1024,
    "fileReservedTime": 48,
    "deleteWhen": NEVER,
    "cleanResourceInterval": 200,
}
EVICTING = {
    "file_reserved_time": 0,
    "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    "clean_resource_interval": 300,
    "delete_commit_log_files_interval": 0,
}
JOB_SETTINGS = {
    "tier_lease_term": 5_000,
    "tier_manifest_interval": 1_000,
    **{name: value for name, value in SMALL_TIER.items() if name.startswith("tiered_store_")},
}
SPARK = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Executors are killed on purpose, and more often than a real application would stand.
    "spark.task.maxFailures": "8",
    "spark.deploy.maxExecutorRetries": "-1",
}
LEFT_OUT = ("data", "commitlog", "consumequeue", "index", "timerwheel", "rocksdbstore", "*.jar")
KINDS = ("executor", "worker", "driver", "object store", "rocketmq broker", "tiermq broker")
_POLL_S = 0.1
COLD_READ_TRIES, AGAIN_S = 10, 3.0
"""As RocketMQ's push consumer does: it pulls again 3 s after an error."""


def missing() -> str:
    """What this machine lacks for a fleet; "" when it can be."""
    if os.geteuid():
        return "mount namespaces need root"
    try:
        for version in VERSIONS:
            fetch(version)
    except NoRocketMQ as reason:
        return f"no RocketMQ: {reason}"
    return missing_server()


class RocketMQBroker(Cluster):
    """One master of a cluster of several; the first one also starts the name server of all."""

    def __init__(self, distribution: Distribution, store: Path, scratch: Path, first: Cluster | None) -> None:
        self._first = first
        self.name = store.name
        super().__init__(distribution, store, scratch, ROCKETMQ_SETTINGS)

    def _broker_settings(self, store: Path) -> dict[str, object]:
        reported = super()._broker_settings(store)
        reported |= {"brokerName": store.name, "brokerClusterName": store.name.rpartition("-")[0]}
        return reported if self._first is None else reported | {"namesrvAddr": self._first.name_server}

    def _start(self) -> None:
        if self._first is None:
            super()._start()
        else:
            self.start_broker()

    @property
    def address(self) -> str:
        return self.broker_address

    def kill_and_start(self) -> None:
        self.kill_broker()
        self.start_broker()


class TierMQBroker(Serving):
    """One master of ours."""

    def __init__(self, store: Path, name_server: str) -> None:
        self.name = store.name
        super().__init__(
            store,
            "--namesrv",
            name_server,
            "--tier",
            TIER,
            broker_name=store.name,
            broker_cluster_name=store.name.rpartition("-")[0],
            tier_dispatch_enable=False,
            **{**SMALL_TIER, **EVICTING},
        )

    def kill_and_start(self) -> None:
        self.kill()
        self.start()


Broker = RocketMQBroker | TierMQBroker


class Fleet:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._hidden = directory / "brokers"
        self._open = ExitStack()
        self._driver: subprocess.Popen[bytes] | None = None
        self.brokers: list[Broker] = []
        self.driver_starts = 0
        self.asked_again = 0
        self.driver_ends: list[int] = []
        """Exit codes of drivers that ended by themselves."""

    def start(self) -> None:
        self._hidden.mkdir(parents=True)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        enter, distributions = self._open.enter_context, {version: fetch(version) for version in VERSIONS}
        self.server = enter(SeaweedFS(self.directory / "s3"))
        self.server.create_bucket(BUCKET)
        enter(environment(self.server.environment))
        first: RocketMQBroker | None = None
        for version in VERSIONS:
            for letter in "ab":
                name = f"rocketmq-{version.rpartition('.')[0]}-{letter}"
                made = RocketMQBroker(distributions[version], self._hidden / name, self.directory / name, first)
                first = first or made
                self.brokers.append(enter(made))
        assert first is not None
        self.name_server = first.name_server
        for letter in "ab":
            self.brokers.append(enter(TierMQBroker(self._hidden / f"tiermq-{letter}", self.name_server)))
        for broker in self.brokers:
            self._make_topic(broker)
        self.load = SteadyLoad(distributions[VERSIONS[0]], self.name_server, self.directory)
        self._open.callback(self.load.close)
        self.spark = enter(StandaloneCluster(self.directory / "spark", self.server.environment, hidden=self._hidden))
        settings = "".join(f"{name} = {value}\n" for name, value in JOB_SETTINGS.items())
        (self.directory / "job.toml").write_text(settings)
        self._open.callback(self.end_driver)
        self.start_driver()

    def close(self) -> None:
        self._open.close()

    def keep_logs(self, directory: Path) -> None:
        """Copy what its processes wrote, without their data."""
        shutil.copytree(self.directory, directory, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)

    @property
    def names(self) -> list[str]:
        return [broker.name for broker in self.brokers]

    def _make_topic(self, broker: Broker) -> None:
        reported: dict[str, Any] = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip
        self.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, **reported)

    def ask(
        self, broker: Broker, code: RequestCode, body: bytes = b"", *, tries: int = 1, **fields: Any
    ) -> RemotingCommand:
        host, _, port = broker.address.rpartition(":")
        with BlockingClient(host, int(port), timeout_s=60) as client:
            reported = {name: str(value) for name, value in fields.items()}
            answer = client.request(RemotingCommand(code, ext=reported, body=body), 60)
            while answer.code == ResponseCode.SYSTEM_ERROR and tries > 1:
                tries -= 1
                self.asked_again += 1
                time.sleep(AGAIN_S)
                answer = client.request(RemotingCommand(code, ext=reported, body=body), 60)
        assert answer.code == ResponseCode.SUCCESS, f"{broker.name}: {answer}"
        return answer

    def log_begin(self, broker: Broker) -> int:
        """Where its oldest log file begins: so many bytes of messages it has deleted."""
        return min(int(file.name) for file in (self._hidden / broker.name / "commitlog").iterdir())

    def key_at(self, broker: Broker, queue_id: int, offset: int) -> str:
        """The key of the message that a consumer of the broker gets there.

        A consumer asks again after an error, and so does this: a broker that has just missed its bucket answers so
        for as long as its circuit breaker rests.
        """
        reported: dict[str, Any] = {
            "consumerGroup": TOOLS_GROUP, "topic": TOPIC, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 1,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
        }  # fmt: skip
        (message, *_) = decode_records(
            bytes(self.ask(broker, RequestCode.PULL_MESSAGE, tries=COLD_READ_TRIES, **reported).body)
        )
        return message.keys[0] if message.queue_offset == offset else f"of offset {message.queue_offset}"

    # The job

    def start_driver(self) -> None:
        words = [
            *("pipeline", "offload", "--namesrv", self.name_server, "--tier", TIER, "--master", self.spark.master),
            *("--trigger", "1s", "--settle", "1s", "--config", str(self.directory / "job.toml")),
            *("--metrics", str(self.metrics_file), "--json"),
        ]
        for name, value in SPARK.items():
            words += ["--conf", f"{name}={value}"]
        command = without_sight_of(self._hidden, [sys.executable, "-m", "tiermq.cli", *words])
        with (self.directory / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=subprocess.STDOUT)
        self.driver_starts += 1

    def keep_driver(self) -> None:
        """Start it again if it ended by itself."""
        assert self._driver is not None
        code = self._driver.poll()
        if code is not None:
            self.driver_ends.append(code)
            self.start_driver()

    def end_driver(self) -> int:
        """As an operator does; its exit code."""
        if self._driver is None:
            return 0
        driver, self._driver = self._driver, None
        if driver.poll() is None:
            driver.send_signal(signal.SIGTERM)
        return driver.wait()

    @property
    def metrics_file(self) -> Path:
        return self.directory / "offload.prom"

    def metric(self, name: str) -> dict[str, float]:
        """By broker, "" where it has none; {} before the first wave."""
        if not self.metrics_file.exists():
            return {}
        found = {}
        for line in self.metrics_file.read_text().splitlines():
            if line.startswith((f"{name}{{", f"{name} ")):
                labels, _, value = line.rpartition(" ")
                found[labels.partition('broker="')[2].partition('"')[0]] = float(value)
        return found

    # Faults

    def kill(self, kind: str, chance: random.Random) -> bool:
        """Kill one process of that kind and start it again, where its parent does not; False if there was none.

        The object store stays away until `start_store`.
        """
        assert self._driver is not None
        if kind == "object store":
            self.server.kill()
            return True
        if kind == "driver":
            below = [each for each in descendants(self._driver.pid) if kind_of(each) == "jvm"]
            self._driver.kill()
            self._driver.wait()
            for each in below:
                kill(each)
            self.start_driver()
            return True
        if kind in ("executor", "worker"):
            found = [each for worker in self.spark.workers for each in descendants(worker) if kind_of(each) == kind]
            return bool(found) and kill(chance.choice(sorted(found)))
        theirs = kind == "rocketmq broker"
        broker = chance.choice([each for each in self.brokers if isinstance(each, RocketMQBroker) == theirs])
        broker.kill_and_start()
        return True

    def start_store(self) -> None:
        self.server.start()

    # Retention

    def delete_local_files(self) -> None:
        """Let RocketMQ's own retention delete all of its files but the newest. TierMQ's brokers evict by themselves."""
        theirs = [broker for broker in self.brokers if isinstance(broker, RocketMQBroker)]
        for broker in theirs:
            self.ask(broker, RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=0\n")
        before = {broker.name: self._log_files(broker) for broker in theirs}
        for broker in theirs:
            if before[broker.name] > 1:
                self.ask(broker, RequestCode.DELETE_EXPIRED_COMMITLOG)
        while any(before[broker.name] > 1 and self._log_files(broker) > 1 for broker in theirs):
            time.sleep(_POLL_S)
        for broker in theirs:
            self.ask(broker, RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=48\n")

    def _log_files(self, broker: Broker) -> int:
        """Without the one that is allocated ahead: it has no message yet."""
        return sum(map(_has_messages, (self._hidden / broker.name / "commitlog").iterdir()))


def _has_messages(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return any(opened.read(8))
    except FileNotFoundError:
        return False  # Deleted meanwhile.
