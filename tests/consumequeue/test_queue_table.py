"""All queues of a store together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.consumequeue.batch_consume_queue import BatchConsumeQueue
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.queue_table import QueueTable, QueueType
from tiermq.consumequeue.queue_units import AppendOutcome
from tiermq.errors import IllegalMessage, StoreDamaged
from tiermq.files.os_file_access import OsFileAccess


def queue_type_of(topic: str) -> QueueType:
    return QueueType.BATCH if topic.startswith("batch") else QueueType.SIMPLE


def new_table(root: Path, enable_ext: bool = False) -> QueueTable:
    return QueueTable(
        OsFileAccess(), str(root), ManualClock(), queue_type_of,
        file_size=200, ext_file_size=1000, batch_file_size=460, enable_ext=enable_ext,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Iterator[QueueTable]:
    table = new_table(tmp_path)
    yield table
    table.close()


def put(table: QueueTable, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> AppendOutcome:
    request = DispatchRequest(physical_offset, 100, 0, queue_offset, 0)
    return table.find_or_create(topic, queue_id).append(request)


def reopen(table: QueueTable, root: Path) -> tuple[QueueTable, int | None]:
    table.close()
    again = new_table(root)
    again.load()
    return again, again.recover_all()


def test_asking_for_a_queue_does_not_make_it(table: QueueTable, tmp_path: Path) -> None:
    """Pitfall 22: in RocketMQ a read of any name leaves a queue behind."""
    assert table.find("T", 0) is None
    assert table.topics() == []
    assert list(tmp_path.iterdir()) == []


def test_a_queue_is_made_once_and_has_no_file_before_its_first_unit(table: QueueTable, tmp_path: Path) -> None:
    queue = table.find_or_create("T", 3)
    assert table.find_or_create("T", 3) is queue
    assert table.find("T", 3) is queue
    assert list(tmp_path.iterdir()) == []
    put(table, "T", 3, 0, 0)
    assert (tmp_path / "consumequeue" / "T" / "3" / f"{0:020d}").exists()


def test_the_topics_attribute_decides_what_kind_a_queue_is(table: QueueTable, tmp_path: Path) -> None:
    put(table, "T", 0, 0, 0)
    put(table, "batch", 0, 0, 100)
    assert isinstance(table.find("T", 0), ConsumeQueue)
    assert isinstance(table.find("batch", 0), BatchConsumeQueue)
    assert (tmp_path / "batchconsumequeue" / "batch" / "0").is_dir()
    again, _ = reopen(table, tmp_path)
    assert isinstance(again.find("batch", 0), BatchConsumeQueue)
    again.close()


def test_queues_are_found_again_after_a_restart(table: QueueTable, tmp_path: Path) -> None:
    for number in range(30):
        put(table, "T" if number % 3 else "batch", number % 2, number, number * 100)
    again, rebuild_from = reopen(table, tmp_path)
    assert rebuild_from is None
    assert again.topics() == ["T", "batch"]
    assert [(queue.topic, queue.queue_id) for queue in again.all_queues()] == [
        ("T", 0), ("T", 1), ("batch", 0), ("batch", 1),
    ]  # fmt: skip
    assert sorted(again.queues_of("T")) == [0, 1]
    assert again.max_physical_offset() == 3000
    assert again.min_physical_offset() == 0
    again.close()


def test_files_of_the_wrong_kind_are_refused_with_an_explanation(table: QueueTable, tmp_path: Path) -> None:
    put(table, "T", 0, 0, 0)
    table.close()
    changed = QueueTable(OsFileAccess(), str(tmp_path), ManualClock(), lambda _: QueueType.BATCH, file_size=200)
    with pytest.raises(StoreDamaged, match=r"topic T: expected queues of type BatchCQ.*holds SimpleCQ.*set it back"):
        changed.load()
    assert changed.all_queues() == []


def test_directories_that_are_no_queues_are_left_alone(table: QueueTable, tmp_path: Path) -> None:
    put(table, "T", 0, 0, 0)
    (tmp_path / "consumequeue" / "T" / "lost+found").mkdir()
    (tmp_path / "consumequeue" / "T" / "４").mkdir()
    again, _ = reopen(table, tmp_path)
    assert sorted(again.queues_of("T")) == [0]
    again.close()


def test_recovery_reports_from_where_a_queue_with_a_hole_must_be_dispatched_again(
    table: QueueTable, tmp_path: Path
) -> None:
    """RocketMQ goes on from the largest offset that any queue knows, and the hole stays."""
    for number in range(8):
        put(table, "T", 0, number, number * 200)
        put(table, "T", 1, number, number * 200 + 100)
    table.close()
    path = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[60:80] = bytes(20)
    path.write_bytes(content)
    again, rebuild_from = reopen(table, tmp_path)
    assert rebuild_from == 500, "the end of the third record of queue 0"
    assert again.max_physical_offset() == 1600
    for number in range(3, 8):
        assert put(again, "T", 0, number, number * 200) is AppendOutcome.APPENDED
        assert put(again, "T", 1, number, number * 200 + 100) is AppendOutcome.DUPLICATE
    again.close()


def test_truncation_and_cleaning_reach_every_queue(table: QueueTable) -> None:
    for number in range(30):
        put(table, "T", 0, number, number * 200)
        put(table, "batch", 0, number, number * 200 + 100)
    table.truncate_dirty_all(5000)
    assert [queue.max_offset for queue in table.all_queues()] == [25, 25]
    assert table.max_physical_offset() == 5000
    assert table.delete_expired(2200) == 2
    assert [queue.min_offset for queue in table.all_queues()] == [11, 11]
    assert table.min_physical_offset() == 2200


def test_an_empty_table_has_no_physical_offsets(table: QueueTable) -> None:
    assert (table.max_physical_offset(), table.min_physical_offset()) == (-1, -1)
    assert table.recover_all() is None


def test_deleting_a_topic_leaves_nothing_of_it(tmp_path: Path) -> None:
    table = new_table(tmp_path, enable_ext=True)
    put(table, "T", 0, 0, 0)
    put(table, "T", 1, 0, 100)
    put(table, "U", 0, 0, 200)
    assert (tmp_path / "consumequeue_ext" / "T" / "1").is_dir()
    assert table.delete_topic("T") == 2
    assert table.topics() == ["U"]
    assert not (tmp_path / "consumequeue" / "T").exists()
    assert not (tmp_path / "consumequeue_ext" / "T").exists()
    assert table.delete_topic("T") == 0
    assert table.delete_queue("U", 1) is False
    assert table.delete_queue("U", 0) is True
    assert table.topics() == []
    put(table, "T", 0, 0, 300)
    table.destroy()
    assert table.all_queues() == []


@pytest.mark.parametrize(("topic", "queue_id"), [("", 0), ("..", 0), ("a/b", 0), ("a\0", 0), ("T", -1)])
def test_a_name_that_would_leave_the_directory_is_refused(table: QueueTable, topic: str, queue_id: int) -> None:
    with pytest.raises(IllegalMessage, match="directory"):
        table.find_or_create(topic, queue_id)


@pytest.mark.parametrize("topic", ["..", "../outside", "a/b"])
def test_deleting_by_a_name_that_would_leave_the_directory_is_refused(table: QueueTable, topic: str) -> None:
    with pytest.raises(IllegalMessage, match="directory"):
        table.delete_topic(topic)
