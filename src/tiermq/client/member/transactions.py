"""Transactions of a producer: half messages, their ends, and answers to brokers that ask.

    async with producer.transaction(Message("orders", b"42 is paid", keys=["42"])):     # stored, not visible
        pay(42)                                                                         # the local transaction
    # now consumers get it; if the block raised, they never do

If the sender dies inside the block, the broker later asks any producer of the group, and its `check` answers: it gets
the message, and looks up the local transaction. So a group's producers must share what `check` looks at. `check` is a
function, which runs in a thread and may wait, or a coroutine function; if it raises, the outcome is unknown, and the
broker asks again.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tiermq.client.member.handlers import is_cancelled
from tiermq.client.member.message_queue import MessageQueue
from tiermq.client.member.outgoing import SendReceipt, require_message
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.errors import CorruptRecord, IllegalMessage, RemotingError
from tiermq.message.ids import decode_message_id
from tiermq.message.properties import PGROUP, TRAN_MSG
from tiermq.message.record import decode_record
from tiermq.message.system_flag import TransactionType
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand, int_field

if TYPE_CHECKING:
    from tiermq.client.member.session import Session
    from tiermq.kernel import Message

_log = logging.getLogger(__name__)


class Decision(enum.IntEnum):
    """The outcome of a message. UNKNOWN: the broker asks again later."""

    UNKNOWN = TransactionType.NONE
    COMMIT = TransactionType.COMMIT
    ROLLBACK = TransactionType.ROLLBACK


Check = Callable[[ReceivedMessage], Any]
SendHalf = Callable[..., Coroutine[Any, Any, tuple[SendReceipt, str]]]


class AsyncTransaction:
    """One message that becomes visible with its block, or never. `receipt`: of the half message."""

    def __init__(self, transactions: Transactions, message: Message, choose: Any) -> None:
        self._transactions = transactions
        self._message = message
        self._choose = choose
        self._address = ""
        self._is_ended = False
        self.receipt: SendReceipt | None = None

    async def __aenter__(self) -> Self:
        self.receipt, self._address = await self._transactions.prepare(self._message, self._choose)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_ended:
            await self.end(Decision.COMMIT if kind is None else Decision.ROLLBACK)

    def __repr__(self) -> str:
        state = "ended" if self._is_ended else "not begun" if self.receipt is None else "open"
        return f"AsyncTransaction({self._message.topic!r}, {state})"

    async def commit(self) -> None:
        """Before the block ends. Raises RemotingError: then whether it was done may be open, and the broker asks."""
        await self.end(Decision.COMMIT)

    async def roll_back(self) -> None:
        """Let it never become visible. Raises as `commit` does."""
        await self.end(Decision.ROLLBACK)

    async def leave_open(self) -> None:
        """Neither: the broker asks `check` later."""
        await self.end(Decision.UNKNOWN)

    async def end(self, decision: Decision) -> None:
        """UNKNOWN leaves it open: the broker asks."""
        if self.receipt is None or self._is_ended:
            raise IllegalMessage("expected a transaction inside its block, found it ended")
        self._is_ended = True
        if decision is Decision.UNKNOWN:
            return
        await self._transactions.end(
            self._address,
            decision,
            topic=self.receipt.topic,
            queue_offset=self.receipt.offset,
            log_offset=decode_message_id(self.receipt.message_id).physical_offset,
            transaction_id=self.receipt.unique_key,
        )


class Transactions:
    """See the module. Belongs to the loop of its producer."""

    def __init__(self, session: Session, group: str, check: Check | None, send_half: SendHalf) -> None:
        self._session = session
        self._group = group
        self._check = check
        self._send_half = send_half
        self._checks: set[asyncio.Task[Any]] = set()

    def begin(self, message: Message, choose: Any) -> AsyncTransaction:
        """Raises IllegalMessage without a `check`: no one else could answer for a sender that dies."""
        if self._check is None:
            raise IllegalMessage(
                f"producer group {self._group}: expected a producer with check=…, which answers brokers when a sender "
                "has died before its commit, found one without"
            )
        require_message(message)
        return AsyncTransaction(self, message, choose)

    async def prepare(self, message: Message, choose: Any) -> tuple[SendReceipt, str]:
        more = {TRAN_MSG: "true", PGROUP: self._group}
        return await self._send_half(message, choose, more=more, sys_flag=int(TransactionType.PREPARED))

    async def end(
        self,
        address: str,
        decision: Decision,
        *,
        topic: str,
        queue_offset: int,
        log_offset: int,
        transaction_id: str,
        is_answer: bool = False,
    ) -> None:
        await self._session.ask(
            address,
            RequestCode.END_TRANSACTION,
            topic=topic,
            producerGroup=self._group,
            tranStateTableOffset=queue_offset,
            commitLogOffset=log_offset,
            commitOrRollback=int(decision),
            fromTransactionCheck=is_answer,
            msgId=transaction_id,
            transactionId=transaction_id,
        )

    def on_check(self, address: str, command: RemotingCommand) -> Coroutine[Any, Any, RemotingCommand | None] | None:
        """The answer to a broker that asks for a message of this group."""
        if self._check is None:
            return None
        try:
            stored = decode_record(bytes(command.body))
        except CorruptRecord as error:
            _log.warning("%s: a transaction check without a message: %s", address, error)
            return None
        if stored.get_property(PGROUP) != self._group:
            return None
        return self._answer(address, command, ReceivedMessage(stored, MessageQueue(stored.topic, "", stored.queue_id)))

    async def _answer(self, address: str, command: RemotingCommand, message: ReceivedMessage) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._checks.add(task)
        try:
            decision = await self._decide(message)
            if decision is Decision.UNKNOWN:
                return
            await self.end(
                address,
                decision,
                topic=message.topic,
                queue_offset=int_field(command, "tranStateTableOffset"),
                log_offset=int_field(command, "commitLogOffset"),
                transaction_id=command.ext.get("transactionId", ""),
                is_answer=True,
            )
        except RemotingError as error:
            _log.warning("%s: transaction %s: no answer to its check: %s", address, message.unique_key, error)
        finally:
            self._checks.discard(task)

    async def _decide(self, message: ReceivedMessage) -> Decision:
        assert self._check is not None
        try:
            if inspect.iscoroutinefunction(self._check):
                return Decision(await self._check(message))
            return Decision(await asyncio.to_thread(self._check, message))
        except (Exception, asyncio.CancelledError) as error:  # the user's own code: it is asked again
            if is_cancelled(error):
                raise
            _log.exception("transaction %s: the check failed", message.unique_key)
            return Decision.UNKNOWN

    async def close(self) -> None:
        """Wait for checks that are being answered."""
        if self._checks:
            await asyncio.wait(tuple(self._checks))
