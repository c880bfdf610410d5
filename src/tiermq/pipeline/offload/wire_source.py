"""WireSource: the queues of one broker as an offload task reads them, by pulls over the wire.

    QueueReader    one queue from an offset on: pulls in flight, and pages read ahead while others are uploaded
    ByteThrottle   how many bytes a second a task may ask of its broker, over all of its queues
    WireSource     records checked (size, queue, offset, body) and rewritten for the tier, as of a local store

Nothing is asked for behind the offset that the driver named, and no state is left at the broker. A broker that is gone
for one queue is gone for the whole task: its other queues fail at once instead of waiting, too. One that is slow does
not hold back others: when the time of a task is over, its queues end with what they copied.
Threads: WireSource may be used by several, one for each queue; QueueReader and ByteThrottle belong to the client's
loop.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tiermq.client.cluster_client import Access, BlockingCluster, QueuePlace
from tiermq.client.queue_access import Pulled, QueueAccess, SentPull
from tiermq.client.queue_pulls import QueuePulls
from tiermq.errors import CorruptRecord, PeerGone, RemotingError, RequestTimedOut
from tiermq.kernel import rebase_records
from tiermq.message.layout import I32, I64, QUEUE_OFFSET_AT, RECORD_BYTES_MIN
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.tls import ANY_SERVER, ClientTls
from tiermq.tier.dispatch.local_source import with_derived_units
from tiermq.tier.names import QueueName
from tiermq.tier.queue.records import CollectedRecords

PULLS_AHEAD = 16
PULL_MESSAGES = 1024
"""Asked for in a pull. RocketMQ answers with 32 unless maxTransferCountOnMessageInMemory is set otherwise."""
READ_AHEAD_BYTES = 8 << 20
"""Of each queue, while a chunk of it is uploaded."""
FIRST_BYTES = 32 << 10
"""Of a pull as long as none was answered: those of several queues are sent one after the other, too."""
TRIES = 3
"""Of a pull: the next wave tries again anyway."""


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """A broker and how it is reached. Travels with tasks; keys of an account do not, each machine has its own."""

    cluster: str
    broker: str
    address: str
    name_servers: str
    tls: bool = False
    certificates: ClientTls = ANY_SERVER

    def __str__(self) -> str:
        return f"{self.cluster}/{self.broker} at {self.address}"

    @property
    def access(self) -> Access:
        return Access.of_environment(self.name_servers, tls=self.tls, certificates=self.certificates)


class ByteThrottle:
    """At most `rate` bytes a second on average. `rate` 0: no limit."""

    def __init__(self, rate: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._free_at_s = 0.0
        self._guess: float = FIRST_BYTES
        self._is_begun = False

    @property
    def is_limited(self) -> bool:
        return self._rate > 0

    def reserve(self) -> tuple[float, float]:
        """So many seconds are to be waited before the next request, and so many bytes are kept free for its answer:
        about as many as the last ones had.
        """
        if not self._rate:
            return 0.0, 0.0
        now_s = self._monotonic()
        wait_s = max(0.0, self._free_at_s - now_s)
        self._free_at_s = now_s + wait_s + self._guess / self._rate
        return wait_s, self._guess

    def note(self, size: int, reserved: float) -> None:
        """A request had so many bytes, where `reserved` were kept free for it."""
        if self._rate:
            self._free_at_s += (size - reserved) / self._rate
            self._guess = 0.75 * self._guess + 0.25 * size if self._is_begun else size
            self._is_begun = True


class _ThrottledQueue(QueueAccess):
    """A queue whose pulls wait for their turn, and are tried a few times only."""

    throttle: ByteThrottle

    async def pull(
        self, offset: int, expression: str = "*", most: int = PULL_MESSAGES, *, hold_ms: int = 0, tries: int = TRIES
    ) -> Pulled:
        wait_s, reserved = self.throttle.reserve()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        pulled = await super().pull(offset, expression, most, hold_ms=hold_ms, tries=tries)
        self.throttle.note(len(pulled.records), reserved)
        return pulled

    def pull_soon(self, offset: int, most: int) -> SentPull | None:
        return None if self.throttle.is_limited else super().pull_soon(offset, most)


class QueueReader:
    """The pages of a queue from `begin` to `end`, in order. A page is the records of one answer, as stored."""

    def __init__(self, queue: QueueAccess, begin: int, end: int) -> None:
        self._pulls = QueuePulls(queue, end, ahead=PULLS_AHEAD, most=PULL_MESSAGES)
        self.at = begin
        """Behind everything that was read."""
        self._end = end
        self._pages: deque[bytes] = deque()
        self._held = 0
        self._wanted = READ_AHEAD_BYTES
        self._needed = 0
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._is_over = False
        self._work: asyncio.Task[None] | None = None

    async def take(self, size: int) -> list[bytes]:
        """The next pages, of `size` bytes at least or all that will be; [] at the end. Raises RemotingError."""
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._read())
        self._wanted, self._needed = max(size, READ_AHEAD_BYTES), size
        self._changed.set()
        while self._held < size and not self._is_over:
            self._changed.clear()
            await self._changed.wait()
        if self._held < size and self._error is not None:
            raise self._error  # Less than a whole chunk is not given: chunks depend on the records alone.
        pages, taken = [], 0
        while self._pages and taken < size:
            pages.append(self._pages.popleft())
            taken += len(pages[-1])
        self._held -= taken
        self._wanted = READ_AHEAD_BYTES
        self._changed.set()
        return pages

    async def _read(self) -> None:
        try:
            while self.at < self._end:
                while self._held >= self._wanted:
                    self._changed.clear()
                    await self._changed.wait()
                pulled = await self._pulls.take(self.at)
                if pulled.code != ResponseCode.SUCCESS or pulled.next_offset <= self.at:
                    break
                self._pages.append(pulled.records)
                self._held += len(pulled.records)
                self.at = pulled.next_offset
                if self._held >= self._needed:
                    self._changed.set()
        except Exception as error:  # noqa: BLE001 - raised again by `take`, in the thread that reads
            self._error = error
        finally:
            self._is_over = True
            self._changed.set()

    @property
    def is_begun(self) -> bool:
        """Whether anything was asked for."""
        return self._work is not None

    def close(self) -> None:
        self._pulls.forget()
        if self._work is not None:
            self._work.cancel()


class _Queue:
    """What a thread of the task knows of a queue: bytes that were read and not yet given, from offset `at` on."""

    def __init__(self, reader: QueueReader, at: int) -> None:
        self.reader = reader
        self.at = at
        self.rest = b""


class OutOfTime(Exception):
    """The time of a task is over before the next records are there.

    `seen` messages were read and not given; None: nothing was asked for.
    """

    def __init__(self, seen: int | None) -> None:
        super().__init__(seen)
        self.seen = seen


class WireSource:
    """See the module."""

    def __init__(
        self,
        place: BrokerPlace,
        ranges: Iterable[tuple[QueueName, int, int]],
        rate: float = 0,
        *,
        time_s: float = math.inf,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ranges`: what will be read of each queue. `rate`: bytes a second. `time_s`: OutOfTime is raised then."""
        self._monotonic = monotonic
        self._ends_s = monotonic() + time_s
        self._place = place
        self._cluster = cluster_of(place)
        self._throttle = ByteThrottle(rate)
        self._gone: RemotingError | None = None
        self._queues = {name: self._queue(name, begin, end) for name, begin, end in ranges}

    def _queue(self, name: QueueName, begin: int, end: int) -> _Queue:
        place = QueuePlace(self._place.broker, self._place.address, name[1])
        queue = _ThrottledQueue(self._cluster.client, name[0], place)
        queue.throttle = self._throttle
        return _Queue(QueueReader(queue, begin, end), begin)

    def size_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """The size of the record at exactly that offset; None when the broker has none. Raises OutOfTime."""
        queue = self._queues[topic, queue_id]
        if self._monotonic() >= self._ends_s:
            raise OutOfTime(queue.reader.at - queue.at if queue.reader.is_begun else None)
        assert queue.at == offset, "records are read in their order"
        self._fill(queue, 1)
        if len(queue.rest) < RECORD_BYTES_MIN or I64.unpack_from(queue.rest, QUEUE_OFFSET_AT)[0] != offset:
            return None
        return int(I32.unpack_from(queue.rest)[0])

    def collect(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> CollectedRecords:
        """As of a local store. Raises RemotingError, and CorruptRecord for records that are not what they should be."""
        queue = self._queues[topic, queue_id]
        assert queue.at == offset, "records are read in their order"
        self._fill(queue, max_bytes)
        found = rebased(queue.rest, offset, max_count, max_bytes, tier_offset, (topic, queue_id))
        queue.rest = queue.rest[len(found.data) :]
        queue.at = found.next_offset
        return found

    def _fill(self, queue: _Queue, size: int) -> None:
        """Have `size` bytes of records, or all up to the end of the range."""
        if len(queue.rest) >= size:
            return
        if self._gone is not None:
            raise self._gone
        try:
            pages = self._cluster.run(self._in_time(queue, size - len(queue.rest)))
        except (PeerGone, RequestTimedOut) as error:
            self._gone = error
            raise
        queue.rest = b"".join([queue.rest, *pages])

    async def _in_time(self, queue: _Queue, size: int) -> list[bytes]:
        left_s = None if self._ends_s == math.inf else max(0.0, self._ends_s - self._monotonic())
        try:
            async with asyncio.timeout(left_s):
                return await queue.reader.take(size)
        except TimeoutError:
            raise OutOfTime(queue.reader.at - queue.at) from None

    def close(self) -> None:
        for queue in self._queues.values():
            self._cluster.call(queue.reader.close)


def rebased(
    data: bytes, offset: int, max_count: int, max_bytes: int, tier_offset: int, name: QueueName
) -> CollectedRecords:
    """The records at the start of `data`, rewritten for the tier; none where the first is another message's.

    Raises CorruptRecord when the first is the message of that offset and is damaged.
    """
    topic, queue_id = name
    found = rebase_records(data, offset, max_count, max_bytes, tier_offset, topic.encode(), queue_id)
    if not found.count and len(data) >= RECORD_BYTES_MIN:
        (size,), (at,) = I32.unpack_from(data), I64.unpack_from(data, QUEUE_OFFSET_AT)
        if at == offset:
            raise CorruptRecord(
                f"topic {topic!r}, queue {queue_id}: expected the message of offset {offset} whole and undamaged, "
                f"found a record of {size} bytes that is not; it is not copied. Look at the broker's log and its disk"
            )
    return with_derived_units(found, tier_offset, offset)


_clusters: dict[tuple[int, Access], BlockingCluster] = {}
_clusters_lock = threading.Lock()


def cluster_of(place: BrokerPlace) -> BlockingCluster:
    """The client for a fleet, one per process; it stays open until the process ends."""
    key = (os.getpid(), place.access)
    with _clusters_lock:
        found = _clusters.get(key)
        if found is None:
            found = _clusters[key] = BlockingCluster(place.access)
        return found
