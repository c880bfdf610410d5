"""MessageStore: what a local and a tiered store offer to a Python program alike.

Reads see what was put: after `put` has returned, `get`, `query`, `read` and `offset_at` find it, on any thread. A put
pays nothing for that. A read that reaches the dispatched end of its queue dispatches what is behind it first, at most
up to the end of the log as it is then; `fresh=False` reads what is dispatched already, and waits for nothing.

Puts raise when they are refused, with the reason; `try_put` and `try_put_many` return statuses instead.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

from tiermq.clock import EVER_MS, Clock, SystemClock
from tiermq.config import StoreConfig
from tiermq.embedded.arrivals import Arrivals
from tiermq.embedded.consumer import Consumer
from tiermq.embedded.group_state import GroupState
from tiermq.embedded.locations import Moment, checked_count, checked_wait, moment_ms
from tiermq.embedded.message_stream import MessageStream, QueueReader
from tiermq.embedded.put_refusal import check_all, refusal
from tiermq.errors import BadConfig, IllegalMessage
from tiermq.kernel import GetPage, Message, PutResult, PutResults
from tiermq.kernel.columns import TIME_MAX_MS
from tiermq.kernel.message import batch_of
from tiermq.message.message_filter import MessageFilter, TagFilter
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import QueueName, check_group, check_topic
from tiermq.metrics import Registry
from tiermq.status import PutStatus
from tiermq.store.clean_service import Cleaned
from tiermq.store.local_store import LocalStore as LocalEngine
from tiermq.store.reader import PULL_BYTES_MAX, QueryPage

if TYPE_CHECKING:
    from tiermq.tier.tiered_store import NotUploaded
    from tiermq.tier.tiered_store import TieredStore as TieredEngine

_Engine = "LocalEngine | TieredEngine"


class MessageStore:
    """See the module. Any thread may call anything but `open` and `close`. Use `LocalStore` or `TieredStore`."""

    def __init__(self, engine: LocalEngine | TieredEngine, local: LocalEngine, clock: Clock | None) -> None:
        self._engine = engine
        self._local = local
        self._clock = clock or SystemClock()
        self._once = threading.Lock()
        self._made_arrivals: Arrivals | None = None
        self._made_groups: GroupState | None = None
        self._closed = False
        if local.puts_at_once:  # No put waits for the disk, so these are the appender's own: nothing is faster.
            local.appender.raise_refusal = self._raise_refusal
            self.put = local.appender.put_or_raise  # type: ignore[method-assign]
            self.try_put = local.put  # type: ignore[method-assign]
            self.try_put_many = local.put_many  # type: ignore[method-assign]
        _open_stores.add(self)

    # Putting

    def put(self, message: Message) -> PutResult:
        """Store one message; where it is stored.

        Raises IllegalMessage for a topic or a size that cannot be stored, StoreClosed, DiskFull, NotDurable when the
        disk did not confirm it in time (SYNC_FLUSH), and PutRefused otherwise. Nothing is stored then, but with
        NotDurable.
        """
        result = self._local.put(message)
        if result.status is not PutStatus.PUT_OK:
            self._raise_refusal(message, result)
        return result

    def put_many(self, messages: Iterable[Message]) -> PutResults:
        """Store messages in one call, in order; cheaper than one by one.

        Raises what `put` raises when none was stored. When only some were refused the others are stored, and PutRefused
        is raised, whose `results` have what became of each.
        """
        batch = messages if isinstance(messages, list) else batch_of(messages)
        results = self._local.put_many(batch)
        if not results.all_ok:
            check_all(self._local, batch, results)
        return results

    def try_put(self, message: Message) -> PutResult:
        """`put` for those who ask: a refusal is the result's `status`, and nothing is raised for it."""
        return self._local.put(message)

    def try_put_many(self, messages: Iterable[Message]) -> PutResults:
        """`put_many` for those who ask: each result has its status."""
        return self._local.put_many(messages)

    def flush(self) -> None:
        """Make everything that was put before durable. Raises StoreError when the disk fails."""
        self._local.flush()

    def _raise_refusal(self, message: Message, result: PutResult) -> NoReturn:
        raise refusal(self._local, message, result.status)

    # Reading

    def get(
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
        """A page of messages of one queue, from `offset` on: iterable, with a length, a status and the next offset.

        tags: only messages with one of them (`"paid || sent"`). wait_s: if there is none, wait for one so long.
        fresh=False: only what is dispatched already. Raises CorruptRecord where a page would begin with damage, and
        TierError when only the tier has it and cannot answer.
        """
        chosen = message_filter or _tag_filter(tags)
        if wait_s != 0:
            checked_wait(wait_s)
        try:
            page = self._page(topic, queue_id, offset, max_messages, chosen, max_bytes, fresh=fresh)
            if page.count and max_messages > 0:
                return page
        except TypeError:
            _check_place(topic, queue_id, offset, max_messages, max_bytes)
            raise
        _check_place(topic, queue_id, offset, max_messages, max_bytes)  # Only now: a page with messages costs no check.
        if wait_s == 0:
            return page
        arrivals, deadline = self._arrivals, self._monotonic() + wait_s
        while True:
            seen = arrivals.count
            page = self._page(topic, queue_id, offset, max_messages, chosen, max_bytes, fresh=fresh)
            if page.count or not arrivals.wait(seen, deadline - self._monotonic()):
                return page

    def query(
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
        _require_topic(topic)
        if not isinstance(key, str):
            raise BadConfig(f"key: expected a text, found {key!r}")
        max_messages = checked_count("max_messages", max_messages, 1)
        self._see_all(fresh)
        return self._engine.query(topic, key, begin_ms, end_ms, max_messages)

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
    ) -> MessageStream:
        """The messages of a topic, one by one, its queues merged by store time: `for message in store.read("orders")`.

        since, until: stored in [since, until); an age such as "1h", a date, a datetime, a timedelta or milliseconds.
        queue_id, offset: of one queue, from there on. Ends at what is there now; with `wait_s` it goes on with what
        comes, and ends when nothing came for so long.
        """
        checked_wait(wait_s)
        now_ms = self._clock.now_ms()
        since_ms = 0 if since is None else moment_ms(since, now_ms)
        until_ms = EVER_MS if until is None else moment_ms(until, now_ms)
        if since_ms > until_ms:
            raise BadConfig(f"expected until at or after since, found since={since!r} and until={until!r}")
        if offset is not None and (queue_id is None or since is not None):
            raise BadConfig("an offset is that of one queue: name queue_id with it, and no time")
        queue_id = None if queue_id is None else checked_count("queue_id", queue_id)
        offset = None if offset is None else checked_count("offset", offset)
        check_topic(topic)
        self._see_all()
        chosen = _tag_filter(tags)

        def queues() -> list[QueueName]:
            known = self._engine.topics().get(topic, [])
            return [(topic, each) for each in known if queue_id in (None, each)]

        ends = {} if wait_s else {name: self._engine.max_offset(*name) for name in queues()}

        def reader_of(name: str, each: int) -> QueueReader:
            begin = max(0, self._engine.min_offset(name, each)) if offset is None else offset
            if since_ms:
                begin = max(begin, self._engine.offset_at(name, each, since_ms))
            return QueueReader(self, name, each, begin, None if wait_s else ends.get((name, each), 0), chosen)

        return MessageStream(
            self, queues, reader_of, since_ms=since_ms, until_ms=until_ms, wait_s=wait_s, text=repr(topic)
        )

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        start: Literal["first", "last"] | Moment = "first",
        tags: str = "*",
        wait_s: float = 0.0,
        max_retries: int = 16,
    ) -> Consumer:
        """A consumer group's reader of a topic, which continues where the group was; see `Consumer`. No broker needed.

        start: where a new group begins: "first", "last", or a moment as in `read`. wait_s: how long its loop waits for
        a message before it ends. max_retries: after so many, a retry is a dead letter. Raises StoreError when this
        group already has a consumer of the topic here.
        """
        checked_wait(wait_s)
        check_topic(topic)
        check_group(group)
        _require_tags(tags)
        max_retries = checked_count("max_retries", max_retries)
        self._require_open()
        return Consumer(self, topic, group, start=start, tags=tags, wait_s=wait_s, max_retries=max_retries)

    def message_at(self, physical_offset: int) -> StoredMessage | None:
        """The message at an offset of the commit log, such as `PutResult.physical_offset`; None when there is none."""
        return self._local.message_at(physical_offset)

    # Offsets and topics

    def offset_at(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: Moment,
        boundary: Literal["lower", "upper"] = "lower",
        *,
        fresh: bool = True,
    ) -> int:
        """The queue offset that belongs to a time: the first message at or after it, or the last at or before it."""
        queue_id = _checked_queue(topic, queue_id)
        self._see_all(fresh)
        return self._engine.offset_at(topic, queue_id, moment_ms(timestamp_ms, self._clock.now_ms()), boundary)

    def min_offset(self, topic: str, queue_id: int = 0) -> int:
        """The offset of the oldest message of a queue."""
        queue_id = _checked_queue(topic, queue_id)
        self._see_all()
        return self._engine.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        """The offset behind the newest message of a queue."""
        queue_id = _checked_queue(topic, queue_id)
        self._see_all()
        return self._engine.max_offset(topic, queue_id)

    def topics(self) -> dict[str, list[int]]:
        """Every topic that has messages, with its queue ids."""
        self._see_all()
        return self._engine.topics()

    def delete_topics(self, topics: Iterable[str] | str) -> int:
        """Delete topics, and what groups have consumed of them; how many there were. Do not put to them meanwhile."""
        gone = [topics] if isinstance(topics, str) else list(topics)
        count = self._engine.delete_topics(gone)
        self._groups.forget(gone)
        return count

    # Upkeep

    def clean_now(self) -> Cleaned:
        """Delete expired local files now, as is done at `delete_when`; what was deleted."""
        return self._engine.clean_now()

    def status(self) -> dict[str, object]:
        """The main figures of the store."""
        return self._engine.status()

    @property
    def config(self) -> StoreConfig:
        """The settings, by RocketMQ's names in snake_case. They do not change."""
        return self._engine.config

    @property
    def metrics(self) -> Registry:
        """Counters of this store; `metrics.render_prometheus()` is Prometheus' text."""
        return self._engine.metrics

    @property
    def path(self) -> Path:
        """The store directory."""
        return Path(self._local.config.root_path)

    @property
    def is_open(self) -> bool:
        """Whether it was not closed."""
        return not self._closed and self._local.running

    def close(self) -> NotUploaded | None:
        """Make everything durable and unlock the directory. Twice does no harm. Stores that are open when the program
        ends are closed then.
        """
        _open_stores.discard(self)
        was_open, self._closed = self.is_open, True
        if was_open and self._made_arrivals is not None:
            self._made_arrivals.close()
        try:
            if was_open and self._made_groups is not None:
                self._made_groups.close()
        finally:
            left: NotUploaded | None = self._engine.close()
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown()}{'' if self.is_open else ', closed'})"

    def _shown(self) -> str:
        return repr(os.fspath(self.path))

    # Inside

    def _page(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        chosen: MessageFilter | None,
        max_bytes: int = PULL_BYTES_MAX,
        *,
        fresh: bool = True,
    ) -> GetPage:
        sees_all = (
            not fresh or self._local.is_caught_up
        )  # Asked before: what is dispatched meanwhile is not in the page.
        page = self._engine.get(topic, queue_id, offset, max_messages, max_bytes, chosen, bulk=True)
        if not sees_all and page.next_offset >= page.max_offset:
            self._local.catch_up()
            page = self._engine.get(topic, queue_id, offset, max_messages, max_bytes, chosen, bulk=True)
        return page

    def _see_all(self, fresh: bool = True) -> None:
        self._require_open()
        if fresh:
            self._local.catch_up()

    def _require_open(self) -> None:
        if not self.is_open:
            raise self._local.closed_error()

    def _wake_readers(self) -> None:
        if self._made_arrivals is not None:
            self._made_arrivals.note()

    @staticmethod
    def _monotonic() -> float:
        return SystemClock().monotonic()  # A wait is one of the machine's time, also where a test moves the store's.

    @property
    def _arrivals(self) -> Arrivals:
        """What notifies waiting readers of new messages."""
        with self._once:
            if self._made_arrivals is None:
                self._made_arrivals = Arrivals()
                self._local.add_arrival_listener(self._made_arrivals.note)
                if self._closed:
                    self._made_arrivals.close()
            return self._made_arrivals

    @property
    def _groups(self) -> GroupState:
        with self._once:
            if self._made_groups is None:
                self._made_groups = GroupState(self._local, self._clock)
            return self._made_groups


_open_stores: set[MessageStore] = set()
"""Not weakly: the threads of a store that the program has dropped go on, and it is closed when the program ends."""


def _close_all() -> None:
    with ExitStack() as closing:  # Each, also when one before it failed.
        for store in tuple(_open_stores):
            closing.callback(store.close)


atexit.register(_close_all)


def _require_topic(topic: Any) -> None:
    """Raises IllegalMessage for what is no text. An illegal name is that of a topic without messages."""
    if not isinstance(topic, str):
        check_topic(topic)


def _checked_queue(topic: str, queue_id: int) -> int:
    _require_topic(topic)
    return checked_count("queue_id", queue_id)


def _check_place(topic: str, queue_id: int, offset: int, max_messages: int, max_bytes: int) -> None:
    """Raises IllegalMessage, BadConfig. An offset below 0 is before the queue, which the page's status says."""
    _checked_queue(topic, queue_id)
    checked_count("offset", offset, -TIME_MAX_MS)
    checked_count("max_messages", max_messages, 1)
    checked_count("max_bytes", max_bytes)


def _require_tags(tags: str) -> None:
    if not isinstance(tags, str):
        raise IllegalMessage(f"tags are one text, several joined with ||, found {tags!r}")


def _tag_filter(tags: str) -> TagFilter | None:
    _require_tags(tags)
    return None if tags.strip() in ("", "*") else TagFilter(tags)
