"""`tiermq demo`: it kills a real process, and it would notice a loss."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tiermq.cli import demo
from tiermq.cli.main import cli


@pytest.mark.crash
def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["demo", "--messages", "500", "--keep", str(tmp_path / "store"), "--json"])
    assert result.exit_code == 0, result.output
    numbers = json.loads(result.output)
    assert numbers["acknowledged"] >= 500
    assert numbers["recovered"] >= numbers["acknowledged"]
    assert numbers["checked_records"] == numbers["recovered"]
    assert (tmp_path / "store" / "commitlog").is_dir()


@pytest.mark.crash
def test_each_step_is_told_in_words() -> None:
    result = CliRunner().invoke(cli, ["demo", "--messages", "100"])
    assert result.exit_code == 0, result.output
    assert "SIGKILL" in result.output
    assert "Nothing acknowledged was lost" in result.output


def test_a_directory_with_something_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    result = CliRunner().invoke(cli, ["demo", "--keep", str(tmp_path)])
    assert result.exit_code == 1
    assert "not empty" in result.output


@given(st.integers(0, 10_000))
def test_the_place_of_a_message_is_where_its_queue_lists_it(number: int) -> None:
    queue_id, queue_offset = demo.place_of(number)
    assert next(itertools.islice(demo.numbers_of(queue_id), queue_offset, None)) == number


@dataclass
class Stored:
    queue_offset: int
    body: bytes


@dataclass
class Page:
    messages: list[Stored]
    next_offset: int


class FakeStore:
    """Holds the first messages of the demo; one may be lost or changed."""

    def __init__(self, count: int, lost: int = -1, changed: int = -1) -> None:
        self.queues: list[list[Stored]] = [[] for _ in range(demo.QUEUES)]
        for number in range(count):
            queue_id, queue_offset = demo.place_of(number)
            if number != lost:
                body = b"other" if number == changed else demo.body_of(number)
                self.queues[queue_id].append(Stored(queue_offset, body))

    def get(self, topic: str, queue_id: int, offset: int, max_messages: int) -> Page:
        found = self.queues[queue_id][offset : offset + max_messages]
        return Page(found, offset + len(found))

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int) -> Page:
        return Page([message for queue in self.queues for message in queue if message.body.startswith(
            b"order " + key.removeprefix("order-").encode() + b" "
        )], 0)  # fmt: skip


def test_reading_back_counts_what_is_there_beyond_the_acknowledged() -> None:
    assert demo.read_back(FakeStore(1_000), 900) == 1_000


@pytest.mark.parametrize("number", [0, 63, 64, 500, 899])
def test_a_lost_or_changed_message_is_noticed(number: int) -> None:
    with pytest.raises(demo.DemoFailed):
        demo.read_back(FakeStore(1_000, lost=number), 900)
    with pytest.raises(demo.DemoFailed, match="not what was put"):
        demo.read_back(FakeStore(1_000, changed=number), 900)


def test_a_lost_end_is_noticed() -> None:
    with pytest.raises(demo.DemoFailed, match="acknowledged and is gone"):
        demo.read_back(FakeStore(800), 900)


def test_a_key_that_is_not_found_is_noticed() -> None:
    assert demo.look_up_keys(FakeStore(400), 400) == 200
    with pytest.raises(demo.DemoFailed, match="order-200"):
        demo.look_up_keys(FakeStore(400, lost=200), 400)


def test_a_writer_that_ends_by_itself_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "commitlog").write_text("a file where a directory must be")
    with pytest.raises(demo.DemoFailed, match="ended by itself"):
        demo.killed_writer(tmp_path, 1)
