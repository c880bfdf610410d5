"""WireBroker: a running broker as an offload's driver sees it, TierMQ's or an unmodified RocketMQ's.

    look      which topics it has, where each queue begins and ends: one request per topic, and two for the broker
    settled   up to where messages may be copied: nothing that the broker could take back after a crash

How far messages are settled:

    the broker reports `flushedOffset`       TierMQ: that offset
    flushDiskType SYNC_FLUSH                 what the driver has seen there for a second
    ASYNC_FLUSH, or not known                what the driver has seen there for the settle time (`--settle`)

"Seen there" is by the driver's own monotonic clock; clocks of two machines are compared only for the warning about
retention (`OffloadBroker`). Whatever was seen before
the broker was started again (its boot time changed, or the connection to it ended where it does not report one) does
not count any more, and its history is compared with the tier's again: it may have lost its tail and given the same
offsets to other messages.

A queue that a task could not read at the planned offset is asked once where it goes on; what it skips becomes a gap.
Threads: `look` on the client's loop, the rest by any thread between two looks.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tiermq.client.broker_state import read_broker_state
from tiermq.client.cluster_client import BlockingCluster, ClusterClient, QueuePlace
from tiermq.client.queue_access import Pulled, QueueAccess
from tiermq.clock import HOUR_MS, Clock
from tiermq.errors import BadConfig, RemotingError, RequestRefused, RequestTimedOut
from tiermq.message.layout import QUEUE_OFFSET_AT
from tiermq.message.record_head import HeadKind, read_head
from tiermq.namesrv.topic_config import PERM_READ
from tiermq.pipeline.leased_broker import Home
from tiermq.pipeline.offload.wire_source import BrokerPlace, rebased
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_body, decode_object
from tiermq.settings import read_properties
from tiermq.tier.dispatch.local_source import RecordSource
from tiermq.tier.dispatch.plan import LocalState
from tiermq.tier.names import QueueName
from tiermq.tier.queue.records import CollectedRecords

SYNC_SETTLE_S = 1.0
"""SYNC_FLUSH: a message can be read some milliseconds before its flush has ended."""
RECORD_BYTES = 1024
"""A record's size as long as nothing is known."""
RECORD_HEAD_BYTES = 200
FLUSH_WAIT_S = 0.2
"""Between two looks for a flush that is under way."""
LOOK_TIMEOUT_S = 10.0
LOOKS_MAX = 64
"""Requests in flight to one broker."""
TRIES = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic as a broker has it."""

    name: str
    read_queues: int
    perm: int = PERM_READ
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def obstacle(self) -> str:
        """Why pulls cannot copy a topic of this kind; empty when they can."""
        if not self.perm & PERM_READ:
            return "closed for reading (perm)"
        if self.attributes.get("queue.type") == "BatchCQ":
            return "topics of batches (BatchCQ)"
        if self.attributes.get("cleanup.policy") == "COMPACTION":
            return "compacted topics, which have only the last message of each key"
        return ""


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """Messages [min_offset, max_offset) of a queue; `flushed_offset` where the broker reports it."""

    min_offset: int
    max_offset: int
    flushed_offset: int | None = None


class _Seen:
    """When the driver saw a queue end where: (monotonic seconds, max offset), both growing."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, max_offset: int) -> None:
        while self._looks and self._looks[-1][1] >= max_offset:
            if self._looks[-1][1] == max_offset:
                return  # The older look knows more.
            self._looks.pop()  # The queue is shorter now.
        self._looks.append((now_s, max_offset))

    def settled(self, now_s: float, settle_s: float) -> int:
        """The end as it was seen at least so long ago; 0: not yet."""
        while len(self._looks) > 1 and self._looks[1][0] <= now_s - settle_s:
            self._looks.popleft()
        if self._looks and self._looks[0][0] <= now_s - settle_s:
            return self._looks[0][1]
        return 0

    def wait_s(self, now_s: float, settle_s: float) -> float | None:
        """How long until more is settled; None: all is."""
        at_s = next((at for at, _ in self._looks if at > now_s - settle_s), None)
        return None if at_s is None else max(0.0, at_s + settle_s - now_s)


class WireBroker(RecordSource):
    """See the module. Its own origin: it is open as long as its client is."""

    is_shared = True
    fork_advice = (
        "the broker has lost its newest messages and given their offsets to others, or another broker has taken its "
        "name. Nothing more of this queue is copied, and the tier's history stays as it is. To copy the new history, "
        "give the broker another brokerName, or a new topic to its producers"
    )

    def __init__(
        self,
        place: BrokerPlace,
        cluster: BlockingCluster,
        wanted: Callable[[str], bool],
        *,
        settle_s: float,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.wire = place
        self.cluster, self.broker, self.path = place.cluster, place.broker, str(place)
        self.home = Home(place.cluster, place.broker)
        self.life = 0
        self.error: RemotingError | None = None
        self.refused: dict[str, str] = {}
        """Topics that this account may not read, and why."""
        self.passed_over: dict[str, str] = {}
        """Topics that cannot be copied by their kind, and why."""
        self.topic_names: list[str] = []
        """All of its topics, wanted or not."""
        self.retention_ms: int | None = None
        self.earliest_ms = 0
        self._client = cluster
        self._wanted = wanted
        self._settle_s = settle_s
        self._clock = clock
        self._monotonic = monotonic
        self._boot: object = None
        self._is_boot_reported = False
        self._settings: dict[str, str] | None = None
        self.record_bytes = RECORD_BYTES
        self._topics: dict[str, TopicRow] = {}
        self._ends: dict[QueueName, QueueEnds] = {}
        self._seen: dict[QueueName, _Seen] = {}
        self._plans: dict[QueueName, tuple[int, float, int | None]] = {}
        self._looked_s = 0.0

    def move(self, address: str) -> None:
        """The name servers know another address: a new life, also of a broker that took over as master."""
        self.wire = replace(self.wire, address=address)
        self.path = str(self.wire)
        self._boot = object()

    # Looking

    async def look(self) -> None:
        """Ask the broker for everything that planning needs. What fails is in `error`: then nothing else changed."""
        client = self._client.client
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):  # It may have to connect.
                boot, table = await self._runtime(client)
            if self._settings is None or boot != self._boot:
                self._settings = await self._read_settings(client)
            topics = await self._read_topics(client)
            ends, refused = await self._read_ends(client, topics)
        except RemotingError as error:
            self.error = error
            return
        except TimeoutError:
            self.error = RequestTimedOut(f"{self.wire}: expected an answer within {LOOK_TIMEOUT_S:g} s, found none")
            return
        self.error, self._topics, self._ends, self.refused = None, topics, ends, refused
        self.passed_over = {name: row.obstacle for name, row in topics.items() if row.obstacle}
        self._take_life(boot)
        average = as_int(table.get("putMessageAverageSize", "0").partition(".")[0])
        self.record_bytes = average + RECORD_HEAD_BYTES if average else RECORD_BYTES
        self.earliest_ms = max(0, as_int(table.get("earliestMessageTimeStamp")))
        hours = self._settings.get("fileReservedTime")
        self.retention_ms = as_int(hours) * HOUR_MS if hours else None
        self._looked_s = self._monotonic()
        for name, queue in ends.items():
            self._seen.setdefault(name, _Seen()).note(self._looked_s, queue.max_offset)
        for name in self._seen.keys() - ends.keys():
            del self._seen[name]

    def _take_life(self, boot: object) -> None:
        if boot != self._boot:
            if self._boot is not None:
                self.life += 1
                self._seen.clear()
            self._boot = boot

    async def _runtime(self, client: ClusterClient) -> tuple[object, dict[str, str]]:
        """What changes when the broker is started again, and its runtime table, as far as the account may see it."""
        try:
            answer = await self._ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)
            table = {str(name): str(value) for name, value in (decode_object(answer).get("table") or {}).items()}
            if "bootTimestamp" in table:
                self._is_boot_reported = True
                return table["bootTimestamp"], table
        except RequestRefused:
            table = {}
        self._is_boot_reported = False
        return await client.at(self.wire.address), table

    async def _read_settings(self, client: ClusterClient) -> dict[str, str]:
        try:
            return read_properties((await self._ask(client, RequestCode.GET_BROKER_CONFIG)).decode())
        except (RequestRefused, BadConfig, UnicodeDecodeError):
            return {}  # Then it settles as with ASYNC_FLUSH, and its retention is not known.

    async def _read_topics(self, client: ClusterClient) -> dict[str, TopicRow]:
        try:
            answer = await self._ask(client, RequestCode.GET_ALL_TOPIC_CONFIG)
        except RequestRefused as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            return await self._routed_topics(client)
        found = {}
        table = decode_object(answer).get("topicConfigTable") or {}
        self.topic_names = sorted(map(str, table))
        for name, row in table.items():
            if self._wanted(name):
                attributes = {str(key): str(value) for key, value in (row.get("attributes") or {}).items()}
                perm = as_int(row.get("perm"), PERM_READ)
                found[str(name)] = TopicRow(str(name), as_int(row.get("readQueueNums")), perm, attributes)
        return found

    async def _routed_topics(self, client: ClusterClient) -> dict[str, TopicRow]:
        """For an account that may not ask brokers for all topics: name servers know which there are, and where."""
        answer = await client.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        self.topic_names = sorted(map(str, decode_object(answer.body).get("topicList") or []))
        names = list(filter(self._wanted, self.topic_names))
        found = {}
        for name, route in zip(names, await _some_at_a_time(client.find_route(name) for name in names), strict=True):
            places = [] if route is None else [each for each in route.readable if each.broker_name == self.broker]
            if places:
                found[name] = TopicRow(name, len(places))
        return found

    async def _read_ends(
        self, client: ClusterClient, topics: Mapping[str, TopicRow]
    ) -> tuple[dict[QueueName, QueueEnds], dict[str, str]]:
        refused: dict[str, str] = {}
        asked = [row for row in topics.values() if not row.obstacle]
        answers = await _some_at_a_time(self._stats(client, row) for row in asked)
        ends: dict[QueueName, QueueEnds] = {}
        for row, found in zip(asked, answers, strict=True):
            if isinstance(found, str):
                refused[row.name] = found
            else:
                ends.update(found)
        return ends, refused

    async def _stats(self, client: ClusterClient, row: TopicRow) -> dict[QueueName, QueueEnds] | str:
        try:
            answer = await self._ask(client, RequestCode.GET_TOPIC_STATS_INFO, topic=row.name)
        except RequestRefused as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return {}  # Deleted since.
            if error.code == ResponseCode.NO_PERMISSION:
                return str(error)
            raise
        found = {}
        for key, each in (decode_object(answer).get("offsetTable") or {}).items():
            queue_id = as_int(decode_body(key.encode()).get("queueId"))
            flushed = each.get("flushedOffset")
            if queue_id < row.read_queues:
                low, high = max(0, as_int(each.get("minOffset"))), max(0, as_int(each.get("maxOffset")))
                found[row.name, queue_id] = QueueEnds(
                    min(low, high), high, None if flushed is None else min(high, as_int(flushed))
                )
        return found

    async def _ask(self, client: ClusterClient, code: RequestCode, **fields: Any) -> bytes:
        return bytes((await client.ask(self.wire.address, code, timeout_s=LOOK_TIMEOUT_S, **fields)).body)

    async def check_readable(self) -> None:
        """Pull once of each topic, behind its end: whether this account may read it. Refusals are in `refused`."""

        async def check(topic: str) -> None:
            try:
                await self._access((topic, 0)).pull(self._ends[topic, 0].max_offset, "*", 1, tries=TRIES)
            except RequestRefused as error:
                self.refused[topic] = str(error)

        await _some_at_a_time(check(topic) for topic, queue_id in sorted(self._ends) if queue_id == 0)

    # As a source

    @contextmanager
    def open(self) -> Iterator[RecordSource]:
        if self.error is not None:
            raise self.error
        yield self

    def settle(self) -> None:
        """Raises the error of the last look: nothing is planned by what is not known."""
        if self.error is not None:
            raise self.error

    def queues(self) -> list[QueueName]:
        return sorted(self._ends)

    def max_offset(self, topic: str, queue_id: int) -> int:
        found = self._ends.get((topic, queue_id))
        return 0 if found is None else found.max_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        found = self._ends.get((topic, queue_id))
        return 0 if found is None else found.min_offset

    @property
    def settle_s(self) -> float:
        """How long a message must have been seen where the broker does not report what it has flushed."""
        is_sync = (self._settings or {}).get("flushDiskType") == "SYNC_FLUSH"
        return min(SYNC_SETTLE_S, self._settle_s) if is_sync else self._settle_s

    def settled(self, name: QueueName) -> int:
        """Behind the newest message that the broker cannot take back."""
        ends = self._ends.get(name)
        if ends is None:
            return 0
        if ends.flushed_offset is not None:
            return ends.flushed_offset
        return min(ends.max_offset, self._seen[name].settled(self._looked_s, self.settle_s))

    def wait_s(self, name: QueueName, target: int) -> float | None:
        """How long until messages below `target` are settled; None: they are, or the broker does not have them."""
        ends = self._ends.get(name)
        if ends is None or self.settled(name) >= min(target, ends.max_offset):
            return None
        if ends.flushed_offset is not None:
            return FLUSH_WAIT_S
        return self._seen[name].wait_s(self._monotonic(), self.settle_s) or 0.0

    @property
    def forgets_between_looks(self) -> bool:
        """Whether what was seen may not count at the next look, though the broker runs: its connection may end."""
        return not self._is_boot_reported

    def state(self, topic: str, queue_id: int, offset: int) -> LocalState | None:
        name = topic, queue_id
        ends = self._ends.get(name)
        if ends is None or ends.max_offset <= 0:
            return None
        low = ends.min_offset
        high = max(low, min(ends.max_offset, max(self.settled(name), offset)))
        start = max(low, offset)
        if start >= high:
            return LocalState(low, high)
        found = self._readable_from(name, start)
        if found is None or found >= high:
            return LocalState(low, high)
        return LocalState(low, high, found, self._clock.now_ms(), self.record_bytes * (high - found))

    def _readable_from(self, name: QueueName, start: int) -> int | None:
        """Where the broker has a message at or behind `start`; it is asked only if the last wave began there, too."""
        planned, looked_s, found = self._plans.get(name, (-1, 0.0, None))
        if planned != start:
            found = start
        elif looked_s != self._looked_s:
            # Twice: a file that is just being deleted must not look like a gap.
            both = {self._first_at(self._pull(name, start), start) for _ in range(2)}
            found = both.pop() if len(both) == 1 else None
        self._plans[name] = start, self._looked_s, found
        return found

    @staticmethod
    def _first_at(pulled: Pulled, start: int) -> int | None:
        if pulled.code == ResponseCode.SUCCESS and len(pulled.records) > QUEUE_OFFSET_AT + 8:
            return int.from_bytes(pulled.records[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big")
        is_moved = pulled.code in (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY)
        return pulled.next_offset if is_moved and pulled.next_offset > start else None

    def collect(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> CollectedRecords:
        """One answer's records. Raises RemotingError, CorruptRecord."""
        pulled = self._pull((topic, queue_id), offset)
        return rebased(pulled.records, offset, max_count, max_bytes, tier_offset, (topic, queue_id))

    def read_tables(self) -> dict[str, bytes]:
        """By requests of an administrator; for another account there are none. Raises RemotingError."""
        try:
            return self._client.run(read_broker_state(self._client.client, self.wire.address))
        except RequestRefused as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            return {}

    def store_time_of(self, name: QueueName, offset: int) -> int:
        """When the message was stored; -1 when it cannot be read. Raises RemotingError."""
        pulled = self._pull(name, offset)
        head = read_head(pulled.records, 0, len(pulled.records))
        return head.store_timestamp_ms if head.kind is HeadKind.OK and head.queue_offset == offset else -1

    def _pull(self, name: QueueName, offset: int) -> Pulled:
        return self._client.run(self._access(name).pull(offset, "*", 1, tries=TRIES))

    def _access(self, name: QueueName) -> QueueAccess:
        return QueueAccess(self._client.client, name[0], QueuePlace(self.broker, self.wire.address, name[1]))


async def _some_at_a_time(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of coroutines, LOOKS_MAX of them at a time."""
    limit = asyncio.Semaphore(LOOKS_MAX)

    async def one(work: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await work

    return list(await asyncio.gather(*(one(work) for work in works)))
