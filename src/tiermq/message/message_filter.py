"""Message filters of a get: called first with a consume-queue unit, then with the record.

A unit has only the hash of a tag, so a filter that accepts a unit is called again with the record, which has the tag.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.java_hash import java_hash
from tiermq.message.layout import ReadableBuffer
from tiermq.message.properties import get_property
from tiermq.message.record_head import HeadKind, read_head

EVERYTHING = "*"
TAG_SEPARATOR = "||"
TAG, SQL92 = "TAG", "SQL92"
"""Kinds of expressions, as requests name them."""
TAG_BYTES = 192
"""Of one tag of a filter, in memory."""


def tags_in(expression: str) -> tuple[frozenset[str], frozenset[int]]:
    """The tags of an expression that is not `*`, and their hashes."""
    tags = frozenset(tag.strip() for tag in expression.split(TAG_SEPARATOR)) - {""}
    return tags, frozenset(map(java_hash, tags))


@runtime_checkable
class MessageFilter(Protocol):
    """Decides which messages pass. Must not block, and may be called by any thread.

    A filter that is slow for a record has `steps`, its number of comparisons: a get then scans fewer messages.
    """

    def matches_unit(self, tags_code: int | None, ext_unit: object | None) -> bool:
        """False only if no message with this unit can pass. `tags_code` is None when it is not known."""
        ...

    def matches_record(self, record: ReadableBuffer) -> bool:
        """Whether the message in `record`, one whole record, passes. Raises CorruptRecord if it cannot be read."""
        ...


class TagFilter:
    """A tag expression: `*` (or nothing) for all messages, or tags joined with `||`."""

    __slots__ = ("_codes", "_tags", "expression")

    def __init__(self, expression: str | None = EVERYTHING) -> None:
        self.expression = (expression or "").strip() or EVERYTHING
        self._tags: frozenset[bytes] | None = None
        self._codes: frozenset[int] = frozenset()
        if self.expression == EVERYTHING:
            return
        tags, self._codes = tags_in(self.expression)
        if not tags:
            raise IllegalMessage(f"a tag expression is * or tags joined with ||, found {expression!r}")
        self._tags = frozenset(tag.encode("utf-8", "surrogatepass") for tag in tags)

    def matches_unit(self, tags_code: int | None, ext_unit: object | None = None) -> bool:  # noqa: ARG002
        if self._tags is None or tags_code is None:
            return True
        # A tags code is an int's hash in a long; other longs (deliver times) are truncated to an int, as RocketMQ does.
        return ((tags_code + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) in self._codes

    def matches_record(self, record: ReadableBuffer) -> bool:
        if self._tags is None:
            return True
        head = read_head(record)
        if head.kind is not HeadKind.OK:
            raise CorruptRecord(f"record at {head.reason or 'byte 0: a blank record'}")
        start = head.properties_position
        return get_property(bytes(record[start : start + head.properties_length]), b"TAGS") in self._tags

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.expression!r})"


class TagCodeFilter(TagFilter):
    """The same for callers whose clients compare tags again, as RocketMQ's do: a store may use the hash alone.

    So a message with another tag of the same hash may pass. Do not use it for `*`: no filter is faster.
    """

    __slots__ = ()

    @property
    def codes(self) -> frozenset[int]:
        """The hashes of the tags."""
        return self._codes
