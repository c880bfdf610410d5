"""A broker is killed in the middle of transactions: the acknowledged ends hold, and the open ones are asked about."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.delivery.transaction_peer import COMMIT, ROLLBACK, TransactionPeer, shown
from crash import transaction_child
from tiermq.errors import RemotingError
from tiermq.message.record import decode_records
from tiermq.remoting.command import RemotingCommand
from tiermq.store.local_store import LocalStore
from waiting import until

KILLS = 2

pytestmark = pytest.mark.crash


def decision(number: int) -> int:
    return ROLLBACK if number % 3 == 1 else COMMIT


class Victim:
    """A store, the brokers that were killed over it, and what they said about numbered transactions."""

    def __init__(self, root: Path, flush: str, seed: int) -> None:
        print(f"seed {seed}")
        self.root = root
        self.flush = flush
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.number = 0
        self.prepared: set[int] = set()
        self.ended: dict[int, int] = {}
        self.ended_before: dict[int, int] = {}
        """By a broker before the one that runs. About what this one ends it may be asking at that very moment."""
        self.tried: set[int] = set()
        self.problems: list[str] = []
        self.enough = threading.Semaphore(0)

    @contextmanager
    def broker(self) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
        command = [sys.executable, transaction_child.__file__, str(self.root), self.flush]
        self.ended_before = dict(self.ended)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield process, ("127.0.0.1", int(process.stdout.readline()))

    def produce(self, address: tuple[str, int], name: str) -> None:
        """Transactions until the broker dies; of three, one is left open, to be asked about."""
        try:
            with TransactionPeer(address, client_id=name, now_ms=now_ms) as peer:
                answering = threading.Thread(target=self.answer, args=(peer,))
                answering.start()
                try:
                    while True:
                        self.one(peer)
                finally:
                    peer.asked.put(RemotingCommand(0))
                    answering.join()
        except RemotingError:
            return

    def one(self, peer: TransactionPeer) -> None:
        with self.lock:
            number = self.number
            self.number += 1
        half = peer.prepare(str(number))
        assert half.code == 0, half
        with self.lock:
            self.prepared.add(number)
        if number % 3 == 2:
            return
        with self.lock:
            self.tried.add(number)
        # Under so short a timeout it may have been asked about, and have been answered, in between.
        assert peer.end(half, decision(number)).code == 0
        with self.lock:
            self.ended[number] = decision(number)
        self.enough.release()

    def answer(self, peer: TransactionPeer) -> None:
        """As a sender that looks into its books, until the empty question."""
        while (question := peer.asked.get()).body:
            number = int(shown(question).body)
            with self.lock:
                if self.ended_before.get(number) == ROLLBACK:
                    self.problems.append(f"asked about {number}, whose rollback was acknowledged")
            try:
                peer.answer(question, decision(number))
            except RemotingError:
                return

    def kill_while_producing(self) -> None:
        with self.broker() as (process, address):
            threads = [threading.Thread(target=self.produce, args=(address, f"p{each}")) for each in range(2)]
            for thread in threads:
                thread.start()
            for _ in range(self.random.randrange(10, 80)):
                self.enough.acquire()
            process.send_signal(signal.SIGKILL)
            for thread in threads:
                thread.join()
        assert process.returncode == -signal.SIGKILL

    def settle(self) -> list[int]:
        """Let a broker ask until everything is ended: what consumers see then."""
        wanted = {number for number in self.prepared if decision(number) == COMMIT}
        with self.broker() as (process, address):
            with TransactionPeer(address, now_ms=now_ms) as peer:
                answering = threading.Thread(target=self.answer, args=(peer,))
                answering.start()
                until(lambda: wanted <= set(self.visible(peer)))
                peer.asked.put(RemotingCommand(0))
                answering.join()
            assert process.stdin is not None
            process.stdin.close()
        assert process.returncode == 0
        with LocalStore.open(self.root, **transaction_child.SIZES) as store:
            return [int(body) for body in read(store)]

    def visible(self, peer: TransactionPeer) -> list[int]:
        """How many consumers see is asked of the broker; what they are is read from its store, by its queue's end."""
        fields = {"topic": "T", "queueId": "1"}
        end = int(peer.client.request(RemotingCommand(30, ext=fields)).ext["offset"])
        found: list[int] = []
        while len(found) < end:
            fields = {
                "consumerGroup": "G", "topic": "T", "queueId": "1", "queueOffset": str(len(found)),
                "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*", "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
            answer = peer.client.request(RemotingCommand(11, ext=fields))
            assert answer.code == 0, answer
            found += [int(message.body) for message in decode_records(bytes(answer.body))]
        return found


def read(store: LocalStore) -> list[bytes]:
    found: list[bytes] = []
    while (page := store.get("T", 1, len(found))).count:
        found += [message.body for message in page.messages]
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("flush", [pytest.param("SYNC_FLUSH", marks=pytest.mark.slow), "ASYNC_FLUSH"])
def test_transactions_hold_what_was_acknowledged_when_their_broker_is_killed(tmp_path: Path, flush: str) -> None:
    victim = Victim(tmp_path / "store", flush, random.SystemRandom().randrange(2**32))
    for _ in range(KILLS):
        victim.kill_while_producing()
    found = victim.settle()
    committed = {number for number, how in victim.ended.items() if how == COMMIT}
    assert set(found) >= committed
    assert set(found) >= {number for number in victim.prepared if decision(number) == COMMIT}, "the open ones, too"
    assert [number for number in found if decision(number) == ROLLBACK] == []
    assert victim.problems == []
    assert len(victim.ended) >= 10 * KILLS
