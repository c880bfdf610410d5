"""HeldWeight: what requests that wait keep in memory, of one peer and in all, as an estimate that is never far too low.

A pull that waits has its header and its filter; some have a thousand tags. Filters that are shared count for each.
Belongs to the loop's thread.
"""

from __future__ import annotations

from tiermq.message.message_filter import MessageFilter, TagCodeFilter
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.limits import HELD_BYTES_MAX, HELD_BYTES_PER_PEER_MAX

REQUEST_BYTES = 1_024
"""Of the objects of one request, with the tables that it is held in."""
FIELD_BYTES = 128
TAG_BYTES = 192
STEP_BYTES = 512
"""Of one part of a compiled expression."""


def weight_of(command: RemotingCommand, message_filter: MessageFilter | None) -> int:
    """Bytes that a request keeps while it waits."""
    texts = sum(len(name) + len(value) for name, value in command.ext.items())
    tags = len(message_filter.codes) if isinstance(message_filter, TagCodeFilter) else 0
    steps = getattr(message_filter, "steps", 0)
    fields = FIELD_BYTES * len(command.ext)
    return REQUEST_BYTES + fields + texts + len(command.body) + TAG_BYTES * tags + STEP_BYTES * steps


class HeldWeight:
    """See the module."""

    def __init__(self) -> None:
        self.bytes = 0
        self._peers: dict[Connection, int] = {}

    def take(self, connection: Connection, weight: int) -> bool:
        """Whether there is room for so much; it is counted then."""
        here = self._peers.get(connection, 0) + weight
        if here > HELD_BYTES_PER_PEER_MAX or self.bytes + weight > HELD_BYTES_MAX:
            return False
        self._peers[connection] = here
        self.bytes += weight
        return True

    def give(self, connection: Connection, weight: int) -> None:
        """What was taken is no longer kept."""
        self.bytes -= weight
        self._peers[connection] -= weight
        if not self._peers[connection]:
            del self._peers[connection]
