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

Invariant: one thread opens, puts and closes, in the order of the calls. So a close comes behind the puts that were
called before it, and behind an opening that was cancelled; after it, every call raises StoreClosed.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from tiermq.config import FlushDiskType, StoreConfig
from tiermq.embedded.consumer import Consumer
from tiermq.embedded.local_store import LocalStore
from tiermq.embedded.locations import Location, Moment, checked_wait
from tiermq.embedded.message_stream import MessageStream
from tiermq.embedded.put_refusal import check_all
from tiermq.embedded.tiered_store import TieredStore
from tiermq.errors import BadConfig, StoreClosed, TierError
from tiermq.kernel import GetPage, Message, PutResult, PutResults
from tiermq.kernel.columns import TIME_MAX_MS
from tiermq.kernel.message import batch_of
from tiermq.message.message_filter import MessageFilter
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import DEAD_LETTER_PREFIX, RETRY_PREFIX, QueueName
from tiermq.metrics import Registry
from tiermq.status import PutStatus
from tiermq.store.clean_service import Cleaned
from tiermq.store.reader import PULL_BYTES_MAX, QueryPage
from tiermq.tier.restore.restore_report import RestoreReport
from tiermq.tier.retention.retention import RetentionReport
from tiermq.tier.tiered_store import NotUploaded

READER_THREADS = 8
PREFETCHED = 256
"""Messages that a stream takes from its thread at once."""
Result = TypeVar("Result")
Stored = TypeVar("Stored", PutResult, PutResults)
Source = TypeVar("Source", bound=MessageStream | Consumer)


class _Opening:
    """One opening, and how many calls of `open` wait for it or have had it."""

    __slots__ = ("callers", "work")

    def __init__(self, work: ThreadFuture[LocalStore | TieredStore]) -> None:
        self.work = work
        self.callers = 0


class AsyncStore:
    """An embedded store for asyncio: nothing in it blocks the event loop, calls run in threads of its own. Belongs to
    the event loop in which it was opened. Options are those of `LocalStore.open` and, with `tier`, of
    `TieredStore.open`.
    """

    def __init__(self, path: str | os.PathLike[str], *, tier: Location | None = None, **settings: Any) -> None:
        self._path = path
        self._tier = tier
        self._settings = settings
        self._opening: _Opening | None = None
        self._store: LocalStore | TieredStore | None = None
        self._closing: ThreadFuture[NotUploaded | None] | None = None
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="tiermq-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="tiermq-put")

    async def open(self) -> Self:
        """Open the store; calls at the same time share one opening. A cancelled call closes what it has opened, unless
        another one waits for it. Raises what `LocalStore.open` and `TieredStore.open` raise, and StoreClosed after
        `close`.
        """
        self._require_not_closed()
        if self._store is not None:
            return self
        opening = self._opening
        if opening is None:
            opening = self._opening = _Opening(self._writer.submit(self._make))
        opening.callers += 1
        try:
            store = await _to_its_end(asyncio.wrap_future(opening.work))
        except asyncio.CancelledError:
            opening.callers -= 1
            if not opening.callers and self._closing is None:
                self._opening = self._store = None
                await _to_its_end(asyncio.wrap_future(self._writer.submit(_close_opened, opening)))
            raise
        except BaseException:
            if self._opening is opening:
                self._opening = None  # The next call tries again.
            raise
        self._store = store
        self._require_not_closed()
        return self

    def _make(self) -> LocalStore | TieredStore:
        if self._tier is None:
            return LocalStore.open(self._path, **self._settings)
        return TieredStore.open(self._path, tier=self._tier, **self._settings)

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> NotUploaded | None:
        """Make everything durable, upload what a tier lacks, and close. With a tier: what is left to upload.

        Puts that were called before are finished first. Twice does no harm. A close that is cancelled has closed when
        the cancellation comes through.
        """
        if self._closing is None:
            if self._store is not None and self._store._local.is_parents:
                self._store.close()  # Of the process that this one was forked from, and so are the threads.
                return None
            self._closing = self._writer.submit(_close_opened, self._opening)
            self._readers.shutdown(wait=False)
            self._writer.shutdown(wait=False)
        return await _to_its_end(asyncio.wrap_future(self._closing))

    async def _closed(self) -> None:
        """Wait for a close that has begun. What it raises is for its caller."""
        if self._closing is not None:
            closing = asyncio.wrap_future(self._closing)
            await asyncio.wait((closing,))
            closing.exception()

    @property
    def store(self) -> LocalStore | TieredStore:
        """The store itself, for threads of the program; its calls may block. Raises StoreClosed before `open`."""
        if self._store is None:
            raise StoreClosed("expected a store that was opened, found none: use `async with AsyncStore(…) as store`")
        return self._store

    def _opened(self) -> LocalStore | TieredStore:
        """Raises StoreClosed before `open`, from the call of `close` on, and in a process that was forked."""
        store = self.store
        if self._closing is not None or not store.is_open:
            raise store._local.closed_error()
        return store

    def _require_not_closed(self) -> None:
        if self._closing is not None:
            raise StoreClosed(
                f"the store in {os.fspath(self._path)} was closed: make another AsyncStore to open it again"
            )

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed."""
        return self._store is not None and self._closing is None and self._store.is_open

    @property
    def path(self) -> Path:
        """The store directory."""
        return self.store.path

    @property
    def config(self) -> StoreConfig:
        """The settings, by RocketMQ's names in snake_case. They do not change."""
        return self.store.config

    @property
    def metrics(self) -> Registry:
        """Counters of this store; `metrics.render_prometheus()` is Prometheus' text."""
        return self.store.metrics

    # Putting

    async def put(self, message: Message) -> PutResult:
        """Store one message; durable as the settings require when it returns. Raises what `LocalStore.put` raises.

        A put that is cancelled may be stored all the same.
        """
        store = self._opened()
        if not self._waits_for_disk:
            return await self._write(store.put, message)
        result = await self.try_put(message)
        if result.status is not PutStatus.PUT_OK:
            store._raise_refusal(message, result)
        return result

    async def put_many(self, messages: Iterable[Message]) -> PutResults:
        """Store messages in one call, in order. Raises what `LocalStore.put_many` raises."""
        store, batch = self._opened(), batch_of(messages)
        if not self._waits_for_disk:
            return await self._write(store.put_many, batch)
        results = await self.try_put_many(batch)
        check_all(store._local, batch, results)
        return results

    async def try_put(self, message: Message) -> PutResult:
        """`put` for those who ask: a refusal is the result's `status`."""
        store = self._opened()
        if not self._waits_for_disk:
            return await self._write(store.try_put, message)
        return await self._put_durably(partial(store._local.append, message), (message,))

    async def try_put_many(self, messages: Iterable[Message]) -> PutResults:
        """`put_many` for those who ask: each result has its status."""
        store, batch = self._opened(), batch_of(messages)
        if not self._waits_for_disk:
            return await self._write(store.try_put_many, batch)
        return await self._put_durably(partial(store._local.appender.put_many, batch), batch)

    async def flush(self) -> None:
        """Make everything that was put before durable."""
        await self._write(self._opened().flush)

    @property
    def _waits_for_disk(self) -> bool:
        """Then puts wait on the loop, so that one flush releases many: the thread that puts goes on."""
        return self.store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH

    async def _put_durably(self, put: Callable[[], Stored], messages: Iterable[Message]) -> Stored:
        loop, local = asyncio.get_running_loop(), self.store._local
        reached: asyncio.Future[PutStatus] = loop.create_future()

        def settle(status: PutStatus) -> None:
            if not reached.done():
                reached.set_result(status)

        def run() -> Stored:
            """Both in one step of the thread, so that no close comes between: it flushes for those that wait."""
            result = put()
            if result.end_offset >= 0 and any(message.waits_for_store for message in messages):
                local.when_durable(result.end_offset, partial(_call_on, loop, settle))
            else:
                _call_on(loop, settle, PutStatus.PUT_OK)
            return result

        result = await self._write(run)
        status = await reached
        return result if status is PutStatus.PUT_OK else result.with_status(status)

    # Reading

    async def get(
        self,
        topic: str,
        queue_id: int = 0,
        offset: int = 0,
        max_messages: int = 32,
        max_bytes: int = PULL_BYTES_MAX,
        message_filter: MessageFilter | None = None,
        *,
        tags: str = "*",
        wait_s: float = 0.0,
        fresh: bool = True,
    ) -> GetPage:
        """A page of messages of one queue, as `LocalStore.get`."""
        store, wait_s = self._opened(), checked_wait(wait_s)
        call = partial(
            store.get, topic, queue_id, offset, max_messages, max_bytes, message_filter, tags=tags, fresh=fresh
        )
        page: GetPage | None = None

        async def look() -> GetPage | None:
            nonlocal page
            page = await self._read(call)
            return page if page.count else None

        if wait_s:
            await self._wait(look, wait_s)
        return page if page is not None else await self._read(call)

    async def query(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX_MS,
        max_messages: int = 32,
        *,
        fresh: bool = True,
    ) -> QueryPage:
        """The newest messages of a topic that have `key` among their keys, oldest of them first."""
        return await self._read(partial(self._opened().query, topic, key, begin_ms, end_ms, max_messages, fresh=fresh))

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
            self._opened().read, topic, since=since, until=until, queue_id=queue_id, offset=offset, tags=tags,
            wait_s=checked_wait(wait_s),
        )  # fmt: skip
        return AsyncStream(self, make, wait_s, topic)

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
            self._opened().consumer, topic, group, start=start, tags=tags, wait_s=checked_wait(wait_s),
            max_retries=max_retries,
        )  # fmt: skip
        return AsyncConsumer(self, make, wait_s, topic, group)

    async def message_at(self, physical_offset: int) -> StoredMessage | None:
        """The message at an offset of the commit log, such as `PutResult.physical_offset`; None when there is none."""
        return await self._read(self._opened().message_at, physical_offset)

    # Offsets and topics

    async def offset_at(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: Moment,
        boundary: Literal["lower", "upper"] = "lower",
        *,
        fresh: bool = True,
    ) -> int:
        """The queue offset that belongs to a time."""
        return await self._read(partial(self._opened().offset_at, topic, queue_id, timestamp_ms, boundary, fresh=fresh))

    async def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """The offset of the oldest message of a queue."""
        return await self._read(self._opened().min_offset, topic, queue_id)

    async def max_offset(self, topic: str, queue_id: int = 0) -> int:
        """The offset behind the newest message of a queue."""
        return await self._read(self._opened().max_offset, topic, queue_id)

    async def topics(self) -> dict[str, list[int]]:
        """Every topic that has messages, with its queue ids."""
        return await self._read(self._opened().topics)

    async def delete_topics(self, topics: Iterable[str] | str) -> int:
        """Delete topics, and what groups have consumed of them, as `LocalStore.delete_topics`; how many there were."""
        gone = topics if isinstance(topics, str) else list(topics)
        return await self._read(self._opened().delete_topics, gone)

    # Upkeep

    async def clean_now(self) -> Cleaned:
        """Delete expired local files now, as is done at `delete_when`; what was deleted."""
        return await self._read(self._opened().clean_now)

    async def status(self) -> dict[str, object]:
        """The main figures of the store."""
        return await self._read(self._opened().status)

    # With a tier

    @property
    def tier_url(self) -> str:
        """Where the tier is. Raises BadConfig without one, as everything about a tier."""
        return self._tiered(self.store).tier_url

    @property
    def trouble(self) -> TierError | None:
        """The last error of the tier's back end; None when the last request succeeded."""
        return self._tiered(self.store).trouble

    @property
    def restored(self) -> RestoreReport | None:
        """What `restore=True` found; None without it."""
        return self._tiered(self.store).restored

    async def flush_to_tier(self, timeout_s: float | None = None) -> bool:
        """Upload everything that was put before, and wait, as `TieredStore.flush_to_tier`."""
        return await self._read(self._tiered(self._opened()).flush_to_tier, timeout_s)

    async def refresh_tier(self) -> bool:
        """Load what a job has copied since the last refresh; whether there was anything."""
        return await self._read(self._tiered(self._opened()).refresh_tier)

    async def expire_now(self) -> RetentionReport:
        """Delete from the tier what is too old or too much. Raises StaleWriter if another process owns it."""
        return await self._read(self._tiered(self._opened()).expire_now)

    async def set_retention(self, topic: str, hours: int = -1, max_bytes: int = -1) -> None:
        """How long and how much of a topic the tier keeps; -1 for the setting of all topics."""
        await self._read(self._tiered(self._opened()).set_retention, topic, hours, max_bytes)

    async def reindex(self) -> int:
        """Index again, by all their keys, the messages whose index RocketMQ wrote; how many queues they are in."""
        return await self._read(self._tiered(self._opened()).reindex)

    @staticmethod
    def _tiered(store: LocalStore | TieredStore) -> TieredStore:
        if not isinstance(store, TieredStore):
            raise BadConfig("expected a store with a tier, found one without: open it with tier=…")
        return store

    def __repr__(self) -> str:
        if self._store is not None:
            return f"AsyncStore({self._store!r})"
        return f"AsyncStore({os.fspath(self._path)!r}, {'not open' if self._closing is None else 'closed'})"

    # Inside

    async def _write(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._writer, call, *arguments)

    async def _read(self, call: Callable[..., Result], *arguments: Any) -> Result:
        self._opened()
        return await asyncio.get_running_loop().run_in_executor(self._readers, call, *arguments)

    async def _wait(
        self,
        look: Callable[[], Awaitable[Result | None]],
        wait_s: float,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> Result | None:
        """What `look` finds, now or at an arrival within `wait_s`; None when it finds nothing, or when the reader or
        the store is closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        arrivals, arrived = self._opened()._arrivals, asyncio.Event()

        def call() -> None:
            _call_on(loop, arrived.set)

        def is_over() -> bool:
            return arrivals.closed or self._closing is not None or has_ended()

        deadline = math.inf if math.isinf(wait_s) else loop.time() + wait_s
        arrivals.call(call)
        try:
            while True:
                arrived.clear()
                try:
                    found = await look()
                except StoreClosed:
                    if not is_over():
                        raise
                    return None
                if found is not None or is_over():
                    return found
                left_s = None if math.isinf(deadline) else deadline - loop.time()
                try:
                    # Not wait_for, which in Python 3.11 may swallow a cancellation.
                    async with asyncio.timeout(left_s):
                        await arrived.wait()
                except TimeoutError:
                    return None
                if is_over():
                    return None
        finally:
            arrivals.forget(call)


def _close_opened(opening: _Opening | None) -> NotUploaded | None:
    """In the thread that has opened it. An opening that failed has raised where it was waited for."""
    if opening is None or opening.work.cancelled() or opening.work.exception() is not None:
        return None
    return opening.work.result().close()


async def _to_its_end(work: asyncio.Future[Result]) -> Result:
    """What it gives. A cancellation comes through when it has ended: a half-opened store could not be closed."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return work.result()
    if not work.cancelled():
        work.exception()  # Seen: the caller gets the cancellation.
    raise cancelled


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """From another thread. On a loop that was closed meanwhile, no caller waits any more."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


class _AsyncReader(Generic[Source]):
    """Makes a stream or a consumer in a thread when it is first used, and calls it in one thread at a time."""

    def __init__(self, store: AsyncStore, make: Callable[[], Source], wait_s: float, text: str) -> None:
        self._store = store
        self._make = make
        self._wait_s = wait_s
        self._text = text
        self._made: list[Source] = []
        self._turn = asyncio.Lock()
        self._closed = False

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
            self._store._opened()
            if self._closed and not self._made:
                raise StoreClosed(f"{self!r}: expected a reader that is open")
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

    def _has_ended(self) -> bool:
        return self._closed

    def __aiter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        if self._made:
            return f"{type(self).__name__}({repr(self._made[0]).partition('(')[2]}"
        return f"{type(self).__name__}({self._text}, {'closed' if self._closed else 'not begun'})"


class AsyncStream(_AsyncReader[MessageStream]):
    """The messages of a topic, for `async for`. Made by `AsyncStore.read`."""

    def __init__(self, store: AsyncStore, make: Callable[[], MessageStream], wait_s: float, topic: str) -> None:
        super().__init__(store, make, wait_s, repr(topic))
        self._ready: deque[tuple[StoredMessage, QueueName]] = deque()
        """Added to by a thread, taken from on the loop."""

    async def __anext__(self) -> StoredMessage:
        found = self._ready.popleft()[0] if self._ready else await self.wait_next(self._wait_s)
        if found is None:
            raise StopAsyncIteration
        return found

    async def wait_next(self, wait_s: float) -> StoredMessage | None:
        """The next message; None when none comes within `wait_s`, or the stream or its store is closed."""
        if not checked_wait(wait_s) or self._closed:
            return await self.next_now()
        return await self._store._wait(self.next_now, wait_s, self._has_ended)

    async def next_now(self) -> StoredMessage | None:
        """The next message; None when there is none now. Waits for no arrival."""
        found = await self.next_with_queue()
        return None if found is None else found[0]

    async def next_with_queue(self) -> tuple[StoredMessage, QueueName] | None:
        """The same, with the queue that it was read from."""
        if not self._ready and not self._closed:
            await self._in_turn(self._fetch)
        return self._ready.popleft() if self._ready else None

    def _fetch(self, stream: MessageStream) -> None:
        while len(self._ready) < PREFETCHED and not self._closed and (found := stream.next_with_queue()) is not None:
            self._ready.append(found)

    async def positions(self) -> dict[QueueName, int]:
        """(topic, queue id) → offset of the next message."""
        found = await self._in_turn(lambda stream: stream.positions)
        for message, name in reversed(self._ready):  # Read by the thread, and not given yet.
            found[name] = message.queue_offset
        return found

    async def close(self) -> None:
        """End the stream; a task that waits in it goes on."""
        self._closed = True
        self._ready.clear()
        if self._made:
            self._made[0].close()


class AsyncConsumer(_AsyncReader[Consumer]):
    """`Consumer` for asyncio: the same rules and names, awaited. Made by `AsyncStore.consumer`.

    A `receive` or `take` that is cancelled, for instance by `asyncio.timeout`, loses nothing: the next one gives what
    it had taken.
    """

    def __init__(self, store: AsyncStore, make: Callable[[], Consumer], wait_s: float, topic: str, group: str) -> None:
        super().__init__(store, make, wait_s, f"{topic!r}, group={group!r}")
        self.topic = topic
        self.group = group
        self.retry_topic = f"{RETRY_PREFIX}{group}"
        self.dead_letter_topic = f"{DEAD_LETTER_PREFIX}{group}"

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

        waits = checked_wait(wait_s)
        if self._closed:
            raise StoreClosed(f"the consumer of {self.topic} of group {self.group} is closed")
        return await (self._store._wait(look, wait_s, self._has_ended) if waits else look()) or []

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

    async def positions(self) -> dict[int, int]:
        """Queue id → offset of the next message that the group has not consumed."""
        return await self._in_turn(lambda consumer: consumer.positions)

    async def close(self) -> None:
        """Write the offsets, and let another consumer of the group begin."""
        await self._end(Consumer.close)

    async def _end(self, call: Callable[[Consumer], None]) -> None:
        """A cancellation comes through behind it: the group could have no other consumer."""
        self._closed = True
        await _to_its_end(asyncio.ensure_future(self._end_in_turn(call)))

    async def _end_in_turn(self, call: Callable[[Consumer], None]) -> None:
        async with self._turn:
            if not self._made:
                return
            if self._store.is_open:
                await asyncio.get_running_loop().run_in_executor(self._store._readers, call, self._made[0])
                return
            await self._store._closed()
            call(self._made[0])  # Nothing is written any more: it does not block.

    async def __aenter__(self) -> Self:
        try:
            await self._in_turn(lambda _consumer: None)
        except asyncio.CancelledError:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(lambda consumer: consumer.__exit__(kind, error, trace))
