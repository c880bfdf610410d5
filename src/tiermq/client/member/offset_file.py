"""OffsetFile: where a broadcasting consumer is, in a JSON file of its own; a group has one for each machine.

    {"orders": {"broker-a:0": 42}}

Written whole, to a file beside it that then replaces it: a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from tiermq.client.member.message_queue import MAX_OFFSET, MessageQueue
from tiermq.errors import BadConfig


class OffsetFile:
    """Any thread may store; one file belongs to one consumer."""

    def __init__(self, path: Path | str) -> None:
        """Raises BadConfig for a file that is none of these."""
        self._path = Path(path)
        self._lock = threading.Lock()
        self._positions: dict[str, dict[str, int]] = {}
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            self._positions = {
                topic: {queue: _position(offset) for queue, offset in queues.items()} for topic, queues in found.items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise BadConfig(
                f"expected a file of a broadcasting consumer's offsets in {path}, found: {error}. Restore it, or "
                "remove it: then the consumer begins at its `start`"
            ) from error

    def position(self, queue: MessageQueue) -> int | None:
        return self._positions.get(queue.topic, {}).get(_name(queue))

    def store(self, positions: dict[MessageQueue, int]) -> None:
        with self._lock:
            for queue, offset in positions.items():
                self._positions.setdefault(queue.topic, {})[_name(queue)] = offset
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_name(self._path.name + ".partial")
            partial.write_text(json.dumps(self._positions, indent=1), encoding="utf-8")
            os.replace(partial, self._path)


def _position(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_OFFSET:
        raise ValueError(f"an offset that is no number from 0 to {MAX_OFFSET}: {str(value)[:40]}")
    return value


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"
