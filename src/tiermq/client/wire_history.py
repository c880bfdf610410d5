"""The topics of a cluster as a history: the same catalogue and the same tasks as of files, asked of brokers.

    WirePlace     where: name servers. Travels with tasks; keys of a signer do not, each machine has its own
    WireHistory   the cluster, open
    WireCatalog   which queues there are; whether a message is hot or cold is the broker's affair, so all count as hot

Reads everything that a broker can, including its tier. Brokers are in the path of every byte, which
reading a tier and a store's files avoids: use it where those cannot be reached.

A task is read by pulls, several in flight (`QueuePulls`). Each message of the task is returned once, in the order of
its queue, or reported as a loss: EXPIRED when the broker skips to its min offset, GAP for a gap, BEYOND_END when the
queue ends before the task. With tags the broker filters messages, so gaps are expected.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiermq.client.cluster_client import Access, BlockingCluster
from tiermq.client.queue_access import Pulled, QueueAccess, require_own
from tiermq.client.queue_pulls import QueuePulls
from tiermq.clock import EVER_MS, Clock, SystemClock
from tiermq.errors import BadHistory, CorruptRecord, RemotingError
from tiermq.history.catalog import Catalog, QueueHistory, queue_filter, read_catalog
from tiermq.history.open_history import OpenHistory, open_history, worker_history
from tiermq.history.reading import OnLoss, read_task
from tiermq.history.scan_values import (
    HistoryPlace,
    Loss,
    LossReason,
    RecordRun,
    ScanCounters,
    ScanRequest,
    ScanTask,
    Side,
    data_loss,
)
from tiermq.kernel.columns import OWN_PLACES
from tiermq.message.layout import QUEUE_OFFSET_AT, RECORD_BYTES_MIN
from tiermq.message.record import decode_record
from tiermq.message.record_head import HeadKind, read_head
from tiermq.message.topic_name import is_system_topic
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_object
from tiermq.remoting.tls import ANY_SERVER, ClientTls
from tiermq.tier.metadata.metadata_values import TimeEntry
from tiermq.tier.names import QueueKey

SAMPLED = 4
"""Messages sampled to estimate the record size of a queue."""


@dataclass(frozen=True, slots=True)
class WirePlace(HistoryPlace):
    """Name servers, `host:port;host:port`, and whether to speak TLS."""

    name_servers: str = ""
    tls: bool = False
    certificates: ClientTls = ANY_SERVER


class WireHistory(OpenHistory):
    """A cluster instead of a tier and stores. Any thread may read; its owner closes it."""

    def __init__(self, place: WirePlace, *, clock: Clock | None = None, access: Access | None = None) -> None:
        """`access`: with the keys of an account other than this process's own."""
        self.place = place
        self.clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._access = access or Access.of_environment(
            place.name_servers, tls=place.tls, certificates=place.certificates
        )
        self._cluster: BlockingCluster | None = None
        self._queues: dict[QueueKey, QueueAccess] = {}

    @property
    def has_tier(self) -> bool:
        return False

    @property
    def cluster(self) -> BlockingCluster:
        """The cluster; nothing is connected yet."""
        with self._lock:
            if self._cluster is None:
                self._cluster = BlockingCluster(self._access)
            return self._cluster

    def queue(self, key: QueueKey) -> QueueAccess:
        """One queue. Raises BadHistory when no broker has it."""
        if key not in self._queues:
            # Not under the lock, which the loop's thread takes when it asks for the cluster.
            self._queues.update(self.cluster.run(self.look_for({key.topic})))
        if key not in self._queues:
            raise BadHistory(f"expected queue {key.queue_id} of topic {key.topic!r} at {key.broker}, found none")
        return self._queues[key]

    async def look_for(self, topics: set[str]) -> dict[QueueKey, QueueAccess]:
        """The queues of topics that can be read; none of unknown topics."""
        client = self.cluster.client
        found = await asyncio.gather(*(client.find_route(topic) for topic in sorted(topics)))
        clusters = await self._clusters()
        return {
            QueueKey(clusters.get(place.broker_name, ""), place.broker_name, route.topic, place.queue_id): QueueAccess(
                client, route.topic, place
            )
            for route in found
            if route is not None
            for place in route.readable
        }

    async def topics(self) -> set[str]:
        """All topics that are not the system's own."""
        answer = await self.cluster.client.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        names = {str(name) for name in decode_object(answer.body).get("topicList") or []}
        # A cluster and a broker are topics, too, by which clients find them.
        return {name for name in names - await self._named_after() if not is_system_topic(name)}

    async def _clusters(self) -> dict[str, str]:
        """Which cluster each broker is of."""
        table = await self.cluster.client.master_table()
        return {broker: cluster for cluster, broker in table.addresses}

    async def _named_after(self) -> set[str]:
        table = await self.cluster.client.master_table()
        return {name for member in table.members for name in member}

    def close(self) -> None:
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()
                self._cluster = None
            self._queues.clear()


class WireCatalog(Catalog):
    """The queues of a cluster that a request selects. Refreshed by one thread."""

    history: WireHistory

    def __init__(self, history: WireHistory, request: ScanRequest | None = None) -> None:
        self.history = history
        self.place = history.place
        self.counters = ScanCounters()
        self._request = request or ScanRequest()
        self._wanted = queue_filter(self._request, self.place.cluster)
        self._queues: dict[QueueKey, QueueHistory] = {}
        self._sampled_at: dict[QueueKey, int] = {}
        self._brokers: set[tuple[str, str]] = set()
        self.refresh()

    def refresh(self) -> None:
        """Ask for routes, and where each queue begins and ends now."""
        self._queues = self.history.cluster.run(self._looked())

    def require_readable(self) -> None:
        """Everything that a broker gives can be read."""

    @property
    def brokers(self) -> list[tuple[str, str]]:
        return sorted(self._brokers)

    def offset_at(self, queue: QueueHistory, moment_ms: int) -> int:
        """The first message of a queue that was stored at this time or later; its max offset if there is none."""
        found = self.history.cluster.run(self.history.queue(queue.key).offset_at(moment_ms))
        return min(max(found, queue.min_offset), queue.max_offset)

    async def _looked(self) -> dict[QueueKey, QueueHistory]:
        topics = set(self._request.topics) or await self.history.topics()
        queues = await self.history.look_for(topics)
        self._brokers = {(key.cluster, key.broker) for key in queues}
        wanted = sorted(key for key in queues if self._wanted(key))
        found = await asyncio.gather(*(self._history_of(key, queues[key]) for key in wanted))
        return {queue.key: queue for queue in found}

    async def _history_of(self, key: QueueKey, queue: QueueAccess) -> QueueHistory:
        low, high = await queue.bounds()
        self.counters.requests += 3
        size = await self._record_bytes(key, queue, low, high)
        times = await self._times(queue, high)
        return QueueHistory(key, hot_min=low, hot_max=high, hot_record_bytes=size, hot_time_entries=times)

    async def _record_bytes(self, key: QueueKey, queue: QueueAccess, low: int, high: int) -> int:
        """The approximate size of its records; measured again only when the queue has doubled."""
        before = self._queues.get(key)
        if before is not None and before.hot_record_bytes and high < 2 * self._sampled_at[key]:
            return before.hot_record_bytes
        if low >= high:
            return 0
        self._sampled_at[key] = high
        first = (low + high) // 2
        pulled = await queue.pull(first, most=SAMPLED)
        self.counters.requests += 1
        self.counters.bytes_read += len(pulled.records)
        return len(pulled.records) // max(1, pulled.next_offset - first)

    async def _times(self, queue: QueueAccess, high: int) -> tuple[TimeEntry, ...]:
        """Bounds of the requested time: everything before the first is older, from the second on newer."""
        begin_ms, end_ms = self._request.begin_ms, self._request.end_ms
        entries = []
        if begin_ms > 0:
            entries.append(TimeEntry(await queue.offset_at(begin_ms), begin_ms - 1, 0))
        if end_ms < EVER_MS:
            # One more than returned: brokers before 5.2 answer with the last message when all are older.
            behind = await queue.offset_at(end_ms + 1) + 1
            entries.append(TimeEntry(min(behind, high), end_ms + 1, 0))
        return tuple(entries)


# One entry point for every kind of source.


def open_place(place: HistoryPlace) -> OpenHistory:
    """A history of one's own, to be closed: of files, or of a cluster."""
    return WireHistory(place) if isinstance(place, WirePlace) else open_history(place)


def catalog_of(history: OpenHistory, request: ScanRequest | None = None) -> Catalog:
    """Look at a history. Raises BadHistory, and what the tier's driver or a broker raises."""
    return WireCatalog(history, request) if isinstance(history, WireHistory) else read_catalog(history, request)


_kept: dict[tuple[int, WirePlace], WireHistory] = {}
_kept_lock = threading.Lock()


def worker_place(place: HistoryPlace) -> OpenHistory:
    """The history of this source, one per process; it stays open until the process ends."""
    if not isinstance(place, WirePlace):
        return worker_history(place)
    with _kept_lock:
        return _kept.setdefault((os.getpid(), place), WireHistory(place))


WIRE_RUN_BYTES = 4 << 20
WIRE_RUN_RECORDS = 16_384
AHEAD = 4
STUCK_MAX = 3
_SIZE = struct.Struct(">i")
_OFFSET = struct.Struct(">q")


def read_placed_task(
    history: OpenHistory, task: ScanTask, counters: ScanCounters, on_loss: OnLoss | None = None
) -> Iterator[RecordRun]:
    """The records of a task, from files or over the wire. Raises as `read_task` does, and RemotingError."""
    if isinstance(history, WireHistory):
        return _WireReading(history, task, counters, on_loss).runs()
    return read_task(history, task, counters, on_loss)


class _WireReading:
    """One task under way. `at` is the queue offset behind everything that was given or lost."""

    def __init__(self, history: WireHistory, task: ScanTask, counters: ScanCounters, on_loss: OnLoss | None) -> None:
        self._cluster = history.cluster
        self._queue = history.queue(task.queue)
        self._task = task
        self._counters = counters
        self._on_loss = on_loss
        # Tags that the text of a subscription cannot hold are left to the rows.
        tags = sorted(task.request.tags)
        is_plain = bool(tags) and not any("|" in tag or tag != tag.strip() or tag == "*" for tag in tags)
        self._expression = " || ".join(tags) if is_plain else "*"
        self._at = task.from_offset
        self._stuck = 0
        self._pulls = QueuePulls(self._queue, task.to_offset, ahead=AHEAD, expression=self._expression)

    def runs(self) -> Iterator[RecordRun]:
        pages: list[bytes] = []
        size = count = 0
        try:
            while self._at < self._task.to_offset:
                page = self._next_page()
                if page:
                    pages += page
                    size += sum(map(len, page))
                    count += len(page)
                if size >= WIRE_RUN_BYTES or count >= WIRE_RUN_RECORDS:
                    yield self._run(pages)
                    pages, size, count = [], 0, 0
            if pages:
                yield self._run(pages)
        finally:
            with suppress(RemotingError):  # The history was closed before its reader.
                self._cluster.call(self._pulls.forget)

    def _next_page(self) -> list[bytes]:
        """The next records, and `at` behind them."""
        pulled = self._cluster.run(self._pulls.take(self._at))
        self._counters.requests += 1
        self._counters.bytes_read += len(pulled.records)
        if pulled.code == ResponseCode.SUCCESS:
            return self._taken(pulled)
        self._moved(pulled)
        return []

    def _taken(self, pulled: Pulled) -> list[bytes]:
        began, end = self._at, self._task.to_offset
        records = []
        for record in split_records(pulled.records):
            self._require_own(record)
            (offset,) = _OFFSET.unpack_from(record, QUEUE_OFFSET_AT)
            if not self._at <= offset < end:
                continue
            self._pass_over(offset)
            records.append(record)
            self._at = offset + 1
        # After the last record there may be filtered ones.
        self._at = max(self._at, min(pulled.next_offset, end)) if self._expression != "*" else self._at
        if self._at == began:
            self._stay(pulled)
        return records

    def _require_own(self, record: bytes) -> None:
        """Raises ForeignRecord for one of another topic or queue."""
        head, queue = read_head(record), self._task.queue
        if head.kind is not HeadKind.OK or (head.queue_id, head.topic) == (queue.queue_id, queue.topic.encode()):
            return
        with suppress(CorruptRecord):  # A damaged one is reported as such.
            require_own(decode_record(record), (queue.topic,), queue.queue_id, queue.broker)

    def _moved(self, pulled: Pulled) -> None:
        """No records: the broker returns the next offset."""
        task, at, to = self._task, self._at, min(pulled.next_offset, self._task.to_offset)
        if pulled.code == ResponseCode.PULL_NOT_FOUND or pulled.next_offset < at:
            detail = f"the broker has no message at {at} any more, and continues at {pulled.next_offset}"
            self._lose(Loss(task.queue, at, task.to_offset, LossReason.BEYOND_END, detail))
            self._at = task.to_offset
        elif pulled.next_offset == at:
            self._stay(pulled)
        elif pulled.code == ResponseCode.PULL_OFFSET_MOVED:
            self._lose(Loss(task.queue, at, to, LossReason.EXPIRED, "deleted at the broker since the scan was planned"))
            self._at = to
        else:
            self._pass_over(to)
            self._at = to

    def _stay(self, pulled: Pulled) -> None:
        """A broker that makes no progress is asked again a few times: a file may just have been deleted."""
        self._stuck += 1
        if self._stuck > STUCK_MAX:
            queue = self._task.queue
            raise RemotingError(
                f"topic {queue.topic!r}, queue {queue.queue_id}: expected a message at {self._at} or a next offset, "
                f"found neither (code {pulled.code}, next {pulled.next_offset}); see the log of {queue.broker}"
            )

    def _pass_over(self, offset: int) -> None:
        if self._at < offset and self._expression == "*":
            self._lose(Loss(self._task.queue, self._at, offset, LossReason.GAP, "the broker passes over them"))

    def _lose(self, loss: Loss) -> None:
        if self._task.loss_is_error:
            raise data_loss([loss])
        if self._on_loss is not None:
            self._on_loss(loss)

    def _run(self, records: list[bytes]) -> RecordRun:
        sizes: Any = np.fromiter((len(record) for record in records), np.int64, len(records))
        starts: Any = np.cumsum(sizes) - sizes
        self._counters.rows_read += len(records)
        self._counters.hot_bytes_read += int(sizes.sum())
        segment = self._queue.place.address
        return RecordRun(self._task.queue, Side.WIRE, b"".join(records), starts, sizes, OWN_PLACES, segment)


def split_records(data: bytes) -> list[bytes]:
    """The consecutive records in the body of an answer. Raises CorruptRecord unless they add up."""
    records = []
    at, end = 0, len(data)
    while at < end:
        size = _SIZE.unpack_from(data, at)[0] if end - at >= RECORD_BYTES_MIN else 0
        if not RECORD_BYTES_MIN <= size <= end - at:
            raise CorruptRecord(f"record at byte {at} of an answer: expected {size} bytes, found {end - at} left")
        records.append(data[at : at + size])
        at += size
    return records
