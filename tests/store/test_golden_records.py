"""The real RocketMQ's files, byte by byte: records, queue units, index files and checkpoint say what was sent.

The directories are in `tests/golden/`; each test runs over all of them that have what it looks at.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from golden.reading import MAGIC_OF_BLANK, NAMES, Fact, Golden, golden
from simulation.manual_clock import ManualClock
from tiermq.consumequeue import batch_unit, ext_unit, unit
from tiermq.files.os_file_access import OsFileAccess
from tiermq.index.index_service import IndexService
from tiermq.message import (
    CrcPropertyCheck,
    StoredMessage,
    decode_record,
    inner_span,
    reencode,
    tags_code,
    transaction_type,
    unwrap_inner_batch,
    verify_crc_property,
)
from tiermq.message.properties import index_keys
from tiermq.message.system_flag import COMPRESSED, TransactionType, enters_consume_queue, is_inner_batch
from tiermq.message.topic_name import HALF_TOPIC, SCHEDULE_TOPIC

DELAY_MS = {1: 1_000, 17: 3_600_000, 18: 7_200_000}

pytestmark = pytest.mark.parametrize("name", NAMES)


@cache
def messages(store: Golden) -> list[StoredMessage]:
    return [decode_record(data, expect_physical_offset=offset) for offset, data in store.records.items()]


def described(message: StoredMessage) -> Fact:
    """A message in the words of the manifest; RocketMQ's consumer takes the "compressed" bit away when it inflates."""
    body = message.decompressed_body()
    return {
        "kind": "stored",
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "sys_flag": message.sys_flag & ~COMPRESSED,
        "flag": message.flag,
        "body_crc": message.body_crc,
        "born_timestamp": message.born_timestamp_ms,
        "store_timestamp": message.store_timestamp_ms,
        "born_host": (message.born_address, message.born_port),
        "store_host": (message.store_address, message.store_port),
        "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_transaction_offset,
        "offset_id": message.message_id,
        "properties": message.properties,
        "body_bytes": len(body),
        "body_sha256": hashlib.sha256(body).hexdigest(),
    }


def test_every_record_decodes_to_what_rocketmqs_consumer_read(name: str) -> None:
    store = golden(name)
    found: dict[tuple[str, int, int], Fact] = {}
    for message in messages(store):
        for one in unwrap_inner_batch(message):
            fact = described(one)
            if is_inner_batch(message.sys_flag):
                # RocketMQ's client leaves these of an unwrapped message as they were, or empty.
                fact |= {"size": 0, "body_crc": 0, "sys_flag": message.sys_flag}
            found[one.topic, one.queue_id, one.queue_offset] = fact
    assert found == {(fact["topic"], fact["queue"], fact["offset"]): fact for fact in store.stored}


def test_every_record_encodes_to_the_same_bytes_again(name: str) -> None:
    store = golden(name)
    assert {message.physical_offset: reencode(message) for message in messages(store)} == store.records


def test_every_message_that_was_acknowledged_is_where_the_send_result_reports(name: str) -> None:
    store = golden(name)
    for fact in store.sent:
        record = acknowledged_record(store, fact)
        message = unwrap_inner_batch(record)[fact["batch_index"] if is_inner_batch(record.sys_flag) else 0]
        assert fact["result"]["status"] == "SEND_OK"
        assert f"UNIQ_KEY\x01{fact['unique_id']}\x02".encode() in message.encoded_properties
        if "batch_index" not in fact:
            # In a classic batch the store adds the batch's properties to each element's: the batch's id comes last.
            assert message.unique_key == fact["unique_id"]
        assert hashlib.sha256(message.decompressed_body()).hexdigest() == fact["body_sha256"]
        assert message.keys == fact["keys"]
        assert message.tags == fact["tags"]
        assert message.flag == fact["flag"]
        assert message.properties.items() >= fact["properties"].items()


def acknowledged_record(store: Golden, fact: Fact) -> StoredMessage:
    """By offset id; one per element of a classic batch; the answer to a half message has only its queue offset."""
    if "decision" in fact:
        halves = (message for message in messages(store) if message.topic == HALF_TOPIC)
        return next(message for message in halves if message.queue_offset == fact["result"]["offset"])
    ids = fact["result"]["offset_id"].split(",")
    own_id = ids[fact["batch_index"]] if len(ids) > 1 else ids[0]
    return next(message for message in messages(store) if message.message_id == own_id)


def test_exactly_the_committed_half_messages_are_stored_under_their_own_topic(name: str) -> None:
    store = golden(name)
    committed = {fact["unique_id"] for fact in store.sent if fact.get("decision") == "commit"}
    halves = {message.physical_offset: message for message in messages(store) if message.topic == HALF_TOPIC}
    finals = [m for m in messages(store) if m.transaction_type is TransactionType.COMMIT]
    assert {message.unique_key for message in finals} == committed
    for message in finals:
        half = halves[message.prepared_transaction_offset]
        assert (half.properties["REAL_TOPIC"], int(half.properties["REAL_QID"])) == (message.topic, message.queue_id)
        assert half.body == message.body


def test_every_full_commit_log_file_ends_with_one_blank_record(name: str) -> None:
    store = golden(name)
    bases = list(store.commit_log_files)
    file_bytes = store.settings["store"]["mappedFileSizeCommitLog"]
    ends = {offset + len(data) for offset, data in store.records.items()}
    last_with_records = max(store.records) // file_bytes * file_bytes
    for base, data in store.commit_log_files.items():
        assert len(data) == file_bytes
        if base < last_with_records:
            blank_at = max(end for end in ends if end <= base + file_bytes) - base
            assert struct.unpack_from(">iI", data, blank_at) == (file_bytes - blank_at, MAGIC_OF_BLANK)
    # A running broker has made the next file already; a clean shutdown removes it.
    assert bases[-1] == last_with_records + (file_bytes if store.crashed else 0)


def test_consume_queues_have_one_unit_per_record_in_order(name: str) -> None:
    store = golden(name)
    expected: dict[tuple[str, int], dict[int, unit.Unit]] = defaultdict(dict)
    ext_queues: dict[tuple[str, int], ExtQueue] = defaultdict(lambda: ExtQueue(store))
    for message in messages(store):
        for topic, queue_id, queue_offset in places_of(store, message):
            code = code_of(message)
            if store.settings["store"].get("enableConsumeQueueExt"):
                code = ext_queues[topic, queue_id].put(code, message.store_timestamp_ms)
            expected[topic, queue_id][queue_offset] = unit.Unit(message.physical_offset, message.size, code)
    queues = store.queue_bytes("consumequeue")
    assert queues.keys() == expected.keys()
    for queue, data in queues.items():
        units = expected[queue]
        assert sorted(units) == list(range(len(units)))
        encoded = b"".join(unit.encode(*units[offset]) for offset in range(len(units)))
        assert data == encoded.ljust(len(data), b"\0")
    ext_bytes = store.queue_bytes("consumequeue_ext")
    assert ext_bytes == {queue: ext.data.ljust(len(ext_bytes[queue]), b"\0") for queue, ext in ext_queues.items()}


def places_of(store: Golden, message: StoredMessage) -> list[tuple[str, int, int]]:
    """Topic, queue and offset of each unit that a record has: its own queue's and those of light queues."""
    if not enters_consume_queue(message.sys_flag) or is_batch_topic(store, message.topic):
        return []
    light_names = message.properties.get("INNER_MULTI_DISPATCH", "").split(",")
    light_offsets = message.properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
    light = [
        (light_name, 0, int(offset)) for light_name, offset in zip(light_names, light_offsets, strict=True) if offset
    ]
    return [(message.topic, message.queue_id, message.queue_offset), *light]


class ExtQueue:
    """The ext units of one queue as the format says: an end mark where the next one would not leave four bytes."""

    def __init__(self, store: Golden) -> None:
        self._file_bytes = store.settings["store"]["mappedFileSizeConsumeQueueExt"]
        self.data = b""

    def put(self, code: int, store_timestamp_ms: int) -> int:
        """Append a unit; returns its address."""
        encoded = ext_unit.encode(ext_unit.ExtUnit(code, store_timestamp_ms))
        wrote = len(self.data) % self._file_bytes
        if len(encoded) > self._file_bytes - wrote - ext_unit.END_BYTES:
            self.data += ext_unit.END_OF_FILE.ljust(self._file_bytes - wrote, b"\0")
        self.data += encoded
        return unit.ext_address(len(self.data) - len(encoded))


def code_of(message: StoredMessage) -> int:
    """Delayed messages keep their delivery time where others keep the hash of their tag."""
    if message.topic == SCHEDULE_TOPIC:
        return message.store_timestamp_ms + DELAY_MS[int(message.properties["DELAY"])]
    return tags_code(message.tags)


def is_batch_topic(store: Golden, topic: str) -> bool:
    return bool(store.settings["topics"].get(topic, {}).get("attributes", {}).get("queue.type") == "BatchCQ")


def test_batch_consume_queues_have_one_unit_per_inner_batch(name: str) -> None:
    store = golden(name)
    expected: dict[tuple[str, int], bytes] = defaultdict(bytes)
    for message in messages(store):
        if is_batch_topic(store, message.topic):
            base, count = inner_span(message.encoded_properties, message.queue_offset)
            expected[message.topic, message.queue_id] += batch_unit.encode(
                batch_unit.BatchUnit(
                    message.physical_offset, message.size, code_of(message), message.store_timestamp_ms, base, count
                )
            )
    queues = store.queue_bytes("batchconsumequeue")
    assert queues == {queue: encoded.ljust(len(queues[queue]), b"\0") for queue, encoded in expected.items()}


def test_the_index_built_from_the_records_has_the_same_bytes(name: str, tmp_path: Path) -> None:
    store = golden(name)
    settings = store.settings["store"]
    directory = tmp_path / "index"
    directory.mkdir()
    index = IndexService(
        OsFileAccess(),
        str(directory),
        settings["maxHashSlotNum"],
        settings["maxIndexNum"],
        ManualClock(),
        checkpoint=lambda end_ms: None,
    )
    for message in messages(store):
        if transaction_type(message.sys_flag) is not TransactionType.ROLLBACK:
            keys = index_keys(message.unique_key, message.get_property("KEYS"))
            index.put(message.topic, keys, message.physical_offset, message.store_timestamp_ms)
    index.close()
    assert [path.read_bytes() for path in sorted(directory.iterdir())] == store.index_files()


def test_the_checkpoint_holds_the_newest_store_times(name: str) -> None:
    store = golden(name)
    data = (store.store / "checkpoint").read_bytes()
    assert len(data) == 4096
    physical_ms, logical_ms, index_ms, master_flushed, confirm = struct.unpack_from(">5q", data)
    assert not any(data[40:])
    newest_ms = max(fact["store_timestamp"] for fact in store.stored)
    full_index_files = [data for data in store.index_files() if is_full_index(store, data)]
    assert index_ms == (struct.unpack_from(">q", full_index_files[-1], 8)[0] if full_index_files else 0)
    assert (master_flushed, confirm) == (0, 0)
    if store.crashed:
        assert 0 <= physical_ms <= newest_ms
        assert 0 <= logical_ms <= newest_ms
    else:
        assert (physical_ms, logical_ms) == (newest_ms, newest_ms)


def is_full_index(store: Golden, data: bytes) -> bool:
    return bool(struct.unpack_from(">i", data, 36)[0] == store.settings["store"]["maxIndexNum"])


def test_the_abort_file_is_there_exactly_after_a_crash(name: str) -> None:
    store = golden(name)
    assert (store.store / "abort").exists() == store.crashed


def test_the_whole_record_checksum_is_there_and_right_when_it_was_switched_on(name: str) -> None:
    store = golden(name)
    if not store.settings["store"].get("enabledAppendPropCRC"):
        assert not any(b"__CRC32#" in data for data in store.records.values())
        return
    for data in store.records.values():
        assert verify_crc_property(data)
        decode_record(data, crc_property=CrcPropertyCheck.REQUIRE)
