"""Directories from which the real RocketMQ has deleted old log files: what is gone is gone, the rest is whole."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from golden.reading import TRIMMED_NAMES, Fact, Golden, golden
from tiermq import Message
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.check import check_store

TRIMMED = next(name for name in TRIMMED_NAMES if name.endswith("-trimmed"))
REBUILT = f"{TRIMMED}-rebuilt"


def settings_of(store: Golden) -> Fact:
    """Without the reserved time of 0 hours that made RocketMQ delete."""
    return {name: value for name, value in store.python_settings.items() if name != "file_reserved_time"}


def queues_of(store: Golden) -> dict[tuple[str, int], list[Fact]]:
    queues: dict[tuple[str, int], list[Fact]] = {}
    for fact in store.stored:
        queues.setdefault((fact["topic"], fact["queue"]), []).append(fact)
    return queues


@pytest.mark.parametrize("name", TRIMMED_NAMES)
def test_a_queue_starts_at_its_first_message_whose_record_is_still_there(name: str, tmp_path: Path) -> None:
    store = golden(name)
    with LocalStore.open(store.copy_store(tmp_path / "store"), **settings_of(store)) as local:
        for (topic, queue), facts in queues_of(store).items():
            first, end = facts[0]["offset"], facts[-1]["offset"] + 1
            assert first > 0
            assert (local.min_offset(topic, queue), local.max_offset(topic, queue)) == (first, end)
            too_early = local.get(topic, queue, 0)
            assert (too_early.status, too_early.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)


@pytest.mark.parametrize("name", TRIMMED_NAMES)
def test_everything_that_is_left_is_read(name: str, tmp_path: Path) -> None:
    store = golden(name)
    with LocalStore.open(store.copy_store(tmp_path / "store"), **settings_of(store)) as local:
        for (topic, queue), facts in queues_of(store).items():
            offset, read = facts[0]["offset"], []
            while (page := local.get(topic, queue, offset)).status is GetStatus.FOUND:
                read += page.messages
                offset = page.next_offset
            assert [
                (message.queue_offset, message.message_id, hashlib.sha256(message.decompressed_body()).hexdigest())
                for message in read
            ] == [(fact["offset"], fact["offset_id"], fact["body_sha256"]) for fact in facts]


def test_queries_and_searches_by_time_give_rocketmqs_answers(tmp_path: Path) -> None:
    store = golden(TRIMMED)
    with LocalStore.open(store.copy_store(tmp_path / "store"), **settings_of(store)) as local:
        for fact in store.queries:
            hits = local.query(fact["topic"], fact["key"], max_messages=64).messages
            assert sorted(hit.message_id for hit in hits) == sorted(fact["offset_ids"]), fact
        for fact in store.offset_searches:
            assert local.offset_at(fact["topic"], fact["queue"], fact["timestamp"]) == fact["offset"], fact


def test_queues_and_index_rebuilt_from_the_rest_have_the_bytes_that_rocketmq_gives_them(tmp_path: Path) -> None:
    store, rebuilt = golden(TRIMMED), golden(REBUILT)
    directory = store.copy_store(tmp_path / "store")
    for part in ("consumequeue", "index"):
        shutil.rmtree(directory / part)
    with LocalStore.open(directory, **settings_of(store)):
        pass
    for queue in sorted(rebuilt.store.glob("consumequeue/*/*")):
        ours = directory / queue.relative_to(rebuilt.store)
        assert {file.name: file.read_bytes() for file in ours.iterdir()} == {
            file.name: file.read_bytes() for file in queue.iterdir()
        }
    assert [path.read_bytes() for path in sorted((directory / "index").iterdir())] == rebuilt.index_files()


@pytest.mark.parametrize("name", TRIMMED_NAMES)
def test_puts_go_on_behind_what_is_left(name: str, tmp_path: Path) -> None:
    store = golden(name)
    directory = store.copy_store(tmp_path / "store")
    with LocalStore.open(directory, **settings_of(store)) as local:
        for (topic, queue), facts in queues_of(store).items():
            assert local.put(Message(topic, b"more", queue)).queue_offset == facts[-1]["offset"] + 1
    with LocalStore.open(directory, **settings_of(store)) as local:
        for (topic, queue), facts in queues_of(store).items():
            assert local.get(topic, queue, facts[-1]["offset"] + 1).messages[0].body == b"more"
    assert check_store(directory, slot_count=store.settings["store"]["maxHashSlotNum"]).problems == []


@pytest.mark.parametrize("name", TRIMMED_NAMES)
def test_the_offline_check_finds_nothing_wrong_with_a_trimmed_directory(name: str) -> None:
    store = golden(name)
    assert check_store(store.store, slot_count=store.settings["store"]["maxHashSlotNum"]).problems == []
