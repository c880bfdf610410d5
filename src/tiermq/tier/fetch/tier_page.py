"""TierPage: what one get from the tier found. The same shape as the local store's page.

The records are those of the local store but for their physical offset, which is the one in the tier. A record that
carries RocketMQ's whole-record CRC property therefore disagrees with it; here the property is not looked at. The body's
own CRC was checked when the window was fetched.
"""

from __future__ import annotations

from tiermq.message.record import CrcPropertyCheck, decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.status import GetStatus


class TierPage:
    """`data` is the records as stored in the tier, end to end; `messages` decodes them when first asked."""

    __slots__ = ("_messages", "count", "data", "max_offset", "min_offset", "next_offset", "status")

    suggest_slave = False
    """A tier is nobody's slave; the local store's page has this field."""

    def __init__(
        self,
        status: GetStatus,
        next_offset: int,
        min_offset: int = 0,
        max_offset: int = 0,
        data: bytes = b"",
        count: int = 0,
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.data = data
        self.count = count
        self._messages: list[StoredMessage] | None = None

    @property
    def messages(self) -> list[StoredMessage]:
        """The records, decoded and their body CRCs checked."""
        if self._messages is None:
            self._messages = list(decode_records(self.data, crc_property=CrcPropertyCheck.IGNORE))
        return self._messages

    def __repr__(self) -> str:
        return f"TierPage(status={self.status.name}, count={self.count}, next_offset={self.next_offset})"
