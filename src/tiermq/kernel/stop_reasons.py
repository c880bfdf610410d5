"""Why the kernel's fast paths stop: the enums of both twins."""

from __future__ import annotations

import enum


class Refusal(enum.Enum):
    """Why a put left the fast path. Nothing was written."""

    ROOM = -1  # The active file has no reserved space, or there is no active file.
    BODY_TOO_LARGE = -2
    PROPERTIES_TOO_LARGE = -3
    RECORD_TOO_LARGE = -4
    OFFSET_MOVED = -5  # Another producer took the expected queue offset.
    UNBOUND = -6  # The appender has no handle for this queue yet.
    CLOSED = -7  # The appender is closed: the store is not writable.
    NEEDS_OFFSET = -8  # An inner batch or a multi-dispatch message: its properties depend on its queue offset.
    EMPTY = -9  # A batch without messages.


class Stop(enum.IntEnum):
    """Why a scan of records stopped."""

    END = 0
    BLANK = 1
    SLOW = 2
    CORRUPT = 3


class Disagreement(enum.IntEnum):
    """Why a check of records against their units ended. The first three are not errors."""

    END = 0  # No units are left.
    PLACE = 1  # The next unit does not point here: a gap, a blank unit, an end mark.
    ROOM = 2  # The next record ends behind the window.
    RECORD = 3  # No whole, intact record with this offset.
    UNIT = 4  # A valid record whose size or queue offset is not its unit's.
    OWNER = 5  # A record of another topic or queue.
    TAG = 6  # The tags code is not that of the record's tag, or a tag beyond ASCII, which is for the slow path.
