"""Whether a queue in the tier and the local one are the same queue, looked at where they meet."""

from __future__ import annotations

import logging

from tiermq.consumequeue.unit import UNIT, is_real
from tiermq.errors import CorruptSegment, StaleWriter
from tiermq.tier.dispatch.local_source import LocalSource
from tiermq.tier.flat.flat_message_file import FlatMessageFile

_log = logging.getLogger(__name__)


def require_same_history(file: FlatMessageFile, source: LocalSource) -> None:
    """Whoever else wrote the queue must have copied the same messages. Raises StaleWriter if they are others.

    The newest message that both have is compared: the tier's newest, or the local one's where the tier is ahead.
    """
    state = source.state(file.queue.topic, file.queue.queue_id, -1)
    offset = min(file.commit_offset, file.commit_offset if state is None else state.max_offset) - 1
    if offset < max(0, file.min_offset):
        return
    try:
        place, size, _ = UNIT.unpack(file.read_units(offset, 1))
        if not is_real(place, size) or place < file.log.min_offset:
            return
        there = file.read_records(place, size)
    except CorruptSegment as error:
        # No sign of another history. The copies are compared, and repaired, before local files go.
        _log.error("%s: its newest message is not compared with the local one: %s", file.queue.logical_path, error)
        return
    local = source.collect(file.queue.topic, file.queue.queue_id, offset, 1, size, place)
    if local.count and local.next_offset == offset + 1 and local.data != there:
        raise StaleWriter(
            f"{file.queue.logical_path}: message {offset} in the tier is not the local one of that number; another "
            "process gave numbers out for this broker. Nothing more is written here: move the store away, restore "
            "into an empty directory, and put what is only in the old one again"
        )
