"""GapCheck: whether messages that a broker does not return are gone for good, or only cannot be read now.

A gap in the tier is never filled again, and neither is what is before the first message of a queue. So no single
answer makes one:

    evidence    the broker's min offset and its answers to pulls agree on where the queue continues; the message there
                can be read, and the one before it cannot
    twice       in two looks, at least the settle time apart. For the first message of a queue once is enough
    limit       a gap of more than GAP_MESSAGES_MAX messages needs the operator's consent (`--accept-gaps`)

Everything else is a problem of that queue, with what the broker reported and what it returned; nothing of the queue is
copied until its answers agree. Pulls are sent only where the broker's min offset is above the next offset of the tier,
where a queue begins above 0, and where the last wave could not read on. Belongs to the driver's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiermq.client.queue_access import Pulled
from tiermq.errors import CorruptRecord, RemotingError
from tiermq.message.layout import I64, QUEUE_OFFSET_AT
from tiermq.pipeline.offload.wire_source import rebased
from tiermq.remoting.codes import ResponseCode
from tiermq.tier.names import QueueName

GAP_MESSAGES_MAX = 1_000_000
SKIPPED = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY)


@dataclass(frozen=True, slots=True)
class Look:
    """What a broker reported of a queue: its min and max offset. Looks are numbered; `at_s` is a monotonic time."""

    number: int
    at_s: float
    low: int
    high: int


@dataclass(slots=True)
class _Doubt:
    """A queue that is to continue at `at`, by a look."""

    at: int
    look: Look
    found: int | None
    """Where it continues; None: not known before another look."""
    error: RemotingError | None = None
    agreed: tuple[float, int] | None = None
    failed_s: float | None = None


class GapCheck:
    """See the module."""

    def __init__(self, pull: Callable[[QueueName, int], Pulled], *, accept_gaps: bool) -> None:
        """`pull` raises RemotingError."""
        self._pull = pull
        self._accept_gaps = accept_gaps
        self._doubts: dict[QueueName, _Doubt] = {}

    def next_message(self, name: QueueName, at: int, look: Look, settle_s: float, *, is_begun: bool) -> int | None:
        """Where a queue continues whose next offset is `at`; None: not known before another look. Raises RemotingError.

        `is_begun`: the tier has messages of it.
        """
        doubt = self._doubts.get(name)
        if doubt is None or doubt.at != at:
            doubt = self._doubts[name] = _Doubt(at, look, at)
            if at >= look.low and (is_begun or not at):
                return at
        elif doubt.look.number == look.number:
            if doubt.error is not None:
                raise doubt.error
            return doubt.found
        doubt.look, doubt.found, doubt.error = look, None, None
        found, why = self._probe(name, at, look, is_begun=is_begun)
        if found == at:
            doubt.found, doubt.agreed, doubt.failed_s = at, None, None
        elif found is None:
            self._fail(name, doubt, why)
        elif doubt.agreed is None or found < doubt.agreed[1]:
            doubt.agreed, doubt.failed_s = (look.at_s, found), None
        elif look.at_s - doubt.agreed[0] >= settle_s:
            self._confirm(name, doubt, found)
        if doubt.error is not None:
            raise doubt.error
        return doubt.found

    def wait_s(self, name: QueueName, now_s: float, settle_s: float) -> float | None:
        """How long until another look decides; None: nothing is open."""
        doubt = self._doubts.get(name)
        if doubt is None or doubt.found is not None or doubt.error is not None:
            return None
        since_s = doubt.agreed[0] if doubt.agreed is not None else doubt.failed_s
        return max(0.0, (doubt.look.at_s if since_s is None else since_s) + settle_s - now_s)

    def keep_only(self, names: set[QueueName]) -> None:
        """Forget queues that the broker does not have any more."""
        for name in self._doubts.keys() - names:
            del self._doubts[name]

    def _fail(self, name: QueueName, doubt: _Doubt, why: str) -> None:
        """The second failure in a row is a problem: a file may just have been deleted, or a message be on its way."""
        doubt.agreed = None
        if doubt.failed_s is None:
            doubt.failed_s = doubt.look.at_s
            return
        look = doubt.look
        doubt.error = RemotingError(
            f"topic {name[0]!r}, queue {name[1]}: the broker reports messages {look.low} to {look.high - 1}, and the "
            f"tier continues at {doubt.at}, but {why}. Nothing is copied and nothing is skipped until its answers "
            "agree; see the broker's log and its disk"
        )

    def _confirm(self, name: QueueName, doubt: _Doubt, found: int) -> None:
        count = found - doubt.at
        if count <= GAP_MESSAGES_MAX or self._accept_gaps:
            doubt.found = found
            return
        doubt.error = RemotingError(
            f"topic {name[0]!r}, queue {name[1]}: {count} messages from {doubt.at} on are gone from the broker, which "
            f"continues at {found}. A gap of more than {GAP_MESSAGES_MAX} messages is recorded only with "
            "--accept-gaps: check that this is the right broker, and that its retention has deleted them"
        )

    def _probe(self, name: QueueName, at: int, look: Look, *, is_begun: bool) -> tuple[int | None, str]:
        """Where the broker has the next message at or behind `at`; None, and why, if its answers do not agree."""
        low, high = look.low, look.high
        pulled = self._pull(name, at)
        first = _offset_of(pulled, name)
        if first == at:
            if not is_begun and at > 0 and self._has(name, at - 1):
                return None, f"it returns message {at - 1} as well"
            return at, ""
        found = first if first is not None else pulled.next_offset if pulled.code in SKIPPED else None
        if found is None or found <= at:
            return None, f"a pull at {at} returned {_shown(pulled)}"
        if (at >= low and pulled.code == ResponseCode.PULL_OFFSET_MOVED) or not low <= found <= high:
            return None, f"a pull at {at} returned {_shown(pulled)}, which does not agree"
        if found < high and first is None and not self._has(name, found):
            return None, f"a pull at {at} returned {_shown(pulled)}, and message {found} cannot be read either"
        if found - 1 > at and self._has(name, found - 1):
            return None, f"a pull at {at} returned {_shown(pulled)}, but message {found - 1} can be read"
        return found, ""

    def _has(self, name: QueueName, offset: int) -> bool:
        return _offset_of(self._pull(name, offset), name) == offset


def _offset_of(pulled: Pulled, name: QueueName) -> int | None:
    """The queue offset of the first record; None without one that is whole and of this queue."""
    if pulled.code != ResponseCode.SUCCESS or len(pulled.records) < QUEUE_OFFSET_AT + I64.size:
        return None
    (offset,) = I64.unpack_from(pulled.records, QUEUE_OFFSET_AT)
    try:
        is_whole = offset >= 0 and rebased(pulled.records, offset, 1, len(pulled.records), 0, name).count == 1
    except CorruptRecord:
        return None
    return int(offset) if is_whole else None


def _shown(pulled: Pulled) -> str:
    return f"code {pulled.code} with next offset {pulled.next_offset} and {len(pulled.records)} bytes of records"
