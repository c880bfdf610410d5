"""MessageStream: the messages of queues, one by one, in the order in which they were stored.

Queues are merged by store time; within a queue the order is that of its offsets. A stream without `wait_s` ends at what
was there when it began, so a loop that puts to its own topic ends, too; with it, it ends when nothing came for so long.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Self

from tiermq.clock import EVER_MS
from tiermq.embedded.locations import checked_wait
from tiermq.message.message_filter import MessageFilter
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import QueueName
from tiermq.status import GetStatus

if TYPE_CHECKING:
    from tiermq.embedded.message_store import MessageStore

STREAMED_PAGE = 256
LOOK_EVERY = 256
"""Messages after which queues that had none are asked again, while others have some."""
_NO_QUEUE = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


class QueueReader:
    """Reads one queue page by page, up to `end` if that is given. Owned by its stream."""

    __slots__ = ("_buffer", "_chosen", "_end", "_next", "_store", "queue_id", "topic")

    def __init__(
        self, store: MessageStore, topic: str, queue_id: int, begin: int, end: int | None, chosen: MessageFilter | None
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._store = store
        self._next = begin
        self._end = end
        self._chosen = chosen
        self._buffer: deque[StoredMessage] = deque()

    @property
    def position(self) -> int:
        """The offset of the next message that is given, or may come."""
        return self._buffer[0].queue_offset if self._buffer else self._next

    def head(self) -> StoredMessage | None:
        """The next message, which stays; None when there is none now. Raises CorruptRecord, TierError."""
        while not self._buffer:
            offset, end = self._next, self._end
            if end is not None and offset >= end:
                return None
            page = self._store._page(self.topic, self.queue_id, offset, STREAMED_PAGE, self._chosen)
            if page.status in _NO_QUEUE:
                return None
            self._buffer.extend(each for each in page.messages if end is None or each.queue_offset < end)
            self._next = page.next_offset
            if not self._buffer and (page.next_offset <= offset or page.next_offset >= page.max_offset):
                return None
        return self._buffer[0]

    def take(self) -> StoredMessage:
        """The message that `head` gave."""
        return self._buffer.popleft()


class MessageStream:
    """An iterator over messages, the queues of a topic merged by store time. Belongs to one thread; `close` may come
    from any. Made by `store.read`.
    """

    def __init__(
        self,
        store: MessageStore,
        queues: Callable[[], Iterable[QueueName]],
        reader_of: Callable[[str, int], QueueReader],
        *,
        since_ms: int = 0,
        until_ms: int = EVER_MS,
        wait_s: float = 0.0,
        text: str = "",
    ) -> None:
        """`queues` is asked for queues that are new when none has a message; `reader_of` begins to read one."""
        self._store = store
        self._queues = queues
        self._reader_of = reader_of
        self._since_ms = since_ms
        self._until_ms = until_ms
        self._wait_s = wait_s
        self._text = text
        self._readers: dict[QueueName, QueueReader] = {}
        self._heads: list[tuple[int, str, int]] = []
        self._taken_from: QueueReader | None = None
        self._taken = 0
        self._closed = False
        self._find()

    @property
    def positions(self) -> dict[QueueName, int]:
        """(topic, queue id) → offset of the next message."""
        return {name: reader.position for name, reader in self._readers.items()}

    def close(self) -> None:
        """End the stream; a thread that waits in it returns."""
        self._closed = True
        self._store._wake_readers()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredMessage:
        message = self.wait_next(self._wait_s)
        if message is None:
            raise StopIteration
        return message

    def wait_next(self, wait_s: float) -> StoredMessage | None:
        """The next message; None when none comes within `wait_s`, or the stream or its store is closed."""
        if not checked_wait(wait_s):
            return self.next_now()
        arrivals = self._store._arrivals
        deadline = time.monotonic() + wait_s
        while True:
            seen = arrivals.count
            message = self.next_now()
            if message is not None or self._closed:
                return message
            if not arrivals.wait(seen, deadline - time.monotonic()) and (
                arrivals.closed or time.monotonic() >= deadline
            ):
                return None

    def next_now(self) -> StoredMessage | None:
        """The next message; None when there is none now. Waits for nothing."""
        found = self.next_with_queue()
        return None if found is None else found[0]

    def next_with_queue(self) -> tuple[StoredMessage, QueueName] | None:
        """The same, with the queue that it was read from."""
        while not self._closed:
            if self._taken_from is not None:
                # Only now: it may read, and raise, and the message that was taken before must have been given then.
                self._push(self._taken_from)
                self._taken_from = None
            self._taken += 1
            if not self._heads or self._taken % LOOK_EVERY == 0:
                self._find()
            if not self._heads:
                return None
            _, topic, queue_id = heapq.heappop(self._heads)
            reader = self._readers[topic, queue_id]
            message = reader.take()
            self._taken_from = reader
            # Times of a queue may step back where a clock was set back: so each message is compared.
            if self._since_ms <= message.store_timestamp_ms < self._until_ms:
                return message, (topic, queue_id)
        return None

    def _find(self) -> None:
        """Look for new queues, and for messages in those that had none."""
        for name in self._queues():
            if name not in self._readers:
                self._readers[name] = self._reader_of(*name)
        ready = {(topic, queue_id) for _, topic, queue_id in self._heads}
        for name, reader in self._readers.items():
            if name not in ready:
                self._push(reader)

    def _push(self, reader: QueueReader) -> None:
        head = reader.head()
        if head is not None:
            heapq.heappush(self._heads, (head.store_timestamp_ms, reader.topic, reader.queue_id))

    def __repr__(self) -> str:
        waits = f", wait_s={self._wait_s:g}" if self._wait_s else ""
        return f"MessageStream({self._text}, {len(self._readers)} queues{waits})"
