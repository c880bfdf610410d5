"""Whether a queue in the tier and the local one are the same queue, looked at where they meet."""

from __future__ import annotations

import logging
from bisect import bisect_left

from tiermq.consumequeue.unit import UNIT, is_real
from tiermq.errors import CorruptSegment, ForkedHistory
from tiermq.tier.dispatch.local_source import LocalSource
from tiermq.tier.flat.flat_message_file import FlatMessageFile

_log = logging.getLogger(__name__)


def require_same_history(file: FlatMessageFile, source: LocalSource) -> None:
    """Whoever else wrote the queue must have copied the same messages. Raises ForkedHistory if they are others.

    The newest message that both have is compared: the tier's newest, or the local one's where the tier is ahead. Only
    where it differs is the first one that does searched for: two reads of the tier for each halving of the queue.
    """
    state = source.state(file.queue.topic, file.queue.queue_id, -1)
    offset = min(file.commit_offset, file.commit_offset if state is None else state.max_offset) - 1
    begin = max(0, file.min_offset)
    if offset < begin or not _differs(file, source, offset):
        return
    begin = max(begin, 0 if state is None else state.min_offset)
    shared = range(begin, offset)
    first = begin + bisect_left(shared, True, key=lambda each: _differs(file, source, each))
    raise ForkedHistory(
        f"{file.queue.logical_path}: message {offset} in the tier is not the local one of that number, nor is any from "
        f"{first} on; another process gave numbers out for this broker. Nothing more is written here: move the store "
        "away, restore into an empty directory, and put what is only in the old one again",
        first,
    )


def _differs(file: FlatMessageFile, source: LocalSource, offset: int) -> bool:
    """Whether both have a message of that number that can be read, and not the same one. Raises TierError."""
    try:
        place, size, _ = UNIT.unpack(file.read_units(offset, 1))
        if not is_real(place, size) or place < file.log.min_offset:
            return False
        there = file.read_records(place, size)
    except CorruptSegment as error:
        # No sign of another history. The copies are compared, and repaired, before local files go.
        _log.error("%s: message %d is not compared with the local one: %s", file.queue.logical_path, offset, error)
        return False
    local = source.collect(file.queue.topic, file.queue.queue_id, offset, 1, size, place)
    return bool(local.count) and local.next_offset == offset + 1 and local.data != there
