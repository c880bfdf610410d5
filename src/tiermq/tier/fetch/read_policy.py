"""Which store answers: RocketMQ's `tieredStorageLevel` and what follows from it, as pure decisions.

    level          asks the tier when
    DISABLE    0   never
    NOT_IN_DISK 1  the local store does not have the message (any more)
    NOT_IN_MEM 2   as 1, or it is no longer in memory there
    FORCE      3   always

The first row of this table that fits decides:

    topic is not tiered                    local      level is DISABLE                             local
    level is FORCE                         tier       queue unknown to the tier                    local
    offset not committed in the tier yet   local      local log is empty, level >= NOT_IN_DISK     tier
    offset not in the local store, >= 1    tier       offset not in memory, level >= NOT_IN_MEM    tier
    otherwise                              local

The level is about gets. Minimum offset, earliest time, offset by time and key query ask the tier at every level, for
they would lie otherwise. RocketMQ takes an unknown number for DISABLE; here it is an error, for whoever wrote it did
not mean to hide his history.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tiermq.errors import BadConfig
from tiermq.status import GetStatus


class StorageLevel(enum.IntEnum):
    """RocketMQ's numbers."""

    DISABLE = 0
    NOT_IN_DISK = 1
    NOT_IN_MEM = 2
    FORCE = 3

    @classmethod
    def parse(cls, value: str | int) -> StorageLevel:
        """From a name or a number, as `tieredStorageLevel` is written. Raises BadConfig."""
        text = str(value).strip().upper()
        if text.isdecimal() and int(text) in cls._value2member_map_:
            return cls(int(text))
        if text in cls.__members__:
            return cls[text]
        raise BadConfig(f"tieredStorageLevel is one of {', '.join(cls.__members__)} or 0 to 3, found {value!r}")


class Source(enum.Enum):
    """Who answers."""

    LOCAL = "local"
    TIER = "tier"


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """What the decision rests on."""

    tiered_topic: bool
    in_tier: bool
    """The tier knows the queue."""
    tier_commit_offset: int
    local_is_empty: bool
    offset_in_local: bool
    offset_in_memory: bool


def choose(level: StorageLevel, offset: int, facts: ReadFacts) -> Source:
    """Who answers a get at `offset`. See the module's table."""
    if not facts.tiered_topic or level is StorageLevel.DISABLE:
        return Source.LOCAL
    if level is StorageLevel.FORCE:
        return Source.TIER
    if not facts.in_tier or offset >= facts.tier_commit_offset:
        return Source.LOCAL
    if facts.local_is_empty or not facts.offset_in_local:
        return Source.TIER
    if level >= StorageLevel.NOT_IN_MEM and not facts.offset_in_memory:
        return Source.TIER
    return Source.LOCAL


def falls_back(status: GetStatus, offset_in_local: bool) -> bool:
    """Whether the local store answers after all: the tier could not, and the message is still there.

    A tier that is out of reach raises instead of giving a status; that falls back in the same way.
    """
    return offset_in_local and status in (GetStatus.OFFSET_FOUND_NULL, GetStatus.NO_MATCHED_LOGIC_QUEUE)


def joint_min_offset(local: int, tier: int) -> int:
    """The smallest readable offset of both; -1 says nothing about where a queue begins."""
    known = [offset for offset in (local, tier) if offset >= 0]
    return min(known, default=-1)


def joint_earliest_time(local_ms: int, tier_ms: int) -> int:
    """Store time of the oldest message of both; -1 when neither has one."""
    known = [time_ms for time_ms in (local_ms, tier_ms) if time_ms >= 0]
    return min(known, default=-1)


def time_is_cold(level: StorageLevel, timestamp_ms: int, local_earliest_ms: int) -> bool:
    """Whether an offset by time is looked for in the tier first: the time lies before what the local store has."""
    return level is StorageLevel.FORCE or local_earliest_ms < 0 or timestamp_ms < local_earliest_ms


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """Which stores a key query asks, each with the caller's range or the part of it that it can have."""

    local: bool
    tier_range_ms: tuple[int, int] | None


def plan_query(level: StorageLevel, begin_ms: int, end_ms: int, local_earliest_ms: int) -> QueryPlan:
    """Local messages begin at `local_earliest_ms` (-1: there are none). The caller's end is never passed.

    The tier's range reaches up to the local beginning: what lies behind it is local, and in the tier only as a copy.
    """
    if begin_ms > end_ms:
        return QueryPlan(False, None)
    if level is StorageLevel.FORCE or local_earliest_ms < 0:
        return QueryPlan(False, (begin_ms, end_ms))
    cold = (begin_ms, min(end_ms, local_earliest_ms)) if begin_ms < local_earliest_ms else None
    return QueryPlan(end_ms >= local_earliest_ms, cold)
