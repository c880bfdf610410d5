"""The binary header ("ROCKETMQ"), which the official benchmarks use.

    code i16 | language u8 | version i16 | opaque i32 | flag i32 | remark: i32 length, bytes | ext: i32 length, entries
    entry: key i16 length, bytes | value i32 length, bytes

A value of no bytes reads as absent. A key twice: the last one counts. Codes beyond 16 bits (the POP family) arrive
truncated; they are mapped back, which costs nobody anything, because no code below them has those low bits.
"""

from __future__ import annotations

import struct

from tiermq.errors import BadFrame
from tiermq.remoting.codes import TRUNCATED_CODES, language_of
from tiermq.remoting.command import FLAG_RESPONSE, HeaderType, RemotingCommand
from tiermq.remoting.limits import HEADER_FIELDS_MAX

FIXED = struct.Struct(
    ">"
    "h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
)
LENGTH = struct.Struct(">i")
KEY_LENGTH = struct.Struct(">h")
KEY_MAX = (1 << 15) - 1
assert FIXED.size == 13


def decode_binary_header(header: bytes | memoryview) -> RemotingCommand:
    """The command without its body. Raises BadFrame for what is not a header."""
    data = bytes(header)
    try:
        code, language, version, opaque, flag = FIXED.unpack_from(data)
        remark, at = _text(data, FIXED.size)
        (ext_length,) = LENGTH.unpack_from(data, at)
        ext = _entries(data, at + LENGTH.size, ext_length)
    except (struct.error, ValueError) as error:
        raise BadFrame(f"expected a binary header, found {len(data)} bytes that are none: {error}") from error
    return RemotingCommand(
        code if flag & FLAG_RESPONSE else TRUNCATED_CODES.get(code & 0xFFFF, code),
        opaque=opaque,
        flag=flag,
        language=language_of(language),
        version=version,
        remark=remark or None,
        ext=ext,
        header_type=HeaderType.ROCKETMQ,
    )


def encode_binary_header(command: RemotingCommand) -> bytes:
    """Raises BadFrame for what has no place in it."""
    remark = (command.remark or "").encode("utf-8", "replace")
    entries = bytearray()
    for name, value in command.ext.items():
        key, text = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        if len(key) > KEY_MAX:
            raise BadFrame(f"expected a field name of at most {KEY_MAX} bytes, found {len(key)}")
        entries += KEY_LENGTH.pack(len(key)) + key + LENGTH.pack(len(text)) + text
    code = command.code & 0xFFFF
    fixed = FIXED.pack(
        code - 0x10000 if code > 0x7FFF else code, command.language, command.version, command.opaque, command.flag
    )
    return b"".join((fixed, LENGTH.pack(len(remark)), remark, LENGTH.pack(len(entries)), entries))


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = LENGTH.unpack_from(data, at)
    end = at + LENGTH.size + length
    if length < 0 or end > len(data):
        raise ValueError(f"a text of {length} bytes at {at}")
    return data[at + LENGTH.size : end].decode("utf-8", "replace"), end


def _entries(data: bytes, at: int, length: int) -> dict[str, str]:
    end = at + length
    if length < 0 or end > len(data):
        raise ValueError(f"fields of {length} bytes at {at}")
    found: dict[str, str] = {}
    count = 0
    while at < end:
        count += 1
        if count > HEADER_FIELDS_MAX:
            raise ValueError(f"more than {HEADER_FIELDS_MAX} fields")
        (key_length,) = KEY_LENGTH.unpack_from(data, at)
        key_at = at + KEY_LENGTH.size
        value_at = key_at + key_length
        if key_length < 0 or value_at + LENGTH.size > end:
            raise ValueError(f"a field name of {key_length} bytes at {at}")
        value, at = _text(data, value_at)
        if at > end:
            raise ValueError(f"a field that ends at {at}, behind its block")
        if value:
            found[data[key_at:value_at].decode("utf-8", "replace")] = value
    return found
