"""The checkpoint file: up to which store time log, queues and index are on disk; the clean marker of a clean stop.

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

import json
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

from tiermq.files.file_access import FileAccess
from tiermq.message.crc import crc32

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
    """The timestamps, and the file that stores them."""

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


CLEAN_MARKER = "tiermq.clean"
CLEAN_MARKER_VERSION = 2


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """Where one consume queue ended."""

    topic: str
    queue_id: int
    kind: str
    min_offset: int
    max_offset: int
    max_physical_offset: int


@dataclass(frozen=True, slots=True)
class CleanMarker:
    """What a clean shutdown records, so that the next start need not scan the log.

    A JSON file `tiermq.clean` in the store's root, a name that RocketMQ does not look at. It is removed before a
    store is written to and written as the very last step of a clean close.

    Invariant: a marker is used only if nothing changed since: the checkpoint has the same bytes (a RocketMQ broker
    that used the directory in between rewrites it), the log has no data at the recorded end, and the queues on disk
    are those of the marker. Otherwise the marker is ignored. It has a checksum: one corrupt digit would hide
    messages, or overwrite old ones.
    """

    log_end: int
    checkpoint_hex: str
    queues: list[QueueEnd]
    index_names: list[str] = field(default_factory=list)
    log_begin: int = -1
    """The log's min offset, to which the queues' min offsets were corrected; -1 where it is unknown."""

    def encode(self) -> bytes:
        ends = [
            {
                "topic": end.topic,
                "queue_id": end.queue_id,
                "kind": end.kind,
                "min_offset": end.min_offset,
                "max_offset": end.max_offset,
                "max_physical_offset": end.max_physical_offset,
            }
            for end in self.queues
        ]  # `asdict` of ten thousands takes seconds.
        fields = {name: getattr(self, name) for name in ("log_end", "checkpoint_hex", "index_names", "log_begin")}
        return with_checksum({"version": CLEAN_MARKER_VERSION, **fields, "queues": ends})

    @classmethod
    def decode(cls, data: bytes) -> CleanMarker | None:
        """None for anything that is not a marker of this version: it is only a hint."""
        try:
            fields = json.loads(data)
            if with_checksum({name: value for name, value in fields.items() if name != "checksum"}) != data:
                return None
            del fields["checksum"]
            if fields.pop("version") != CLEAN_MARKER_VERSION:
                return None
            queues = [QueueEnd(**queue) for queue in fields.pop("queues")]
            marker = cls(queues=queues, **fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return marker if marker._is_typed() else None

    def _is_typed(self) -> bool:
        ends = all(
            type(end.topic) is str
            and type(end.queue_id) is type(end.min_offset) is type(end.max_offset) is int
            and type(end.max_physical_offset) is int
            for end in self.queues
        )
        return ends and type(self.log_end) is type(self.log_begin) is int and type(self.checkpoint_hex) is str


def with_checksum(fields: dict[str, Any]) -> bytes:
    """The fields as JSON, the last of them the CRC-32 of the preceding fields as JSON."""
    return json.dumps({**fields, "checksum": crc32(json.dumps(fields).encode())}).encode()


def read_marker(access: FileAccess, root: str) -> CleanMarker | None:
    path = f"{root}/{CLEAN_MARKER}"
    return CleanMarker.decode(access.read_bytes(path)) if access.exists(path) else None


def write_marker(access: FileAccess, root: str, marker: CleanMarker) -> None:
    """Durable on return."""
    access.write_bytes(f"{root}/{CLEAN_MARKER}", marker.encode())


def remove_marker(access: FileAccess, root: str) -> None:
    """Durable on return."""
    access.remove(f"{root}/{CLEAN_MARKER}")
    access.sync_directory(root)
