"""The demo's broker: a real process that says where it is, why it is not, and that never outlives the demo."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tiermq.broker.settings_file import read_settings_file
from tiermq.cli.demo import broker
from tiermq.cli.demo.orders import QUEUES, DemoFailed
from tiermq.cli.demo.wire import over_the_wire
from tiermq.store.readonly.directory import StoreState, store_state


def place_in(directory: Path) -> broker.Place:
    place = broker.Place(directory / "store", (directory / "tier").as_uri(), directory / "table")
    place.settings.write_text(broker.settings_text(place, 1_000), encoding="utf-8")
    return place


@pytest.mark.crash
def test_a_broker_is_killed_started_again_and_ended_on_the_same_store(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with broker.BrokerProcess(place.settings, tmp_path / "log") as running:
        running.start()
        over_the_wire(running.name_server, running.address, lambda orders: orders.create_topic())
        running.kill()
        running.forget_killed()
        assert store_state(place.store) is StoreState.CRASHED
        running.start()
        ends = over_the_wire(running.name_server, running.address, lambda orders: orders.ends())
        assert ends == [0] * QUEUES
        running.end()
    assert running.pid == 0
    assert store_state(place.store) is StoreState.CLOSED
    assert running.complaint == ""


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    place.store.write_text("a file where a directory must be")
    with (
        broker.BrokerProcess(place.settings, tmp_path / "log") as running,
        pytest.raises(DemoFailed, match="ended with code 2: tiermq serve: .*store"),
    ):
        running.start()
    assert running.pid == 0


def test_a_complaint_is_what_was_said_without_stacks_and_warnings(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert broker.complaint_of(log) == ""
    said = [
        "WARNING: an incubator",
        "2026-01-01 00:00:00,000 WARNING tiermq.x: careful",
        "Traceback (most recent call last):",
        "  File x",
        "    run()",
        "OSError: no disk",
        "\tat a.B.c",
    ]
    log.write_text("\n".join(said))
    assert broker.complaint_of(log) == "OSError: no disk"


def test_a_broker_that_ended_before_it_was_killed_is_a_failure(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with broker.BrokerProcess(place.settings, tmp_path / "log") as running:
        running.start()
        os.kill(running.pid, signal.SIGTERM)
        with pytest.raises(DemoFailed, match="ended with code 0"):
            running.forget_killed()


def test_a_broker_ends_cleanly_when_whoever_started_it_is_gone(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    code = (
        "import os, sys; from pathlib import Path; from tiermq.cli.demo.broker import BrokerProcess\n"
        f"running = BrokerProcess(Path({str(place.settings)!r}), Path({str(tmp_path / 'log')!r}))\n"
        "running.start(); print(running.pid, flush=True); sys.stdin.read(); os._exit(9)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        ended = os.pidfd_open(int(parent.stdout.readline()))
        parent.communicate()
    assert parent.returncode == 9
    try:
        assert select.select([ended], [], []) == ([ended], [], [])
    finally:
        os.close(ended)
    assert store_state(place.store) is StoreState.CLOSED


def test_the_settings_are_a_file_that_serve_understands(tmp_path: Path) -> None:
    odd = tmp_path / 'a "quoted" \\ näme 😀'
    place = broker.Place(odd / "store", (odd / "tier").as_uri(), odd / "table")
    text = broker.settings_text(place, 100_000)
    assert tomllib.loads(text)["store"]["store_path_root_dir"] == str(place.store)
    odd.mkdir()
    place.settings.write_text(text, encoding="utf-8")
    found = read_settings_file(place.settings)
    assert found.broker["broker_name"] == broker.BROKER
    assert found.tier["tier_url"] == place.tier
    assert found.tier["tier_dispatch_enable"] is False
    assert broker.store_settings(100_000).items() <= found.store.items()
    assert broker.tier_settings(100_000).items() <= found.tier.items()


@pytest.mark.parametrize(("messages", "log_file_bytes"), [(1, 256 << 10), (100_000_000, 16 << 20)])
def test_log_files_are_small_enough_that_several_can_go(messages: int, log_file_bytes: int) -> None:
    assert broker.store_settings(messages)["mapped_file_size_commit_log"] == log_file_bytes


@pytest.mark.parametrize(("messages", "full_files"), [(1, 0), (10_000, 6), (10_000_000, 6)])
def test_index_files_are_small_enough_that_several_get_full(messages: int, full_files: int) -> None:
    """A message has two keys."""
    assert 2 * messages // broker.tier_settings(messages)["tiered_store_index_file_max_index_num"] == full_files
