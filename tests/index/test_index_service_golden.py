"""Index files that the real RocketMQ wrote: read, left untouched, answered from, and written again byte for byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from golden.reading import NAMES, Golden, golden
from simulation.manual_clock import ManualClock
from tiermq.files.os_file_access import OsFileAccess
from tiermq.index.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES, SLOT_BYTES
from tiermq.index.index_service import IndexService

EVER = (0, 2**63 - 1)


def new_service(source: Golden, directory: Path) -> IndexService:
    settings = source.settings["store"]
    return IndexService(
        OsFileAccess(), str(directory), settings["maxHashSlotNum"], settings["maxIndexNum"], ManualClock(),
        lambda _: None,
    )  # fmt: skip


def entries_at(source: Golden) -> int:
    return HEADER_BYTES + int(source.settings["store"]["maxHashSlotNum"]) * SLOT_BYTES


def store_time_of(source: Golden, physical_offset: int) -> int:
    record = source.records[physical_offset]
    (sys_flag,) = struct.unpack_from(">i", record, 36)
    return int(struct.unpack_from(">q", record, 48 + (20 if sys_flag & 16 else 8))[0])


@pytest.fixture(params=NAMES)
def source(request: pytest.FixtureRequest) -> Golden:
    return golden(request.param)


def test_loading_changes_no_byte(source: Golden, tmp_path: Path) -> None:
    directory = source.copy_store(tmp_path / "store") / "index"
    service = new_service(source, directory)
    assert service.load(True, 0) is None
    assert len(service.files) == len(source.index_files())
    service.close()
    assert [path.read_bytes() for path in sorted(directory.iterdir())] == source.index_files()


def test_every_key_that_rocketmq_finds_is_found(source: Golden, tmp_path: Path) -> None:
    service = new_service(source, source.copy_store(tmp_path / "store") / "index")
    service.load(True, 0)
    assert source.queries
    for query in source.queries:
        expected = {int(offset_id[-16:], 16) for offset_id in query["offset_ids"]}
        found = service.query(query["topic"], query["key"], 64, *EVER).offsets
        assert expected <= set(found), query
    service.close()


def test_the_same_keys_give_the_same_files_but_for_the_time_of_a_rolled_files_first_entry(
    source: Golden, tmp_path: Path
) -> None:
    expected = source.index_files()
    rows = []
    for data in expected:
        for number in range(1, HEADER.unpack_from(data)[5]):
            key_hash, offset, _, _ = ENTRY.unpack_from(data, entries_at(source) + number * ENTRY_BYTES)
            rows.append((key_hash, offset, store_time_of(source, offset)))
    service = new_service(source, tmp_path / "index")
    hashes, offsets, timestamps = zip(*rows, strict=True)
    assert service.put_keys_batch(hashes, offsets, timestamps) == len(rows)
    service.close()

    def without_first_time(data: bytes) -> bytes:
        at = entries_at(source) + ENTRY_BYTES + 12
        return data[:at] + bytes(4) + data[at + 4 :]

    rebuilt = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    assert list(map(without_first_time, rebuilt)) == list(map(without_first_time, expected))
