"""One directory with messages that wait: RocketMQ and ours take turns, and each timer is delivered in its time.

Timers, cancellations and delay levels are in flight when a turn ends, in order or by SIGKILL. Whoever comes next
delivers what is due then: all of it, nothing early, and after an orderly end nothing twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.brokers import send_command
from interop.conftest import StartBroker
from interop.peer import Peer
from interop.rocketmq import SMALL_FILES, Cluster, python_names
from interop.topics_file import write_topics
from servers.serving import Serving
from small_store import read_all
from tiermq.cli.main import cli
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.client import BlockingClient
from tiermq.store.local_store import LocalStore
from tiermq.testing.local_broker import MovableClock
from waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]  # A real broker compares its whole wheel each second.

TIMER_LOG_BYTES = 4096
REAL = {**SMALL_FILES, "timerWheelEnable": True, "mappedFileSizeTimerLog": TIMER_LOG_BYTES}
OURS = python_names(SMALL_FILES)
SETTINGS = TimerSettings(log_file_bytes=TIMER_LOG_BYTES)
SOON_S = 4
LATER_S = 40
COUNT = 60
"""Of each kind: together more units than a file of the log has."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def asked(deliver_ms: int, **more: str) -> dict[str, str]:
    return {"TIMER_DELIVER_MS": str(deliver_ms), **more}


class Waiting:
    """What is sent in one turn: soon and later timers, one of which is cancelled, and delayed messages."""

    def __init__(self) -> None:
        begin_ms = now_ms()
        self.due: dict[str, int] = {f"soon-{number}": begin_ms + SOON_S * 1_000 for number in range(COUNT)}
        self.due |= {f"later-{number}": begin_ms + LATER_S * 1_000 + number * 37 for number in range(COUNT)}
        self.cancelled = "later-7"

    def send(self, send: Callable[[str, dict[str, str]], str]) -> None:
        """`send(body, properties)` sends one message and gives its unique key."""
        for name, due_ms in self.due.items():
            key = send(name, asked(due_ms))
            if name == self.cancelled:
                send("cancels", asked(due_ms, TIMER_DEL_UNIQKEY=f"T+{key}"))
        del self.due[self.cancelled]
        for level in (1, 4):  # A second, and thirty.
            send(f"level-{level}", {"DELAY": str(level)})
            self.due[f"level-{level}"] = now_ms() + {1: 1_000, 4: 30_000}[level] - 200


def by_java(peer: Peer) -> Callable[[str, dict[str, str]], str]:
    def send(body: str, properties: dict[str, str]) -> str:
        reported = {name: value for name, value in properties.items() if name != "DELAY"}
        level = int(properties.get("DELAY", "0"))
        message = {"topic": "T", "queue": 0, "body": body.encode(), "properties": reported, "delay_level": level}
        result = peer.send(message)
        assert result["status"] == "SEND_OK"
        return str(result["unique_id"])

    return send


def by_wire(client: BlockingClient) -> Callable[[str, dict[str, str]], str]:
    def send(body: str, properties: dict[str, str]) -> str:
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": f"K-{body}", **properties}.items())
        assert client.request(send_command("T", body.encode(), properties=encoded)).code == 0
        return f"K-{body}"

    return send


def check_delivered(waiting: Waiting, found: list[tuple[str, int]], *, once: bool) -> None:
    """(body, when it was stored in its topic) of all that was delivered."""
    names = [name for name, _ in found]
    assert set(names) == set(waiting.due)
    assert [name for name, stored_ms in found if stored_ms < waiting.due[name]] == []
    if once:
        assert len(names) == len(set(names))


def served_by_real(cluster: Cluster) -> list[tuple[str, int]]:
    peer = cluster.peer()
    return [(message["body"].decode(), message["store_timestamp"]) for message in peer.read("T", 0)]


def finished_by_ours(store_path: Path, count: int) -> list[StoredMessage]:
    """Let our delivery finish what waits in a directory, with a clock that is moved ahead."""
    clock = MovableClock()
    with LocalStore.open(store_path, clock=clock, **OURS) as store:
        timers = TimerService(store, store_path, clock, SETTINGS)
        levels = DelayLevels(store, str(store_path / "config"), clock)
        clock.advance(0.0)
        timers.start()
        levels.start()
        while store.max_offset("T", 0) < count:
            assert (timers.error_count, levels.error_count) == (0, 0), timers.last_error or levels.last_error
            clock.advance(1.0)
            time.sleep(0.02)
        clock.advance(60.0)
        until(lambda: timers.waiting_count == 0)
        timers.stop()
        levels.stop()
        store.dispatch_now()
        assert timers.counts.skipped == levels.skipped_count == 0
        return read_all(store, "T", 0)


@pytest.mark.parametrize("end", ["orderly", "kill"])
def test_what_waits_in_rocketmqs_directory_is_delivered_by_ours(
    start_broker: StartBroker, tmp_path: Path, end: str
) -> None:
    store = tmp_path / "store"
    cluster = start_broker(store, REAL)
    peer = cluster.peer()
    peer.create_topic("T", 1)
    waiting = Waiting()
    waiting.send(by_java(peer))
    until(lambda: peer.bounds("T", 0)[1] >= COUNT // 2)  # Some were delivered, all others wait.
    cluster.stop() if end == "orderly" else cluster.crash()
    handed_over_ms = now_ms()
    assert (store / "timerwheel").stat().st_size == 38_707_200
    messages = finished_by_ours(store, len(waiting.due))
    found = [(message.body.decode(), message.store_timestamp_ms) for message in messages]
    check_delivered(waiting, found, once=end == "orderly")
    # Of RocketMQ's, one that was due before it was stored has none of these: sending may take seconds.
    ours = [message for message in messages if message.store_timestamp_ms >= handed_over_ms]
    timed = [message for message in ours if not message.body.startswith(b"level")]
    assert timed, "nothing was left to ours"
    assert all({"TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"} <= set(each.properties) for each in timed)


@pytest.mark.parametrize("end", ["orderly", "kill"])
def test_what_waits_in_our_directory_is_delivered_by_rocketmq(
    start_broker: StartBroker, tmp_path: Path, end: str
) -> None:
    store = tmp_path / "store"
    write_topics(store, [("T", 1)])
    with Serving(store, **OURS, mapped_file_size_timer_log=TIMER_LOG_BYTES) as served:
        host, _, port = served.address.rpartition(":")
        with BlockingClient(host, int(port), timeout_s=60.0) as client:
            waiting = Waiting()
            waiting.send(by_wire(client))
            soon_ms = waiting.due["soon-0"]
        until(lambda: now_ms() > soon_ms + 2_500)  # Some were delivered, all others wait and are written down.
        if end == "kill":
            served.kill()
    cluster = start_broker(store, REAL)
    peer = cluster.peer()
    until(lambda: peer.bounds("T", 0)[1] >= len(waiting.due) and now_ms() > max(waiting.due.values()) + 3_000)
    check_delivered(waiting, served_by_real(cluster), once=end == "orderly")


def test_a_directory_that_goes_to_and_fro_loses_and_repeats_nothing(start_broker: StartBroker, tmp_path: Path) -> None:
    store = tmp_path / "store"
    cluster = start_broker(store, REAL)
    cluster.peer().create_topic("T", 1)
    waiting = Waiting()
    waiting.send(by_java(cluster.peer()))
    cluster.stop()
    with LocalStore.open(store, **OURS) as opened:  # Ours takes it over, and gives it back after a moment.
        timers = TimerService(opened, store, MovableClock(), SETTINGS)
        timers.start()
        until(lambda: timers.behind_count == 0 and timers.waiting_count > 0)
        timers.stop()
    cluster = start_broker(store, REAL)
    until(lambda: now_ms() > max(waiting.due.values()) + 3_000)
    until(lambda: cluster.peer().bounds("T", 0)[1] >= len(waiting.due))
    check_delivered(waiting, served_by_real(cluster), once=True)


def test_what_waits_in_a_broker_of_rocketmq_is_listed_and_cancelled_from_the_command_line(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    cluster = start_broker(tmp_path / "store", REAL)
    peer = cluster.peer()
    peer.create_topic("T", 1)
    send = by_java(peer)
    due_ms = now_ms() + LATER_S * 1_000
    keys = {name: send(name, asked(due_ms)) for name in ("keep", "drop")}
    send("level", {"DELAY": "4"})
    brokers = ["-n", cluster.name_server]

    def listed() -> list[dict[str, object]]:
        reported = CliRunner().invoke(cli, ["delayed", "ls", *brokers, "--topic", "T", "--json"])
        assert reported.exit_code == 0, reported.output
        return [json.loads(line) for line in reported.stdout.splitlines()]

    until(lambda: len(listed()) == 3)
    reported = CliRunner().invoke(cli, ["delayed", "cancel", *brokers, "T", keys["drop"]])
    assert reported.exit_code == 0, reported.output
    until(lambda: now_ms() > due_ms + 3_000 and peer.bounds("T", 0)[1] >= 2)
    assert sorted(name for name, _ in served_by_real(cluster)) == ["keep", "level"]
