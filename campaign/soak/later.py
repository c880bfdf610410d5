"""Messages that come later or not at all: by delay level, for a time of their own, by the end of a transaction.

Each is remembered until it was delivered, so memory is for what waits. One that was rolled back must never come; none
may come early; one that was sent again for want of an answer may come twice.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.brokers import send_command
from campaign.soak.streams import AGAIN, Caller, Tally, pull_command, send_until_stored
from tiermq.message.record import decode_records
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

TOPIC = "Later"
GROUP = "later"
COMMIT, ROLLBACK = 8, 12
PREPARED = 4
LEVEL_ONE_MS = 1_000
AHEAD_MS = (1_500, 12_000)


@dataclass(slots=True)
class Later:
    """The producer, the reader, and what waits."""

    port: int
    tally: Tally
    chance: random.Random
    waiting: dict[str, int] = field(default_factory=dict)
    """When it may come at the earliest, by its name."""
    twice: set[str] = field(default_factory=set)
    never: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def produce(self, pace: Callable[[], bool]) -> None:
        """One of the kinds each time `pace` returns True."""
        caller = Caller(self.port)
        number = 0
        kinds = (self._by_level, self._by_time, self._committed, self._rolled_back)
        while pace():
            self.chance.choice(kinds)(caller, f"later-{number}")
            number += 1
        caller.close()

    def _by_level(self, caller: Caller, name: str) -> None:
        self._send(caller, name, _now_ms() + LEVEL_ONE_MS, "DELAY\x011\x02")

    def _by_time(self, caller: Caller, name: str) -> None:
        due_ms = _now_ms() + self.chance.randint(*AHEAD_MS)
        self._send(caller, name, due_ms, f"TIMER_DELIVER_MS\x01{due_ms}\x02")

    def _send(self, caller: Caller, name: str, due_ms: int, property_text: str) -> None:
        with self.lock:
            self.waiting[name] = due_ms
        properties = f"UNIQ_KEY\x01ID-{name}\x02WAIT\x01true\x02{property_text}"
        _, again = send_until_stored(caller, send_command(TOPIC, name.encode(), properties=properties))
        if again:
            self.twice.add(name)
        self.tally.count("delayed_sent")

    def _committed(self, caller: Caller, name: str) -> None:
        with self.lock:
            self.waiting[name] = 0
        self._transaction(caller, name, COMMIT)

    def _rolled_back(self, caller: Caller, name: str) -> None:
        self.never.add(name)
        self._transaction(caller, name, ROLLBACK)

    def _transaction(self, caller: Caller, name: str, how: int) -> None:
        properties = f"UNIQ_KEY\x01ID-{name}\x02WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
        command = send_command(TOPIC, name.encode(), properties=properties, sys_flag=PREPARED, group=GROUP)
        command.ext["g"] = str(_now_ms())
        half, _ = send_until_stored(caller, command)
        fields = {
            "topic": TOPIC, "producerGroup": GROUP, "commitOrRollback": how, "msgId": "",
            "tranStateTableOffset": half.ext["queueOffset"], "commitLogOffset": int(half.ext["msgId"][-16:], 16),
            "fromTransactionCheck": "false",
        }  # fmt: skip
        reported = {field_name: str(value) for field_name, value in fields.items()}
        send_until_stored(caller, RemotingCommand(RequestCode.END_TRANSACTION, ext=reported))
        self.tally.count("transactions_ended")

    def follow(self, is_over: Callable[[], bool]) -> None:
        """Take what comes until it is over and nothing waits any more."""
        caller = Caller(self.port)
        offset = 0
        while not (is_over() and not self.waiting):
            answer = caller.ask(pull_command(GROUP, TOPIC, 0, offset))
            if answer is None or answer.code in (ResponseCode.PULL_NOT_FOUND, *AGAIN):
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise AssertionError(f"{TOPIC} at {offset}: expected messages, found {answer}")
            for message in decode_records(bytes(answer.body)):
                self._came(message.body.decode(), message.store_timestamp_ms)
                offset = message.queue_offset + 1
        caller.close()

    def _came(self, name: str, stored_ms: int) -> None:
        if name in self.never:
            raise AssertionError(f"{name} was rolled back, and came")
        with self.lock:
            due_ms = self.waiting.pop(name, None)
        if due_ms is None:
            if name not in self.twice:
                raise AssertionError(f"{name} came, and is not waited for: it came before, or was never sent")
        elif stored_ms < due_ms:
            raise AssertionError(f"{name} came {due_ms - stored_ms} ms early")
        self.tally.count("delayed_delivered" if due_ms else "committed_delivered")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
