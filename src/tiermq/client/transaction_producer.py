"""TransactionProducer: messages that become visible together with a local transaction, or not at all.

    async with TransactionProducer(cluster, "payments", check=was_it_paid) as producer:
        prepared = await producer.prepare("orders", b"42 is paid", keys=["42"])     # stored, not visible
        pay(42)                                                                     # the local transaction
        await producer.commit(prepared)                                             # now consumers get it

If the sender dies before commit or rollback, the broker later asks any producer of the group, and `check` answers:
it gets the message, and looks up the local transaction. So a group's producers must share what `check` looks at,
and one of them must be connected. `check` runs in a thread and may wait; if it raises, the outcome is unknown.

Invariants: an end that returned is in the broker's log, and durable there if the broker flushes first (SYNC_FLUSH). A
lost connection is restored within `heartbeat_s`. Used on the client's loop.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.producer import DEFAULT_QUEUES, Producer
from tiermq.clock import Clock, SystemClock
from tiermq.errors import PeerGone, RemotingError
from tiermq.message.ids import UniqueKeyGenerator, decode_message_id
from tiermq.message.properties import KEYS, PGROUP, TAGS, TRAN_MSG, UNIQ_KEY, WAIT, encode_properties
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import TransactionType
from tiermq.message.topic_name import AUTO_CREATE_TOPIC
from tiermq.remoting.client import RemotingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, int_field

_log = logging.getLogger(__name__)

HEARTBEAT_S = 30.0


class Decision(enum.IntEnum):
    """The outcome of a message. UNKNOWN: the broker asks again later."""

    UNKNOWN = TransactionType.NONE
    COMMIT = TransactionType.COMMIT
    ROLLBACK = TransactionType.ROLLBACK


Check = Callable[[StoredMessage], Decision]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message that waits to be ended, and where it waits."""

    topic: str
    transaction_id: str
    message_id: str
    address: str
    queue_offset: int
    log_offset: int


class TransactionProducer:
    """See the module."""

    def __init__(
        self,
        client: ClusterClient,
        group: str,
        check: Check,
        *,
        clock: Clock | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.answered_count = 0
        self._client = client
        self._group = group
        self._check = check
        self._clock = clock or SystemClock()
        self._heartbeat_s = heartbeat_s
        self._new_key = UniqueKeyGenerator().next_key
        self._client_id = f"{self._new_key()}@{os.getpid()}"
        self._turn = itertools.count()
        self._places: dict[str, list[QueuePlace]] = {}
        self._greeted: dict[str, RemotingClient] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._heart: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._heart = asyncio.get_running_loop().create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Answer open checks, and leave the group. The client stays open; its owner closes it."""
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            await asyncio.gather(heart, *self._answers, return_exceptions=True)
        greeted, self._greeted = self._greeted, {}
        for client in greeted.values():
            if client.is_open:
                ext = {"clientID": self._client_id, "producerGroup": self._group}
                client.oneway(RemotingCommand(RequestCode.UNREGISTER_CLIENT, ext=ext))

    async def serve(self, topic: str) -> None:
        """Be there for questions of a topic's brokers before anything is sent, as a sender that was started again.

        Raises RequestRefused for an unknown topic, PeerGone for a broker that cannot be reached.
        """
        for address in {place.address for place in await self._places_of(topic)}:
            await self._greet(address)

    # Sending.

    async def prepare(
        self,
        topic: str,
        body: bytes,
        *,
        keys: Iterable[str] = (),
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        queue: QueuePlace | None = None,
    ) -> Prepared:
        """Store a half message. Raises RemotingError: then it never becomes visible."""
        if queue is None:
            places = await self._places_of(topic)
            queue = places[next(self._turn) % len(places)]
        key = self._new_key()
        named = {**(properties or {}), TRAN_MSG: "true", PGROUP: self._group, UNIQ_KEY: key, WAIT: "true"}
        named |= {name: value for name, value in ((KEYS, " ".join(keys)), (TAGS, tags)) if value}
        try:
            await self._greet(queue.address)
            answer = await self._client.ask(
                queue.address,
                RequestCode.SEND_MESSAGE_V2,
                body,
                a=self._group,
                b=topic,
                c=AUTO_CREATE_TOPIC,
                d=DEFAULT_QUEUES,
                e=queue.queue_id,
                f=int(TransactionType.PREPARED),
                g=self._clock.now_ms(),
                h=0,
                i=encode_properties(named).decode(),
                j=0,
                k=False,
                m=False,
                n=queue.broker_name,
            )
        except PeerGone:
            self._places.pop(topic, None)  # It may be elsewhere by now.
            raise
        message_id = answer.ext["msgId"]
        place = decode_message_id(message_id).physical_offset
        return Prepared(topic, key, message_id, queue.address, int_field(answer, "queueOffset"), place)

    async def commit(self, prepared: Prepared) -> None:
        """Make it visible. Raises RemotingError: then whether it was done may be open, and the broker asks."""
        await self._end(prepared, Decision.COMMIT)

    async def roll_back(self, prepared: Prepared) -> None:
        """Let it never become visible. Raises RemotingError: then whether it was done may be open."""
        await self._end(prepared, Decision.ROLLBACK)

    async def _places_of(self, topic: str) -> list[QueuePlace]:
        if topic not in self._places:
            self._places[topic] = await Producer(self._client, self._group).places(topic)
        return self._places[topic]

    async def _end(self, prepared: Prepared, decision: Decision, *, is_answer: bool = False) -> None:
        await self._client.ask(
            prepared.address,
            RequestCode.END_TRANSACTION,
            expected=(ResponseCode.SUCCESS,),
            topic=prepared.topic,
            producerGroup=self._group,
            tranStateTableOffset=prepared.queue_offset,
            commitLogOffset=prepared.log_offset,
            commitOrRollback=int(decision),
            fromTransactionCheck=is_answer,
            msgId=prepared.transaction_id,
            transactionId=prepared.transaction_id,
        )

    # Being there to be asked.

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            for address in tuple(self._greeted):
                try:
                    await self._greet(address, again=True)
                except RemotingError as error:
                    _log.warning("%s: the heartbeat of producer group %s failed: %s", address, self._group, error)

    async def _greet(self, address: str, *, again: bool = False) -> None:
        """Send a heartbeat, once for each connection, and `again` periodically."""
        client = await self._client.at(address)
        if self._greeted.get(address) is client and not again:
            return
        client.on_request(RequestCode.CHECK_TRANSACTION_STATE, lambda command: self._asked(address, command))
        beat = {"clientID": self._client_id, "producerDataSet": [{"groupName": self._group}], "consumerDataSet": []}
        await self._client.ask(address, RequestCode.HEART_BEAT, json.dumps(beat).encode())
        self._greeted[address] = client

    def _asked(self, address: str, command: RemotingCommand) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(address, command))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, address: str, command: RemotingCommand) -> None:
        try:
            message = decode_record(bytes(command.body))
            decision = await asyncio.to_thread(self._decide, message)
            if decision is Decision.UNKNOWN:
                return
            ext = command.ext
            prepared = Prepared(
                topic=message.topic,
                transaction_id=ext.get("transactionId", ""),
                message_id=ext.get("offsetMsgId", ""),
                address=address,
                queue_offset=int(ext["tranStateTableOffset"]),
                log_offset=int(ext["commitLogOffset"]),
            )
            await self._end(prepared, decision, is_answer=True)
            self.answered_count += 1
        except Exception:  # noqa: BLE001 - a request's outermost edge: the broker asks again
            _log.exception("a transaction check of %s was not answered", address)

    def _decide(self, message: StoredMessage) -> Decision:
        try:
            return Decision(self._check(message))
        except Exception:  # noqa: BLE001 - the user's own code: not to know is the safe answer, and it is asked again
            _log.exception("transaction %s: the check failed", message.unique_key)
            return Decision.UNKNOWN
