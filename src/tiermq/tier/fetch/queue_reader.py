"""QueueReader: one group that reads one queue of the tier: its read-ahead, the window it reads, what it was served.

Threads: changed by whoever gets for the group; two at once do no harm beyond a count that misses one.
"""

from __future__ import annotations

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.fetch.read_ahead import ReadAhead
from tiermq.tier.fetch.window_cache import Kept
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment


class QueueReader:
    """See the module. `kept` is the window of the last get, as long as the cache keeps it."""

    __slots__ = (
        "_log_segments", "_low", "_unit_segments",
        "ahead", "file", "group", "hit_count", "kept", "miss_count", "served_bytes", "served_count",
    )  # fmt: skip

    def __init__(self, group: str, file: FlatMessageFile, max_window: int) -> None:
        self.group = group
        self.file = file
        self.ahead = ReadAhead(max_window)
        self.kept: Kept | None = None
        self.hit_count = 0
        self.miss_count = 0
        self.served_count = 0
        self.served_bytes = 0
        self._low = 0
        self._unit_segments: tuple[FlatSegment, ...] | None = None
        self._log_segments: tuple[FlatSegment, ...] | None = None

    def bounds(self) -> tuple[int, int]:
        """Readable queue offsets [low, high) of the queue; (0, 0) before anything is committed.

        Asked at every get: the beginning moves only when segments go, so it is remembered until then.
        """
        file = self.file
        units, log = file.units.segments, file.log.segments
        if units is self._unit_segments and log is self._log_segments:
            return self._low, units[-1].commit_offset // UNIT_BYTES
        low, high = max(0, file.min_offset), max(0, file.commit_offset)
        if low < high:
            self._low, self._unit_segments, self._log_segments = low, units, log
        return low, high

    def is_before(self, offset: int) -> bool:
        """Whether the group has still to come to the messages before `offset`."""
        return 0 <= self.ahead.next_offset < offset
