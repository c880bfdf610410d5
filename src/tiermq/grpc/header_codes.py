"""The codes of header blocks: the library `hpack`'s static table and Huffman code, for the kernel's `HeaderDecoder`."""

from __future__ import annotations

from itertools import chain

from hpack.huffman_table import HUFFMAN_TABLE
from hpack.table import HeaderTable

from tiermq.grpc.call import KEPT_METADATA
from tiermq.kernel import HeaderCodes

CODES = HeaderCodes(
    static=tuple((bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE),
    huffman=bytes(chain.from_iterable(HUFFMAN_TABLE)),
    kept={name.encode(): name for name in KEPT_METADATA},
)
assert CODES.static[7] == (b":status", b"200")
