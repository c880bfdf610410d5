"""A page of the tier: the local page's shape, and records whose whole-record CRC is stale on purpose."""

from __future__ import annotations

import struct

import pytest

from tier.fetch.fetch_world import Mail
from tiermq.errors import CorruptRecord
from tiermq.kernel import GetPage, TierPage
from tiermq.message.record import decode_records
from tiermq.status import GetStatus


def test_it_has_what_a_local_page_has() -> None:
    local, cold = GetPage(GetStatus.FOUND, 7, 1, 9, b"", 0), TierPage(GetStatus.FOUND, 7, 1, 9, b"", 0)
    for name in ("status", "next_offset", "min_offset", "max_offset", "data", "count", "suggest_slave", "messages"):
        assert getattr(cold, name) == getattr(local, name), name
    assert repr(cold) == "TierPage(status=FOUND, count=0, next_offset=7)"


def test_a_crc_property_that_covers_the_local_place_does_not_make_the_message_damaged() -> None:
    record = bytearray(Mail(crc_property=True).record(5, 0))
    struct.pack_into(">q", record, 28, 123_456)
    with pytest.raises(CorruptRecord):
        list(decode_records(bytes(record)))
    page = TierPage(GetStatus.FOUND, 6, 0, 6, bytes(record), 1)
    assert [message.queue_offset for message in page.messages] == [5]
    assert page.messages is page.messages


def test_a_damaged_body_is_never_handed_out() -> None:
    record = bytearray(Mail(body=b"precious").record(5, 0))
    record[record.index(b"precious")] ^= 1
    with pytest.raises(CorruptRecord):
        _ = TierPage(GetStatus.FOUND, 6, 0, 6, bytes(record), 1).messages
