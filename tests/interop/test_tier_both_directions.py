"""One tier, two programs: what a RocketMQ broker moved to its tier is read by us, and what we moved is served by it.

The broker has its POSIX back end and reads everything from the tier (FORCE), so that what it serves is what is there.
Small segments make rolls of every kind; nothing is compared with a copy of ours that the broker did not write.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from golden.tier_reading import (
    WrittenTier,
    check_keys,
    check_messages,
    check_times,
    import_into,
    open_tier,
    take_over,
)
from interop import local_writer, workload
from interop.conftest import StartBroker
from interop.peer import Described, Peer
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, SMALL_FILES, Cluster, Distribution, python_names
from interop.tier_broker import SMALL_SEGMENTS, await_upload, metadata_path, tier_settings
from interop.tier_facts import (
    catch_open_index,
    counts_of,
    keep_tier,
    key_count,
    query_keys,
    read_back,
    search_times,
    send_all,
)
from interop.topics_file import write_topics
from tiermq import kernel
from tiermq.store.tier_continuation import METADATA_DATABASE
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.restore.restore import restore
from tiermq.tier.restore.rocketmq_json import decode_rocketmq_json, export_rocketmq_json
from tiermq.tier.tiered_store import TieredStore

pytestmark = pytest.mark.interop

TOPICS = [("orders", 4), ("payments", 1)]
QUEUES = [(topic, queue) for topic, queues in TOPICS for queue in range(queues)]
MESSAGE_COUNT = 600
SETTINGS = {**python_names(SMALL_FILES), **python_names(SMALL_SEGMENTS)}


def messages(seed: int, count: int = MESSAGE_COUNT) -> Iterator[Described]:
    """The usual mixture, and bodies that fill most of a segment."""
    for number, message in enumerate(workload.messages(TOPICS, count, seed)):
        large = number % 50 == 49 and message["compression"] == "none"
        yield {**message, "body": message["body"][:1] * (20_000 + number)} if large else message


# A broker writes, we read


@pytest.fixture(scope="module")
def broker_tier(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> WrittenTier:
    """What a broker left in its tier when it had stopped, and what it said of it before."""
    root = tmp_path_factory.mktemp("broker-tier")
    store, tier = root / "store", root / "tier"
    with Cluster(distribution, store, root / "run", tier_settings(tier)) as cluster:
        peer = cluster.peer()
        for topic, queues in TOPICS:
            peer.create_topic(topic, queues)
        sent = send_all(peer, messages(seed=301))
        await_upload(store, counts_of(sent))
        stored = read_back(peer, TOPICS)
        caught = catch_open_index(store, tier, key_count(stored))
        facts = [*sent, *stored, *query_keys(peer, sent, step=20), *search_times(peer, stored)]
    return keep_tier(store, tier, dict(SMALL_SEGMENTS), facts, caught, root / "copy")


def test_we_read_everything_that_a_broker_moved_to_its_tier(broker_tier: WrittenTier, tmp_path: Path) -> None:
    tier = import_into(tmp_path / "store", broker_tier)
    with open_tier(tmp_path / "store", tier, broker_tier) as store:
        check_messages(store, broker_tier)
        check_times(store, broker_tier)
        check_keys(store, broker_tier)


def test_a_brokers_tier_is_restored_from_its_files_alone(broker_tier: WrittenTier, tmp_path: Path) -> None:
    shutil.copytree(broker_tier.tier, tmp_path / "tier")
    with open_tier(tmp_path / "store", tmp_path / "tier", broker_tier, restore=True) as store:
        check_messages(store, broker_tier)
        check_times(store, broker_tier)


def test_a_restore_finds_the_segments_that_the_broker_knew(broker_tier: WrittenTier, tmp_path: Path) -> None:
    driver = open_driver(broker_tier.tier.as_uri())
    reported = decode_rocketmq_json(broker_tier.metadata, CLUSTER_NAME)
    with MetadataStore(tmp_path / "restored.db") as restored:
        restore(driver, restored, cluster=CLUSTER_NAME, broker=BROKER_NAME)
        assert extents(restored.all_segments()) == extents(reported.segments)
        assert {topic.name for topic in restored.topics()} == {topic.name for topic in reported.topics}
        for queue in reported.queues:
            again = restored.queue(queue.key)
            assert again is not None
            assert (again.min_offset, again.max_offset) == (queue.min_offset, queue.max_offset)


def extents(segments: Iterable[Segment]) -> set[tuple[object, ...]]:
    """Name, size and times of each segment; an index file that is older than its messages ends when it begins, here."""
    return {
        (segment.key, segment.size, segment.begin_ms, max(segment.begin_ms, segment.end_ms))
        for segment in map(without_end_before_begin, segments)
    }


def without_end_before_begin(segment: Segment) -> Segment:
    return replace(segment, end_ms=max(segment.begin_ms, segment.end_ms))


def test_we_take_over_store_and_tier_of_a_broker_that_was_killed(tmp_path: Path, start_broker: StartBroker) -> None:
    store, tier = tmp_path / "store", tmp_path / "tier"
    cluster = start_broker(store, tier_settings(tier))
    peer = cluster.peer()
    for topic, queues in TOPICS:
        peer.create_topic(topic, queues)
    sent = send_all(peer, messages(seed=302))
    await_upload(store, counts_of(sent))
    stored = read_back(peer, TOPICS)
    caught = catch_open_index(store, tier, key_count(stored))
    facts = [*sent, *stored, *search_times(peer, stored)]
    cluster.crash()

    left = WrittenTier(tier, metadata_path(store).read_bytes(), dict(SMALL_SEGMENTS), facts, caught)
    report = take_over(store, tier, left.metadata)
    assert (report.remarks, report.not_in_tier, report.not_in_file) == ([], [], [])
    with open_tier(store, tier, left, **python_names(SMALL_FILES)) as ours:
        check_messages(ours, left)
        check_times(ours, left)
        check_keys(ours, left)


def test_our_rearrangement_of_a_brokers_open_index_files_has_its_bytes(broker_tier: WrittenTier) -> None:
    uploaded = {int.from_bytes(data[4:12], "big"): data for data in broker_tier.index_segments()}
    slots, capacity = (int(str(value)) for name, value in SMALL_SEGMENTS.items() if "IndexFile" in name)
    assert broker_tier.open_index
    for begin_ms, data in broker_tier.open_index.items():
        assert kernel.rearrange_index(data, slots, capacity) == uploaded[begin_ms]


# We write, a broker serves


Written = dict[tuple[str, int, int], Described]
"""(topic, queue, offset) → message."""


def write_tier(store: Path, tier: Path, seed: int, *, upload_open_index: bool) -> Written:
    """Put messages, move them to the tier, and leave RocketMQ's metadata behind."""
    written: Written = {}
    with our_store(store, tier) as ours:
        for message in messages(seed):
            result = local_writer.put(ours.local, message)
            written[message["topic"], message["queue"], result["offset"]] = message
        assert ours.flush_to_tier()
        assert ours.tier.index is not None
        if upload_open_index:
            assert ours.tier.index.close(upload_open=True)
    with MetadataStore(store / "config" / METADATA_DATABASE) as metadata:
        metadata_path(store).write_bytes(export_rocketmq_json(metadata))
    return written


def our_store(store: Path, tier: Path) -> TieredStore:
    return TieredStore.open(store, tier=tier.as_uri(), broker_name=BROKER_NAME, **SETTINGS)


def check_served(peer: Peer, written: Written) -> None:
    """The broker gives every message under its offset, with everything that we put into it."""
    served: dict[tuple[str, int, int], Described] = {}
    for topic, queue in QUEUES:
        end = 1 + max(offset for *place, offset in written if place == [topic, queue])
        for message in peer.read(topic, queue, end=end):
            served[topic, queue, message["offset"]] = message
    assert served.keys() == written.keys()
    for place, message in written.items():
        found = served[place]
        properties = found["properties"]
        assert found["body"] == message["body"]
        assert found["flag"] == message["flag"]
        assert properties["UNIQ_KEY"] == message["unique_id"]
        assert properties.get("KEYS", "").split() == message["keys"]
        assert properties.get("TAGS") == message["tags"]
        assert message["properties"].items() <= properties.items()


def check_found(peer: Peer, written: Written, step: int = 13) -> None:
    """The broker finds messages by the keys that one message has, and by unique ids."""
    for (topic, queue, offset), message in list(written.items())[::step]:
        place = (queue, offset)
        hits = peer.query(topic, message["unique_id"], unique=True)
        assert [(hit["queue"], hit["offset"]) for hit in hits] == [place]
        for key in message["keys"]:
            if key.startswith("key-"):
                assert place in {(hit["queue"], hit["offset"]) for hit in peer.query(topic, key)}


# A broker need not know how large our segments are; it must know how many slots an index file has.
OTHER_SEGMENTS = {**SMALL_SEGMENTS, "tieredStoreCommitLogMaxSize": 1 << 20, "tieredStoreConsumeQueueMaxSize": 20 * 999}


def test_a_broker_with_an_empty_disk_serves_a_tier_that_we_wrote(tmp_path: Path, start_broker: StartBroker) -> None:
    written = write_tier(tmp_path / "ours", tmp_path / "tier", seed=401, upload_open_index=True)
    store = tmp_path / "store"
    write_topics(store, TOPICS)
    shutil.copy(metadata_path(tmp_path / "ours"), metadata_path(store))
    peer = start_broker(store, tier_settings(tmp_path / "tier", OTHER_SEGMENTS)).peer()
    check_served(peer, written)
    check_found(peer, written)


def test_a_broker_and_we_take_turns_with_one_store_and_its_tier(tmp_path: Path, start_broker: StartBroker) -> None:
    store, tier = tmp_path / "store", tmp_path / "tier"
    written = write_tier(store, tier, seed=402, upload_open_index=False)
    write_topics(store, TOPICS)
    theirs = broker_turn(start_broker(store, tier_settings(tier)), store, tier, written, tmp_path / "copy")
    copy = import_into(tmp_path / "imported", theirs)
    with open_tier(tmp_path / "imported", copy, theirs) as imported:
        check_messages(imported, theirs)
        check_times(imported, theirs)
        check_keys(imported, theirs)

    take_over(store, tier, metadata_path(store).read_bytes())
    written |= write_tier(store, tier, seed=404, upload_open_index=False)
    broker_turn(start_broker(store, tier_settings(tier)), store, tier, written, tmp_path / "second copy")


def broker_turn(cluster: Cluster, store: Path, tier: Path, written: Written, copy: Path) -> WrittenTier:
    """The broker serves everything, then moves more to the tier, then stops. Adds to `written`."""
    peer = cluster.peer()
    check_served(peer, written)
    check_found(peer, written)
    sent = []
    for message in messages(seed=1000 + len(written)):
        sent += send_all(peer, [message])
        written[message["topic"], message["queue"], sent[-1]["result"]["offset"]] = message
    await_upload(store, counts_of({"topic": topic, "queue": queue} for topic, queue, _ in written))
    stored = read_back(peer, TOPICS)
    facts = [*sent, *stored, *search_times(peer, stored)]
    cluster.stop()
    return keep_tier(store, tier, dict(SMALL_SEGMENTS), facts, {}, copy)
