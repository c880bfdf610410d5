"""A seal: what a small file held when it was written, kept as an extended attribute of the file.

    user.tiermq.seal    CRC-32 of its bytes as 8 hex digits, a space, its modification time in nanoseconds

Settings are files of RocketMQ's, JSON that has no room for a checksum: a bad bit in the name of a group makes another
group of it. A file whose bytes are others than its seal says, and whose time is the same, was not edited: it went bad.
An edit changes the time, and a copy by most programs drops the attribute; then there is nothing to compare, and the
file is believed. The attribute goes with the file when it is renamed, and is durable when the file is synced.
"""

from __future__ import annotations

import os
import zlib

NAME = "user.tiermq.seal"


def seal(descriptor: int, data: bytes) -> bool:
    """Seal an open file that holds `data`; sync it afterwards. False where the file system keeps no such attributes."""
    text = f"{zlib.crc32(data):08x} {os.fstat(descriptor).st_mtime_ns}"
    try:
        os.setxattr(descriptor, NAME, text.encode())
    except OSError:  # Not supported, not permitted, or no room for it: a file without a seal is believed.
        return False
    return True


def is_broken(path: str, data: bytes) -> bool:
    """Whether `data`, just read from the file, is not what was sealed, though nobody wrote to the file since."""
    try:
        crc, modified_ns = os.getxattr(path, NAME).decode().split(" ")
        return int(modified_ns) == os.stat(path).st_mtime_ns and int(crc, 16) != zlib.crc32(data)
    except (OSError, ValueError):  # No seal, or one of somebody else.
        return False
