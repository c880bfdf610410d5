"""The values of the metadata: defaults that other formats rely on."""

from __future__ import annotations

from tier.metadata.metadata_samples import QUEUE, log_key
from tiermq.tier.metadata.metadata_values import NEVER_MS, Queue, Segment, SegmentStatus, Topic


def test_a_segment_without_messages_has_the_times_that_rocketmq_writes() -> None:
    segment = Segment(log_key(0))
    assert (segment.begin_ms, segment.end_ms, segment.sealed_ms) == (2**63 - 1, 2**63 - 1, 0)
    assert NEVER_MS == 2**63 - 1


def test_the_next_segment_begins_where_this_one_ends() -> None:
    assert Segment(log_key(1000), size=24).end == 1024


def test_status_codes_are_rocketmq_s() -> None:
    assert [(status.name, int(status)) for status in SegmentStatus] == [("NEW", 0), ("SEALED", 1), ("DELETED", 2)]


def test_what_is_not_set_means_the_global_setting() -> None:
    assert (Topic(0, "orders").reserve_time_hours, Topic(0, "orders").max_bytes) == (-1, -1)
    assert (Queue(QUEUE).min_offset, Queue(QUEUE).max_offset) == (-1, -1)
