"""The power fails at each moment of transactions' lives: the acknowledged ends hold, the open ones are asked about."""

from __future__ import annotations

import json
import random
from functools import partial

from simulation.manual_clock import ManualClock
from simulation.power_cut import CutLife
from simulation.simulated_files import SimulatedFileAccess, by_chance
from small_store import ROOT, on_simulation
from tiermq import Message, PutResult
from tiermq.delivery.transactions.end_transaction import EndRequest, EndStatus, EndTransaction
from tiermq.delivery.transactions.half_messages import TransactionRules, half_properties
from tiermq.delivery.transactions.op_messages import OpLog, Outcome
from tiermq.delivery.transactions.transaction_check import Question, TransactionCheck
from tiermq.message.properties import encode_properties
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import HALF_TOPIC
from tiermq.store.local_store import LocalStore

PROGRESS = f"{ROOT}/config/progress.json"


class WrittenProgress:
    """Progress in a file of the simulated disk, written after what it speaks of, as consumer offsets are."""

    def __init__(self, store: LocalStore, access: SimulatedFileAccess) -> None:
        self._store = store
        self._access = access
        self._table: dict[str, int] = access.read_config(PROGRESS, json.loads) or {}

    def query(self, group: str, topic: str, queue_id: int) -> int:
        return self._table.get(f"{topic}@{group}@{queue_id}", -1)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        self._table[f"{topic}@{group}@{queue_id}"] = offset
        return True

    def flush(self) -> None:
        self._store.flush()
        self._access.make_directories(f"{ROOT}/config")
        self._access.write_config(PROGRESS, json.dumps(self._table).encode())


class Broker:
    """A store on a simulated disk and everything that transactions need."""

    def __init__(self, access: SimulatedFileAccess, clock: ManualClock) -> None:
        self.store = on_simulation(access, clock=clock)
        self.clock = clock
        self.progress = WrittenProgress(self.store, access)
        self.asked: list[Question] = []
        self.ops = OpLog(self.store, clock)
        self.ending = EndTransaction(self.store, self.ops, clock)
        self.check = TransactionCheck(self.store, self.ops, self.progress, clock, TransactionRules, self.asked.append)

    def round(self) -> dict[bytes, Question]:
        self.asked.clear()
        self.clock.advance_ms(10_000)
        self.store.dispatch_now()
        self.check.round()
        self.store.dispatch_now()
        return {decode_record(each.record).body: each for each in self.asked}

    def end(self, outcome: Outcome, queue_offset: int, log_offset: int) -> None:
        ended = self.ending.end(EndRequest(outcome, "PG", log_offset, queue_offset, is_answer=True))
        assert ended.status is EndStatus.DONE, ended
        self.store.flush()

    def messages(self) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while (page := self.store.get("T", 0, len(found))).count:
            found += page.messages
        return found


class Life(CutLife):
    """Transactions that are prepared, ended at once or when asked; again. It remembers the answers."""

    def __init__(self, calls: int | None) -> None:
        super().__init__(calls)
        self.prepared: set[bytes] = set()
        self.tried: dict[bytes, Outcome] = {}
        self.acknowledged: dict[bytes, Outcome] = {}

    def live(self) -> None:
        broker = Broker(self.access, self.clock)
        for number in range(2):
            names = [f"{number}-{name}".encode() for name in ("commit", "rollback", "later", "never")]
            halves = {name: self.prepare(broker, name) for name in names}
            self.end(broker, names[0], Outcome.COMMIT, halves[names[0]])
            self.end(broker, names[1], Outcome.ROLLBACK, halves[names[1]])
            questions = broker.round()
            broker.progress.flush()
            self.end(broker, names[2], Outcome.COMMIT, questions[names[2]])
            self.end(broker, names[3], Outcome.ROLLBACK, questions[names[3]])
            broker.round()
            broker.progress.flush()
        self.prepare(broker, b"open")
        broker.check.finish()
        broker.store.close()

    def prepare(self, broker: Broker, name: bytes) -> PutResult:
        named = {"UNIQ_KEY": name.decode(), "PGROUP": "PG", "TRAN_MSG": "true"}
        properties = half_properties(encode_properties(named), "T", 0)
        born_ms = self.clock.now_ms()
        put = broker.store.put(Message(HALF_TOPIC, name, 0, encoded_properties=properties, born_timestamp_ms=born_ms))
        assert put.ok
        broker.store.flush()
        self.prepared.add(name)
        broker.store.dispatch_now()
        return put

    def end(self, broker: Broker, name: bytes, outcome: Outcome, half: PutResult | Question) -> None:
        self.tried[name] = outcome
        log_offset = half.log_offset if isinstance(half, Question) else half.physical_offset
        broker.end(outcome, half.queue_offset, log_offset)
        self.acknowledged[name] = outcome
        broker.store.dispatch_now()


def test_a_power_cut_at_any_moment_keeps_every_promise_of_a_transaction() -> None:
    whole = Life(None)
    whole.live()
    assert whole.calls > 60
    assert len(whole.acknowledged) == 8
    chance = random.Random(11)
    twice = asked_again = 0
    for calls in range(whole.calls):
        life = Life(calls)
        life.live_until_cut()
        kept = chance.random()
        after = life.access.crash(partial(by_chance, chance, kept))
        broker = Broker(after, life.clock)
        asked = set(broker.round()) | set(broker.round())
        found = [message.body for message in broker.messages()]
        committed = {name for name, outcome in life.acknowledged.items() if outcome is Outcome.COMMIT}
        rolled_back = {name for name, outcome in life.tried.items() if outcome is Outcome.ROLLBACK}
        done = {name for name, outcome in life.acknowledged.items() if outcome is Outcome.ROLLBACK}
        assert set(found) >= committed, f"cut after {calls} calls: a commit was lost"
        assert not set(found) & rolled_back, f"cut after {calls} calls: what was rolled back appeared"
        assert set(found) <= {name for name, outcome in life.tried.items() if outcome is Outcome.COMMIT}
        assert not asked & done, f"cut after {calls} calls: asked about an acknowledged rollback"
        assert asked >= life.prepared - life.tried.keys(), f"cut after {calls} calls: an open one was forgotten"
        twice += len(found) - len(set(found))
        asked_again += len(asked & committed)
        broker.store.close()
    assert twice == 0, "a copy is not a second message"
    assert asked_again == 0, "a commit whose op was not written is found in its topic"
