"""AsyncStore: an embedded store for asyncio. Nothing in it blocks the event loop: calls run in threads of its own.

    async with AsyncStore("store") as store:                       # or AsyncStore("store", tier="s3://bucket/prefix")
        await store.put(Message("orders", b"two coffees"))
        async for message in store.read("orders", since="1h"):
            ...
        async with store.consumer("orders", group="audit", wait_s=30) as consumer:
            async for message in consumer:
                ...

Puts are stored in the order in which they are called. Under SYNC_FLUSH they wait for the disk together: one flush
releases every put that it covers. Waiting readers hold no thread: an arrival wakes them.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from tiermq.config import FlushDiskType
from tiermq.embedded.consumer import Consumer
from tiermq.embedded.local_store import LocalStore
from tiermq.embedded.locations import Location, Moment
from tiermq.embedded.message_store import MessageStore
from tiermq.embedded.message_stream import MessageStream
from tiermq.embedded.put_refusal import check_all
from tiermq.embedded.tiered_store import TieredStore
from tiermq.errors import StoreClosed
from tiermq.kernel import GetPage, Message, PutResult, PutResults
from tiermq.kernel.columns import TIME_MAX_MS
from tiermq.message.stored_message import StoredMessage
from tiermq.status import PutStatus
from tiermq.store.reader import QueryPage
from tiermq.tier.tiered_store import NotUploaded

READER_THREADS = 8
PREFETCHED = 256
"""Messages that a stream takes from its thread at once."""
Result = TypeVar("Result")
Source = TypeVar("Source", bound=MessageStream | Consumer)


class AsyncStore:
    """An embedded store for asyncio: nothing in it blocks the event loop, calls run in threads of its own. Belongs to
    the event loop in which it was opened. Options are those of `LocalStore.open` and, with `tier`, of
    `TieredStore.open`.
    """

    def __init__(self, path: str | os.PathLike[str], *, tier: Location | None = None, **settings: Any) -> None:
        self._path = path
        self._tier = tier
        self._settings = settings
        self._store: MessageStore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="tiermq-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="tiermq-put")

    async def open(self) -> Self:
        """Open the store. Raises what `LocalStore.open` and `TieredStore.open` raise."""
        if self._store is None:
            self._loop = asyncio.get_running_loop()
            opened: Callable[[], MessageStore]
            if self._tier is None:
                opened = partial(LocalStore.open, self._path, **self._settings)
            else:
                opened = partial(TieredStore.open, self._path, tier=self._tier, **self._settings)
            self._store = await self._loop.run_in_executor(self._writer, opened)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> NotUploaded | None:
        """Make everything durable, upload what a tier lacks, and close. With a tier: what is left to upload."""
        store = self._store
        left: NotUploaded | None = None
        if store is not None and store.is_open:
            left = await asyncio.get_running_loop().run_in_executor(self._writer, store.close)
        self._readers.shutdown(wait=False)
        self._writer.shutdown(wait=False)
        return left

    @property
    def store(self) -> MessageStore:
        """The store itself, for what is not here; its calls may block. Raises StoreClosed before `open`."""
        if self._store is None:
            raise StoreClosed("expected a store that was opened, found none: use `async with AsyncStore(…) as store`")
        return self._store

    # Putting

    async def put(self, message: Message) -> PutResult:
        """Store one message; durable as the settings require when it returns. Raises what `LocalStore.put` raises.

        A put that is cancelled may be stored all the same.
        """
        store = self.store
        if not self._waits_for_disk:
            return await self._write(store.put, message)
        result = await self.try_put(message)
        if result.status is not PutStatus.PUT_OK:
            store._raise_refusal(message, result)
        return result

    async def put_many(self, messages: Iterable[Message]) -> PutResults:
        """Store messages in one call, in order. Raises what `LocalStore.put_many` raises."""
        store, batch = self.store, list(messages)
        if not self._waits_for_disk:
            return await self._write(store.put_many, batch)
        results = await self.try_put_many(batch)
        check_all(store._local, batch, results)
        return results

    async def try_put(self, message: Message) -> PutResult:
        """`put` for those who ask: a refusal is the result's `status`."""
        store = self.store
        if not self._waits_for_disk:
            return await self._write(store.try_put, message)
        result = await self._write(store._local.append, message)
        if result.status is PutStatus.PUT_OK and message.waits_for_store:
            status = await self._durable(result.end_offset)
            result = result if status is PutStatus.PUT_OK else result.with_status(status)
        return result

    async def try_put_many(self, messages: Iterable[Message]) -> PutResults:
        """`put_many` for those who ask: each result has its status."""
        store, batch = self.store, list(messages)
        if not self._waits_for_disk:
            return await self._write(store.try_put_many, batch)
        results = await self._write(store._local.appender.put_many, batch)
        if results.end_offset >= 0 and any(message.waits_for_store for message in batch):
            status = await self._durable(results.end_offset)
            results = results if status is PutStatus.PUT_OK else results.with_status(status)
        return results

    async def flush(self) -> None:
        """Make everything that was put before durable."""
        await self._write(self.store.flush)

    @property
    def _waits_for_disk(self) -> bool:
        """Then puts wait on the loop, so that one flush releases many: the thread that puts goes on."""
        return self.store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH

    async def _durable(self, end_offset: int) -> PutStatus:
        loop = asyncio.get_running_loop()
        reached: asyncio.Future[PutStatus] = loop.create_future()

        def settle(status: PutStatus) -> None:
            if not reached.done():
                reached.set_result(status)

        def call(status: PutStatus) -> None:
            loop.call_soon_threadsafe(settle, status)

        await self._write(self.store._local.when_durable, end_offset, call)
        return await reached

    # Reading

    async def get(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int = 0,
        max_messages: int = 32,
        *,
        tags: str = "*",
        wait_s: float = 0.0,
    ) -> GetPage:
        """A page of messages of one queue, as `LocalStore.get`."""
        call = partial(self.store.get, topic, queue_id, offset, max_messages, tags=tags)

        async def look() -> GetPage | None:
            page = await self._read(call)
            return page if page.count else None

        page = await self._wait(look, wait_s) if wait_s else None
        return page if page is not None else await self._read(call)

    async def query(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = TIME_MAX_MS, max_messages: int = 32
    ) -> QueryPage:
        """The newest messages of a topic that have `key` among their keys, oldest of them first."""
        return await self._read(self.store.query, topic, key, begin_ms, end_ms, max_messages)

    def read(
        self,
        topic: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        tags: str = "*",
        wait_s: float = 0.0,
    ) -> AsyncStream:
        """The messages of a topic, one by one: `async for message in store.read("orders")`, as `LocalStore.read`."""
        make = partial(
            self.store.read, topic, since=since, until=until, queue_id=queue_id, offset=offset, tags=tags, wait_s=wait_s
        )
        return AsyncStream(self, make, wait_s)

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        start: Literal["first", "last"] | Moment = "first",
        tags: str = "*",
        wait_s: float = 0.0,
        max_retries: int = 16,
    ) -> AsyncConsumer:
        """A consumer group's reader of a topic, as `LocalStore.consumer`, for `async with`."""
        make = partial(
            self.store.consumer, topic, group, start=start, tags=tags, wait_s=wait_s, max_retries=max_retries
        )
        return AsyncConsumer(self, make, wait_s)

    async def offset_at(
        self, topic: str, queue_id: int, timestamp_ms: Moment, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The queue offset that belongs to a time."""
        return await self._read(self.store.offset_at, topic, queue_id, timestamp_ms, boundary)

    async def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """The offset of the oldest message of a queue."""
        return await self._read(self.store.min_offset, topic, queue_id)

    async def max_offset(self, topic: str, queue_id: int = 0) -> int:
        """The offset behind the newest message of a queue."""
        return await self._read(self.store.max_offset, topic, queue_id)

    async def topics(self) -> dict[str, list[int]]:
        """Every topic that has messages, with its queue ids."""
        return await self._read(self.store.topics)

    async def flush_to_tier(self, timeout_s: float | None = None) -> bool:
        """Upload everything that was put before, and wait, as `TieredStore.flush_to_tier`."""
        store = self.store
        if not isinstance(store, TieredStore):
            raise StoreClosed("expected a store with a tier, found one without: open it with tier=…")
        return await self._read(store.flush_to_tier, timeout_s)

    def __repr__(self) -> str:
        return f"AsyncStore({self._store!r})" if self._store is not None else f"AsyncStore({self._path!r}, not open)"

    # Inside

    async def _write(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._writer, call, *arguments)

    async def _read(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._readers, call, *arguments)

    async def _wait(self, look: Callable[[], Awaitable[Result | None]], wait_s: float) -> Result | None:
        """What `look` finds, now or at an arrival within `wait_s`; None when it finds nothing."""
        loop = asyncio.get_running_loop()
        arrivals, arrived = self.store._arrivals, asyncio.Event()

        def call() -> None:
            loop.call_soon_threadsafe(arrived.set)

        deadline = math.inf if math.isinf(wait_s) else loop.time() + wait_s
        arrivals.call(call)
        try:
            while True:
                arrived.clear()
                found = await look()
                if found is not None or arrivals.closed:
                    return found
                left_s = None if math.isinf(deadline) else deadline - loop.time()
                try:
                    # Not wait_for, which in Python 3.11 may swallow a cancellation.
                    async with asyncio.timeout(left_s):
                        await arrived.wait()
                except TimeoutError:
                    return None
        finally:
            arrivals.forget(call)


class _AsyncReader(Generic[Source]):
    """Makes a stream or a consumer in a thread when it is first used, and calls it in one thread at a time."""

    def __init__(self, store: AsyncStore, make: Callable[[], Source], wait_s: float) -> None:
        self._store = store
        self._make = make
        self._wait_s = wait_s
        self._made: list[Source] = []
        self._turn = asyncio.Lock()

    async def _in_turn(
        self, call: Callable[[Source], Result], *, give_back: Callable[[Source], None] | None = None
    ) -> Result:
        """What the call gives in a thread. Where the caller is cancelled meanwhile, the next call waits for the end of
        this one, and `give_back` undoes it.
        """

        def run() -> Result:
            if not self._made:
                self._made.append(self._make())
            return call(self._made[0])

        def abandoned(work: asyncio.Future[Result]) -> None:
            if not work.cancelled() and work.exception() is None and give_back is not None:
                give_back(self._made[0])
            self._turn.release()

        await self._turn.acquire()
        work: asyncio.Future[Result] | None = None
        try:
            work = asyncio.get_running_loop().run_in_executor(self._store._readers, run)
            found = await asyncio.shield(work)
        except asyncio.CancelledError:
            assert work is not None
            work.add_done_callback(abandoned)
            raise
        except BaseException:
            self._turn.release()
            raise
        self._turn.release()
        return found

    def __aiter__(self) -> Self:
        return self


class AsyncStream(_AsyncReader[MessageStream]):
    """The messages of a topic, for `async for`. Made by `AsyncStore.read`."""

    def __init__(self, store: AsyncStore, make: Callable[[], MessageStream], wait_s: float) -> None:
        super().__init__(store, make, wait_s)
        self._ready: deque[StoredMessage] = deque()
        """Added to by a thread, taken from on the loop."""

    async def __anext__(self) -> StoredMessage:
        if self._ready:
            return self._ready.popleft()

        async def look() -> StoredMessage | None:
            await self._in_turn(self._fetch)
            return self._ready.popleft() if self._ready else None

        found = await (self._store._wait(look, self._wait_s) if self._wait_s else look())
        if found is None:
            raise StopAsyncIteration
        return found

    def _fetch(self, stream: MessageStream) -> None:
        while len(self._ready) < PREFETCHED and (message := stream.next_now()) is not None:
            self._ready.append(message)


class AsyncConsumer(_AsyncReader[Consumer]):
    """`Consumer` for asyncio: the same rules and names, awaited. Made by `AsyncStore.consumer`.

    A `receive` or `take` that is cancelled, for instance by `asyncio.timeout`, loses nothing: the next one gives what
    it had taken.
    """

    async def __anext__(self) -> StoredMessage:
        message = await self.receive(self._wait_s)
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, wait_s: float = 0.0) -> StoredMessage | None:
        """The next message, or None when none comes within `wait_s`."""
        found = await self.take(1, wait_s)
        return found[0] if found else None

    async def take(self, max_messages: int = 32, wait_s: float = 0.0) -> list[StoredMessage]:
        """Up to `max_messages`, [] when none comes within `wait_s`."""

        async def look() -> list[StoredMessage] | None:
            found = await self._in_turn(lambda consumer: consumer.take(max_messages), give_back=Consumer._give_back)
            return found or None

        return await (self._store._wait(look, wait_s) if wait_s else look()) or []

    async def commit(self) -> None:
        """Everything that was given is consumed; on return that is durable."""
        await self._in_turn(Consumer.commit)

    async def retry(self, message: StoredMessage, after_s: float | None = None) -> bool:
        """Have a message that was given consumed again later, as `Consumer.retry`."""
        return await self._in_turn(lambda consumer: consumer.retry(message, after_s))

    async def dead_letter(self, message: StoredMessage) -> None:
        """Store a message that was given as a dead letter."""
        await self._in_turn(lambda consumer: consumer.dead_letter(message))

    async def seek(self, to: Moment | dict[int, int]) -> None:
        """Continue elsewhere, as `Consumer.seek`."""
        await self._in_turn(lambda consumer: consumer.seek(to))

    async def lag(self) -> int:
        """How many messages the group has not consumed."""
        return await self._in_turn(lambda consumer: consumer.lag)

    async def close(self) -> None:
        """Write the offsets, and let another consumer of the group begin."""
        if self._made or self._turn.locked():
            await self._in_turn(Consumer.close)

    async def __aenter__(self) -> Self:
        await self._in_turn(lambda _consumer: None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._in_turn(lambda consumer: consumer.__exit__(kind, error, trace))
