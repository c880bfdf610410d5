"""Producers of the demo: a real process is killed, and whoever refuses a list is heard."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from tiermq import LocalStore
from tiermq.cli import demo_producers as producers
from tiermq.cli.demo_orders import LIST_MESSAGES, QUEUES, TOPIC, body_of, number_of
from tiermq.store.store_state import StoreState, store_state


@pytest.mark.crash
def test_what_a_killed_process_acknowledged_is_in_its_store(tmp_path: Path) -> None:
    told: list[int] = []
    acknowledged, rate = producers.killed_producers(tmp_path, 2_000, told.append)
    assert sum(acknowledged) == sum(told) >= 1_000
    assert max(acknowledged) <= 2_000 / QUEUES + LIST_MESSAGES, "a parent that was late to kill finds no more"
    assert rate > 0
    assert store_state(tmp_path) is StoreState.CRASHED
    with LocalStore.open(tmp_path, **producers.store_settings(2_000)) as store:
        for queue_id, count in enumerate(acknowledged):
            assert store.max_offset(TOPIC, queue_id) >= count
            if count:
                last = store.get(TOPIC, queue_id, count - 1, 1).messages[0]
                assert last.body == body_of(number_of(queue_id, count - 1))


def test_the_rate_is_that_of_the_producers_however_late_their_lines_are_read() -> None:
    lines = b"".join(b"0 %d %d\n" % (64 * each, 10**9 * each) for each in range(1, 5)) + b"0 3"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        acknowledged, rate = producers._follow(child, io.BytesIO(lines), 128, lambda _: None)
    finally:
        child.kill()
        child.communicate()
    assert acknowledged == [256, *[0] * (QUEUES - 1)], "what was in the pipe counts, the line that was cut does not"
    assert rate == 64


def test_producers_that_end_by_themselves_are_a_failure_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "commitlog").write_text("a file where a directory must be")
    with pytest.raises(producers.DemoFailed, match="by themselves with code 1: .*commitlog: expected a directory"):
        producers.killed_producers(tmp_path, 1, lambda _: None)


def test_queues_are_filled_from_where_they_are(tmp_path: Path) -> None:
    told: list[int] = []
    with LocalStore.open(tmp_path, **producers.store_settings(1_000)) as store:
        for queue_id in range(QUEUES):
            producers.put_list(store, queue_id, 0)
        held = [LIST_MESSAGES] * QUEUES
        wanted = [LIST_MESSAGES, LIST_MESSAGES + 1, *([3 * LIST_MESSAGES] * (QUEUES - 2))]
        producers.fill_up(store, held, wanted, told.append)
        store.dispatch_now()
        ends = [store.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES)]
    assert ends == [LIST_MESSAGES, 2 * LIST_MESSAGES, *([3 * LIST_MESSAGES] * (QUEUES - 2))]
    assert sum(told) == sum(ends) - sum(held)


def test_a_list_that_gets_other_places_is_noticed(tmp_path: Path) -> None:
    with (
        LocalStore.open(tmp_path, **producers.store_settings(1_000)) as store,
        pytest.raises(producers.DemoFailed, match="expected the next message at 64, found 0"),
    ):
        producers.put_list(store, 0, 64)


def test_a_list_that_is_refused_is_noticed_with_its_status(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, **producers.store_settings(1_000)) as store:
        store.set_max_message_size(10)
        with pytest.raises(producers.DemoFailed, match="refused 64 of 64 messages with"):
            producers.fill_up(store, [0] * QUEUES, [1] * QUEUES, lambda _: None)


@pytest.mark.parametrize(("messages", "log_file_bytes"), [(1, 256 << 10), (100_000_000, 16 << 20)])
def test_log_files_are_small_enough_that_several_can_go(messages: int, log_file_bytes: int) -> None:
    assert producers.store_settings(messages)["mapped_file_size_commit_log"] == log_file_bytes
