"""The second half of the demo does what it says: what it tells of was in the tier, and the disk was really gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tiermq import LocalStore, Message
from tiermq.cli.demo_tier import BROKER, tier_and_restore

MESSAGES = 40


def fill(directory: Path) -> None:
    with LocalStore.open(directory) as store:
        for number in range(MESSAGES):
            assert store.put(Message("orders", b"%d" % number, number % 2, keys=[f"k{number}"])).ok


def read_all(store: Any) -> int:
    found = 0
    for queue_id in range(2):
        page = store.get("orders", queue_id, 0, 32)
        assert [message.body for message in page.messages] == [b"%d" % n for n in range(queue_id, MESSAGES, 2)]
        found += page.count
    return found


def find_keys(store: Any) -> int:
    assert [message.body for message in store.query("orders", "k7").messages] == [b"7"]
    return 1


def test_everything_comes_back_from_the_tier_after_the_directory_is_gone(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    fill(directory)
    said: list[str] = []
    seen_gone: list[bool] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("7"):
            seen_gone.append(not directory.exists())

    result = tier_and_restore(
        directory,
        (tmp_path / "tier").as_uri(),
        lap=lambda: 1.0,
        read_back=read_all,
        look_up_keys=find_keys,
        say=say,
    )
    assert seen_gone == [True]
    assert (result.tiered, result.cold_reads_per_second, result.cold_keys_found) == (MESSAGES, MESSAGES, 1)
    assert [line[0] for line in said] == ["6", "7", "8", "9"]
    assert any((tmp_path / "tier").rglob(f"{BROKER}/orders/*/COMMIT_LOG/*"))


def test_a_reader_that_misses_a_message_stops_the_demo(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    fill(directory)

    def refuse(_store: Any) -> int:
        raise AssertionError("a message is missing")

    with pytest.raises(AssertionError, match="missing"):
        tier_and_restore(
            directory,
            (tmp_path / "tier").as_uri(),
            lap=lambda: 1.0,
            read_back=refuse,
            look_up_keys=find_keys,
            say=print,
        )
