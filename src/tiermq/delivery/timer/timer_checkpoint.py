"""The timer checkpoint: up to where timers were enqueued and delivered, in `config/timercheck`.

    0            8           16             24              32              40         48        56
    +------------+-----------+--------------+---------------+---------------+----------+---------+
    | read time  | log end   | queue offset | master offset | state version | time     | counter |   big-endian i64
    +------------+-----------+--------------+---------------+---------------+----------+---------+
    64           72          76             80              88 … 4096
    +------------+-----------+--------------+---------------+
    | "TierMQtw" | precision | CRC of 0..56 | log end       |   ours, where RocketMQ leaves the file alone
    +------------+-----------+--------------+---------------+
    2048         2056        2112           2116            2120        2128
    +------------+-----------+--------------+---------------+-----------+--------------+
    | "TierMQt2" | 0..56     | precision    | has a sum     | units sum | CRC of it all|   ours, in another sector
    +------------+-----------+--------------+---------------+-----------+--------------+

The read time is the first slot that was not delivered, the queue offset the first message of the timer topic that was
not enqueued, the log end the end of the units of those before it. All three belong together in a checkpoint of ours,
which our mark shows if its CRC matches; RocketMQ's log end is that of its last but one flush. The copy distinguishes a
checkpoint that went bad (it differs by a few bits, or is zeros) from one that RocketMQ wrote. The units sum is that of
`unit_sum` over all waiting units: it proves at opening that the wheel leads to each of them, undamaged.

Invariants: written only after the state that it describes is on disk. Threads: the timer service alone.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from tiermq.errors import StoreDamaged
from tiermq.files.file_access import FileAccess

FILE = "timercheck"
FILE_BYTES = 4096
VALUES = struct.Struct(
    ">"
    "q"  # read_time_ms         the first slot that was not delivered
    "q"  # log_end              end of the units that are on disk
    "q"  # queue_offset         the next message of the timer topic
    "q"  # master_queue_offset  the same; a slave must not pass it
    "q"  # state_version        of dataVersion
    "q"  # timestamp_ms         of dataVersion
    "q"  # counter              of dataVersion
)
MARK = struct.Struct(
    ">"
    "8s"  # name       TierMQtw
    "i"  # precision   milliseconds of a slot
    "I"  # crc         of the values
    "q"  # log_end     as above
)
MARK_AT = 64
MARK_NAME = b"TierMQtw"
COPY = struct.Struct(
    ">"
    "8s"  # name       TierMQt2
    "56s"  # values    as above
    "i"  # precision   as above
    "i"  # has_sum     1, or 0 when the sum is not known
    "Q"  # units_sum   over all units from the read time on, below the log end
)
COPY_CRC = struct.Struct(">I")
COPY_AT = 2048
COPY_NAME = b"TierMQt2"
NO_SUM = -1
SUM_MASK = 2**63 - 1
COPIED_SUM = SUM_MASK
"""Of the check point of a master that a slave has copied: no wheel and log belong to it yet."""
BAD_BITS_MAX = 3
"""Values that differ from their copy by at most this number of bits are bit errors, not writes."""
assert VALUES.size == 56
assert COPY_AT % 512 == 0
assert VALUES.size <= MARK_AT


class TimerProgress(NamedTuple):
    """The values of a checkpoint. `precision_ms` is 0 if RocketMQ wrote it last, or it was never written."""

    read_time_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    precision_ms: int = 0
    timestamp_ms: int = 0
    counter: int = 0
    state_version: int = 0
    master_queue_offset: int = 0
    units_sum: int = NO_SUM

    @property
    def is_ours(self) -> bool:
        return self.precision_ms > 0

    @property
    def is_copied(self) -> bool:
        return self.log_end == 0 and self.units_sum == COPIED_SUM


def encode_progress(progress: TimerProgress) -> tuple[bytes, bytes]:
    """The values, and our mark of them."""
    values = VALUES.pack(
        progress.read_time_ms,
        progress.log_end,
        progress.queue_offset,
        progress.master_queue_offset,
        progress.state_version,
        progress.timestamp_ms,
        progress.counter,
    )
    return values, MARK.pack(MARK_NAME, progress.precision_ms, zlib.crc32(values), progress.log_end)


def encode_copy(progress: TimerProgress) -> bytes:
    """The copy of the values, and the sum over waiting units."""
    has_sum = progress.units_sum != NO_SUM
    values = encode_progress(progress)[0]
    copy = COPY.pack(COPY_NAME, values, progress.precision_ms, has_sum, progress.units_sum if has_sum else 0)
    return copy + COPY_CRC.pack(zlib.crc32(copy))


def decode_progress(data: bytes | bytearray | memoryview) -> TimerProgress:
    """Raises StoreDamaged when there are too few bytes. Older brokers wrote 32 bytes, without a version."""
    if len(data) < 32:
        raise StoreDamaged(f"expected a timer checkpoint of at least 32 bytes, found {len(data)}")
    values = bytes(data[: VALUES.size]).ljust(VALUES.size, b"\0")
    precision_ms, units_sum = 0, NO_SUM
    if len(data) >= MARK_AT + MARK.size:
        name, precision, crc, marked_end = MARK.unpack_from(data, MARK_AT)
        if name == MARK_NAME and crc == zlib.crc32(values) and marked_end == VALUES.unpack(values)[1]:
            precision_ms = precision
    copy = _sound_copy(bytes(data))
    if copy is not None and (values == copy[0] or (precision_ms == 0 and _went_bad(values, copy[0]))):
        values, precision_ms, units_sum = copy
    read_time_ms, log_end, queue_offset, master, state_version, timestamp_ms, counter = VALUES.unpack(values)
    return TimerProgress(
        read_time_ms, log_end, queue_offset, precision_ms, timestamp_ms, counter, state_version, master, units_sum
    )


def _sound_copy(data: bytes) -> tuple[bytes, int, int] | None:
    """(values, precision, sum) of the copy; None without a copy."""
    end = COPY_AT + COPY.size
    if len(data) < end + COPY_CRC.size or COPY_CRC.unpack_from(data, end)[0] != zlib.crc32(data[COPY_AT:end]):
        return None
    name, values, precision, has_sum, units_sum = COPY.unpack_from(data, COPY_AT)
    return (values, precision, units_sum if has_sum else NO_SUM) if name == COPY_NAME else None


def _went_bad(values: bytes, copy: bytes) -> bool:
    differing = int.from_bytes(values, "big") ^ int.from_bytes(copy, "big")
    return not any(values) or differing.bit_count() <= BAD_BITS_MAX


class TimerCheckpoint:
    """The file, and its values."""

    def __init__(self, access: FileAccess, path: str) -> None:
        found = access.file_info(path)
        if found is not None and found.size < FILE_BYTES:
            # A process died before it had its size, or an older broker wrote it: kept as far as it is valid.
            old = access.read_bytes(path)
            access.write_bytes(path, old.ljust(FILE_BYTES, b"\0"))
        self._region = access.create(path, FILE_BYTES)
        self._region.reserve(0, FILE_BYTES)
        self.progress = decode_progress(bytes(self._region.buffer[:FILE_BYTES]))

    def write(self, progress: TimerProgress, now_ms: int, counter: int = 0) -> None:
        """Durable on return. Nothing is written when nothing changed. The version is above `counter`, the master's."""
        same = progress._replace(
            timestamp_ms=self.progress.timestamp_ms,
            counter=self.progress.counter,
            state_version=self.progress.state_version,
            master_queue_offset=progress.queue_offset,
        )
        if same == self.progress:
            return
        new = same._replace(timestamp_ms=now_ms, counter=max(self.progress.counter, counter) + 1)
        values, mark = encode_progress(new)
        buffer = self._region.buffer
        buffer[: len(values)] = values
        buffer[MARK_AT : MARK_AT + len(mark)] = mark
        copy = encode_copy(new)
        buffer[COPY_AT : COPY_AT + len(copy)] = copy
        self._region.sync()
        self.progress = new

    def close(self) -> None:
        self._region.close()
