"""Which store answers a get: RocketMQ's `tieredStorageLevel`, as a pure decision.

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
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tiermq.errors import BadConfig


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
        if text.isdigit() and int(text) in cls._value2member_map_:
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
