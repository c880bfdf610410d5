"""The offline walk over one commit-log file."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tiermq.message import encode_blank, encode_record
from tiermq.store.readonly import log as log_walk
from tiermq.store.readonly.log import LogItem, ReadOnlyLog, walk_log_file
from tiermq.store.readonly.mapped_run import ReadOnlyMap, is_zero

BASE = 65536


def records(count: int, base: int = BASE) -> list[bytes]:
    made: list[bytes] = []
    for number in range(count):
        offset = base + sum(map(len, made))
        made.append(encode_record(topic="t", body=b"body %d" % number, queue_offset=number, physical_offset=offset))
    return made


def file_of(*parts: bytes, size: int = 4096) -> bytearray:
    data = bytearray(b"".join(parts))
    return data + bytes(size - len(data))


class InMemory(ReadOnlyMap):
    """Bytes that a test can change under the walk."""

    def __init__(self, data: bytearray) -> None:
        self._map = None
        self.view = memoryview(data)

    def is_zero_from(self, position: int) -> bool:
        return is_zero(self.view, position, len(self.view))


def walked(data: bytearray) -> list[LogItem]:
    return list(walk_log_file(InMemory(data), BASE))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_walk, "SECOND_LOOK_SECONDS", 0)


def test_records_are_walked_up_to_the_unwritten_rest() -> None:
    items = walked(file_of(*records(3)))
    assert [item.message.queue_offset for item in items if item.message] == [0, 1, 2]
    assert not any(item.error for item in items)


def test_a_blank_end_is_the_last_item() -> None:
    made = records(2)
    used = sum(map(len, made))
    items = walked(file_of(*made, encode_blank(4096 - used)))
    assert (items[-1].message, items[-1].error, items[-1].size) == (None, "", 4096 - used)


def test_a_record_with_a_damaged_body_is_reported_and_the_walk_goes_on_behind_it() -> None:
    made = records(3)
    data = file_of(*made)
    data[len(made[0]) + 90] ^= 1
    items = walked(data)
    assert [bool(item.error) for item in items] == [False, True, False]
    assert "CRC" in items[1].error
    assert items[1].physical_offset == BASE + len(made[0])


def test_a_record_that_is_where_it_does_not_belong_is_damage() -> None:
    items = walked(file_of(*records(1, base=0)))
    assert len(items) == 1
    assert "physical offset" in items[0].error


def test_a_half_record_ends_the_walk() -> None:
    made = records(2)
    data = bytearray(made[0] + made[1][:-5])
    items = walked(data)
    assert [bool(item.error) for item in items] == [False, True]


def test_zeros_with_data_behind_them_are_damage() -> None:
    made = records(3)
    data = file_of(*made)
    data[len(made[0]) : len(made[0]) + len(made[1])] = bytes(len(made[1]))
    items = walked(data)
    assert "zeros" in items[-1].error


def test_a_record_that_is_just_being_written_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = records(2)
    data = file_of(made[0], made[1][:40])

    def the_writer_finishes(_: float) -> None:
        data[len(made[0]) : len(made[0]) + len(made[1])] = made[1]

    monkeypatch.setattr(time, "sleep", the_writer_finishes)
    items = walked(data)
    assert [item.error for item in items] == ["", ""]


def test_the_end_of_the_log_is_found_by_structure(tmp_path: Path) -> None:
    made = records(3)
    log = ReadOnlyLog([tmp_path])
    assert log.end_offset() == 0
    for base, data in ((BASE, bytes(file_of(*made))), (BASE + len(file_of(*made)), bytes(len(file_of(*made))))):
        (tmp_path / f"{base:020d}").write_bytes(data)
    log.refresh()
    assert log.end_offset() == BASE + sum(map(len, made))
    assert log.end_offset(BASE + len(made[0])) == BASE + sum(map(len, made))


def test_a_record_is_found_by_its_physical_offset_and_nothing_between_records(tmp_path: Path) -> None:
    made = records(2)
    (tmp_path / f"{BASE:020d}").write_bytes(file_of(*made))
    log = ReadOnlyLog([tmp_path])
    log.refresh()
    head = log.head_at(BASE + len(made[0]))
    assert head is not None
    assert head.queue_offset == 1
    assert [log.head_at(at) for at in (0, BASE + 1, 10**12)] == [None] * 3


def test_a_walk_beside_a_writer_sees_only_whole_records() -> None:
    made = records(200)
    data = bytearray(len(b"".join(made)) + 100)
    view = memoryview(data)

    def write() -> None:
        at = 0
        for record in made:
            view[at + 4 : at + len(record)] = record[4:]
            view[at : at + 4] = record[:4]  # The size comes last, so the record appears at once.
            at += len(record)

    writer = threading.Thread(target=write)
    writer.start()
    seen = [item for _ in range(5) for item in walked(data)]
    writer.join()
    assert all(item.message is None or item.message.body.startswith(b"body") for item in seen)
    assert len(walked(data)) == 200
