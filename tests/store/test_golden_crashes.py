"""What a kill of the real RocketMQ can leave behind, laid over the directory that one did leave behind.

A broker makes a file before it gives it its size, and gives it its size before it writes to it; it writes a record
before the unit, and the unit before the index entry. Each place where that can stop is one case here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from golden.reading import NAMES, Fact, Golden, golden
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.check import check_store

CRASHED = next(name for name in NAMES if name.endswith("-crashed"))
UNIT_BYTES = 20
INDEX_HEADER_BYTES = 40
BODY_AT = 88

Damage = Callable[[Path, Golden], None]


def index_file_without_size(directory: Path, store: Golden) -> None:
    (directory / "index" / "29991231235959999").touch()


def index_file_without_header(directory: Path, store: Golden) -> None:
    (directory / "index" / "29991231235959999").write_bytes(bytes(len(store.index_files()[0])))


def index_file_with_a_fresh_header(directory: Path, store: Golden) -> None:
    """Begin and end are those of the file before, no entries yet."""
    previous = store.index_files()[-1]
    header = previous[8:16] * 2 + previous[24:32] * 2 + bytes(8)
    (directory / "index" / "29991231235959999").write_bytes(header + bytes(len(previous) - INDEX_HEADER_BYTES))


def log_file_without_size(directory: Path, store: Golden) -> None:
    sorted((directory / "commitlog").iterdir())[-1].write_bytes(b"")


def queue_file_without_size(directory: Path, store: Golden) -> None:
    last = sorted((directory / "consumequeue" / "orders" / "0").iterdir())[-1]
    (last.parent / f"{int(last.name) + last.stat().st_size:020}").touch()


def queue_file_without_units(directory: Path, store: Golden) -> None:
    last = sorted((directory / "consumequeue" / "orders" / "0").iterdir())[-1]
    (last.parent / f"{int(last.name) + last.stat().st_size:020}").write_bytes(bytes(last.stat().st_size))


def last_units_missing(directory: Path, store: Golden) -> None:
    """The log is ahead of the queue by all units of its last file."""
    last = sorted((directory / "consumequeue" / "payments" / "0").iterdir())[-1]
    last.write_bytes(bytes(last.stat().st_size))


def last_unit_torn(directory: Path, store: Golden) -> None:
    last = sorted((directory / "consumequeue" / "payments" / "0").iterdir())[-1]
    data = bytearray(last.read_bytes())
    end = len(bytes(data).rstrip(b"\0")) // UNIT_BYTES * UNIT_BYTES
    data[end + 9 : end + UNIT_BYTES] = bytes(UNIT_BYTES - 9)
    last.write_bytes(data)


def checkpoint_from_long_ago(directory: Path, store: Golden) -> None:
    (directory / "checkpoint").write_bytes(bytes(4096))


def checkpoint_without_size(directory: Path, store: Golden) -> None:
    (directory / "checkpoint").write_bytes(b"")


DAMAGES: list[Damage] = [
    index_file_without_size,
    index_file_without_header,
    index_file_with_a_fresh_header,
    log_file_without_size,
    queue_file_without_size,
    queue_file_without_units,
    last_units_missing,
    last_unit_torn,
    checkpoint_from_long_ago,
    checkpoint_without_size,
]


def read_everything(local: LocalStore, store: Golden) -> dict[str, str]:
    """Offset id → digest of the body of every message that can be got."""
    found = {}
    for topic, queue in sorted({(fact["topic"], fact["queue"]) for fact in store.stored}):
        offset = 0
        while (page := local.get(topic, queue, offset)).status is GetStatus.FOUND:
            for message in page.messages:
                found[message.message_id] = hashlib.sha256(message.decompressed_body()).hexdigest()
            offset = page.next_offset
    return found


def bodies(facts: list[Fact]) -> dict[str, str]:
    return {fact["offset_id"]: fact["body_sha256"] for fact in facts}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: str(damage.__name__))
def test_whatever_a_killed_broker_left_half_made_every_message_is_read_and_found(
    damage: Damage, tmp_path: Path
) -> None:
    store = golden(CRASHED)
    directory = store.copy_store(tmp_path / "store")
    damage(directory, store)
    with LocalStore.open(directory, **store.python_settings) as local:
        assert read_everything(local, store) == bodies(store.stored)
        for fact in store.queries:
            hits = local.query(fact["topic"], fact["key"], max_messages=64).messages
            assert sorted(hit.message_id for hit in hits) == sorted(fact["offset_ids"]), fact
    assert check_store(directory, slot_count=store.settings["store"]["maxHashSlotNum"]).problems == []


# A cut within the properties is not among them: without `enabledAppendPropCRC` nothing covers those bytes.
@pytest.mark.parametrize("kept_bytes", [1, 4, 8, 40, 91, 150], ids=lambda kept: f"{kept} bytes")
def test_a_record_that_was_being_written_is_dropped_and_nothing_else(kept_bytes: int, tmp_path: Path) -> None:
    store = golden(CRASHED)
    directory = store.copy_store(tmp_path / "store")
    torn_at, record = max(store.records.items())
    assert BODY_AT + int.from_bytes(record[BODY_AT - 4 : BODY_AT], "big") > 150
    kept = record[:kept_bytes]
    file_bytes = store.settings["store"]["mappedFileSizeCommitLog"]
    log_file = directory / "commitlog" / f"{torn_at // file_bytes * file_bytes:020}"
    data = bytearray(log_file.read_bytes())
    data[torn_at % file_bytes :] = kept.ljust(file_bytes - torn_at % file_bytes, b"\0")
    log_file.write_bytes(data)
    with LocalStore.open(directory, **store.python_settings) as local:
        left = [fact for fact in store.stored if fact["physical_offset"] < torn_at]
        assert read_everything(local, store) == bodies(left)
        assert local.max_physical_offset == torn_at
    assert check_store(directory, slot_count=store.settings["store"]["maxHashSlotNum"]).problems == []
