"""Message ids: the location of a record (offset id), and the client's id of a message (unique key).

    offset id     address (4 or 16)   port (i32)   physical offset (i64)
    unique key    address (4 or 16)   pid (u16)    process hash (u32)   ms since month start (u32)   counter (u16)

Both are written as upper-case hexadecimal: 32 characters with an IPv4 address, 56 with an IPv6 one. Clients decode
offset ids to find the broker again, so these must be exact.
"""

from __future__ import annotations

import itertools
import os
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, tzinfo

from tiermq.clock import Clock, SystemClock
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.hosts import encode_address, encode_host, format_host
from tiermq.message.layout import PORT_MAX
from tiermq.settings import LONG_MAX

_PLACE = struct.Struct(
    ">"
    "I"  # port             unsigned, so that one comparison finds a damaged one
    "q"  # physical_offset
)
_MAKER = struct.Struct(
    ">"
    "H"  # process_id       its low 16 bits
    "I"  # process_hash     distinguishes processes with the same address and pid
)
_MOMENT = struct.Struct(
    ">"
    "I"  # since_month_start_ms   a month has more milliseconds than a signed int
    "H"  # counter
)
assert _PLACE.size == _MAKER.size + _MOMENT.size == 12


@dataclass(frozen=True, slots=True)
class MessageId:
    """A decoded offset id."""

    store_host: str
    physical_offset: int

    def __str__(self) -> str:
        return encode_message_id(self.store_host, self.physical_offset)


def encode_message_id(store_host: str, physical_offset: int) -> str:
    """The offset id of the record at `physical_offset` in the store of `store_host`."""
    host = encode_host(store_host)
    return format_message_id(host[:-4], int.from_bytes(host[-4:], "big"), physical_offset)


def format_message_id(address: bytes, port: int, physical_offset: int) -> str:
    """The offset id from the parts that a record holds."""
    if not 0 <= physical_offset <= LONG_MAX:
        raise IllegalMessage(f"a physical offset is between 0 and 2^63-1, not {physical_offset}")
    return (address + _PLACE.pack(port, physical_offset)).hex().upper()


def decode_message_id(text: str) -> MessageId:
    """Decode an offset id. Raises CorruptRecord for an invalid one."""
    raw = _from_hex(text)
    port, physical_offset = _PLACE.unpack_from(raw, len(raw) - _PLACE.size)
    if port > PORT_MAX:
        raise CorruptRecord(f"offset id {text!r}: a port is 0..{PORT_MAX}, found {port}")
    if physical_offset < 0:
        raise CorruptRecord(f"offset id {text!r}: a physical offset is not negative, found {physical_offset}")
    return MessageId(format_host(raw[: -_PLACE.size], port), physical_offset)


def _from_hex(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise CorruptRecord(f"offset id {text!r}: expected hexadecimal digits only") from error
    # The length of the text counts, because fromhex skips spaces.
    if len(text) not in (32, 56) or len(raw) * 2 != len(text):
        raise CorruptRecord(
            f"offset id {text!r}: expected 32 (IPv4) or 56 (IPv6) hexadecimal digits, found {len(text)}"
        )
    return raw


def month_start_ms(now_ms: int, zone: tzinfo | None = None) -> int:
    """The first moment of `now_ms`'s month in `zone`; in the machine's time zone by default, as in Java."""
    now = datetime.fromtimestamp(now_ms // 1000, zone) if zone else datetime.fromtimestamp(now_ms // 1000).astimezone()
    start = datetime(now.year, now.month, 1, tzinfo=zone) if zone else datetime(now.year, now.month, 1).astimezone()
    return int(start.timestamp() * 1000)


class UniqueKeyGenerator:
    """Makes unique keys as RocketMQ's clients do. May be shared by threads: each key uses one value of one counter.

    A forked child detects its new process id and makes a new process hash, so that it never repeats its parent's keys.
    """

    __slots__ = ("_address", "_clock", "_counter", "_hash", "_maker", "_month", "_process_id", "_zone")

    def __init__(
        self,
        address: str = "127.0.0.1",
        *,
        clock: Clock | None = None,
        process_id: Callable[[], int] = os.getpid,
        process_hash: Callable[[], int] = lambda: secrets.randbits(32),
        zone: tzinfo | None = None,
    ) -> None:
        """`address` as in `1.2.3.4` or `[::1]`; `process_hash` is called once per process."""
        self._address = encode_address(address)
        self._clock = clock or SystemClock()
        self._process_id = process_id
        self._hash = process_hash
        self._zone = zone
        self._counter = itertools.count()
        self._month = (0, 0)  # Start of a month and of the next one, replaced as a pair.
        self._maker = (-1, "")  # Process id and the text it gives, replaced as a pair.

    def next_key(self) -> str:
        """A new unique key."""
        now_ms = self._clock.now_ms()
        start_ms, end_ms = self._month
        if now_ms >= end_ms:
            start_ms, end_ms = self._month = self._month_of(now_ms)
        # A clock that steps back over the start of the month counts as at the start.
        moment = _MOMENT.pack(max(0, now_ms - start_ms) & 0xFFFFFFFF, next(self._counter) & 0xFFFF)
        process_id, text = self._maker
        if process_id != self._process_id():
            text = self._new_maker()
        return text + moment.hex().upper()

    def _new_maker(self) -> str:
        process_id = self._process_id()
        maker = _MAKER.pack(process_id & 0xFFFF, self._hash() & 0xFFFFFFFF)
        text = (self._address + maker).hex().upper()
        self._maker = (process_id, text)
        return text

    def _month_of(self, now_ms: int) -> tuple[int, int]:
        start_ms = month_start_ms(now_ms, self._zone)
        # 32 days after the first of a month is always in the next one.
        return start_ms, month_start_ms(start_ms + 32 * 86_400_000, self._zone)
