"""A clean close leaves nothing behind that the tier could have taken, and says what it could not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import send_command
from scenarios.broker_world import SETTINGS
from servers.faulty_driver import Down, FaultyDriver
from servers.seaweedfs import SeaweedFS
from servers.serving import SIZES, Serving
from tiermq import Message
from tiermq.errors import DiskFull
from tiermq.remoting.client import BlockingClient
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.tiered_store import NotUploaded, TieredStore

T = "orders"
USUAL = {**SETTINGS, "tiered_store_group_commit_timeout": 3_600_000}
"""Nothing goes up by itself before an hour is over: what is in the tier, the close has uploaded."""


def history(store: TieredStore, count: int) -> list[bytes]:
    return [message.body for offset in range(count) for message in store.get(T, 0, offset, 1).messages]


def test_a_with_block_uploads_everything_and_another_machine_reads_it_back(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with TieredStore.open(tmp_path / "one", tier=tier, **USUAL) as store:
        for number in range(50):
            assert store.put(Message(T, b"%d" % number)).ok
    assert store.close() == NotUploaded(0, 0)
    with TieredStore.open(tmp_path / "two", tier=tier, restore=True, **USUAL) as again:
        assert history(again, 50) == [b"%d" % number for number in range(50)]


def test_a_with_block_that_an_error_ends_uploads_everything_too(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()

    def fail() -> None:
        with TieredStore.open(tmp_path / "one", tier=tier, **USUAL) as store:
            assert store.put(Message(T, b"x")).ok
            raise RuntimeError("the caller's own")

    with pytest.raises(RuntimeError, match="the caller's own"):
        fail()
    with TieredStore.open(tmp_path / "two", tier=tier, restore=True, **USUAL) as again:
        assert history(again, 1) == [b"x"]


def test_a_queue_that_rests_after_a_failure_is_tried_once_more_by_the_close(tmp_path: Path) -> None:
    inner = MemoryDriver()
    faulty = FaultyDriver(inner, Down())
    store = TieredStore.open(tmp_path / "one", driver=faulty, **USUAL)
    assert store.put(Message(T, b"x")).ok
    assert not store.flush_to_tier(0.2)
    faulty.plan = None
    assert store.close() == NotUploaded(0, 0)
    with TieredStore.open(tmp_path / "two", driver=inner, restore=True, **USUAL) as again:
        assert history(again, 1) == [b"x"]


def test_a_tier_that_hangs_holds_the_close_for_its_time_only_and_what_is_left_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(MemoryDriver):
        released = threading.Event()

        def write(self, key: Any, position: int, data: Any) -> bool:
            self.released.wait()
            return super().write(key, position, data)

    driver = Hanging()
    store = TieredStore.open(tmp_path, driver=driver, tier_close_timeout=300, **USUAL)
    for number in range(3):
        assert store.put(Message(T, b"x", queue_id=number % 2)).ok
    assert store.close() == NotUploaded(queues=2, messages=3)
    assert "closed with 3 messages of 2 queues that memory" in caplog.text
    assert not store.local.running
    driver.released.set()
    with TieredStore.open(tmp_path, driver=MemoryDriver(), **USUAL) as again:
        assert again.get(T, 0, 0).count == 2


def test_a_disk_that_cannot_flush_keeps_nothing_else_from_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = TieredStore.open(tmp_path, driver=MemoryDriver(), tier_close_timeout=0, **USUAL)

    def full() -> None:
        raise DiskFull("no room, as planned")

    monkeypatch.setattr(store.local, "flush", full)
    store.close()
    assert "is not uploaded either: no room, as planned" in caplog.text
    assert not store.local.running


@pytest.mark.parametrize("settings", [{"tier_close_timeout": 0}, {"background": False}])
def test_a_store_that_is_not_to_upload_at_its_end_reports_what_it_kept(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    driver = MemoryDriver()
    store = TieredStore.open(tmp_path, driver=driver, **{**USUAL, **settings})
    assert store.put(Message(T, b"x")).ok
    store.local.dispatch_now()
    store.local.flush()
    assert store.close() == NotUploaded(queues=1, messages=1)
    assert list(driver.list_segments()) == []


def test_a_broker_that_sigterm_ends_has_all_its_messages_in_the_bucket(
    seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    url = f"s3://history/{uuid.uuid4().hex}"
    broker = Serving(tmp_path / "one", "--tier", url)
    broker.start()
    assert broker.ready["retention"] == {"hours": None, "maxBytes": None, "words": "for ever"}
    client = BlockingClient("127.0.0.1", broker.port, timeout_s=60)
    for number in range(40):
        assert client.request(send_command(T, b"%d" % number, queue=number % 4)).code == 0
    client.close()
    assert broker.process is not None
    process = broker.process
    process.send_signal(signal.SIGTERM)
    ended = [json.loads(line) for line in process.communicate()[0].splitlines()][-1]
    assert ended == {"event": "ended", "notUploaded": {"queues": 0, "messages": 0, "stopped": 0}}
    command = [sys.executable, "-m", "tiermq.cli", "tier", "restore", url, "--store", str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with TieredStore.open(tmp_path / "two", tier=url, broker_name="b1", **SIZES) as again:
        found = [message.body for queue_id in range(4) for message in again.get(T, queue_id, 0, 32).messages]
    assert sorted(found) == sorted(b"%d" % number for number in range(40))
