"""HA stream: the two directions of RocketMQ's default HA protocol, the same from 4.3 to 5.5.

Slave to master, reports of 8 bytes:

    0                8
    +----------------+
    | end of the log |      the first one is also the request "send from here"; 0: an empty slave
    +----------------+

Brokers of TierMQ send -1 before the first report, which RocketMQ's masters take for "no request yet":

    -1, report …          a slave: send me confirm frames, so that I show only what the master has committed
    -1, -1, report …      an observer: I am no replica; send me only what is committed

Master to slave, frames:

    0                8           12
    +----------------+-----------+------------------------------------------+
    | offset         | body size | commit-log bytes, as in the file         |   big-endian, i64 i32
    +----------------+-----------+------------------------------------------+

Invariants: a body never crosses a commit-log file, includes the blank at a file's end, and need not end with a record.
A body of size 0 is a heartbeat; its offset is where the next body begins. Size -1 is a confirm frame, without a body,
to a slave that has sent -1: its offset is where the committed log ends. It comes behind a heartbeat, by which the slave
sees that the logs fit, and before any byte that it does not cover yet. There is no handshake, no account and no
encryption: the master's port is for trusted addresses.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tiermq.errors import ReplicationError

REPORT = struct.Struct(">q")
HEADER = struct.Struct(
    ">"
    "q"  # offset  physical offset of the body's first byte
    "i"  # size    bytes of the body; 0 is a heartbeat, -1 a confirm frame
)
HELLO = -1
"""Of a broker of TierMQ, before its first report: once from a slave, OBSERVER_HELLOS times from an observer."""
OBSERVER_HELLOS = 2
CONFIRM_SIZE = -1
REPORT_BYTES = REPORT.size
HEADER_BYTES = HEADER.size
FRAME_HEADER_BYTES_MAX = 36
"""Of both dialects; the longer one is that of `auto_switch_stream`."""
BODY_BYTES_MAX = 4 * 1024 * 1024 - FRAME_HEADER_BYTES_MAX
"""RocketMQ's slaves have a buffer of 4 MiB for a frame."""
assert (REPORT_BYTES, HEADER_BYTES) == (8, 12)


class ReceiveBuffer:
    """Space for bytes of a master, larger than two frames. Belongs to one thread."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(2 * (FRAME_HEADER_BYTES_MAX + BODY_BYTES_MAX)))
        self._start = self._end = 0

    def free(self) -> memoryview:
        """Where the next bytes may be received; there is always space."""
        if self._start == self._end:
            self._start = self._end = 0
        elif len(self._buffer) - self._end < FRAME_HEADER_BYTES_MAX + BODY_BYTES_MAX:
            left = self._end - self._start
            self._buffer[:left] = bytes(self._buffer[self._start : self._end])
            self._start, self._end = 0, left
        return self._buffer[self._end :]


class FrameBuffer(ReceiveBuffer):
    """Received bytes of a master, cut into frames. Belongs to one thread."""

    def received(self, count: int) -> Iterator[tuple[int, memoryview | None]]:
        """(offset, body) of every frame that is whole now; without a body: a confirm frame. Raises ReplicationError for
        a body that cannot be.
        """
        self._end += count
        while self._end - self._start >= HEADER_BYTES:
            offset, size = HEADER.unpack_from(self._buffer, self._start)
            if not CONFIRM_SIZE <= size <= BODY_BYTES_MAX or offset < 0:
                raise ReplicationError(
                    f"expected a frame of at most {BODY_BYTES_MAX} bytes of a commit log, found offset {offset} and "
                    f"size {size}: the peer is no master, or one of a controller (its stream has another format)"
                )
            body = self._start + HEADER_BYTES
            if size == CONFIRM_SIZE:
                self._start = body
                yield offset, None
                continue
            if self._end - body < size:
                return
            self._start = body + size
            yield offset, self._buffer[body : body + size]
