"""Names in the tier: RocketMQ's paths, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import BadTierName
from tiermq.tier.names import (
    BASE_MAX,
    QueueKey,
    SegmentKey,
    SegmentType,
    broker_directory,
    check_object_name,
    cluster_directory,
    file_name,
    index_queue,
    md5_8,
    segment_at,
)

component = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
keys = st.builds(
    SegmentKey,
    component,
    component,
    component,
    st.integers(0, 2**31 - 1),
    st.sampled_from(SegmentType),
    st.integers(0, BASE_MAX),
)


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (0, "cfcd208400000000000000000000"),
        (4294937144, "b10da56800000000004294937144"),
        (1073741775, "1f329fef00000000001073741775"),
        (2147483550, "dcb86ff200000000002147483550"),
        (104857600, "40d473e300000000000104857600"),
    ],
)
def test_a_base_offset_has_the_file_name_that_rocketmq_gives_it(base: int, name: str) -> None:
    assert file_name(base) == name


def test_clusters_have_the_directory_that_rocketmq_gives_them() -> None:
    assert cluster_directory("DefaultCluster") == "212d6b50_DefaultCluster"
    assert md5_8("TieredStorageDailyTest") == "161c08ff"
    assert broker_directory("DefaultCluster", "broker-a") == "212d6b50_DefaultCluster/broker-a"


def test_the_numbers_of_types_are_those_of_the_metadata_file() -> None:
    assert [(kind.name, int(kind)) for kind in SegmentType] == [("COMMIT_LOG", 0), ("CONSUME_QUEUE", 1), ("INDEX", 2)]


def test_a_segment_lies_where_rocketmq_looks_for_it() -> None:
    key = QueueKey("DefaultCluster", "broker-a", "orders", 3).segment(SegmentType.COMMIT_LOG, 1073741775)
    assert key.path == "212d6b50_DefaultCluster/broker-a/orders/3/COMMIT_LOG/1f329fef00000000001073741775"
    assert str(key) == key.path
    assert key.logical_path == key.queue.logical_path == "broker-a/orders/3"
    assert key.queue.object_name("manifest") == "212d6b50_DefaultCluster/broker-a/orders/3/manifest.tiermq.json"


def test_the_index_is_a_queue_of_its_own() -> None:
    assert index_queue("c", "brokerName").logical_path == "brokerName/rmq_sys_INDEX/0"


@given(keys)
def test_a_path_leads_back_to_its_key(key: SegmentKey) -> None:
    assert SegmentKey.parse(key.path) == key
    assert hash(SegmentKey.parse(key.path)) == hash(key)


GOOD = "212d6b50_DefaultCluster/broker-a/orders/3/COMMIT_LOG/1f329fef00000000001073741775"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/" + GOOD,
        GOOD + "/",
        GOOD + ".parts/00000000000000000000",
        GOOD + ".sealed",
        GOOD.replace("212d6b50", "212d6b51"),
        GOOD.replace("1f329fef", "1f329fee"),
        GOOD.replace("/3/", "/03/"),
        GOOD.replace("/3/", "/-3/"),
        GOOD.replace("/3/", "/²/"),
        GOOD.replace("COMMIT_LOG", "commit_log"),
        GOOD.replace("COMMIT_LOG", "0"),
        GOOD.replace("orders", ".."),
        GOOD.replace("orders", ""),
        GOOD.replace("1073741775", "107374177x"),
        file_name(0),
        cluster_directory("c") + f"/b/t/0/INDEX/{md5_8(str(2**63))}{2**63:020d}",
    ],
)
def test_a_path_that_is_not_exactly_one_of_ours_is_foreign(path: str) -> None:
    assert segment_at(path) is None
    with pytest.raises(BadTierName, match="expected <hash>_<cluster>"):
        SegmentKey.parse(path)


@given(st.text(max_size=100))
def test_no_text_makes_the_parser_fall_over(path: str) -> None:
    key = segment_at(path)
    assert key is None or key.path == path


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a\0b"])
def test_a_name_that_cannot_be_part_of_a_path_is_refused_when_the_key_is_made(bad: str) -> None:
    for values in [(bad, "b", "t"), ("c", bad, "t"), ("c", "b", bad)]:
        with pytest.raises(BadTierName, match="one part of a path"):
            QueueKey(*values, 0)
        with pytest.raises(BadTierName):
            SegmentKey(*values, 0, SegmentType.INDEX, 0)
    with pytest.raises(BadTierName):
        QueueKey("c", "b", "t", 0).object_name(bad)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(BadTierName, match="queue id of 0 or more"):
        QueueKey("c", "b", "t", -1)
    for base in (-1, BASE_MAX + 1):
        with pytest.raises(BadTierName, match="base offset"):
            SegmentKey("c", "b", "t", 0, SegmentType.INDEX, base)


def test_small_objects_are_known_by_their_suffix() -> None:
    assert check_object_name("a/b.tiermq.json") == "a/b.tiermq.json"
    assert check_object_name("a/b.tiermq.timers") == "a/b.tiermq.timers"
    with pytest.raises(BadTierName, match="ends with .tiermq.json"):
        check_object_name("a/b.json")
