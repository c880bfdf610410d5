"""The clean marker: what a clean shutdown knows, so that the next start need not read the log to find out.

A JSON file `tiermq.clean` in the store's root, a name that RocketMQ does not look at. It is removed before a store is
written to and written as the very last step of a clean close.

Invariant: a marker is believed only if nothing changed since: the checkpoint has the same bytes (a RocketMQ broker that
used the directory in between rewrites it), the log has no data at the recorded end, and the queues on disk are those
of the marker. Otherwise it is as if there were none. It has a checksum over itself: one digit of it that goes bad would
hide messages, or put new ones over old ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tiermq.files.file_access import FileAccess
from tiermq.message.crc import crc32

NAME = "tiermq.clean"
VERSION = 2


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
    """What was true when the store was closed."""

    log_end: int
    checkpoint_hex: str
    queues: list[QueueEnd]
    index_names: list[str] = field(default_factory=list)

    def encode(self) -> bytes:
        return with_checksum({"version": VERSION, **asdict(self)})

    @classmethod
    def decode(cls, data: bytes) -> CleanMarker | None:
        """None for anything that is not a marker of this version: it is only a hint."""
        try:
            fields = json.loads(data)
            if with_checksum({name: value for name, value in fields.items() if name != "checksum"}) != data:
                return None
            del fields["checksum"]
            if fields.pop("version") != VERSION:
                return None
            queues = [QueueEnd(**queue) for queue in fields.pop("queues")]
            marker = cls(queues=queues, **fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return marker if marker._is_typed() else None

    def _is_typed(self) -> bool:
        ends = all(
            type(end.topic) is str
            and all(type(number) is int for number in (end.queue_id, end.min_offset, end.max_offset))
            for end in self.queues
        )
        return ends and type(self.log_end) is int and type(self.checkpoint_hex) is str


def with_checksum(fields: dict[str, Any]) -> bytes:
    """The fields as JSON, the last of them the CRC-32 of the others as JSON."""
    return json.dumps({**fields, "checksum": crc32(json.dumps(fields).encode())}).encode()


def read_marker(access: FileAccess, root: str) -> CleanMarker | None:
    path = f"{root}/{NAME}"
    return CleanMarker.decode(access.read_bytes(path)) if access.exists(path) else None


def write_marker(access: FileAccess, root: str, marker: CleanMarker) -> None:
    """Durable on return."""
    access.write_bytes(f"{root}/{NAME}", marker.encode())


def remove_marker(access: FileAccess, root: str) -> None:
    """Durable on return."""
    access.remove(f"{root}/{NAME}")
    access.sync_directory(root)
