"""Window: consecutive messages of one queue as they came from the tier, checked once, served many times.

In the tier a queue's records lie side by side, so a page of messages is one slice of the window's bytes.

    units   | u0 | u1 | u2 | ... |            20 bytes each, from queue offset `first_offset` on
    data    | record 0 | record 1 | ... |     from log offset `log_offset` on

A window is *plain* when every unit is followed by exactly its record (the kernel checked places, sizes, numbers, owners
and body CRCs); then nothing is done per message. Otherwise (a gap, an end mark of a sealed segment, damage) it keeps
the list of the places that are good (`record_split`), and of the queue offsets whose messages are damaged: pages end
before them, and a page that would begin with one is an error. A gap is passed over: there never was a message.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES, is_ext_address
from tiermq.errors import CorruptSegment
from tiermq.kernel import WindowPages, check_window
from tiermq.message.message_filter import MessageFilter
from tiermq.tier.fetch.record_split import Place, split

OVERHEAD_BYTES = 1024  # Of the objects around the bytes: the window, two views, its place in the cache.
PLACE_BYTES = 232  # Of one place with the numbers in it.
SYS_FLAG_LOW_BYTE_AT = 39
BORN_HOST_V6 = 0x10
_FIRST_LONG = struct.Struct(">q")

Piece = tuple[bytes, int, int]
"""A piece of a page: whole records, how many, and where to go on. A tuple, for a get makes one each time."""


class Window:
    """See the module. Immutable after it is made. `pages` cuts pages out of a plain window, None of any other."""

    __slots__ = (
        "count", "damaged", "data", "end_offset", "first_offset", "log_offset", "pages", "places", "units",
    )  # fmt: skip

    def __init__(
        self,
        first_offset: int,
        units: bytes | memoryview,
        data: bytes | memoryview,
        log_offset: int,
        owner: tuple[str, int] | None = None,
    ) -> None:
        """`owner`: the topic and the queue whose records are good; without it nobody looks whose they are."""
        self.first_offset = first_offset
        self.units = memoryview(units)
        self.data = memoryview(data)
        self.log_offset = log_offset
        self.count = len(units) // UNIT_BYTES
        self.end_offset = first_offset + self.count
        self.damaged: list[int] = []
        self.places: list[Place] | None = None
        self.pages: WindowPages | None = None
        topic, queue_id = owner or ("", 0)
        if check_window(units, data, log_offset, first_offset, True, topic.encode(), queue_id) == self.count:
            self.pages = WindowPages(units, data, log_offset, first_offset)
        else:
            self.places, self.damaged = split(units, self.data, log_offset, first_offset, owner)

    @property
    def is_plain(self) -> bool:
        return self.places is None

    @property
    def corrupt_count(self) -> int:
        return len(self.damaged)

    @property
    def weight(self) -> int:
        """The bytes that keeping this window costs: of memory that its views keep, also what they do not show."""
        places = 0 if self.places is None else len(self.places) * PLACE_BYTES
        return _held_bytes(self.units) + _held_bytes(self.data) + places + OVERHEAD_BYTES

    def take(self, offset: int, max_messages: int, max_bytes: int) -> Piece:
        """Messages from `offset` on, as many as the limits allow, the first one in any case."""
        if self.pages is not None:
            return self.pages.take(offset, max_messages, max_bytes)
        return self._collect(offset, max_messages, max_bytes, None)

    def _end_of(self, index: int) -> int:
        """Where the records of the first `index` units end in the data of a plain window."""
        if index >= self.count:
            return len(self.data)
        return int(_FIRST_LONG.unpack_from(self.units, index * UNIT_BYTES)[0]) - self.log_offset

    def take_matching(self, offset: int, max_messages: int, max_bytes: int, chosen: MessageFilter) -> Piece:
        """The same with a filter: by the unit first, then by the record."""
        return self._collect(offset, max_messages, max_bytes, chosen)

    def _collect(self, offset: int, max_messages: int, max_bytes: int, chosen: MessageFilter | None) -> Piece:
        parts: list[memoryview] = []
        total = 0
        data = self.data
        end = self._sound_end(offset)
        for queue_offset, start, size, tags_code in self._places_from(offset):
            if queue_offset >= end:
                break
            if len(parts) >= max_messages:
                return b"".join(parts), len(parts), queue_offset
            record = data[start : start + size]
            if chosen is not None:
                # An ext address says nothing here: ext units stay with the local store.
                code = None if is_ext_address(tags_code) else tags_code
                if not chosen.matches_unit(code, None) or not chosen.matches_record(record):
                    continue
            if parts and total + size > max_bytes:
                return b"".join(parts), len(parts), queue_offset
            parts.append(record)
            total += size
        return b"".join(parts), len(parts), end

    def _sound_end(self, offset: int) -> int:
        """Up to where the messages from `offset` on are good. Raises CorruptSegment when that one is damaged."""
        if not self.damaged:
            return self.end_offset
        index = bisect_left(self.damaged, offset)
        if index == len(self.damaged):
            return self.end_offset
        if self.damaged[index] == offset:
            raise CorruptSegment(
                f"the message at queue offset {offset} is damaged in the tier, and is not passed over; "
                "run `tiermq tier verify`, and `tiermq tier repair --store` where a local store still has it"
            )
        return self.damaged[index]

    def _places_from(self, offset: int) -> Iterator[Place] | list[Place]:
        if self.places is not None:
            return self.places[bisect_left(self.places, offset, key=_queue_offset) :]
        return self._plain_places(offset)

    def _plain_places(self, offset: int) -> Iterator[Place]:
        start = (offset - self.first_offset) * UNIT_BYTES
        log_offset = self.log_offset
        for number, (place, size, tags_code) in enumerate(UNIT.iter_unpack(self.units[start:]), offset):
            yield Place(number, place - log_offset, size, tags_code)

    # Times

    def store_time_of(self, offset: int) -> int:
        """Store time of one message; -1 when it is not in the window or not good."""
        if not self.first_offset <= offset < self.end_offset:
            return -1
        for place in self._places_from(offset):
            return self._time_at(place.start) if place.queue_offset == offset else -1
        return -1

    def first_stored_from(self, timestamp_ms: int) -> int:
        """The first good message that was stored at the time or later; the window's end when there is none.

        By halving: store times of a queue do not decrease.
        """
        if self.places is not None:
            at = bisect_left(self.places, timestamp_ms, key=lambda place: self._time_at(place.start))
            return self.places[at].queue_offset if at < len(self.places) else self.end_offset
        index = bisect_left(range(self.count), timestamp_ms, key=lambda number: self._time_at(self._end_of(number)))
        return self.first_offset + index

    def last_stored_before(self, offset: int) -> tuple[int, int] | None:
        """(queue offset, store time) of the newest good message before `offset`; None when there is none."""
        if self.places is not None:
            at = bisect_left(self.places, offset, key=_queue_offset)
            place = self.places[at - 1] if at else None
            return None if place is None else (place.queue_offset, self._time_at(place.start))
        if offset <= self.first_offset:
            return None
        return offset - 1, self._time_at(self._end_of(offset - 1 - self.first_offset))

    def _time_at(self, start: int) -> int:
        """Where the store time stands depends on the shape of the born host."""
        at = start + (68 if self.data[start + SYS_FLAG_LOW_BYTE_AT] & BORN_HOST_V6 else 56)
        return int(_FIRST_LONG.unpack_from(self.data, at)[0])


def _held_bytes(view: memoryview) -> int:
    """The length of the memory that a view is a view of."""
    return memoryview(view.obj).nbytes


def _queue_offset(place: Place) -> int:
    return place.queue_offset
