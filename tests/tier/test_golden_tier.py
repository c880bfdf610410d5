"""A tier of the real RocketMQ is ours: taken over by its metadata file or its files alone, read, and gone on with."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from golden.tier_reading import (
    BROKER,
    CLUSTER,
    NAMES,
    WrittenTier,
    check_keys,
    check_messages,
    check_times,
    import_into,
    index_everything,
    messages_by_key,
    open_tier,
    read_queue,
    take_over,
)
from simulation.manual_clock import ManualClock
from tiermq import Message, kernel
from tiermq.files.config_file import decode_lenient_json
from tiermq.message.record import decode_record
from tiermq.status import GetStatus, PutStatus
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.index.index_item import (
    COMPACTED_SLOT,
    HEADER_BYTES,
    ITEM_BYTES,
    MAGIC_END,
    SLOT_BYTES,
    IndexItem,
    compacted_bytes,
    decode_header,
    decode_run,
    index_hash,
)
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import SegmentKey, SegmentType
from tiermq.tier.restore.restore import restore
from tiermq.tier.restore.restore_report import Finding
from tiermq.tier.restore.rocketmq_json import (
    Bean,
    Value,
    decode_rocketmq_json,
    encode_fastjson,
    encode_rocketmq_json,
)
from tiermq.tier.tiered_store import TieredStore

QUEUE_THAT_BEGINS_LATE = ("orders", 0, 12)
"""Topic, queue id, first queue offset in the tier: older messages were there when RocketMQ began."""


@pytest.fixture(params=NAMES)
def written(request: pytest.FixtureRequest) -> WrittenTier:
    return WrittenTier.golden(request.param)


def clock_of(written: WrittenTier) -> ManualClock:
    """The hour at which the tier was written: in ours all of it has expired."""
    return ManualClock(max(fact["store_timestamp"] for fact in written.stored.values()) + 1000)


def imported(written: WrittenTier, directory: Path, **more: Any) -> TieredStore:
    tier = import_into(directory, written)
    return open_tier(directory, tier, written, clock=clock_of(written), **more)


def restored(written: WrittenTier, directory: Path, **more: Any) -> TieredStore:
    shutil.copytree(written.tier, directory / "tier")
    return open_tier(directory, directory / "tier", written, restore=True, clock=clock_of(written), **more)


def item_counts(written: WrittenTier) -> Counter[tuple[int, int, int, int, int]]:
    """(hash, topic id, queue id, tier offset, size) of each index item that the stored messages make."""
    ids = {topic.name: topic.id for topic in decode_rocketmq_json(written.metadata, CLUSTER).topics}
    return Counter(
        (index_hash(fact["topic"], key), ids[fact["topic"]], fact["queue"], fact["physical_offset"], fact["size"])
        for fact in written.stored.values()
        for key in {fact["properties"]["UNIQ_KEY"], *fact["properties"].get("KEYS", "").split()}
    )


def compacted_items(data: bytes) -> list[IndexItem]:
    """All items of a compacted file, after every byte of its structure was checked."""
    header = decode_header(data)
    (first_position, _) = COMPACTED_SLOT.unpack_from(data, HEADER_BYTES)
    slots = (first_position - HEADER_BYTES) // SLOT_BYTES
    assert header.magic == MAGIC_END
    assert len(data) == compacted_bytes(slots, header.item_count)
    position = first_position
    items: list[IndexItem] = []
    used = 0
    for slot in range(slots):
        begin, length = COMPACTED_SLOT.unpack_from(data, HEADER_BYTES + SLOT_BYTES * slot)
        assert (begin, length % ITEM_BYTES) == (position, 0), f"slot {slot}"
        run = list(decode_run(data[begin : begin + length]))
        assert {item.key_hash % slots for item in run} <= {slot}
        items += run
        used += bool(run)
        position += length
    assert (position, used, len(items)) == (len(data), header.slot_count, header.item_count)
    return items


def test_there_is_a_golden_tier() -> None:
    assert NAMES


def test_every_message_of_an_imported_tier_is_as_rocketmqs_consumer_read_it(
    written: WrittenTier, tmp_path: Path
) -> None:
    with imported(written, tmp_path) as store:
        check_messages(store, written)


def test_an_import_finds_metadata_file_and_tier_in_agreement(written: WrittenTier, tmp_path: Path) -> None:
    report = take_over(tmp_path, written.tier, written.metadata)
    assert (report.remarks, report.not_in_tier, report.not_in_file) == ([], [], [])
    assert report.message_count == len(written.stored)


def test_times_of_an_imported_tier_find_what_rocketmqs_search_found(written: WrittenTier, tmp_path: Path) -> None:
    with imported(written, tmp_path) as store:
        check_times(store, written)


def test_keys_of_an_imported_tier_find_every_message_that_has_them(written: WrittenTier, tmp_path: Path) -> None:
    with imported(written, tmp_path) as store:
        check_keys(store, written)


def test_an_index_that_rocketmq_wrote_is_doubted_until_it_is_built_again(written: WrittenTier, tmp_path: Path) -> None:
    topic, key = next(iter(messages_by_key(written)))
    with imported(written, tmp_path) as store:
        index_everything(store)
        assert not store.query(topic, key).complete
        assert store.reindex() > 0
        assert not store.query(topic, key).complete
        index_everything(store)
        assert store.query(topic, key).complete
        assert store.reindex() == 0
        check_keys(store, written)


def test_rocketmqs_own_key_queries_found_no_more_and_no_less(written: WrittenTier) -> None:
    holders = messages_by_key(written)
    queries = written.of_kind("query")
    assert queries
    for fact in queries:
        assert set(fact["unique_ids"]) == holders.get((fact["topic"], fact["key"]), set()), fact


def test_a_tier_is_restored_from_its_files_alone(written: WrittenTier, tmp_path: Path) -> None:
    with restored(written, tmp_path) as store:
        check_messages(store, written)
        check_times(store, written)


def test_keys_of_a_tier_that_is_restored_from_its_files_alone_are_found(written: WrittenTier, tmp_path: Path) -> None:
    with restored(written, tmp_path) as store:
        index_everything(store)
        check_keys(store, written)


def test_a_restore_finds_the_segments_that_the_metadata_file_names(written: WrittenTier, tmp_path: Path) -> None:
    driver = open_driver(written.tier.as_uri())
    known = decode_rocketmq_json(written.metadata, CLUSTER)
    with MetadataStore(tmp_path / "restored.db") as found:
        report = restore(driver, found, cluster=CLUSTER, broker=BROKER, clock=clock_of(written))
        assert extents(found.all_segments()) == extents(known.segments)
        assert {queue.key: (queue.min_offset, queue.max_offset) for queue in found.queues()} == {
            queue.key: (queue.min_offset, queue.max_offset) for queue in known.queues
        }
    expected = {Finding.MISSING_MANIFEST, Finding.TOPIC_ID_ASSIGNED, Finding.UNKNOWN_TOPIC_IN_INDEX}
    assert {remark.finding for remark in report.remarks} == expected


def extents(segments: Iterable[Segment]) -> dict[SegmentKey, tuple[int, int, int]]:
    """Size and times of each segment. RocketMQ creates index files after their messages: most end before they begin."""
    return {
        segment.key: (segment.size, segment.begin_ms, max(segment.begin_ms, segment.end_ms)) for segment in segments
    }


def test_a_queue_that_began_late_in_the_tier_begins_there(written: WrittenTier, tmp_path: Path) -> None:
    topic, queue_id, first = QUEUE_THAT_BEGINS_LATE
    with imported(written, tmp_path) as store:
        assert store.min_offset(topic, queue_id) == first
        early = store.get(topic, queue_id, 0)
        assert (early.status, early.next_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
        assert read_queue(store, topic, queue_id, first + 1)[0].queue_offset == first + 1


def test_the_metadata_files_text_is_written_byte_for_byte(written: WrittenTier) -> None:
    """With the order of rows that RocketMQ's hash maps happened to have, which is the only thing that is not ours."""
    root = decode_lenient_json(written.metadata, "tieredStoreMetadata.json")
    assert encode_fastjson(in_tables(root)).encode() == written.metadata


def in_tables(root: dict[str, Any]) -> Bean:
    """The parsed file with integer keys where tables have them."""
    numbered = {name for name in root if name.endswith("SegmentTable") or name == "queueMetadataTable"}

    def rows(name: str, table: dict[str, Any]) -> Value:
        found: dict[str, Value] = {}
        for key, value in table.items():
            numbers: dict[int, Value] = {int(number): bean(row) for number, row in value.items() if name in numbered}
            found[key] = numbers or bean(value)
        return found

    def bean(row: dict[str, Any]) -> Bean:
        return Bean([(key, bean(value) if isinstance(value, dict) else value) for key, value in row.items()])

    return Bean([(name, rows(name, value) if isinstance(value, dict) else value) for name, value in root.items()])


def test_the_metadata_file_survives_import_and_export(written: WrittenTier) -> None:
    known = decode_rocketmq_json(written.metadata, CLUSTER)
    again = decode_rocketmq_json(encode_rocketmq_json(known), CLUSTER)
    assert set(again.segments) == set(known.segments)
    assert set(again.topics) == set(known.topics)
    assert set(again.queues) == set(known.queues)
    assert again.topic_serial_number == known.topic_serial_number


def test_uploaded_index_files_hold_one_item_for_each_key_of_each_message(written: WrittenTier) -> None:
    found = Counter(
        (item.key_hash, item.topic_id, item.queue_id, item.tier_offset, item.size)
        for data in written.index_segments()
        for item in compacted_items(data)
    )
    assert found == item_counts(written)


def test_uploaded_index_files_follow_each_other_without_a_gap(written: WrittenTier) -> None:
    rows = decode_rocketmq_json(written.metadata, CLUSTER).segments
    index = sorted((row for row in rows if row.key.type is SegmentType.INDEX), key=lambda row: row.key.base)
    assert [row.key.base for row in index] == [0, *(row.end for row in index[:-1])]
    for row, data in zip(index, written.index_segments(), strict=True):
        header = decode_header(data)
        assert (row.size, row.begin_ms, row.end_ms) == (len(data), header.begin_ms, header.end_ms)


def test_our_rearrangement_of_open_index_files_has_rocketmqs_bytes(written: WrittenTier) -> None:
    uploaded = {decode_header(data).begin_ms: data for data in written.index_segments()}
    slots = written.settings["tieredStoreIndexFileMaxHashSlotNum"]
    capacity = written.settings["tieredStoreIndexFileMaxIndexNum"]
    assert written.open_index
    for begin_ms, data in written.open_index.items():
        assert kernel.rearrange_index(data, slots, capacity) == uploaded[begin_ms]


def test_records_lie_end_to_end_with_their_own_place_in_them(written: WrittenTier) -> None:
    for (topic, queue_id), places in places_by_queue(written).items():
        paths = written.tier.glob(f"*/*/{topic}/{queue_id}/COMMIT_LOG/*")
        log = b"".join(path.read_bytes() for path in sorted(paths, key=lambda path: path.name[-20:]))
        position = 0
        for offset in sorted(places):
            message = decode_record(log[position : position + places[offset]], expect_physical_offset=position)
            assert (message.topic, message.queue_id, message.queue_offset) == (topic, queue_id, offset)
            position += places[offset]
        assert position == len(log)


def places_by_queue(written: WrittenTier) -> dict[tuple[str, int], dict[int, int]]:
    """(topic, queue) → queue offset → size of its record."""
    found: dict[tuple[str, int], dict[int, int]] = {}
    for (topic, queue_id, offset), fact in written.stored.items():
        found.setdefault((topic, queue_id), {})[offset] = fact["size"]
    return found


def test_settings_other_than_those_of_the_writer_make_no_difference(written: WrittenTier, tmp_path: Path) -> None:
    tier = import_into(tmp_path, written)
    with open_tier(tmp_path, tier, replace(written, settings={}), clock=clock_of(written)) as store:
        check_messages(store, written)
        check_times(store, written)
        check_keys(store, written)


def test_reading_changes_no_byte_of_the_tier(written: WrittenTier, tmp_path: Path) -> None:
    with imported(written, tmp_path) as store:
        check_messages(store, written)
    assert segment_bytes(tmp_path / "tier") == segment_bytes(written.tier)


def segment_bytes(tier: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tier)): path.read_bytes() for path in tier.rglob("*") if path.is_file()}


@pytest.mark.parametrize("take_over", [imported, restored])
def test_we_go_on_writing_where_rocketmq_ended(take_over: Any, written: WrittenTier, tmp_path: Path) -> None:
    ends = {queue: max(places) + 1 for queue, places in places_by_queue(written).items()}
    with take_over(written, tmp_path) as store:
        for (topic, queue_id), end in ends.items():
            result = store.put(Message(topic, b"ours", queue_id=queue_id, keys=["ours"]))
            assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, end)
        assert store.flush_to_tier()
        for (topic, queue_id), end in ends.items():
            assert [message.body for message in read_queue(store, topic, queue_id, end)] == [b"ours"]
            assert store.query(topic, "ours").messages
    before = segment_bytes(written.tier)
    after = segment_bytes(tmp_path / "tier")
    assert all(after[path][: len(data)] == data for path, data in before.items())
