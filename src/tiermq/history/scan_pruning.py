"""Pruning: skips what a query's own conditions exclude. Never an error, never a lost row (but see `time_ranges`).

Options select messages, and missing ones are reported. Pruning only skips what a reader would discard
anyway: a topic that does not exist, or offsets beyond the end, simply give no rows.

None: not restricted. An empty set: nothing can match.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from tiermq.clock import EVER_MS
from tiermq.history.scan_values import ScanRequest
from tiermq.tier.names import QueueKey

Names = frozenset[str] | None


@dataclass(frozen=True, slots=True)
class ScanPruning:
    """Restrictions that are joined by "and". Offsets are [begin, end); times are inclusive on both ends."""

    topics: Names = None
    brokers: Names = None
    queue_ids: frozenset[int] | None = None
    tags: Names = None
    keys: Names = None  # Messages with at least one of them.
    begin_offset: int = 0
    end_offset: int | None = None
    begin_ms: int = 0
    end_ms: int = EVER_MS

    def also(self, other: ScanPruning) -> ScanPruning:
        """Both. Of two sets of keys one is taken: a message may have keys of both."""
        ends = [end for end in (self.end_offset, other.end_offset) if end is not None]
        return ScanPruning(
            _both(self.topics, other.topics),
            _both(self.brokers, other.brokers),
            _both(self.queue_ids, other.queue_ids),
            _both(self.tags, other.tags),
            other.keys if self.keys is None else self.keys,
            max(self.begin_offset, other.begin_offset),
            min(ends, default=None),
            max(self.begin_ms, other.begin_ms),
            min(self.end_ms, other.end_ms),
        )

    @property
    def is_empty(self) -> bool:
        """Whether no message at all can match."""
        sets = (self.topics, self.brokers, self.queue_ids, self.tags, self.keys)
        offsets = self.end_offset is not None and self.end_offset <= self.begin_offset
        return any(each is not None and not each for each in sets) or offsets or self.end_ms < self.begin_ms

    def takes(self, queue: QueueKey) -> bool:
        """Whether a queue can have matching messages."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
        )

    def on_topics(self, request: ScanRequest) -> ScanRequest:
        """The request with only the topics that can match; a topic that it did not name need not exist."""
        return replace(request, topics=_named(request.topics, self.topics))

    def applied(self, request: ScanRequest) -> ScanRequest:
        """The request without what cannot match. It must not be that nothing can (`excludes`)."""
        return replace(
            request,
            topics=_named(request.topics, self.topics),
            brokers=_named(request.brokers, self.brokers),
            queue_ids=_named(request.queue_ids, self.queue_ids),
            tags=_named(request.tags, self.tags),
            keys=request.keys or self.keys or frozenset(),
            bounds={queue: bounds for queue, bounds in request.bounds.items() if self.takes(queue)},
            begin_ms=max(request.begin_ms, self.begin_ms),
            end_ms=min(request.end_ms, self.end_ms),
            only_offsets=(self.begin_offset, self.end_offset),
        )

    def excludes(self, request: ScanRequest) -> bool:
        """Whether nothing that the request wants can match."""
        pairs = (
            (request.topics, self.topics),
            (request.brokers, self.brokers),
            (request.queue_ids, self.queue_ids),
            (request.tags, self.tags),
        )
        if self.is_empty or any(given and mine is not None and not given & mine for given, mine in pairs):
            return True
        return max(request.begin_ms, self.begin_ms) > min(request.end_ms, self.end_ms)

    def as_text(self) -> str:
        """For an option, from which `of_text` makes the same again."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return json.dumps({name: sorted(v) if isinstance(v, frozenset) else v for name, v in values.items()})

    @classmethod
    def of_text(cls, text: str) -> Self:
        values: dict[str, Any] = json.loads(text)
        values |= {name: frozenset(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values)


def _both(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _named(given: Any, mine: Any) -> Any:
    """Sets of which an empty one means everything, as in a request."""
    if mine is None:
        return given
    return given & mine if given else mine
