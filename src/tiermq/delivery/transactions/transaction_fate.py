"""The outcome of a transaction, from history: also when its broker and every local file are lost.

    half messages with its id ─► their offsets, and their origins ─► the first op that names one ─► how it ended
                                                                   └► none: its message in its topic? given up? open

TierMQ's ops record how each message ended. RocketMQ's do not: then the message is searched in its topic, and
if missing, it is only known that it was ended. Half messages and ops are uploaded if the broker is configured so
(`tierTransactionsEnable`); otherwise only a store directory has them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tiermq.delivery.transactions.half_messages import HalfMessage, read_half
from tiermq.delivery.transactions.op_messages import Outcome, outcomes_of
from tiermq.errors import CorruptRecord
from tiermq.history.catalog import read_catalog
from tiermq.history.key_lookup import plan_history
from tiermq.history.open_history import OpenHistory
from tiermq.history.reading import read_task
from tiermq.history.scan_values import RowFilter, ScanCounters, ScanRequest
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import TransactionType
from tiermq.message.topic_name import HALF_TOPIC, OPERATION_HALF_TOPIC, TRANSACTION_CHECK_MAX_TIME_TOPIC
from tiermq.tier.names import QueueKey

Found = tuple[QueueKey, StoredMessage]


class Fate(enum.StrEnum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    ENDED = "ended"  # By a RocketMQ, which does not write down how; its message is not in its topic.
    GIVEN_UP = "given up"  # Never ended: it is kept in TRANS_CHECK_MAX_TIME_TOPIC.
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class TransactionFate:
    """One transaction. Times are milliseconds; `ended_ms` is when its end was written down, 0 when it was not."""

    transaction_id: str
    fate: Fate
    topic: str
    queue_id: int
    producer_group: str
    broker: str
    half_offset: int
    born_ms: int
    prepared_ms: int
    ended_ms: int
    questions: int
    """How often its producers were asked."""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "fate": self.fate.value}


def transaction_fate(history: OpenHistory, transaction_id: str) -> TransactionFate | None:
    """The outcome of the transaction with an id (its message's UNIQ_KEY); None when no half message has it.

    Reads the half messages by key, and ops from the time of the first one on, until one names it. Raises what the tier
    or the store raises when it cannot be read.
    """
    halves = _halves(history, transaction_id)
    if not halves:
        return None
    owner, first = halves[0]
    offsets = {each.record.queue_offset for _, each in halves} | {each.origin for _, each in halves}
    outcome, ended_ms = _ended_by(history, owner, offsets, first.record.store_timestamp_ms)
    fate = outcome
    if fate in (None, Fate.ENDED):
        if committed := _committed(history, first, transaction_id):
            fate, ended_ms = Fate.COMMITTED, ended_ms or committed.store_timestamp_ms
        elif fate is None and _given_up(history, transaction_id):
            fate = Fate.GIVEN_UP
    record = first.record
    return TransactionFate(
        transaction_id=transaction_id,
        fate=fate or Fate.OPEN,
        topic=first.topic,
        queue_id=first.queue_id,
        producer_group=first.group,
        broker=owner.broker,
        half_offset=first.origin,
        born_ms=record.born_timestamp_ms,
        prepared_ms=record.store_timestamp_ms,
        ended_ms=ended_ms,
        questions=max(each.check_times for _, each in halves),
    )


def _halves(history: OpenHistory, transaction_id: str) -> list[tuple[QueueKey, HalfMessage]]:
    """The half message and its copies, in their order; of several messages with one id the newest."""
    found = []
    for queue, message in _with_key(history, {HALF_TOPIC}, transaction_id):
        try:
            found.append((queue, read_half(message)))
        except CorruptRecord:
            continue  # A record that is no half message.
    found.sort(key=lambda each: each[1].record.queue_offset)
    return [each for each in found if each[1].identity == found[-1][1].identity]


def _ended_by(history: OpenHistory, owner: QueueKey, offsets: set[int], since_ms: int) -> tuple[Fate | None, int]:
    """The outcome in the first op with one of the offsets, and the op's time."""
    request = ScanRequest(
        topics=frozenset({OPERATION_HALF_TOPIC}), brokers=frozenset({owner.broker}), begin_ms=since_ms
    )
    for _, op in _messages(history, request):
        try:
            outcomes = outcomes_of(op)
        except CorruptRecord:
            continue
        for offset in offsets & outcomes.keys():
            outcome = outcomes[offset]
            if outcome is None:
                return Fate.ENDED, op.store_timestamp_ms
            return Fate.COMMITTED if outcome is Outcome.COMMIT else Fate.ROLLED_BACK, op.store_timestamp_ms
    return None, 0


def _committed(history: OpenHistory, half: HalfMessage, transaction_id: str) -> StoredMessage | None:
    for _, message in _with_key(history, {half.topic}, transaction_id):
        if message.transaction_type is TransactionType.COMMIT:
            return message
    return None


def _given_up(history: OpenHistory, transaction_id: str) -> bool:
    return any(True for _ in _with_key(history, {TRANSACTION_CHECK_MAX_TIME_TOPIC}, transaction_id))


def _with_key(history: OpenHistory, topics: Iterable[str], unique_key: str) -> Iterator[Found]:
    request = ScanRequest(topics=frozenset(topics), keys=frozenset({unique_key}))
    return (found for found in _messages(history, request) if found[1].unique_key == unique_key)


def _messages(history: OpenHistory, request: ScanRequest) -> Iterator[Found]:
    plan = plan_history(read_catalog(history, request), request, loss_is_error=False)
    rows, counters = RowFilter.of(request), ScanCounters()
    for task in plan.tasks:
        for run in read_task(history, task, counters):
            for start in run.starts:
                if int(start) in run.damage:
                    raise CorruptRecord(
                        f"{run.segment}: log offset {run.log_base + int(start)}: {run.damage[int(start)]}"
                    )
                message = decode_record(run.buffer, int(start))
                if rows.matches(message):
                    yield run.queue, message
