"""Keys and values that the metadata tests share."""

from __future__ import annotations

from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

QUEUE = QueueKey("DefaultCluster", "broker-a", "orders", 3)
OTHER_QUEUE = QueueKey("DefaultCluster", "broker-a", "orders", 4)


def log_key(base: int, queue: QueueKey = QUEUE) -> SegmentKey:
    return queue.segment(SegmentType.COMMIT_LOG, base)


def units_key(base: int, queue: QueueKey = QUEUE) -> SegmentKey:
    return queue.segment(SegmentType.CONSUME_QUEUE, base)


def index_key(base: int) -> SegmentKey:
    return SegmentKey("DefaultCluster", "broker-a", "rmq_sys_INDEX", 0, SegmentType.INDEX, base)
