"""Op messages: which half messages were ended. One op message covers many.

    RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0    TAGS=d, body "5,9,12,"     offsets in the half queue
                                            TIERMQ_ROLLBACKS=9,        those that were rolled back; "-" for none

RocketMQ's ops record that a message was ended, not how. TierMQ's add a property with the outcome, which RocketMQ does
not read: so an outcome is known when everything else is deleted. A copy of a half message is ended together with its
origin, so an op of ours names both; RocketMQ reads that as two messages that are done.

`OpLog` gathers what is ended, writes it as one op when it is large or old enough, and remembers it until a check round
has read that op. Invariants: what is ended is known from then on (`outcome`), also before its op is written; what was
rolled back is in the log before its producer is answered, since nothing else records it. What was committed may wait
(its message is in the log): if the broker ends before its op is written, that message is found by its unique key
(`recall`). RocketMQ writes ops every three seconds and not when it stops; it then asks again and delivers again.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Iterable

from tiermq.clock import Clock
from tiermq.delivery.transactions.half_messages import AnyHalf, Identity
from tiermq.errors import CorruptRecord
from tiermq.kernel import Message, PutResult
from tiermq.message.properties import REAL_TOPIC, TAGS, WAIT, encode_properties
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import TransactionType
from tiermq.message.topic_name import OPERATION_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

OP_TAG = "d"
OP_QUEUE = 0
SEPARATOR = b","
PENDING_MAX = 20_000
"""Ended messages that may wait to be written. More wait only when the store takes nothing."""
OFFSET_DIGITS_MAX = 19
ROLLBACKS = "TIERMQ_ROLLBACKS"
NO_ROLLBACKS = "-"
ROLLBACKS_BYTES_MAX = 16_384
"""Of one op: a property cannot be as long as a body."""


class Outcome(enum.Enum):
    """How a transaction ended."""

    COMMIT = 8
    ROLLBACK = 12


def encode_op(offsets: Iterable[int]) -> bytes:
    return b"".join(b"%d," % offset for offset in offsets)


def decode_op(body: bytes) -> list[int]:
    """The offsets in the half queue. Raises CorruptRecord for what is no list of them."""
    found = []
    for piece in body.split(SEPARATOR):
        if not piece:
            continue
        if not piece.isdigit() or len(piece) > OFFSET_DIGITS_MAX:
            raise CorruptRecord(f"op message: expected offsets with commas behind them, found {piece[:40]!r}")
        found.append(int(piece))
    return found


def op_properties(rolled_back: Iterable[int]) -> bytes:
    """The property string of an op with the messages that were rolled back."""
    return encode_properties({WAIT: "true", TAGS: OP_TAG, ROLLBACKS: encode_op(rolled_back).decode() or NO_ROLLBACKS})


def outcomes_of(op: StoredMessage) -> dict[int, Outcome | None]:
    """The outcome of each offset of an op; None if RocketMQ wrote it. Raises CorruptRecord."""
    rollbacks = op.get_property(ROLLBACKS) if op.tags == OP_TAG else None
    offsets = decode_op(op.body) if op.tags == OP_TAG else []
    if rollbacks is None:
        return dict.fromkeys(offsets)
    rolled_back = set() if rollbacks == NO_ROLLBACKS else set(decode_op(rollbacks.encode()))
    return {offset: Outcome.ROLLBACK if offset in rolled_back else Outcome.COMMIT for offset in offsets}


class OpLog:
    """See the module. Any thread may call; `lock` makes the decision about one message atomic."""

    def __init__(self, store: LocalStore, clock: Clock, *, max_bytes: int = 4096, interval_ms: int = 3_000) -> None:
        self.lock = threading.RLock()
        self._store = store
        self._clock = clock
        self._max_bytes = max_bytes
        self._interval_ms = interval_ms
        self._pending: list[int] = []
        self._pending_bytes = 0
        self._known: dict[int | Identity, Outcome] = {}
        """By offset in the half queue, and by what all copies of a half message share."""
        self._identities: dict[int, Identity] = {}
        self._batches: deque[tuple[int, list[int]]] = deque()
        """(offset of the op, its contents), oldest first, of ops that may be unread."""
        self._read_before = 0
        self._tried_ms = clock.now_ms()
        self._was_refused = False
        self._opened_where = store.max_physical_offset

    def outcome(self, *names: int | Identity) -> Outcome | None:
        """How a message ended that has one of these offsets, or this identity; None: it is open, or ended long ago."""
        known = self._known
        return next((known[name] for name in names if name in known), None)

    def recall(self, half: AnyHalf) -> Outcome | None:
        """The same, also of a message that was committed before this log was opened and whose op was not written."""
        with self.lock:
            known = self.outcome(half.record.queue_offset, half.origin, half.identity)
            if known is not None or half.record.physical_offset >= self._opened_where or not self._has_committed(half):
                return known
            self.end(Outcome.COMMIT, half.record.queue_offset, half.origin, identity=half.identity)
            return Outcome.COMMIT

    def _has_committed(self, half: AnyHalf) -> bool:
        """Whether its message is in its topic, or waits for its time. Without an index or a key it cannot be known."""
        if not half.transaction_id or not self._store.config.message_index_enable:
            return False
        for topic in (half.topic, SCHEDULE_TOPIC, TIMER_TOPIC):
            for found in self._store.query(topic, half.transaction_id).messages:
                is_of_topic = topic == half.topic or found.get_property(REAL_TOPIC) == half.topic
                identity = (found.unique_key or "", half.topic, found.born_timestamp_ms, found.body_crc)
                if is_of_topic and identity == half.identity and found.transaction_type is TransactionType.COMMIT:
                    return True
        return False

    @property
    def pending(self) -> tuple[int, ...]:
        """Offsets of ended messages whose op is not written yet."""
        return tuple(self._pending)

    @property
    def is_full(self) -> bool:
        return len(self._pending) >= PENDING_MAX

    def end(self, outcome: Outcome, *offsets: int, identity: Identity | None = None) -> PutResult | None:
        """A message was ended. Returns the store's result, if an op was written."""
        with self.lock:
            if identity is not None:
                self._known[identity] = outcome
                self._identities[offsets[0]] = identity
            for offset in dict.fromkeys(offsets):
                self._known[offset] = outcome
                self._pending.append(offset)
                self._pending_bytes += len(str(offset)) + 1
            if outcome is Outcome.ROLLBACK or (self._pending_bytes >= self._max_bytes and not self._was_refused):
                return self.write()
            return self.write_if_due()

    def write_if_due(self) -> PutResult | None:
        """Write what has waited for long enough."""
        if self._pending and self._clock.now_ms() - self._tried_ms >= self._interval_ms:
            return self.write()
        return None

    def write(self) -> PutResult | None:
        """Write everything that waits; None when nothing does. What the store refuses, waits on."""
        with self.lock:
            result = None
            while self._pending:
                result = self._write_some()
                self._was_refused = result.status is not PutStatus.PUT_OK
                if self._was_refused:
                    break
            self._tried_ms = self._clock.now_ms()
            return result

    def _write_some(self) -> PutResult:
        """One op of about as many bytes as one should have."""
        count = size = rollbacks_size = 0
        rolled_back = []
        while count < len(self._pending) and size < self._max_bytes and rollbacks_size < ROLLBACKS_BYTES_MAX:
            offset = self._pending[count]
            length = len(str(offset)) + 1
            size += length
            if self._known[offset] is Outcome.ROLLBACK:
                rolled_back.append(offset)
                rollbacks_size += length
            count += 1
        offsets = self._pending[:count]
        message = Message(
            OPERATION_HALF_TOPIC,
            encode_op(offsets),
            OP_QUEUE,
            encoded_properties=op_properties(rolled_back),
            born_timestamp_ms=self._clock.now_ms(),
        )
        result = self._store.append(message)
        if result.status is PutStatus.PUT_OK:
            self._batches.append((result.queue_offset, offsets))
            del self._pending[:count]
            self._pending_bytes -= size
        return result

    def was_read(self, op_offset: int) -> None:
        """A check round has read all ops below this offset: what the round before it had read, can be forgotten.

        One round later, so that a producer that answers twice within a round is still known.
        """
        with self.lock:
            before, self._read_before = self._read_before, op_offset
            while self._batches and self._batches[0][0] < before:
                for offset in self._batches.popleft()[1]:
                    self._known.pop(offset, None)
                    self._known.pop(self._identities.pop(offset, offset), None)
