"""One frame: length, header type, header, body."""

from __future__ import annotations

import struct

from tiermq.errors import BadFrame
from tiermq.remoting.binary_header import decode_binary_header, encode_binary_header
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.json_header import decode_json_header, encode_json_header

LENGTHS = struct.Struct(
    ">"
    "i"  # Everything behind this field.
    "I"  # Header type in the highest byte, header length in the other three.
)
FRAME_BYTES_MAX = 16 * 1024 * 1024
HEADER_BYTES_MAX = (1 << 24) - 1


def encode_frame(command: RemotingCommand) -> bytes:
    """Raises BadFrame for a header that does not fit."""
    is_json = command.header_type == HeaderType.JSON
    header = encode_json_header(command) if is_json else encode_binary_header(command)
    if len(header) > HEADER_BYTES_MAX:
        raise BadFrame(f"expected a header of at most {HEADER_BYTES_MAX} bytes, found {len(header)}")
    lengths = LENGTHS.pack(4 + len(header) + len(command.body), command.header_type << 24 | len(header))
    return b"".join((lengths, header, command.body))


def decode_frame(frame: bytes | memoryview) -> RemotingCommand:
    """The command of exactly one whole frame, its length field included. Raises BadFrame."""
    if len(frame) < LENGTHS.size:
        raise BadFrame(f"expected a frame of at least {LENGTHS.size} bytes, found {len(frame)}")
    length, mixed = LENGTHS.unpack_from(frame)
    header_type, header_length = mixed >> 24, mixed & HEADER_BYTES_MAX
    if length != len(frame) - 4 or header_length > length - 4:
        raise BadFrame(f"expected a frame of {len(frame)} bytes, found lengths {length} and {header_length} in it")
    view = memoryview(frame)
    header = view[LENGTHS.size : LENGTHS.size + header_length]
    if header_type == HeaderType.JSON:
        command = decode_json_header(header)
    elif header_type == HeaderType.ROCKETMQ:
        command = decode_binary_header(header)
    else:
        raise BadFrame(f"expected header type 0 (JSON) or 1 (ROCKETMQ), found {header_type}")
    command.body = view[LENGTHS.size + header_length :]
    return command
