"""EndTransaction: a producer commits or rolls back a half message.

    request ─► half message at its offset in the log ─► its identity matches ─► not too late ─► not ended already
               commit:   message ─► its own topic (or the queue of its delay) ─► op
               rollback: op

Invariants: a commit's message is in the log before its op is, and after a crash between them it is found there by its
unique key; without one, or without a key index, its producer is asked again and it may come twice. A message that was
ended is not ended again by one of its copies (RocketMQ would store it again); it is known for one check round at least.
Nothing here waits for the disk: everything below `end_offset` must be durable before the answer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from tiermq.clock import Clock
from tiermq.delivery.redeliver import STORED, QueueFor, as_named
from tiermq.delivery.transactions.half_messages import (
    HALF_QUEUE,
    AnyHalf,
    PlainHalf,
    TransactionRules,
    committed,
    immunity_ms,
    plain_half,
    read_half,
)
from tiermq.delivery.transactions.op_messages import OpLog, Outcome
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.kernel import Message
from tiermq.message.topic_name import HALF_TOPIC
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore


class EndStatus(enum.Enum):
    """The result of a request to end a transaction."""

    DONE = "done"
    ALREADY = "it had ended like this already"
    OTHERWISE = "it has ended the other way already"
    NOT_FOUND = "there is no half message at this offset"
    OTHER_GROUP = "the half message belongs to another producer group"
    OTHER_OFFSET = "the half message has another offset in its queue"
    TOO_LATE = "the time in which the producer may end it is over"
    BUSY = "too many ended messages wait to be written"
    NOT_STORED = "the store did not take it"


@dataclass(frozen=True, slots=True)
class EndRequest:
    """A producer's request. `log_offset` and `queue_offset` are those of its half message, or of its copy."""

    outcome: Outcome
    group: str
    log_offset: int
    queue_offset: int
    is_answer: bool = False
    """Whether it was asked."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome, and what must be durable before the answer."""

    status: EndStatus
    topic: str = ""
    end_offset: int = -1
    put_status: PutStatus = PutStatus.PUT_OK
    born_ms: int = 0


class EndTransaction:
    """See the module. Any thread may call."""

    def __init__(
        self,
        store: LocalStore,
        ops: OpLog,
        clock: Clock,
        *,
        rules: Callable[[], TransactionRules] = TransactionRules,
        rewrite: Callable[[Message], Message] = lambda message: message,
        queue_for: QueueFor = as_named,
    ) -> None:
        """`rewrite` redirects a committed message that is delayed. Raises IllegalMessage."""
        self._rules = rules
        self._store = store
        self._ops = ops
        self._clock = clock
        self._rewrite = rewrite
        self._queue_for = queue_for

    def end(self, request: EndRequest, require: Callable[[str], None] = lambda _topic: None) -> Ended:
        """Never raises for invalid requests: see `EndStatus`.

        `require` is given the topic that the half message is for, and raises if the producer may not send there.
        """
        half = self._find(request)
        if isinstance(half, EndStatus):
            return Ended(half)
        require(half.topic)
        if not request.is_answer and half.immunity_s is not None:
            age_ms = self._clock.now_ms() - half.record.born_timestamp_ms
            if age_ms > immunity_ms(half, self._rules().timeout_ms):
                return Ended(EndStatus.TOO_LATE, half.topic)
        ops = self._ops
        with ops.lock:
            known = ops.recall(half)
            if known is not None:
                return self._end_again(half, known, request.outcome)
            if ops.is_full:
                ops.write()
                if ops.is_full:
                    return Ended(EndStatus.BUSY, half.topic)
            return self._end(half, request.outcome)

    def _find(self, request: EndRequest) -> AnyHalf | EndStatus:
        plain = self._store.deferred_at(HALF_TOPIC, request.log_offset)
        if plain is not None and plain.queue_offset == request.queue_offset and plain.group == request.group:
            found = plain_half(plain)
            if found is not None and self._store.refers_to(plain, HALF_TOPIC):
                return found
        record = self._store.stored_at(request.log_offset)
        if record is None or (record.topic, record.queue_id) != (HALF_TOPIC, HALF_QUEUE):
            return EndStatus.NOT_FOUND
        try:
            half = read_half(record)
        except CorruptRecord:
            return EndStatus.NOT_FOUND
        if half.group != request.group:
            return EndStatus.OTHER_GROUP
        if record.queue_offset != request.queue_offset:
            return EndStatus.OTHER_OFFSET
        return half

    def _end_again(self, half: AnyHalf, known: Outcome, outcome: Outcome) -> Ended:
        """What was ended stays so. Its op may still wait because the store took nothing then."""
        if known is not outcome:
            return Ended(EndStatus.OTHERWISE, half.topic)
        written = self._ops.write() if outcome is Outcome.ROLLBACK else None
        if written is not None and written.status not in STORED:
            return Ended(EndStatus.NOT_STORED, half.topic, put_status=written.status)
        return Ended(EndStatus.ALREADY, half.topic, self._store.max_physical_offset)

    def _end(self, half: AnyHalf, outcome: Outcome) -> Ended:
        born_ms = half.record.born_timestamp_ms
        end_offset = -1
        if outcome is Outcome.COMMIT:
            try:
                message = committed(half, self._queue_for)
                # A plain half has no delay and asks for no time: there is nothing to rewrite.
                result = self._store.append(message if isinstance(half, PlainHalf) else self._rewrite(message))
            except IllegalMessage:
                return Ended(EndStatus.NOT_STORED, half.topic, put_status=PutStatus.MESSAGE_ILLEGAL)
            if result.status not in STORED:
                return Ended(EndStatus.NOT_STORED, half.topic, put_status=result.status)
            end_offset = result.end_offset
        written = self._ops.end(outcome, half.record.queue_offset, half.origin, identity=half.identity)
        if outcome is Outcome.ROLLBACK and written is not None:
            if written.status not in STORED:
                return Ended(EndStatus.NOT_STORED, half.topic, put_status=written.status)
            end_offset = written.end_offset
        return Ended(EndStatus.DONE, half.topic, end_offset, born_ms=born_ms)
