"""`compact`, `expire`, `reindex` and `verify --repair` beside `tiermq serve --tier s3://…` under load, as processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pytest

from broker.brokers import send_command
from broker.consuming import messages_of, pull_fields
from servers.seaweedfs import SeaweedFS, missing
from servers.serving import Serving
from tiermq.errors import RemotingError
from tiermq.pipeline.leased_broker import Home, lease_broker
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_values import SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, index_queue
from tiermq.tier.tier_identity import open_known_metadata

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")]

QUEUES = 2
LOAD_MAX = 1_500
SETTINGS: dict[str, Any] = {
    "tier_lease_term": 3_000,
    "tiered_storage_level": "FORCE",
    "tiered_store_commit_log_max_size": 64 * 1024,
    "tiered_store_consume_queue_max_size": 20 * 256,
    "tiered_store_group_commit_count": 40,
    "tiered_store_group_commit_timeout": 300,
    "tiered_store_index_file_max_hash_slot_num": 64,
    "tiered_store_index_file_max_index_num": 200,
    "tier_dispatch_interval": 500,
}


class Beside:
    """A broker in a process, what was acknowledged to its producer, and jobs in processes beside it."""

    def __init__(self, path: Path, s3: SeaweedFS) -> None:
        self.url = f"s3://history/{path.name}"
        self.s3 = s3
        self.served = Serving(path / "store", "--tier", self.url, "--metrics-port", "0", **SETTINGS)
        self.sent: list[tuple[int, int, bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    def __enter__(self) -> Self:
        self.served.start()
        self.send(400)
        return self

    def __exit__(self, kind: object, error: object, _trace: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.served.terminate() if error is None else self.served.kill()

    def client(self) -> BlockingClient:
        return BlockingClient("127.0.0.1", self.served.port, timeout_s=60)

    # The producer

    def send(self, count: int, topic: str = "orders", size: int = 200) -> None:
        with self.client() as client:
            for _ in range(count):
                self._send(client, topic, size)

    def _send(self, client: BlockingClient, topic: str, size: int) -> None:
        number, queue_id = len(self.sent), len(self.sent) % QUEUES
        body = b"%s %d " % (topic.encode(), number)
        properties = f"KEYS\x01key-{number}\x02UNIQ_KEY\x01U{number:030d}\x02"
        command = send_command(topic, body.ljust(size, b"."), queue=queue_id, queues=QUEUES, properties=properties)
        answer = client.request(command)
        if answer.code != 0:
            raise RemotingError(f"expected an acknowledgement, found {answer.code} {answer.remark}")
        if topic == "orders":
            self.sent.append((queue_id, int(answer.ext["queueOffset"]), bytes(command.body)))

    def load(self) -> None:
        """Send until the end, also over restarts of the broker."""
        self._thread.start()

    def _produce(self) -> None:
        while not self._stop.wait(0.02) and len(self.sent) < LOAD_MAX:
            try:
                self.send(10)
            except (RemotingError, OSError):
                continue  # The broker is being restarted.

    def end_load(self) -> None:
        self._stop.set()
        self._thread.join()

    # Reading

    def bodies(self, queue_id: int) -> dict[int, bytes]:
        """The queue's messages by their offsets, as a consumer pulls them."""
        found: dict[int, bytes] = {}
        offset = 0
        subscribed = {"sysFlag": 4, "subscription": "*", "suspendTimeoutMillis": 0, "topic": "orders"}
        with self.client() as client:
            while True:
                fields = {**pull_fields(offset), **subscribed, "queueId": queue_id}
                ext = {name: str(value) for name, value in fields.items()}
                answer = client.request(RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext))
                got = messages_of(answer) if answer.code == 0 else []
                if not got:
                    assert answer.code in (0, 19), answer.remark
                    return found
                found |= {message.queue_offset: bytes(message.body) for message in got}
                offset = got[-1].queue_offset + 1

    def require_all(self, count: int | None = None) -> None:
        """Every acknowledged message, or the first `count`, is there, by offset; some by key and by time."""
        sent = self.sent[:count]
        read = {queue_id: self.bodies(queue_id) for queue_id in range(QUEUES)}
        for queue_id, offset, body in sent:
            assert read[queue_id].get(offset) == body, (queue_id, offset)
        with self.client() as client:
            for number in range(0, len(sent), 37):
                queue_id, offset, body = sent[number]
                ext = {"topic": "orders", "key": f"key-{number}", "maxNum": "8", "beginTimestamp": "0",
                       "endTimestamp": str((1 << 63) - 1)}  # fmt: skip
                answer = client.request(RemotingCommand(RequestCode.QUERY_MESSAGE, ext=ext))
                assert [bytes(each.body) for each in messages_of(answer)] == [body], (number, answer.remark)
                ext = {"topic": "orders", "queueId": str(queue_id), "timestamp": "1000"}
                answer = client.request(RemotingCommand(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext=ext))
                assert int(answer.ext["offset"]) == 0

    # The broker's own pages

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.served.ready['metrics']}{path}") as page:
            return str(page.read().decode())

    @property
    def tier_state(self) -> str:
        return str(json.loads(self.page("/ready")).get("warnings", {}).get("tier", ""))

    def figure(self, name: str) -> float:
        (line,) = [line for line in self.page("/metrics").splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[1])

    def wait_uploaded(self) -> None:
        """Until the tier has all, which it gets only from a broker that has its lease again."""
        while self.figure("tiermq_dispatch_backlog_messages") or self.figure("tiermq_tier_paused"):
            time.sleep(0.05)

    def wait_index_files(self, count: int) -> None:
        """Until the broker has uploaded so many index files."""
        directory = f"{index_queue('DefaultCluster', 'b1').directory}/"
        with closing(open_driver(self.url, environment=self.s3.environment)) as driver:
            while sum(info.sealed for info in driver.list_segments(directory)) < count:
                time.sleep(0.2)

    def wait_lent(self) -> None:
        while not self.tier_state.startswith("standby"):
            pass

    # Jobs

    def job(self, *words: str) -> subprocess.Popen[str]:
        words = (words[0], self.url, *words[1:])
        command = [sys.executable, "-m", "tiermq.cli", "pipeline", *words, "--master", "here", "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ran(self, *words: str, reading: int = 0) -> dict[str, Any]:
        """What the job reports; while it runs, the first `reading` messages are read again and again."""
        process = self.job(*words)
        while reading and process.poll() is None:
            self.require_all(reading)
        said, errors = process.communicate()
        assert process.returncode == 0, (words, said, errors, self.served.log())
        return dict(json.loads(said))

    def require_equal_metadata(self) -> None:
        """After the broker's end: what its own metadata have is what the bucket has."""
        with closing(open_driver(self.url, environment=self.s3.environment)) as driver:
            metadata, reader = open_known_metadata(self.served.store), ManifestStore(driver, "a test")
            with metadata:
                for queue in metadata.queues():
                    if queue.key.topic == INDEX_TOPIC:
                        continue
                    manifest = reader.read(queue.key)
                    rows = [] if manifest is None else manifest.segments
                    live = {(row.key, row.size) for row in rows if row.status is not SegmentStatus.DELETED}
                    assert {(row.key, row.size) for row in metadata.segments(queue.key)} == live, queue.key


@pytest.fixture
def beside(tmp_path: Path, seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    with Beside(tmp_path, seaweedfs) as made:
        yield made
    made.require_equal_metadata()


def test_every_job_runs_beside_a_broker_under_load_and_no_message_is_lost(beside: Beside) -> None:
    beside.send(1_500, "big", 1_000)
    beside.wait_uploaded()
    beside.wait_index_files(3)
    beside.require_all()
    beside.load()
    merged = beside.ran("compact", "--items-max", "100000", reading=400)
    assert merged["done"]["mergedFiles"] > 0
    beside.ran("reindex", reading=400)
    gone = beside.ran("expire", "--max-bytes", "900K", "--no-orphans", reading=400)
    assert gone["done"]["segments"] > 0
    beside.ran("verify", "--repair", reading=400)
    beside.end_load()
    beside.wait_uploaded()
    beside.require_all()
    assert not beside.ran("verify")["problems"]


def test_a_job_that_is_killed_in_the_middle_holds_the_broker_for_seconds(beside: Beside) -> None:
    beside.wait_uploaded()
    beside.load()
    for _ in range(3):
        process = beside.job("compact", "--items-max", "100000")
        beside.wait_lent()
        process.kill()
        process.communicate()
        beside.require_all(400)
    beside.end_load()
    beside.wait_uploaded()
    beside.require_all()
    beside.ran("compact", "--items-max", "100000")
    beside.require_all()
    assert not beside.ran("verify")["problems"]


def test_a_broker_that_is_killed_while_a_job_has_its_lease_starts_beside_it(beside: Beside) -> None:
    beside.wait_uploaded()
    beside.load()
    with closing(open_driver(beside.url, environment=beside.s3.environment)) as driver:
        home = Home("DefaultCluster", "b1")
        with lease_broker(driver, home, "test", wait=time.sleep) as held:
            beside.wait_lent()
            beside.served.kill()
            beside.served.start()
            beside.wait_lent()
            assert "(pipeline test)" in beside.tier_state
            count = len(beside.sent)
            while len(beside.sent) < min(count + 50, LOAD_MAX):
                pass  # Messages are taken.
            held.check()
        beside.end_load()
        beside.wait_uploaded()
    beside.require_all()
    assert "standby" not in beside.tier_state
    assert not beside.ran("verify")["problems"]


def test_of_two_jobs_at_once_one_runs_and_the_other_waits_or_is_reported(beside: Beside) -> None:
    beside.wait_uploaded()
    beside.load()
    jobs = [beside.job("compact", "--items-max", "100000"), beside.job("reindex")]
    ended = [(process, *process.communicate()) for process in jobs]
    codes = [process.returncode for process, _, _ in ended]
    assert 0 in codes, ended
    for process, said, errors in ended:
        assert process.returncode == 0 or "is a job: wait for its end" in said + errors
    beside.end_load()
    beside.wait_uploaded()
    beside.require_all()
    assert not beside.ran("verify")["problems"]
