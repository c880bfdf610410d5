"""HeaderDecoder: header blocks of HTTP/2 (HPACK, RFC 7541), for calls whose headers are nearly always the same.

    1xxxxxxx   field of the table                    01xxxxxx   new field, kept in the table: index of its name, or 0
    001xxxxx   size of the table                     000xxxxx   new field, not kept; its value follows both
    text: bit 7 Huffman, 7 bits length, bytes        numbers end in following bytes when their prefix is all ones

The Huffman code and the fixed part of the table are the owner's (`HeaderCodes`).

Invariants: the table holds at most `TABLE_BYTES`, counted as in the RFC; a block has at most so many bytes of fields
as its owner allows, however small it is; what is no block raises BadBlock, and the connection ends.
"""

from __future__ import annotations

from typing import NamedTuple

from tiermq.errors import RemotingError

TABLE_BYTES = 4_096
"""As the settings of HTTP/2 have it, unless a server chooses otherwise."""
ENTRY_BYTES = 32
"""Added to the length of each field."""
NUMBER_MAX = 1 << 24
HUFFMAN_COMPLETE, HUFFMAN_EMITS, HUFFMAN_FAILS = 1, 2, 4
Field = tuple[bytes, bytes]


class BadBlock(RemotingError):
    """Bytes that are no header block."""


class HeaderCodes(NamedTuple):
    """What all decoders of a protocol share."""

    static: tuple[Field, ...]
    """The fixed part of the table, from index 1 on."""
    huffman: bytes
    """For 256 states and each half byte: the next state, flags (complete, emits, fails), the byte that is emitted."""
    kept: dict[bytes, str]
    """The fields that `metadata` returns, with the names that it returns them by."""


class HeaderDecoder:
    """See the module. One for each connection."""

    __slots__ = ("_codes", "_fields_bytes_max", "_size", "_table", "_table_bytes")

    def __init__(self, fields_bytes_max: int, codes: HeaderCodes) -> None:
        assert len(codes.huffman) == 3 * 16 * 256
        self._fields_bytes_max = fields_bytes_max
        self._codes = codes
        self._table: list[Field] = []
        """The newest last."""
        self._size = 0
        self._table_bytes = TABLE_BYTES

    def decode(self, block: bytes) -> list[Field]:
        """The fields of a block. Raises BadBlock."""
        found: list[Field] = []
        at, total = 0, 0
        try:
            while at < len(block):
                first = block[at]
                if first & 0x80:
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
        return found

    def metadata(self, block: bytes) -> dict[str, str]:
        """The kept fields of a block, as text; the last one of a name counts. Raises BadBlock."""
        kept = self._codes.kept
        return {kept[name]: value.decode("latin-1") for name, value in self.decode(block) if name in kept}

    def _field(self, index: int) -> Field:
        static = self._codes.static
        if 0 < index <= len(static):
            return static[index - 1]
        place = index - len(static) - 1
        if not 0 <= place < len(self._table):
            raise BadBlock(f"expected an index of the table, found {index}")
        return self._table[len(self._table) - 1 - place]

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
        return (self._decompressed(raw) if is_coded else raw), end

    def _decompressed(self, raw: bytes) -> bytes:
        codes, state, flags = self._codes.huffman, 0, HUFFMAN_COMPLETE
        found = bytearray()
        for byte in raw:
            for half in (byte >> 4, byte & 0x0F):
                at = 3 * (16 * state + half)
                state, flags = codes[at], codes[at + 1]
                if flags & HUFFMAN_FAILS:
                    raise BadBlock("expected a Huffman code, found none")
                if flags & HUFFMAN_EMITS:
                    found.append(codes[at + 2])
        if not flags & HUFFMAN_COMPLETE:
            raise BadBlock("expected a Huffman code, found a part of one")
        return bytes(found)

    def _keep(self, field: Field) -> None:
        size = len(field[0]) + len(field[1]) + ENTRY_BYTES
        self._evict(size)
        if size <= self._table_bytes:
            self._table.append(field)
            self._size += size

    def _evict(self, coming_bytes: int) -> None:
        """Make room; a field that is larger than the table empties it."""
        while self._table and self._size + coming_bytes > self._table_bytes:
            name, value = self._table.pop(0)
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
