"""The topics of a cluster as a history: the same catalogue and the same tasks as of files, asked of brokers.

    WirePlace     where: name servers. Travels with tasks; keys of a signer do not, each machine has its own
    WireHistory   the cluster, open
    WireCatalog   which queues there are; whether a message is hot or cold is the broker's affair, so all count as hot

What a broker can answer, this can read: also what lies in its tier. Brokers are in the path of every byte, which
reading a tier and a store's files avoids: use it where those cannot be reached.
"""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass

from tiermq.client.access import Access
from tiermq.client.blocking_cluster import BlockingCluster
from tiermq.client.queue_access import QueueAccess
from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadHistory
from tiermq.history.catalog import Catalog, QueueHistory, queue_filter, read_catalog
from tiermq.history.open_history import OpenHistory, open_history, worker_history
from tiermq.history.scan_values import EVER_MS, HistoryPlace, ScanCounters, ScanRequest
from tiermq.message.topic_name import is_system_topic
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.json_dialect import decode_object
from tiermq.remoting.tls import ANY_SERVER, ClientTls
from tiermq.tier.metadata.metadata_values import TimeEntry
from tiermq.tier.names import QueueKey

SAMPLED = 4
"""Messages of a queue that tell how large its records are, about."""


@dataclass(frozen=True, slots=True)
class WirePlace(HistoryPlace):
    """Name servers, `host:port;host:port`, and whether to speak TLS."""

    name_servers: str = ""
    tls: bool = False
    certificates: ClientTls = ANY_SERVER


class WireHistory(OpenHistory):
    """A cluster in place of a tier and stores. Any thread may ask; closing it is its owner's."""

    def __init__(self, place: WirePlace, *, clock: Clock | None = None) -> None:
        self.place = place
        self.clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._access = Access.of_environment(place.name_servers, tls=place.tls, certificates=place.certificates)
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
        """The queues of topics that can be read; of topics that nobody has, none."""
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
        document = decode_object((await self.cluster.client.ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        named = (document.get("clusterAddrTable") or {}).items()
        return {str(broker): str(cluster) for cluster, brokers in named for broker in brokers}

    async def _named_after(self) -> set[str]:
        clusters = await self._clusters()
        return {*clusters, *clusters.values()}

    def close(self) -> None:
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()
                self._cluster = None
            self._queues.clear()


class WireCatalog(Catalog):
    """The queues of a cluster that a request wants. Refreshed by one thread."""

    history: WireHistory

    def __init__(self, history: WireHistory, request: ScanRequest | None = None) -> None:
        self.history = history
        self.place = history.place
        self.counters = ScanCounters()
        self._request = request or ScanRequest()
        self._wanted = queue_filter(self._request)
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
        """The first message of a queue that was stored at this time or later; its end when there is none."""
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
        self.counters.requests += 2
        size = await self._record_bytes(key, queue, low, high)
        times = await self._times(queue, high)
        return QueueHistory(key, hot_min=low, hot_max=high, hot_record_bytes=size, hot_time_entries=times)

    async def _record_bytes(self, key: QueueKey, queue: QueueAccess, low: int, high: int) -> int:
        """How large its records are, about; looked at again only when the queue has doubled since."""
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
        """Edges of the time that is asked for: everything before the first is older, from the second on newer."""
        begin_ms, end_ms = self._request.begin_ms, self._request.end_ms
        entries = []
        if begin_ms > 0:
            entries.append(TimeEntry(await queue.offset_at(begin_ms), begin_ms - 1, 0))
        if end_ms < EVER_MS:
            # One more than it says: brokers before 5.2 answer with the last message when all are older.
            behind = await queue.offset_at(end_ms + 1) + 1
            entries.append(TimeEntry(min(behind, high), end_ms + 1, 0))
        return tuple(entries)


# One way in, whatever the place is.


def open_place(place: HistoryPlace) -> OpenHistory:
    """A history of one's own, to be closed: of files, or of a cluster."""
    return WireHistory(place) if isinstance(place, WirePlace) else open_history(place)


def catalog_of(history: OpenHistory, request: ScanRequest | None = None) -> Catalog:
    """Look at a history. Raises BadHistory, and what the tier's driver or a broker raises."""
    return WireCatalog(history, request) if isinstance(history, WireHistory) else read_catalog(history, request)


_kept: dict[tuple[int, WirePlace], WireHistory] = {}
_kept_lock = threading.Lock()


def worker_place(place: HistoryPlace) -> OpenHistory:
    """The one history of this place in this process; it stays open until the process ends."""
    if not isinstance(place, WirePlace):
        return worker_history(place)
    with _kept_lock:
        return _kept.setdefault((os.getpid(), place), WireHistory(place))
