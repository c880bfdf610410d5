"""Statuses: RocketMQ's names, in RocketMQ's order."""

from __future__ import annotations

from tiermq.status import GetStatus, PutStatus


def test_put_statuses_are_rocketmq_s() -> None:
    assert [status.name for status in sorted(PutStatus, key=lambda status: status.value)] == [
        "PUT_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE", "SERVICE_NOT_AVAILABLE",
        "CREATE_MAPPED_FILE_FAILED", "MESSAGE_ILLEGAL", "PROPERTIES_SIZE_EXCEEDED", "OS_PAGE_CACHE_BUSY",
        "UNKNOWN_ERROR", "IN_SYNC_REPLICAS_NOT_ENOUGH", "PUT_TO_REMOTE_BROKER_FAIL", "LMQ_CONSUME_QUEUE_NUM_EXCEEDED",
        "WHEEL_TIMER_FLOW_CONTROL", "WHEEL_TIMER_MSG_ILLEGAL", "WHEEL_TIMER_NOT_ENABLE",
    ]  # fmt: skip


def test_get_statuses_are_rocketmq_s() -> None:
    assert [status.name for status in sorted(GetStatus, key=lambda status: status.value)] == [
        "FOUND", "NO_MATCHED_MESSAGE", "MESSAGE_WAS_REMOVING", "OFFSET_FOUND_NULL", "OFFSET_OVERFLOW_BADLY",
        "OFFSET_OVERFLOW_ONE", "OFFSET_TOO_SMALL", "NO_MATCHED_LOGIC_QUEUE", "NO_MESSAGE_IN_QUEUE", "OFFSET_RESET",
    ]  # fmt: skip
