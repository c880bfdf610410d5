"""A store without threads at a standing clock, half messages in it, and what ends them or asks about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulation.manual_clock import ManualClock
from small_store import SIZES
from tiermq import Message, PutResult
from tiermq.delivery.transactions.end_transaction import Ended, EndRequest, EndTransaction
from tiermq.delivery.transactions.half_messages import TransactionRules, half_properties
from tiermq.delivery.transactions.op_messages import OpLog, Outcome
from tiermq.delivery.transactions.transaction_check import Question, TransactionCheck, waiting_halves
from tiermq.message.properties import encode_properties
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import (
    HALF_TOPIC,
    OPERATION_HALF_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
)
from tiermq.store.local_store import LocalStore

GROUP = "PG"


class MemoryProgress:
    """Progress that outlives a restart, as far as it was written."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str, int], int] = {}

    def query(self, group: str, topic: str, queue_id: int) -> int:
        return self.table.get((group, topic, queue_id), -1)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        self.table[group, topic, queue_id] = offset
        return True


class World:
    def __init__(self, path: Path, store: dict[str, int] | None = None, **rules: int) -> None:
        self.path = path
        self.settings = {**SIZES, **(store or {})}
        self.clock = ManualClock()
        self.rules = TransactionRules(**rules)
        self.progress = MemoryProgress()
        self.asked: list[Question] = []
        self.topics_made = 0
        self.open()

    def open(self) -> None:
        self.store = LocalStore.open(self.path, clock=self.clock, background=False, **self.settings)
        self.ops = OpLog(self.store, self.clock)
        self.ending = EndTransaction(self.store, self.ops, self.clock, rules=lambda: self.rules)
        self.check = TransactionCheck(
            self.store, self.ops, self.progress, self.clock, lambda: self.rules, self.asked.append, self._made
        )

    def _made(self) -> None:
        self.topics_made += 1

    def restart(self) -> None:
        """What was not written is gone."""
        self.store.close()
        self.open()

    def half(self, body: str, **fields: Any) -> PutResult:
        """A half message of topic T, queue 1."""
        named = {"UNIQ_KEY": f"ID-{body}", "PGROUP": GROUP, "TRAN_MSG": "true", "TAGS": "A", **fields.pop("more", {})}
        properties = half_properties(encode_properties(named), "T", 1)
        born = {"born_timestamp_ms": self.clock.now_ms(), "born_host": "9.8.7.6:5", "flag": 7, **fields}
        result = self.store.put(Message(HALF_TOPIC, body.encode(), 0, encoded_properties=properties, **born))
        assert result.ok
        self.store.dispatch_now()
        return result

    def end(self, half: PutResult | Question, outcome: Outcome, **changes: Any) -> Ended:
        log_offset = half.log_offset if isinstance(half, Question) else half.physical_offset
        values = {"outcome": outcome, "group": GROUP, "log_offset": log_offset, "queue_offset": half.queue_offset}
        ended = self.ending.end(EndRequest(**{**values, **changes}))
        self.store.dispatch_now()
        return ended

    def commit(self, half: PutResult | Question, **changes: Any) -> Ended:
        return self.end(half, Outcome.COMMIT, **changes)

    def roll_back(self, half: PutResult | Question, **changes: Any) -> Ended:
        return self.end(half, Outcome.ROLLBACK, **changes)

    def round_after(self, seconds: float) -> list[str]:
        """Time passes, then a round; the transactions that were asked about in it."""
        self.clock.advance_ms(int(seconds * 1000))
        asked = len(self.asked)
        self.store.dispatch_now()
        self.check.round()
        self.store.dispatch_now()
        return [each.transaction_id.removeprefix("ID-") for each in self.asked[asked:]]

    def messages(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while (page := self.store.get(topic, queue_id, len(found))).count:
            found += page.messages
        return found

    def bodies(self, topic: str = "T", queue_id: int = 1) -> list[str]:
        return [each.body.decode() for each in self.messages(topic, queue_id)]

    def ops_written(self) -> list[bytes]:
        return [each.body for each in self.messages(OPERATION_HALF_TOPIC)]

    def discarded(self) -> list[str]:
        return self.bodies(TRANSACTION_CHECK_MAX_TIME_TOPIC, 0)

    @property
    def half_progress(self) -> int:
        return self.progress.query(TRANSACTION_GROUP, HALF_TOPIC, 0)

    @property
    def op_progress(self) -> int:
        return self.progress.query(TRANSACTION_GROUP, OPERATION_HALF_TOPIC, 0)

    @property
    def waiting(self) -> int:
        return waiting_halves(self.store, self.half_progress, self.op_progress, self.ops.pending)
