"""Receipt: what a consumer shows to acknowledge a message that it popped, or to have more time for it.

    startOffset popTime invisibleTime reviveQueue mark brokerName queueId offset …      in text, separated by spaces

Words that follow are ignored, as RocketMQ's `ExtraInfoUtil` does: its proxy appends the commit log offset. The mark is
0 for the topic itself, 1 or 2 for its retry topic. RocketMQ's clients make receipts themselves from a pop's answer, and
show them as the field `extraInfo`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.broker.pop_topics import MARK_NORMAL, MARK_RETRY, MARK_RETRY_V2
from tiermq.errors import RequestRefused

ORDERED_QUEUE = 999
"""In the place of a revive queue: popped in order."""
WORDS_MIN = 7
_MARKS = (MARK_NORMAL, MARK_RETRY, MARK_RETRY_V2)
_NUMBER_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class Receipt:
    """See the module."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    mark: str
    broker: str
    queue_id: int
    offset: int

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue == ORDERED_QUEUE

    def encode(self) -> str:
        parts = (self.start_offset, self.pop_ms, self.invisible_ms, self.revive_queue, self.mark)
        return " ".join(map(str, (*parts, self.broker, self.queue_id, self.offset)))

    @classmethod
    def decode(cls, text: str, offset: int) -> Receipt:
        """`offset` is used where the text ends before it. Raises RequestRefused."""
        parts = text.split(" ")
        if len(parts) == WORDS_MIN:
            parts.append(str(offset))
        if len(parts) <= WORDS_MIN or parts[4] not in _MARKS:
            raise RequestRefused(f"expected a receipt of at least {WORDS_MIN} words in extraInfo, found {text[:80]!r}")
        start, pop_ms, invisible_ms, revive_queue, queue_id, place = (_number(parts[at]) for at in (0, 1, 2, 3, 6, 7))
        return cls(start, pop_ms, invisible_ms, revive_queue, parts[4], parts[5], queue_id, place)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < _NUMBER_MAX):
        raise RequestRefused(f"expected a number in a receipt, found {text[:40]!r}")
    return int(text)
