"""TransactionCheck: checks open half messages with their producers, and gives up on some.

    half queue  [ passed … │ ended, ended, open and old, ended, open and young … ]      progress: consumer offsets of
    op queue    [ passed … │ op, op, op … ]                                              CID_RMQ_SYS_TRANS

A round scans the half queue from its progress. Ended messages are passed; open and old enough ones are copied to
the queue's end, and its producer is asked about the copy; after `check_max` questions, or when it is older than files
of the log are kept, it goes to TRANS_CHECK_MAX_TIME_TOPIC instead. The first message that is too young ends the round;
one whose producer asked for more time (CHECK_IMMUNITY_TIME_IN_SECONDS) is copied, and does not block later messages.

Invariants: every passed message is ended, copied or kept in that topic, and is in the log before the progress moves;
no check is sent for an ended message, also while its op is not written yet. An op is passed once everything that was in
the log before it is: so a copy finds the op of its origin, however late that came.
RocketMQ differs in four ways that lose or repeat messages: it asks about what was ended within the last seconds, it
forgets an op whose half message was copied before it came, it counts waiting for an immunity as questions, and it may
give a message up in the round of its last check, before a producer can answer.
Threads: rounds belong to the service's thread; `waiting_halves` may be called by any.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tiermq.clock import Clock
from tiermq.delivery.redeliver import NEVER, STORED, Escape, SkippedRecords
from tiermq.delivery.transactions.half_messages import (
    HALF_QUEUE,
    HalfMessage,
    Identity,
    TransactionRules,
    copied,
    discarded,
    escaped,
    immunity_ms,
    question,
    read_half,
)
from tiermq.delivery.transactions.op_messages import OP_QUEUE, OP_TAG, OpLog, decode_op
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.kernel import GetPage, Message, PutResult
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import (
    HALF_TOPIC,
    OPERATION_HALF_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
)
from tiermq.service import Service
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

_log = logging.getLogger(__name__)

BATCH = 32
ROUND_MAX_MS = 60_000
REST_S = 0.25


class Progress(Protocol):
    """Storage of a group's progress, -1 for none: the broker's consumer offsets."""

    def query(self, group: str, topic: str, queue_id: int) -> int: ...

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool: ...


class Readable(Protocol):
    """The methods of a store that counting uses."""

    def get(self, topic: str, queue_id: int, offset: int, max_messages: int = 32) -> GetPage: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Question:
    """What a producer of `group` is asked: `record` holds the message as its topic will have it."""

    group: str
    topic: str
    transaction_id: str
    message_id: str
    queue_offset: int
    log_offset: int
    record: bytes
    sender: str | None
    """The account that sent the message, where there were accounts."""


class Verdict(enum.Enum):
    """What is done about a half message that is open."""

    WAIT = "it is young: end the round"
    SPARE = "its producer asked for more time: copy it"
    ASK = "copy it and ask its producer"
    DISCARD = "give it up"


def judge(half: HalfMessage, rules: TransactionRules, now_ms: int) -> Verdict:
    """Pure. A message born in the future (clocks differ) is checked, unless its producer set an immunity time."""
    age_ms = now_ms - half.record.born_timestamp_ms
    if half.check_times >= rules.check_max or age_ms > rules.reserved_ms:
        return Verdict.DISCARD
    is_young = age_ms < immunity_ms(half, rules.timeout_ms)
    if half.immunity_s is not None:
        return Verdict.SPARE if is_young else Verdict.ASK
    return Verdict.WAIT if is_young and age_ms >= 0 else Verdict.ASK


class TransactionCheck(Service):
    """See the module."""

    def __init__(
        self,
        store: LocalStore,
        ops: OpLog,
        progress: Progress,
        clock: Clock,
        rules: Callable[[], TransactionRules],
        ask: Callable[[Question], None],
        before_discard: Callable[[], None] = lambda: None,
        escape: Escape | None = None,
    ) -> None:
        """`ask` must not wait; `before_discard` makes the topic of discarded messages known. With `escape`, of a slave
        that acts for its master, open messages that are old enough go to another master, which asks about them.
        """
        super().__init__("transactions")
        self.rounds_count = 0
        self.asked_count = 0
        self.discarded_count = 0
        self.skipped = SkippedRecords("half messages and ops", clock)
        self._store = store
        self._ops = ops
        self._progress = progress
        self._clock = clock
        self._rules = rules
        self._ask = ask
        self._before_discard = before_discard
        self._escape = escape
        self._copied: set[Identity] = set()
        """Messages of the round that have a copy already, which counts for all copies that RocketMQ made."""
        self._next_round_ms = clock.now_ms() + rules().interval_ms

    @property
    def skipped_count(self) -> int:
        """Records of the half topic and the op topic that could not be used."""
        return self.skipped.count

    def run_once(self) -> float:
        """Write ops that are due; a round when it is time."""
        self._ops.write_if_due()
        now_ms = self._clock.now_ms()
        if now_ms >= self._next_round_ms:
            self._next_round_ms = now_ms + self._rules().interval_ms
            self.round()
        return REST_S

    def finish(self) -> None:
        self._ops.write()

    # A round.

    def round(self) -> None:
        """Scan the half queue once. Its effects are in the log; its position is in `progress`, to be flushed."""
        began_ms = self._clock.now_ms()
        half_at, op_at = self._start(HALF_TOPIC, HALF_QUEUE), self._start(OPERATION_HALF_TOPIC, OP_QUEUE)
        half_end = self._store.max_offset(HALF_TOPIC, HALF_QUEUE)  # Copies that the round makes are for the next one.
        ended = _EndedByOps(self._store, op_at, self.skipped)
        self._copied.clear()
        at = half_at
        try:
            for at in self._passing(half_at, half_end, ended):  # noqa: B007 - where it stands when the loop is left
                if self.stopping or self._clock.now_ms() - began_ms > ROUND_MAX_MS:
                    break
                self._ops.write_if_due()
        finally:
            if at != half_at:
                self._progress.commit(TRANSACTION_GROUP, HALF_TOPIC, HALF_QUEUE, at)
            ops_passed = self._ops_before(at, op_at)
            if ops_passed != op_at:
                self._progress.commit(TRANSACTION_GROUP, OPERATION_HALF_TOPIC, OP_QUEUE, ops_passed)
            self._ops.was_read(ended.next_offset)
            self.rounds_count += 1

    def _start(self, topic: str, queue_id: int) -> int:
        """The progress; the nearest end of the queue if it is outside."""
        known = self._progress.query(TRANSACTION_GROUP, topic, queue_id)
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        at = low if known < 0 else max(low, min(known, high))
        if known >= 0 and at != known:
            _log.warning("%s: the progress %d is not in [%d, %d], going on there", topic, known, low, high)
        return at

    def _passing(self, at: int, end: int, ended: _EndedByOps) -> Iterator[int]:
        """Handle one half message after the other, and yield the offset after each; ends where one must wait."""
        page: dict[int, StoredMessage] = {}
        while at < end:
            if ended.has(at):
                at += 1
                yield at
                continue
            if at not in page:
                page, next_offset = self._page(at)
                if at not in page:
                    if next_offset <= at:
                        return
                    at = next_offset  # Messages that are deleted or unreadable.
                    yield at
                    continue
            if not self._handle(page[at], ended):
                return
            at += 1
            yield at

    def _page(self, at: int) -> tuple[dict[int, StoredMessage], int]:
        """Half messages from `at` on by their offsets, and the next offset if that one does not exist."""
        page = self._store.get(HALF_TOPIC, HALF_QUEUE, at, BATCH)
        try:
            return {each.queue_offset: each for each in page.messages}, page.next_offset
        except CorruptRecord:
            page = self._store.get(HALF_TOPIC, HALF_QUEUE, at, 1)
        try:
            return {each.queue_offset: each for each in page.messages}, page.next_offset
        except CorruptRecord as error:
            self._skip(at, f"unreadable: {error}")
            return {}, at + 1

    def _handle(self, record: StoredMessage, ended: _EndedByOps) -> bool:
        """Whether the message can be passed."""
        try:
            half = read_half(record)
        except CorruptRecord as error:
            self._skip(record.queue_offset, str(error))
            return True
        if ended.has(half.origin) or half.identity in self._copied:
            return True
        names = (record.queue_offset, half.origin, half.identity)
        verdict = judge(half, self._rules(), self._clock.now_ms())
        if verdict is Verdict.WAIT:
            return self._ops.outcome(*names) is not None
        asked: Question | None = None
        with self._ops.lock:  # It cannot be ended between the check and the copy.
            if self._ops.recall(half) is not None:
                return True
            if self._escape is not None:
                return self._was_escaped(half, self._escape)
            if verdict is Verdict.DISCARD:
                return self._discard(half)
            copy = copied(half, check_times=half.check_times + (verdict is Verdict.ASK))
            put = self._put(copy)
            if put is None or put.status in NEVER:
                return self._discard(half)
            if put.status is not PutStatus.PUT_OK:
                return self._hold(half, put)
            self._copied.add(half.identity)
            if verdict is Verdict.ASK:
                asked = Question(
                    group=half.group,
                    topic=half.topic,
                    transaction_id=half.transaction_id,
                    message_id=put.message_id or "",
                    queue_offset=put.queue_offset,
                    log_offset=put.physical_offset,
                    record=question(half, copy, put),
                    sender=half.sender,
                )
        if asked is not None:
            self.asked_count += 1
            self._ask(asked)
        return True

    def _was_escaped(self, half: HalfMessage, escape: Escape) -> bool:
        [status] = escape([escaped(half)])
        if status not in STORED:
            _log.warning("half message %d waits for the next round: %s", half.record.queue_offset, status.name)
            return False
        self._copied.add(half.identity)
        return True

    def _discard(self, half: HalfMessage) -> bool:
        self._before_discard()
        put = self._put(discarded(half))
        if put is not None and put.status not in NEVER and put.status is not PutStatus.PUT_OK:
            return self._hold(half, put)
        if put is None or put.status in NEVER:
            self._skip(half.record.queue_offset, "the store never takes it")
            return True
        self.discarded_count += 1
        _log.error(
            "transaction %s of %s: given up after %d questions, kept in %s",
            half.transaction_id, half.topic, half.check_times, TRANSACTION_CHECK_MAX_TIME_TOPIC,
        )  # fmt: skip
        return True

    def _put(self, message: Message) -> PutResult | None:
        """None: no record can hold it."""
        try:
            return self._store.append(message)
        except IllegalMessage:
            return None

    def _hold(self, half: HalfMessage, put: PutResult) -> bool:
        _log.warning("half message %d waits for the next round: %s", half.record.queue_offset, put.status.name)
        return False

    def _skip(self, offset: int, reason: str) -> None:
        self.skipped.add(f"half message {offset}", reason)

    def _ops_before(self, half_at: int, op_at: int) -> int:
        """The first op that a half message which is not passed may still need: all others that it needs are later."""
        dispatched = self._store.dispatched_where  # First: what is dispatched later is after it.
        place = self._store.physical_offset_of(HALF_TOPIC, HALF_QUEUE, half_at)
        limit = dispatched if place < 0 else place
        low, high = op_at, self._store.max_offset(OPERATION_HALF_TOPIC, OP_QUEUE)
        while low < high:
            middle = (low + high) // 2
            if self._store.physical_offset_of(OPERATION_HALF_TOPIC, OP_QUEUE, middle) < limit:
                low = middle + 1
            else:
                high = middle
        return low


class _EndedByOps:
    """The op queue's contents from an offset on, read lazily."""

    def __init__(self, store: Readable, op_at: int, skipped: SkippedRecords | None = None) -> None:
        self.next_offset = op_at
        self.offsets: set[int] = set()
        self._store = store
        self._skipped = skipped

    def has(self, half_offset: int) -> bool:
        """Whether any readable op covers it."""
        while half_offset not in self.offsets:
            if not self.read_more():
                return False
        return True

    def read_more(self) -> bool:
        """Read the next page; False if there is no more yet."""
        if self.next_offset >= self._store.max_offset(OPERATION_HALF_TOPIC, OP_QUEUE):
            return False
        page = self._store.get(OPERATION_HALF_TOPIC, OP_QUEUE, self.next_offset, BATCH)
        if page.next_offset <= self.next_offset:
            return False
        try:
            messages = list(page.messages)
        except CorruptRecord:
            page = self._store.get(OPERATION_HALF_TOPIC, OP_QUEUE, self.next_offset, 1)
            messages = []
            try:
                messages = list(page.messages)
            except CorruptRecord as error:
                self._skip(self.next_offset, error)
        for message in messages:
            self._take(message)
        self.next_offset = max(self.next_offset + 1, page.next_offset)
        return True

    def _take(self, message: StoredMessage) -> None:
        if message.tags != OP_TAG:
            return
        half_end = self._store.max_offset(HALF_TOPIC, HALF_QUEUE)
        try:  # What no half message can have is not kept: an op may name anything.
            self.offsets.update(offset for offset in decode_op(message.body) if offset < half_end)
        except CorruptRecord as error:
            self._skip(message.queue_offset, error)

    def _skip(self, offset: int, error: CorruptRecord) -> None:
        if self._skipped is not None:
            self._skipped.add(f"op {offset}, its messages are asked about again", error)


def waiting_halves(store: Readable, half_at: int, op_at: int, also_ended: Iterable[int] = ()) -> int:
    """How many half messages are open, from a progress on (-1: not known): without those that ops have ended.

    A copy whose origin was ended counts until a round has passed it.
    """
    half_at = max(half_at, store.min_offset(HALF_TOPIC, HALF_QUEUE))
    ended = _EndedByOps(store, max(op_at, store.min_offset(OPERATION_HALF_TOPIC, OP_QUEUE)))
    while ended.read_more():
        pass
    half_end = store.max_offset(HALF_TOPIC, HALF_QUEUE)
    closed = sum(1 for offset in ended.offsets.union(also_ended) if half_at <= offset < half_end)
    return max(0, half_end - half_at - closed)
