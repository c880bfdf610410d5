"""Tables of topics and groups: a change is on disk when it returned, and costs the same however many there are."""

from __future__ import annotations

import json
import shutil
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import broker_config, send_command
from servers.serving import Serving
from simulation.manual_clock import ManualClock
from tiermq.broker.group.group_table import GroupTable, SubscriptionGroup
from tiermq.broker.topic.table_file import WHOLE_BYTES_MAX
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.consumequeue.queue_table import QueueType
from tiermq.errors import StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.command import RemotingCommand
from tiermq.store.topic_attributes import TopicAttributes

MANY = 300
"""More than a file has that is written whole at each change."""


def topics_in(directory: Path) -> TopicTable:
    return TopicTable(str(directory), broker_config(), ManualClock())


def groups_in(directory: Path) -> GroupTable:
    return GroupTable(str(directory), broker_config(), ManualClock())


def large(directory: Path) -> TopicTable:
    """A table whose changes go to the journal."""
    topics = topics_in(directory)
    topics.put_all(TopicConfig(f"t{number}") for number in range(MANY))
    assert (directory / "topics.json").stat().st_size > WHOLE_BYTES_MAX
    return topics


def in_file(directory: Path, name: str = "topics.json", table: str = "topicConfigTable") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / name).read_bytes())[table]
    return found


def test_a_small_table_is_rocketmq_s_file_at_every_moment(tmp_path: Path) -> None:
    topics = topics_in(tmp_path)
    topics.put(TopicConfig("new", 3, 3))
    assert in_file(tmp_path)["new"]["readQueueNums"] == 3
    assert not topics.is_behind


def test_a_change_of_a_large_table_is_on_disk_and_rewrites_nothing(tmp_path: Path) -> None:
    topics = large(tmp_path)
    before = (tmp_path / "topics.json").read_bytes()
    topics.make("made", 2, 2)
    topics.put(TopicConfig("t1", 9, 9, attributes={"queue.type": "BatchCQ"}))
    topics.delete(["t2"])
    topics.make("t3-later", 1, 1)
    topics.delete(["t3-later"])
    assert (tmp_path / "topics.json").read_bytes() == before
    killed = topics_in(tmp_path)
    assert killed.table == topics.table
    assert killed.data_version == topics.data_version
    assert killed.get("made") is not None
    assert killed.get("t2") is None
    assert in_file(tmp_path).keys() == killed.table.keys(), "the next start writes the file"


def test_what_a_change_costs_does_not_grow_with_the_table(tmp_path: Path) -> None:
    topics = large(tmp_path)
    journal = tmp_path / "topics.json.journal"
    topics.make("first", 1, 1)
    sizes = [journal.stat().st_size]
    for number in range(3):
        topics.put_all(TopicConfig(f"more{number}-{each}") for each in range(2_000))
        begin = journal.stat().st_size
        topics.make(f"one-{number}", 1, 1)
        sizes.append(journal.stat().st_size - begin)
    assert max(sizes[1:]) <= min(sizes[1:]) + 4
    assert sizes[1] < 400


def test_a_flush_writes_the_file_and_the_journal_is_over(tmp_path: Path) -> None:
    topics = large(tmp_path)
    topics.make("made", 2, 2)
    assert topics.is_behind
    assert topics.flush()
    assert not topics.flush()
    assert "made" in in_file(tmp_path)
    assert not (tmp_path / "topics.json.journal").exists()


def test_a_kill_between_the_file_and_the_end_of_its_journal_changes_nothing(tmp_path: Path) -> None:
    topics = large(tmp_path)
    topics.make("made", 2, 2)
    topics.delete(["t5"])
    shutil.copy(tmp_path / "topics.json.journal", tmp_path / "kept")
    topics.flush()
    topics.put(TopicConfig("made", 7, 7))
    topics.flush()
    shutil.copy(tmp_path / "kept", tmp_path / "topics.json.journal")
    again = topics_in(tmp_path)
    assert again.table == topics.table


def test_a_file_that_another_program_wrote_gets_what_it_lacks(tmp_path: Path) -> None:
    topics = large(tmp_path)
    topics.make("made", 2, 2)
    topics.put(TopicConfig("t1", 9, 9))
    document = json.loads((tmp_path / "topics.json").read_bytes())
    document["dataVersion"]["counter"] += 1
    document["dataVersion"]["timestamp"] += 5
    document["topicConfigTable"]["t1"]["readQueueNums"] = 4
    (tmp_path / "topics.json").write_text(json.dumps(document))
    again = topics_in(tmp_path)
    made, other = again.get("made"), again.get("t1")
    assert made is not None
    assert other is not None
    assert (made.read_queues, other.read_queues) == (2, 4)
    assert again.data_version.counter > document["dataVersion"]["counter"]


@pytest.mark.parametrize("is_older", [True, False])
def test_a_file_that_was_put_back_or_written_by_another_gets_no_topic_that_was_deleted_again(
    tmp_path: Path, is_older: bool
) -> None:
    """What is older than the journal gets all of it; what is not keeps what it has."""
    topics = large(tmp_path)
    if is_older:
        shutil.copy(tmp_path / "topics.json", tmp_path / "older")
        topics.put_all(TopicConfig(f"u{number}") for number in range(3))
        topics.flush()
    topics.make("made", 2, 2)
    topics.make("deleted-again", 2, 2)
    topics.put(TopicConfig("t1", 9, 9))
    topics.delete(["deleted-again", "t2"])
    if is_older:
        shutil.copy(tmp_path / "older", tmp_path / "topics.json")
    else:
        document = json.loads((tmp_path / "topics.json").read_bytes())
        document["dataVersion"] |= {"counter": document["dataVersion"]["counter"] + 50, "timestamp": 5}
        (tmp_path / "topics.json").write_text(json.dumps(document))
    again = topics_in(tmp_path)
    assert again.get("made") is not None
    assert again.get("deleted-again") is None
    assert (again.get("t2") is None) == is_older
    assert (again.table["t1"].read_queues == 9) == is_older
    if is_older:
        assert again.data_version == topics.data_version
    assert topics_in(tmp_path).table == again.table


VERSION = [1, 10**6, 0]
NAMED = {"topicName": "new", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}


@pytest.mark.parametrize(
    "line",
    [
        [1],
        5,
        None,
        {},
        {"base": "x"},
        {"v": VERSION},
        {"v": VERSION, "put": [1]},
        {"v": VERSION, "put": {"new": None}},
        {"v": VERSION, "put": {"new": {**NAMED, "perm": [1]}}},
        {"v": VERSION, "put": {"new": {**NAMED, "readQueueNums": 2**40}}},
        {"v": VERSION, "put": {"../../evil": {**NAMED, "topicName": "../../evil"}}},
        {"v": VERSION, "put": {"new": {**NAMED, "topicName": "../../evil"}}},
        {"v": VERSION, "put": {}, "gone": 5},
        {"v": VERSION, "put": {}, "gone": [[1]]},
        {"v": ["a", "b", "c"], "put": {}},
        {"v": [[1], [2], [3]], "put": {}},
        {"v": [2**70, 2**70, 2**70], "put": {}},
        {"v": [1, 0, 0], "put": {}},
        b"{",
        b"[" * 100_000,
        b'{"v":[1,1000000,0],"put":{"\xff":{}}}',
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["topics", "groups"])
def test_a_line_that_no_broker_writes_is_damage_that_names_its_place(tmp_path: Path, line: object, kind: str) -> None:
    opened = topics_in if kind == "topics" else groups_in
    if kind == "topics":
        large(tmp_path).make("made", 2, 2)
    else:
        groups = groups_in(tmp_path)
        groups.put_all(SubscriptionGroup(f"g{number}") for number in range(MANY))
        groups.find_or_make("made")
        if not isinstance(line, bytes):
            text = json.dumps(line).replace("topicName", "groupName").replace("perm", "retryMaxTimes")
            line = json.loads(text.replace("readQueueNums", "retryQueueNums"))
    (journal,) = tmp_path.glob("*.journal")
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    with journal.open("ab") as file:
        file.write(b"%08x %b\n" % (zlib.crc32(raw), raw))
    with pytest.raises(StoreDamaged, match=r"\.journal, line 3: expected .* or move this one away"):
        opened(tmp_path)
    journal.rename(tmp_path / "aside")
    assert len(opened(tmp_path)) >= MANY


@pytest.mark.parametrize("cut", [1, 30])
def test_a_torn_end_of_the_journal_costs_the_change_that_was_not_acknowledged(tmp_path: Path, cut: int) -> None:
    topics = large(tmp_path)
    topics.make("made", 2, 2)
    topics.make("torn", 2, 2)
    journal = tmp_path / "topics.json.journal"
    journal.write_bytes(journal.read_bytes()[:-cut])
    again = topics_in(tmp_path)
    assert again.get("made") is not None
    assert (again.get("torn") is None) == (cut > 1)


def test_a_journal_that_cannot_be_written_is_reported_and_the_next_change_writes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = large(tmp_path)
    topics.make("before", 2, 2)
    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", _no_room)
        with pytest.raises(OSError, match="no room"):
            topics.make("lost", 2, 2)
    assert topics.get("lost") is None
    topics.make("after", 2, 2)
    assert in_file(tmp_path).keys() >= {"before", "after"}
    assert topics_in(tmp_path).table == topics.table


def _no_room(_descriptor: int) -> None:
    raise OSError(28, "no room")


def test_threads_that_make_topics_at_once_make_each_of_them_once(tmp_path: Path) -> None:
    topics = large(tmp_path)
    reported: list[str] = []
    topics.listeners.append(reported.extend)
    names = [f"made-{number % 40}" for number in range(160)]
    threads = [threading.Thread(target=topics.make, args=(name, 1, 1)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reported) == sorted(set(names))
    assert topics_in(tmp_path).table.keys() >= set(names)


def test_the_store_knows_queue_types_that_are_in_the_journal_alone(tmp_path: Path) -> None:
    topics = large(tmp_path / "config")
    topics.put(TopicConfig("batched", 1, 1, attributes={"queue.type": "BatchCQ"}))
    topics.put(TopicConfig("t1", 1, 1, attributes={"queue.type": "BatchCQ"}))
    topics.delete(["t1"])
    found = TopicAttributes.read(OsFileAccess(), str(tmp_path))
    assert found.queue_type_of("batched") is QueueType.BATCH
    assert found.queue_type_of("t1") is QueueType.SIMPLE


def test_groups_are_kept_in_the_same_way(tmp_path: Path) -> None:
    groups = groups_in(tmp_path)
    groups.put_all(SubscriptionGroup(f"g{number}") for number in range(MANY))
    before = (tmp_path / "subscriptionGroup.json").read_bytes()
    groups.find_or_make("made")
    groups.delete("g1")
    assert (tmp_path / "subscriptionGroup.json").read_bytes() == before
    assert groups_in(tmp_path).table == groups.table
    groups.set_forbidden("g2", "T", 4)
    groups.find_or_make("later")
    groups.delete("g2")
    again = groups_in(tmp_path)
    assert (again.table, again.forbidden_table) == (groups.table, {})


def test_topics_that_sends_made_survive_a_kill_and_a_clean_end_writes_rocketmq_s_file(tmp_path: Path) -> None:
    names = [f"sent-{number}" for number in range(MANY)]
    with Serving(tmp_path / "store") as broker:
        with BlockingClient("127.0.0.1", broker.port, timeout_s=60) as client:
            answers = [client.request_later(send_command(name), timeout_s=60) for name in names]
            assert all(answer.result(60).code == 0 for answer in answers)
        broker.kill()
        broker.start()
        with BlockingClient("127.0.0.1", broker.port, timeout_s=60) as client:
            for name in names:
                assert client.request(RemotingCommand(351, ext={"topic": name})).code == 0
            assert client.request(send_command("last")).code == 0
        broker.terminate()
    assert in_file(tmp_path / "store" / "config").keys() >= {*names, "last"}
    assert not (tmp_path / "store" / "config" / "topics.json.journal").exists()
