"""The checkpoint file: up to which store time log, queues and index are known to be on disk.

    0         8         16        24                   32                   40 ........ 4096
    +---------+---------+---------+--------------------+--------------------+-----------+
    | physic  | logics  | index   | master flushed     | confirm            | zeros     |   big-endian i64 each
    +---------+---------+---------+--------------------+--------------------+-----------+

Invariants: a time is written only after everything stored up to it was synced, so recovery that starts before the
smaller of the first two finds nothing missing behind it. (The original writes `logics` at dispatch time, up to a minute
before the queues are synced.) A fresh file is all zeros.
Threads: setters may be called by any thread (single stores), `flush` by one at a time under `_lock`.
"""

from __future__ import annotations

import struct
import threading

from tiermq.files.file_access import FileAccess

CHECKPOINT = struct.Struct(
    ">"
    "q"  # physic_msg_timestamp_ms   store time of the newest flushed record
    "q"  # logics_msg_timestamp_ms   store time of the newest record whose queue unit is flushed
    "q"  # index_msg_timestamp_ms    store time of the newest entry of the last synced index file
    "q"  # master_flushed_offset
    "q"  # confirm_offset            physical offset
)
CHECKPOINT_BYTES = 4096
SAFETY_MS = 3_000
assert CHECKPOINT.size == 40


class Checkpoint:
    """The values, and the file that they are kept in."""

    def __init__(self, access: FileAccess, path: str) -> None:
        found = access.file_info(path)
        if found is not None and found.size == 0:
            access.remove(path)  # A process died between making the file and sizing it: there was nothing in it yet.
            found = None
        self._region = access.create(path, CHECKPOINT_BYTES) if found is None else access.open(path, CHECKPOINT_BYTES)
        self._region.reserve(0, CHECKPOINT_BYTES)
        self._lock = threading.Lock()
        values: tuple[int, int, int, int, int] = CHECKPOINT.unpack_from(self._region.buffer, 0)
        self.physic_msg_timestamp_ms = values[0]
        self.logics_msg_timestamp_ms = values[1]
        self.index_msg_timestamp_ms = values[2]
        self.master_flushed_offset = values[3]
        self.confirm_offset = values[4]

    @property
    def min_timestamp_ms(self) -> int:
        """Records up to this store time have their log bytes and their queue units on disk."""
        return max(0, min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - SAFETY_MS)

    def encoded(self) -> bytes:
        return CHECKPOINT.pack(
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_offset,
        )

    def flush(self) -> None:
        """Durable on return."""
        with self._lock:
            encoded = self.encoded()
            if bytes(self._region.buffer[: CHECKPOINT.size]) == encoded:
                return
            self._region.buffer[: CHECKPOINT.size] = encoded
            self._region.sync()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._region.close()
