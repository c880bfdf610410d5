"""Topic and group names: which are legal, which are the system's, which no client may write. The only table of them.

    system topics     RocketMQ's list (TopicValidator) and every rmq_sys_* and RMQ_SYS_*: never tiered, never deleted by
                      operators
      broker topics   system topics in which a broker keeps its own state: no client may write them
    broker groups     CID_RMQ_SYS_*: a broker's own progress; no client may commit, reset or pop for them

Legal is `^[%|a-zA-Z0-9_-]+$`, at most 127 characters for a topic (255 for retry and dead-letter topics, whose names
contain a group's) and 120 for a group. Topics become directory names, so nothing else may pass.
"""

from __future__ import annotations

import re

from tiermq.errors import IllegalMessage

QueueName = tuple[str, int]
"""Topic and queue id: a queue of one store or broker. Made for every arrival, hence a plain tuple."""

TOPIC_CHARACTERS_MAX = 127
RETRY_TOPIC_CHARACTERS_MAX = 255
GROUP_CHARACTERS_MAX = 120
LITE_TOPIC_CHARACTERS_MAX = 64
TOPIC_QUEUES_MAX = 1 << 16
"""Queues of one topic at one broker: more is an error, and clients poll each of them."""

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
LIGHT_QUEUE_PREFIX = "%LMQ%"
LITE_SEPARATOR = "$"
SYSTEM_PREFIX = "rmq_sys_"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
SYNC_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
CLIENT_TRACE_PREFIX = "rmq_sys_TRACE_DATA_"
"""Of clients with the access channel CLOUD, which send their traces there."""
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
TOOLS_GROUP = "TOOLS_CONSUMER"

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
AUTO_CREATE_TOPIC = "TBW102"
BENCHMARK_TOPIC = "BenchmarkTest"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OPERATION_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
TABLE_LOG_TOPIC = "rmq_sys_TIERMQ_TABLES"
"""Changes of a master's tables (topics, groups, offsets), for its replicas. RocketMQ copies its records like all."""
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
"""Of RocketMQ brokers with `transRocksDBEnable`, which keep transactions in RocksDB."""

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OPERATION_HALF_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)

TRANSACTION_TOPICS = frozenset({HALF_TOPIC, OPERATION_HALF_TOPIC, TRANSACTION_CHECK_MAX_TIME_TOPIC})
"""A broker's topics of half messages, op messages, and transactions that were given up."""

BROKER_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OPERATION_HALF_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
"""RocketMQ's list of topics that a client may not send to, and one that it lacks. See `is_broker_topic`."""

PREDEFINED_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
"""Groups that every broker has."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_RULE = "only letters and digits of ASCII and the four characters % | _ - may occur"


def topic_problem(topic: str) -> str | None:
    """Why `topic` is not a legal topic name; None when it is."""
    retry = isinstance(topic, str) and topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    return _problem("topic", topic, RETRY_TOPIC_CHARACTERS_MAX if retry else TOPIC_CHARACTERS_MAX)


def queue_problem(topic: str) -> str | None:
    """Why no queue of a store can have that name. Light queues of lite topics are `%LMQ%$parent$lite`."""
    if not is_light_queue(topic):
        return topic_problem(topic)
    return _problem("light queue", topic.replace(LITE_SEPARATOR, "_"), RETRY_TOPIC_CHARACTERS_MAX)


def lite_queue(parent: str, lite_topic: str) -> str:
    """The light queue of a lite topic, as RocketMQ 5.5 names it."""
    return f"{LIGHT_QUEUE_PREFIX}{LITE_SEPARATOR}{parent}{LITE_SEPARATOR}{lite_topic}"


def lite_parent(name: str) -> str | None:
    """The topic that a lite topic's light queue belongs to; None for other names."""
    prefix = LIGHT_QUEUE_PREFIX + LITE_SEPARATOR
    parent, separator, _ = name.removeprefix(prefix).partition(LITE_SEPARATOR)
    return parent if separator and name.startswith(prefix) else None


def lite_topic_problem(name: str) -> str | None:
    """Why `name` is not a legal lite topic; None when it is."""
    return _problem("lite topic", name, LITE_TOPIC_CHARACTERS_MAX)


def group_problem(group: str) -> str | None:
    """Why `group` is not a legal group name; None when it is."""
    return _problem("group", group, GROUP_CHARACTERS_MAX)


def _problem(kind: str, name: object, characters_max: int) -> str | None:
    if not isinstance(name, str):
        return f"the {kind} is a text, found {name!r}"
    if not name or name.isspace():
        return f"the {kind} is blank"
    if _LEGAL.fullmatch(name) is None:
        return f"the {kind} {name!r} contains illegal characters: {_RULE}"
    if len(name) > characters_max:
        return f"the {kind} has {len(name)} characters, more than {characters_max}: {name!r}"
    return None


def check_topic(topic: str) -> None:
    """Raise IllegalMessage, with the reason, unless `topic` is legal."""
    problem = topic_problem(topic)
    if problem is not None:
        raise IllegalMessage(problem)


def check_group(group: str) -> None:
    """Raise IllegalMessage, with the reason, unless `group` is legal."""
    problem = group_problem(group)
    if problem is not None:
        raise IllegalMessage(problem)


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or _has_system_prefix(topic)


def is_broker_topic(topic: str) -> bool:
    """Whether a broker keeps its own state in a topic: no client may write it, by any request."""
    if topic in BROKER_TOPICS:
        return True
    return _has_system_prefix(topic) and topic != TRACE_TOPIC and not topic.startswith(CLIENT_TRACE_PREFIX)


def _has_system_prefix(topic: str) -> bool:
    """RocketMQ's brokers write both RMQ_SYS_* and rmq_sys_*."""
    return topic[: len(SYSTEM_PREFIX)].lower() == SYSTEM_PREFIX


def is_broker_group(group: str) -> bool:
    """Whether a group's offsets are a broker's own progress: no client may change them, by any request."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dead_letter_topic(topic: str) -> bool:
    return topic.startswith(DEAD_LETTER_PREFIX)


def is_light_queue(name: str) -> bool:
    return name.startswith(LIGHT_QUEUE_PREFIX)


def may_multi_dispatch(topic: str) -> bool:
    """Whether messages of `topic` may also be dispatched to the light queues that they name.

    Not those of the broker's own topics: delayed messages, timers and open transactions are not due yet.
    """
    return not (is_retry_topic(topic) or is_system_topic(topic))


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DEAD_LETTER_PREFIX + group
