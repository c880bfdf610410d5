"""HeaderDecoder: header blocks of HTTP/2 (HPACK, RFC 7541), for calls whose headers are nearly always the same.

    1xxxxxxx   field of the table                    01xxxxxx   new field, kept in the table: index of its name, or 0
    001xxxxx   size of the table                     000xxxxx   new field, not kept; its value follows both
    text: bit 7 Huffman, 7 bits length, bytes        numbers end in following bytes when their prefix is all ones

The Huffman code and the fixed part of the table are those of the library `hpack`, whose own decoder takes twice as
long: it makes an object for each field, and decodes texts that it has just seen.

Invariants: the table holds at most `TABLE_BYTES`, counted as the RFC says; a block has at most so many bytes of fields
as its owner says, however small it is; what is no block raises BadBlock, and the connection ends.
"""

from __future__ import annotations

from collections import deque

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from tiermq.errors import RemotingError

TABLE_BYTES = 4_096
"""As the settings of HTTP/2 have it, unless a server says otherwise."""
ENTRY_BYTES = 32
"""Added to the length of each field."""
NUMBER_MAX = 1 << 24
TEXTS_MAX = 4_096
"""Decoded texts that are remembered."""
TEXT_BYTES_MAX = 256
"""Of one that is."""
Field = tuple[bytes, bytes]
_STATIC: tuple[Field, ...] = tuple(HeaderTable.STATIC_TABLE)
STATIC_LAST = 0x80 + len(_STATIC)
"""The byte that stands for the last field of the static table."""
assert _STATIC[7] == (b":status", b"200")


class BadBlock(RemotingError):
    """Bytes that are no header block."""


class HeaderDecoder:
    """See the module. One for each connection."""

    __slots__ = ("_fields_bytes_max", "_size", "_table", "_table_bytes", "_texts")

    def __init__(self, fields_bytes_max: int) -> None:
        self._fields_bytes_max = fields_bytes_max
        self._table: deque[Field] = deque()
        self._size = 0
        self._table_bytes = TABLE_BYTES
        self._texts: dict[bytes, bytes] = {}

    def decode(self, block: bytes) -> list[Field]:
        """The fields of a block. Raises BadBlock."""
        found: list[Field] = []
        at, total = 0, 0
        try:
            while at < len(block):
                first = block[at]
                if 0x80 < first <= STATIC_LAST:  # Most fields are of a table, and have one byte.
                    field = _STATIC[first - 0x81]
                    at += 1
                elif STATIC_LAST < first < 0xFF and first - STATIC_LAST <= len(self._table):
                    field = self._table[first - STATIC_LAST - 1]
                    at += 1
                elif first & 0x80:
                    index, at = _number(block, at, 0x7F)
                    field = self._field(index)
                elif first & 0x40:
                    field, at = self._literal(block, at, 0x3F)
                    self._keep(field)
                elif first & 0x20:
                    if found:
                        raise BadBlock("expected a table size before all fields, found it behind one")
                    size, at = _number(block, at, 0x1F)
                    if size > TABLE_BYTES:
                        raise BadBlock(f"expected a table of at most {TABLE_BYTES} bytes, found {size}")
                    self._table_bytes = size
                    self._evict(0)
                    continue
                else:
                    field, at = self._literal(block, at, 0x0F)
                total += len(field[0]) + len(field[1]) + ENTRY_BYTES
                if total > self._fields_bytes_max:
                    raise BadBlock(f"expected fields of at most {self._fields_bytes_max} bytes, found more")
                found.append(field)
        except IndexError as error:
            raise BadBlock("expected a whole header block, found a part of one") from error
        except HPACKDecodingError as error:
            raise BadBlock(f"expected a Huffman code, found none: {error}") from error
        return found

    def _field(self, index: int) -> Field:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        place = index - len(_STATIC) - 1
        if not 0 <= place < len(self._table):
            raise BadBlock(f"expected an index of the table, found {index}")
        return self._table[place]

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index, at = _number(block, at, mask)
        if index:
            name = self._field(index)[0]
        else:
            name, at = self._text(block, at)
        value, at = self._text(block, at)
        return (name, value), at

    def _text(self, block: bytes, at: int) -> tuple[bytes, int]:
        is_coded = block[at] & 0x80
        length, at = _number(block, at, 0x7F)
        end = at + length
        if end > len(block):
            raise BadBlock(f"expected a text of {length} bytes, found {len(block) - at}")
        raw = block[at:end]
        if not is_coded:
            return raw, end
        text = self._texts.get(raw)
        if text is None:
            text = bytes(decode_huffman(raw))
            if len(raw) <= TEXT_BYTES_MAX:
                if len(self._texts) >= TEXTS_MAX:
                    self._texts.clear()
                self._texts[raw] = text
        return text, end

    def _keep(self, field: Field) -> None:
        size = len(field[0]) + len(field[1]) + ENTRY_BYTES
        self._evict(size)
        if size <= self._table_bytes:
            self._table.appendleft(field)
            self._size += size

    def _evict(self, coming_bytes: int) -> None:
        """Make room; a field that is larger than the table empties it."""
        while self._table and self._size + coming_bytes > self._table_bytes:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + ENTRY_BYTES


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """A number with a prefix, and where it ends. Raises BadBlock, and IndexError where the block ends in it."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if value > NUMBER_MAX or shift > 28:
            raise BadBlock(f"expected a number of at most {NUMBER_MAX}, found more")
        if not byte & 0x80:
            return value, at
        shift += 7
