"""TierPage and WindowPages in pure Python: pages of a checked window of a tier's records.

    units   | u0 | u1 | u2 | ... |            20 bytes each, from queue offset `first_offset` on
    data    | record 0 | record 1 | ... |     from log offset `log_offset` on

Invariant: every unit is followed by exactly its record, so a page is one slice of the data.
"""

from __future__ import annotations

from typing import Any

from tiermq.errors import CorruptRecord
from tiermq.kernel.get_page import GetPage
from tiermq.message.layout import I64, UNIT_BYTES
from tiermq.message.record import CrcPropertyCheck, decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.status import GetStatus


class TierPage(GetPage):
    """Result of one get from a tier: as GetPage, but the CRC property of records is not verified.

    A caller with an older message in another store may lower `min_offset`. `suggest_slave` is never set: a tier has no
    slave.
    """

    __slots__ = ()

    @property
    def messages(self) -> list[StoredMessage]:
        """The records, decoded and their body CRCs checked. Raises CorruptRecord rather than return damaged data."""
        if self._messages is None:
            self._messages = list(decode_records(self.data, crc_property=CrcPropertyCheck.IGNORE))
        return self._messages


class WindowPages:
    """Pages of a window in which every unit is followed by exactly its record, as `check_window` verified.

    Holds both buffers.
    """

    __slots__ = ("_data", "_first_offset", "_log_offset", "_total", "_units")

    def __init__(self, units: Any, data: Any, log_offset: int, first_offset: int) -> None:
        self._units = memoryview(units)
        self._data = memoryview(data)
        self._log_offset = log_offset
        self._first_offset = first_offset
        self._total = len(self._units) // UNIT_BYTES

    def _end_of(self, index: int) -> int:
        """The end of the records of the first `index` units in the data."""
        if index >= self._total:
            return len(self._data)
        return int(I64.unpack_from(self._units, index * UNIT_BYTES)[0]) - self._log_offset

    def take(self, offset: int, count: int, max_bytes: int) -> tuple[bytes, int, int]:
        """Whole records from queue offset `offset` on: at most `count`, at most `max_bytes`, but at least one.

        (bytes, how many, next queue offset).
        """
        index = offset - self._first_offset
        if index < 0 or index >= self._total or count < 1:
            return b"", 0, offset
        count = min(count, self._total - index)
        start, end = self._end_of(index), self._end_of(index + count)
        while end - start > max_bytes and count > 1:
            count -= 1
            end = self._end_of(index + count)
        if not 0 <= start <= end <= len(self._data):
            raise CorruptRecord("the units of a window do not fit its records")
        return bytes(self._data[start:end]), count, offset + count

    def page(self, offset: int, count: int, max_bytes: int, low: int, high: int) -> TierPage | None:
        """The same as a page of a queue that has messages [low, high); None when `count` would exceed the window."""
        if offset < self._first_offset or offset - self._first_offset > self._total - count:
            return None
        data, taken, next_offset = self.take(offset, count, max_bytes)
        return TierPage(GetStatus.FOUND, next_offset, low, high, data, taken)
