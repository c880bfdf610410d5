"""What clients of a replicated broker were promised and have seen, and whether that is the history of one log.

Each body is sent once, so it may be stored once. A message is *known* from the moment at which its acknowledgement, or
an answer to a read that shows it, has arrived; a read that begins later, at whichever replica, must show it.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.brokers import send_command
from broker.consuming import pull_fields
from tiermq.errors import RemotingError
from tiermq.message.record import decode_records
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

TOPIC = "T"
QUEUES = 2
ANSWER_S = 6.0
HELD_MS = 4_000
"""How long a pull is held that finds nothing: what is acknowledged is shown a moment later."""
BURSTS = (1, 1, 1, 4, 24)
FRAME_BYTES = 32 * 1024
"""Of the replication stream."""
SMALL_BYTES_MAX, BODY_BYTES_MAX, LARGE_SHARE = 900, 5 * FRAME_BYTES, 0.05
SEND_REST_S, READ_REST_S, AGAIN_S = 0.005, 0.02, 0.05
GONE = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
"""Answers that deny that there is a message."""
REFUSED_MAX = 400
"""Refusals of one pull, until it counts as failed."""
Place = tuple[int, int]
"""A queue and an offset in it."""


@dataclass
class Ledger:
    """Its lock guards it; used by all clients."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)
    known: dict[Place, bytes] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    """The largest known offset of each queue."""
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _places: dict[bytes, Place] = field(default_factory=dict)

    def note(self, place: Place, body: bytes, how: str) -> None:
        """A message was acknowledged or seen there."""
        with self.lock:
            self.counts[how] += 1
            other = self.known.setdefault(place, body)
            if other != body:
                self.problems.append(f"{how}: {place} is {body!r}, and was {other!r}")
            where = self._places.setdefault(body, place)
            if where != place:
                self.problems.append(f"{how}: {body!r} is at {place}, and was at {where}")
            self.newest[place[0]] = max(place[1], self.newest.get(place[0], -1))

    def check_all(self, found: Mapping[Place, bytes], where: str) -> None:
        """The whole log, after everything: it has all that is known, once, and offsets are unbroken."""
        lost = [place for place, body in self.known.items() if found.get(place) != body]
        if lost:
            self.problems.append(f"{where}: {len(lost)} of {len(self.known)} are gone, such as {sorted(lost)[:3]}")
        for queue in range(QUEUES):
            offsets = sorted(offset for of, offset in found if of == queue)
            if offsets != list(range(len(offsets))):
                self.problems.append(f"{where}: queue {queue} is not unbroken: {offsets[:3]} … {offsets[-3:]}")
        if len(set(found.values())) != len(found):
            self.problems.append(f"{where}: messages are stored twice: {len(found) - len(set(found.values()))}")


class _Caller:
    """Asks one broker after the other."""

    def __init__(self) -> None:
        self._client: BlockingClient | None = None
        self._address = ""

    def ask(self, address: str, command: RemotingCommand) -> RemotingCommand | None:
        """None when there was no answer."""
        return self.ask_all(address, [command])[0]

    def ask_all(self, address: str, commands: Sequence[RemotingCommand]) -> list[RemotingCommand | None]:
        """All at once: no request waits for the answer of another."""
        answers: list[RemotingCommand | None] = [None] * len(commands)
        try:
            if self._client is None or self._address != address:
                self.close()
                host, _, port = address.rpartition(":")
                self._client, self._address = BlockingClient(host, int(port), timeout_s=ANSWER_S), address
            asked = [self._client.request_later(command) for command in commands]
        except (RemotingError, OSError):
            self.close()
            return answers
        for number, each in enumerate(asked):
            try:
                answers[number] = each.result()
            except (RemotingError, OSError):
                continue
        if None in answers:
            self.close()
        return answers

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def write(queue: int, addresses: list[str], master_address: Callable[[], str], seed: int, ledger: Ledger) -> None:
    """Send until it is over: to the master that the name server has, or, sometimes, to any replica. Alone, or several
    at once of which none waits for the answer of another, as producers do; bodies of up to several frames.
    """
    chance, caller = random.Random(seed), _Caller()
    address, number = "", 0
    try:
        while not ledger.over.is_set():
            if not address:
                address = chance.choice(addresses)
                if chance.random() < 0.7:
                    try:
                        address = master_address() or address
                    except (RemotingError, OSError):
                        ledger.counts["name_server_silent"] += 1
            bodies = []
            for _ in range(chance.choice(BURSTS)):
                number += 1
                bodies.append(_body(b"%d %d-%d " % (queue, seed, number), chance))
            ledger.counts["sends_at_once" if len(bodies) > 1 else "sends_alone"] += len(bodies)
            ledger.counts["large_sends"] += sum(len(body) > FRAME_BYTES for body in bodies)
            commands = [send_command(TOPIC, body, queue=queue, queues=QUEUES) for body in bodies]
            rest_s = SEND_REST_S
            for body, answer in zip(bodies, caller.ask_all(address, commands), strict=True):
                if answer is not None and answer.code == ResponseCode.SUCCESS:
                    ledger.note((queue, int(answer.ext["queueOffset"])), body, "acknowledged")
                else:
                    ledger.counts["not_acknowledged"] += 1
                    address, rest_s = "", AGAIN_S
            ledger.over.wait(rest_s)
    finally:
        caller.close()


def _body(head: bytes, chance: random.Random) -> bytes:
    largest = BODY_BYTES_MAX if chance.random() < LARGE_SHARE else SMALL_BYTES_MAX
    return head + b"x" * chance.randrange(largest)


def read(addresses: list[str], seed: int, ledger: Ledger, *, slave_reads: bool = False) -> None:
    """Pull known messages, the newest ones above all, from each replica that answers, until it is over. With
    `slave_reads` one may be behind, and say that it has no message yet: it must not send its reader elsewhere.
    """
    denials = GONE[1:] if slave_reads else GONE
    chance, callers = random.Random(seed), {address: _Caller() for address in addresses}
    try:
        while not ledger.over.wait(READ_REST_S):
            queue, address = chance.randrange(QUEUES), chance.choice(addresses)
            newest = ledger.newest.get(queue, -1)
            if newest < 0:
                continue
            offset = newest if chance.random() < 0.6 else chance.randrange(newest + 1)
            answer = callers[address].ask(address, _pull(queue, offset, HELD_MS))
            if answer is None:
                continue
            if answer.code in denials:
                with ledger.lock:
                    ledger.problems.append(
                        f"{address} denies ({queue}, {offset}), which was acknowledged or read: {answer.code}, "
                        f"{answer.ext.get('minOffset')} to {answer.ext.get('maxOffset')}"
                    )
            elif answer.code == ResponseCode.SUCCESS:
                _take(answer, queue, offset, ledger)
    finally:
        for caller in callers.values():
            caller.close()


def _take(answer: RemotingCommand, queue: int, offset: int, ledger: Ledger) -> None:
    for at, each in enumerate(decode_records(bytes(answer.body)), offset):
        if each.queue_offset != at:
            with ledger.lock:
                ledger.problems.append(f"a read of ({queue}, {at}) shows offset {each.queue_offset}")
            return
        ledger.note((queue, at), each.body, "read")


def read_all(address: str) -> dict[Place, bytes]:
    """Everything that a master shows. Raises RemotingError, OSError."""
    found: dict[Place, bytes] = {}
    host, _, port = address.rpartition(":")
    with BlockingClient(host, int(port), timeout_s=30.0) as client:
        for queue in range(QUEUES):
            offset, refused = 0, 0
            while (answer := client.request(_pull(queue, offset, 1))).code not in GONE:
                if answer.code == ResponseCode.SUCCESS:
                    found |= {(queue, each.queue_offset): each.body for each in decode_records(bytes(answer.body))}
                    offset, refused = int(answer.ext["nextBeginOffset"]), 0
                elif (refused := refused + 1) > REFUSED_MAX:
                    raise RemotingError(f"({queue}, {offset}) is not read: {answer.code} {answer.remark}")
                else:
                    time.sleep(AGAIN_S)  # The tier was away a moment ago.
    return found


def _pull(queue: int, offset: int, held_ms: int) -> RemotingCommand:
    fields = {**pull_fields(offset), "topic": TOPIC, "queueId": queue, "sysFlag": 6, "subscription": "*"}
    fields["suspendTimeoutMillis"] = held_ms
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext={name: str(value) for name, value in fields.items()})
