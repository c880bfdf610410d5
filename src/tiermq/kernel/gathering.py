"""gather in pure Python: the records behind a run of queue units, copied into one bytes object."""

from __future__ import annotations

import struct

from tiermq.errors import CorruptRecord
from tiermq.kernel.tails import Segments, Tail
from tiermq.message.layout import MAGIC_V1, MAGIC_V2

UNIT_BYTES = 20
FIXED_BYTES = 91
_UNIT = struct.Struct(">qiq")
_SIZE_MAGIC = struct.Struct(">ii")
_FEW = 64  # Units decoded per step: a get rarely wants more.


class TransferLimits:
    """How much one get may return, by whether the records are expected in memory."""

    __slots__ = ("disk_bytes", "disk_count", "filter_bytes", "memory_bytes", "memory_count", "memory_window_bytes")

    def __init__(
        self,
        memory_bytes: int,
        memory_count: int,
        disk_bytes: int,
        disk_count: int,
        memory_window_bytes: int,
        filter_bytes: int,
    ) -> None:
        self.memory_bytes = memory_bytes
        self.memory_count = memory_count
        self.disk_bytes = disk_bytes
        self.disk_count = disk_count
        self.memory_window_bytes = memory_window_bytes
        self.filter_bytes = filter_bytes


def gather(
    queue: Tail,
    first_unit: int,
    log: Segments,
    max_physical: int,
    max_messages: int,
    max_bytes: int,
    limits: TransferLimits,
) -> tuple[bytes, int, int, int, bool]:
    """Copy the records that the units from `first_unit` of one queue file point to, as far as the limits allow.

    (data, count, units examined, last physical offset examined or -1, whether a record was already removed)
    """
    start, end = first_unit * UNIT_BYTES, queue.position // UNIT_BYTES * UNIT_BYTES
    if queue.buffer is None or start >= end:
        return b"", 0, 0, -1, False
    end = min(end, start + max(max_messages * UNIT_BYTES, limits.filter_bytes))
    parts: list[memoryview] = []
    count = examined = total = 0
    last_physical, removed_before = -1, -1
    view: Tail | None = None
    step = min(end, start + _FEW * UNIT_BYTES)
    while start < end:
        for physical, size, _ in _UNIT.iter_unpack(queue.buffer[start:step]):
            in_memory = max_physical - physical <= limits.memory_window_bytes
            bytes_max = limits.memory_bytes if in_memory else limits.disk_bytes
            count_max = limits.memory_count if in_memory else limits.disk_count
            full = count >= max_messages or total + size > max_bytes or total + size > bytes_max or count >= count_max
            if (count and full) or total >= max_bytes:
                return b"".join(parts), count, examined, last_physical, removed_before >= 0
            last_physical = physical
            examined += 1
            if physical < removed_before:
                continue
            if view is None or not view.base <= physical < view.base + view.size:
                view = log.find(physical)
            at = 0 if view is None else physical - view.base
            if view is None or view.buffer is None or size < FIXED_BYTES or at + size > view.position:
                removed_before = physical - physical % log.file_size + log.file_size
                continue
            found, magic = _SIZE_MAGIC.unpack_from(view.buffer, at)
            if found != size or (magic != MAGIC_V1 and magic != MAGIC_V2):
                raise CorruptRecord(
                    f"queue unit {first_unit + examined - 1} points to commit-log bytes that are not the record "
                    f"it describes (physical offset {physical}); run `tiermq store check`"
                )
            parts.append(view.buffer[at : at + size])
            count += 1
            total += size
        start, step = step, end
    return b"".join(parts), count, examined, last_physical, removed_before >= 0
