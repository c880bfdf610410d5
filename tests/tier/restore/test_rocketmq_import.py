"""Taking a tier over from RocketMQ: ids from its file, everything else from the tier."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tiermq.errors import StoreDamaged, TierError
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import SegmentType
from tiermq.tier.restore.rocketmq_json import (
    ImportReport,
    RocketMQMetadata,
    decode_rocketmq_json,
    export_rocketmq_json,
    import_rocketmq,
)

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "rocketmq-5.3.3-tier"
DATA = (GOLDEN / "tieredStoreMetadata.json").read_bytes()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    with MetadataStore(tmp_path / "new.db") as made:
        yield made


def test_a_tier_of_the_real_rocketmq_is_taken_over_without_a_remark(store: MetadataStore) -> None:
    report = import_rocketmq(PosixDriver(GOLDEN / "tier"), store, DATA, cluster="DefaultCluster")
    assert (report.remarks, report.not_in_tier, report.not_in_file) == ([], [], [])
    assert (report.topic_count, report.queue_count, report.message_count) == (3, 5, 116)
    reported = decode_rocketmq_json(DATA, "DefaultCluster")
    assert {topic.name: topic.id for topic in store.topics()} == {topic.name: topic.id for topic in reported.topics}
    assert store.topic_serial_number() == reported.topic_serial_number
    assert report.index_file_count > 0
    assert "complete=False" in report.index_note
    assert ImportReport("c", "b").index_note == "", "a tier without an index has nothing to doubt"


def test_what_the_file_does_not_say_is_read_from_the_tier(store: MetadataStore) -> None:
    import_rocketmq(PosixDriver(GOLDEN / "tier"), store, DATA, cluster="DefaultCluster")
    logs = [segment for segment in store.all_segments() if segment.key.type is SegmentType.COMMIT_LOG]
    assert all(0 <= segment.begin_offset < segment.end_offset for segment in logs if segment.size)
    assert store.queues("orders")[0].min_offset == 12  # Where RocketMQ had begun to tier it.
    assert all(store.time_entries(queue.key) for queue in store.queues())


def test_sizes_times_and_creation_agree_with_rocketmqs_own_and_go_back_to_it(store: MetadataStore) -> None:
    import_rocketmq(PosixDriver(GOLDEN / "tier"), store, DATA, cluster="DefaultCluster")
    ours = decode_rocketmq_json(export_rocketmq_json(store), "DefaultCluster")
    reported = decode_rocketmq_json(DATA, "DefaultCluster")

    def facts(rows: list[Segment]) -> set[tuple[object, ...]]:
        return {(s.key, s.size, s.created_ms, s.begin_ms, s.end_ms) for s in rows}

    def of_queues(metadata: RocketMQMetadata) -> list[Segment]:
        # Of an index file RocketMQ notes a newest message that is older than the file; we let no range end so early.
        return [row for row in metadata.segments if row.size and row.key.type is not SegmentType.INDEX]

    assert facts(of_queues(ours)) == facts(of_queues(reported))


def test_a_file_that_is_behind_its_tier_is_made_good(tmp_path: Path, store: MetadataStore) -> None:
    reported = DATA.replace(b'"size":8046', b'"size":2682')
    assert reported != DATA
    report = import_rocketmq(PosixDriver(GOLDEN / "tier"), store, reported, cluster="DefaultCluster")
    assert report.message_count == 116
    files = FlatFileStore(PosixDriver(GOLDEN / "tier"), store, "DefaultCluster", "broker-a", ManualClock())
    file = files.find("later", 0)
    assert file is not None
    assert (file.min_offset, file.commit_offset) == (0, 6)


def test_what_file_and_tier_disagree_about_is_reported(tmp_path: Path, store: MetadataStore) -> None:
    tier = Path(shutil.copytree(GOLDEN / "tier", tmp_path / "tier"))
    root = tier / "212d6b50_DefaultCluster" / "broker-a"
    lost = next((root / "later" / "0" / "COMMIT_LOG").iterdir())
    lost.unlink()
    shutil.copytree(root / "orders" / "1", root / "orders" / "9")
    report = import_rocketmq(PosixDriver(tier), store, DATA, cluster="DefaultCluster")
    assert [Path(path).name for path in report.not_in_tier] == [lost.name]
    assert {Path(path).parts[3] for path in report.not_in_file} == {"9"}


def test_a_file_that_is_none_and_a_store_that_is_not_empty_are_refused(store: MetadataStore) -> None:
    driver = PosixDriver(GOLDEN / "tier")
    with pytest.raises(StoreDamaged):
        import_rocketmq(driver, store, b"[1, 2", cluster="DefaultCluster")
    with pytest.raises(TierError, match="one broker"):
        import_rocketmq(driver, store, b"{}", cluster="DefaultCluster")
    assert store.is_empty()
    store.add_topic("orders")
    with pytest.raises(TierError, match="empty"):
        import_rocketmq(driver, store, DATA, cluster="DefaultCluster")


def test_bug_11_times_that_rocketmq_read_from_the_wrong_place_are_made_good(store: MetadataStore) -> None:
    """It takes a store time from byte 56 whatever the host's shape is, so those of IPv6 producers are nonsense."""
    golden = GOLDEN.parent / "rocketmq-5.3.3-tier-ipv6"
    data = (golden / "tieredStoreMetadata.json").read_bytes()
    reported = decode_rocketmq_json(data, "DefaultCluster")
    import_rocketmq(PosixDriver(golden / "tier"), store, data, cluster="DefaultCluster")
    logs = [row for row in store.all_segments() if row.size and row.key.type is SegmentType.COMMIT_LOG]
    assert logs
    for row in logs:
        assert 1_600_000_000_000 < row.begin_ms <= row.end_ms < 2_000_000_000_000
    said = {row.key: row.end_ms for row in reported.segments}
    assert any(said[row.key] != row.end_ms for row in logs)
