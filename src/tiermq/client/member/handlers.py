"""Handlers: a consumer's callback, run for each message by tasks (a coroutine function) or threads (a function).

A message is done when its handler returns, and comes again later when it raises: concurrent ones by the group's retry
topic, ordered ones at once, after a rest, before any other message of their queue. `RetryLater` chooses the delay.
Each worker takes a few messages at a time while many are ready, so that threads are not changed for each.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tiermq.client.member.assigned_queue import AssignedQueue
from tiermq.client.member.outgoing import DELAY_LEVEL_MAX
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.errors import BadConfig, IllegalMessage, RemotingError

if TYPE_CHECKING:
    from tiermq.client.member.async_consumer import AsyncConsumer
    from tiermq.client.member.session import Session

_log = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], Any]
CHUNK_MESSAGES = 32
SUSPENDED_S = 1.0
"""The rest before an ordered message is tried again."""
AGAIN_S = 5.0
"""The rest before a failed message is handled again here, when no broker takes it."""


class RetryLater(Exception):
    """Raised by a handler: the message is to come again after this delay level, or one that grows with its attempts."""

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"later again, delay level {delay_level}")
        self.delay_level = checked_level(delay_level)

    def __reduce__(self) -> tuple[type[RetryLater], tuple[int]]:
        return type(self), (self.delay_level,)


def checked_level(delay_level: int) -> int:
    """0: one that grows with the attempts. Raises IllegalMessage: below 0 a broker would make it a dead letter."""
    if type(delay_level) is not int or not 0 <= delay_level <= DELAY_LEVEL_MAX:
        raise IllegalMessage(f"expected a delay level of 1 to {DELAY_LEVEL_MAX}, or 0, found {delay_level!r}")
    return delay_level


class Handlers:
    """See the module. Belongs to the consumer's loop; functions run in its threads."""

    def __init__(self, consumer: AsyncConsumer, handler: Handler, workers: int) -> None:
        if type(workers) is not int or workers < 1:
            raise BadConfig(f"workers: expected a whole number of at least 1, found {workers!r}")
        self._consumer = consumer
        self._handler = handler
        self.workers = workers
        self._is_coroutine = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is a coroutine function
        )
        self._pool: ThreadPoolExecutor | None = None
        self._threads: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, session: Session) -> None:
        if not self._is_coroutine:
            prefix = f"tiermq-{self._consumer.group}"
            self._pool = ThreadPoolExecutor(self.workers, prefix, lambda: self._threads.add(threading.get_ident()))
        work = self._work_in_order if self._consumer.settings.is_ordered else self._work
        self._tasks = [session.spawn(work(), f"worker-{self._consumer.group}") for _ in range(self.workers)]

    @property
    def is_inside(self) -> bool:
        """Whether this is one of the handlers' own threads or tasks."""
        if threading.get_ident() in self._threads:
            return True
        try:
            return asyncio.current_task() in self._tasks
        except RuntimeError:  # A thread without a loop.
            return False

    async def close(self) -> None:
        """What is being handled is finished first; a handler that is a task may close its own consumer."""
        own = asyncio.current_task()
        await asyncio.gather(*(task for task in self._tasks if task is not own), return_exceptions=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._threads.clear()  # Another thread may have the number of one that has ended.

    async def _work(self) -> None:
        consumer = self._consumer
        while not consumer.is_closing:
            chunk = max(1, min(CHUNK_MESSAGES, consumer.ready_count // self.workers))
            messages = await consumer.take(chunk, None)
            if messages:
                await self._handle_all(messages)

    async def _handle_all(self, messages: list[ReceivedMessage]) -> None:
        failed: list[tuple[ReceivedMessage, BaseException]] = []
        if self._pool is not None:
            try:
                failed = await asyncio.get_running_loop().run_in_executor(self._pool, self._handle_in_thread, messages)
            except RuntimeError as error:  # The interpreter ends, and starts no threads any more.
                _log.info("group %s: messages are left for other members: %s", self._consumer.group, error)
                while not self._consumer.is_closing:
                    await self._consumer.arrival()
                return
        else:
            for message in messages:
                if message.receipt is None or not message.receipt.is_current or self._consumer.is_closing:
                    continue
                try:
                    await self._handler(message)
                except (Exception, asyncio.CancelledError) as error:  # the user's own code: it comes again
                    if is_cancelled(error):
                        raise
                    failed.append((message, error))
                else:
                    message.receipt.done()
        for message, problem in failed:
            await self._again(message, problem)

    def _handle_in_thread(self, messages: list[ReceivedMessage]) -> list[tuple[ReceivedMessage, BaseException]]:
        failed: list[tuple[ReceivedMessage, BaseException]] = []
        for message in messages:
            receipt = message.receipt
            if receipt is None or not receipt.is_current or self._consumer.is_closing:
                continue
            try:
                self._call(message)
            except BaseException as error:  # noqa: BLE001 - as above; a thread's sys.exit() ends no program, either
                failed.append((message, error))
            else:
                receipt.done()
        return failed

    async def _again(self, message: ReceivedMessage, problem: BaseException) -> None:
        consumer = self._consumer
        level = problem.delay_level if isinstance(problem, RetryLater) else 0
        if not isinstance(problem, RetryLater):
            _log.error("group %s: %r failed, and comes again: %s", consumer.group, message, problem, exc_info=problem)
        if consumer.settings.is_broadcast:
            _log.error("group %s: %r is given up: a broadcasting consumer has no retries", consumer.group, message)
            if message.receipt is not None:
                message.receipt.done()
            return
        while message.receipt is not None and message.receipt.is_current:
            try:
                await consumer.retry(message, delay_level=level)
                return
            except RemotingError as error:
                _log.warning(
                    "group %s: no broker takes %r back, it is handled again here: %s", consumer.group, message, error
                )
                await asyncio.sleep(AGAIN_S)
                if consumer.is_closing:
                    return

    # In order.

    async def _work_in_order(self) -> None:
        consumer = self._consumer
        while not consumer.is_closing:
            taken = consumer.take_in_order(CHUNK_MESSAGES)
            if taken is None:
                await consumer.arrival()
                continue
            queue, messages = taken
            try:
                for message in messages:
                    await self._in_order(queue, message)
            finally:
                consumer.give_back(queue)

    async def _in_order(self, queue: AssignedQueue, message: ReceivedMessage) -> None:
        """Until it is done, dead, or another member's."""
        consumer, attempt = self._consumer, message.attempt
        while message.receipt is not None and message.receipt.is_current and not consumer.is_closing:
            problem = await self.once(message)
            if problem is None:
                message.receipt.done()
                return
            _log.error("group %s: %r of %r failed: %s", consumer.group, message, queue, problem, exc_info=problem)
            attempt += 1
            if attempt > consumer.settings.max_attempts and not consumer.settings.is_broadcast:
                try:
                    await consumer.dead_letter(message)
                    return
                except RemotingError as error:
                    _log.warning("group %s: no broker takes the dead letter %r: %s", consumer.group, message, error)
            await asyncio.sleep(SUSPENDED_S)

    async def once(self, message: ReceivedMessage) -> BaseException | None:
        """Run the handler; what it raised."""
        if self._pool is not None:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._once_in_thread, message)
        try:
            await self._handler(message)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            return error
        return None

    def _once_in_thread(self, message: ReceivedMessage) -> BaseException | None:
        try:
            self._call(message)
        except BaseException as error:  # noqa: BLE001 - as above
            return error
        return None

    def _call(self, message: ReceivedMessage) -> None:
        """In a thread. Raises what the handler raises, and TypeError for one whose work would never be awaited."""
        found = self._handler(message)
        if found is not None and inspect.isawaitable(found):
            if inspect.iscoroutine(found):
                found.close()
            raise TypeError(
                f"on_message: expected `async def`, or a function that has done its work when it returns, found one "
                f"that returns {found!r}, which nothing awaits"
            )


def is_cancelled(error: BaseException) -> bool:
    """Whether this task itself is to end; False for a CancelledError that the user's code let out, for instance since
    it awaited a task that was cancelled.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
