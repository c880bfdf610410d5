"""WireBroker: a running broker as an offload's driver sees it, TierMQ's or an unmodified RocketMQ's.

    look      which topics it has, where each queue begins and ends: one request per topic, and two for the broker
    unread    queues with messages that it lets no client read, since its topic has fewer queues for readers
    settled   up to where messages may be copied: nothing that the broker could take back after a crash

How far messages are settled:

    the broker reports `flushedOffset`       TierMQ: that offset
    flushDiskType SYNC_FLUSH                 what the driver has seen there for a second
    ASYNC_FLUSH, or not known                what the driver has seen there for longer than that broker may leave a
                                             message unflushed (`flush_bound_s`), or for the operator's `--settle`

"Seen there" is by the driver's own monotonic clock; clocks of two machines are compared only for the warning about
retention (`OffloadBroker`). Whatever was seen before
the broker was started again (its boot time changed, or the connection to it ended where it does not report one) does
not count any more, and its history is compared with the tier's again: it may have lost its tail and given the same
offsets to other messages.

What a broker answers is only ever a problem of that broker, of its topic or of its queue: answers are read by type,
and a look that fails changes nothing. Messages that cannot be read become a gap only by `GapCheck`. A broker that
leaves a pull of the driver unanswered gets no further one before the next look.
Threads: `ask` on the client's loop, `take` and the rest on the driver's; pulls on any of its threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from tiermq.client.broker_state import read_broker_state
from tiermq.client.cluster_client import BlockingCluster, ClusterClient, QueuePlace
from tiermq.client.queue_access import Pulled, QueueAccess
from tiermq.client.table_pages import ask_table
from tiermq.clock import HOUR_MS, Clock
from tiermq.errors import BadConfig, PeerGone, RemotingError, RequestRefused, RequestTimedOut
from tiermq.message.record_head import HeadKind, read_head
from tiermq.message.topic_name import topic_problem
from tiermq.namesrv.topic_config import PERM_READ
from tiermq.pipeline.leased_broker import Home
from tiermq.pipeline.offload.gap_check import GapCheck, Look
from tiermq.pipeline.offload.wire_source import BrokerPlace, rebased
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import int_field
from tiermq.remoting.json_dialect import (
    decode_body,
    decode_object,
    int32_in,
    int64_in,
    list_in,
    object_in,
    text_in,
    text_map_in,
)
from tiermq.settings import INT_MAX, read_properties
from tiermq.tier.dispatch.local_source import RecordSource
from tiermq.tier.dispatch.plan import LocalState
from tiermq.tier.names import QueueName
from tiermq.tier.queue.records import CollectedRecords

SYNC_SETTLE_S = 1.0
"""SYNC_FLUSH: a message can be read some milliseconds before its flush has ended."""
THOROUGH_FLUSH_MS, FLUSH_INTERVAL_MS = 10_000, 500
"""RocketMQ's flushCommitLogThoroughInterval and flushIntervalCommitLog, where a broker's settings are not known."""
FLUSH_S = 4.0
"""What a flush may take, once it has begun."""
RECORD_BYTES = 1024
"""A record's size as long as nothing is known."""
RECORD_HEAD_BYTES = 200
FLUSH_WAIT_S = 0.2
"""Between two looks for a flush that is under way."""
LOOK_TIMEOUT_S = 10.0
LOOKS_MAX = 64
"""Requests in flight to one broker."""
TRIES = 2
PULL_TIMEOUT_S = 5.0
"""Of a pull by the driver: other brokers wait for it."""
QUEUES_ASKED_MAX = 1_024
"""Of a topic, one by one: where the broker's list of its queues leaves some out."""
OFFSET_MAX = 1 << 58
"""Of a queue: its unit's offset in the tier has 63 bits."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic as a broker has it."""

    name: str
    read_queues: int
    write_queues: int = 0
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
        return "names that no topic can have" if topic_problem(self.name) else ""


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """Messages [min_offset, max_offset) of a queue; `flushed_offset` where the broker reports it."""

    min_offset: int
    max_offset: int
    flushed_offset: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerLook:
    """What a broker reported of itself at a time. `boot` changes when it is started again."""

    boot: object
    is_boot_reported: bool
    runtime: Mapping[str, str]
    settings: dict[str, str]
    topics: Mapping[str, TopicRow]
    topic_names: list[str]
    ends: dict[QueueName, QueueEnds]
    unread: dict[QueueName, QueueEnds]
    """Of queues that no client may read, behind their topic's readQueueNums."""
    refused: dict[str, str]
    failed: dict[str, str]
    unchecked: frozenset[str]
    """Those of `failed` of which it is not known whether they may be read."""


class _Seen:
    """When the driver saw a queue end where: (monotonic seconds, max offset), both growing."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: list[tuple[float, int]] = []

    def note(self, now_s: float, max_offset: int) -> None:
        while self._looks and self._looks[-1][1] >= max_offset:
            if self._looks[-1][1] == max_offset:
                return  # The older look knows more.
            self._looks.pop()  # The queue is shorter now.
        self._looks.append((now_s, max_offset))

    def settled(self, now_s: float, settle_s: float) -> int:
        """The end as it was seen at least so long ago; 0: not yet."""
        while len(self._looks) > 1 and self._looks[1][0] <= now_s - settle_s:
            del self._looks[0]
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
        wanted: Callable[[str, bool], bool],
        *,
        settle_s: float | None,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
        accept_gaps: bool = False,
    ) -> None:
        """`wanted`: `FleetScope.wants`. `settle_s`: the operator's; None: as long as the broker's own settings need."""
        self.wire = place
        self.cluster, self.broker, self.path = place.cluster, place.broker, str(place)
        self.home = Home(place.cluster, place.broker)
        self.life = 0
        self.error: RemotingError | None = None
        self.refused: dict[str, str] = {}
        """Topics that this account may not read, and why."""
        self.passed_over: dict[str, str] = {}
        """Topics that cannot be copied by their kind, and why."""
        self.failed: dict[str, str] = {}
        """Topics whose queues it could not report, and why: the next look asks again."""
        self.topic_names: list[str] = []
        """All of its topics, wanted or not."""
        self.retention_ms: int | None = None
        self.earliest_ms = 0
        self.is_shared_name = False
        """Whether two clusters have a broker of this name: then it must show by its settings which one it is."""
        self._client = cluster
        self._wanted = wanted
        self._settle_s = settle_s
        self._clock = clock
        self._monotonic = monotonic
        self._boot: object = None
        self._is_boot_reported = False
        self._settings: dict[str, str] | None = None
        self.record_bytes = RECORD_BYTES
        self.unread: dict[QueueName, range] = {}
        self._ends: dict[QueueName, QueueEnds] = {}
        self._queues_in_tier: dict[str, int] = {}
        """Of a topic one more than the highest queue that the tier has, since a broker may not list it any more."""
        self._rows: Mapping[str, TopicRow] = {}
        self._seen: dict[QueueName, _Seen] = {}
        self._gaps = GapCheck(self._pull, accept_gaps=accept_gaps)
        self._gone: RemotingError | None = None
        self._unchecked: frozenset[str] = frozenset()
        self._looked_s = 0.0
        self._looks = 0

    def move(self, address: str) -> None:
        """The name servers know another address: a new life, also of a broker that took over as master."""
        self.wire = replace(self.wire, address=address)
        self.path = str(self.wire)
        self._boot = object()

    # Looking

    async def ask(self) -> BrokerLook | RemotingError:
        """Everything that planning needs, or why the broker did not give it. Changes nothing."""
        client = self._client.client
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):  # It may have to connect.
                boot, is_reported, runtime = await self._runtime(client)
            settings = self._settings
            if settings is None or boot != self._boot:
                settings = await self._read_settings(client)
            self._require_named(settings)
            topics, names, failed = await self._read_topics(client, settings)
            found, refused = await self._read_ends(client, topics, failed)
            ends = {name: queue for name, queue in found.items() if name[1] < topics[name[0]].read_queues}
            unread = {name: queue for name, queue in found.items() if name not in ends}
            denied, unchecked = await self._check({topic for topic, _ in ends} & self._unchecked, ends)
            ends = {name: queue for name, queue in ends.items() if name[0] not in denied | unchecked}
            refused, failed = refused | denied, failed | unchecked
            return BrokerLook(
                boot, is_reported, runtime, settings, topics, names, ends, unread, refused, failed, frozenset(unchecked)
            )  # fmt: skip
        except RemotingError as error:
            return error
        except TimeoutError:
            return RequestTimedOut(f"{self.wire}: expected an answer within {LOOK_TIMEOUT_S:g} s, found none")
        except Exception as error:  # noqa: BLE001 - the edge of a broker: its answers must not end the job of others
            _log.exception("%s: an answer could not be read", self.wire)
            return RemotingError(f"{self.wire}: expected answers of a broker, found one that cannot be read: {error!r}")

    def take(self, look: BrokerLook | RemotingError) -> None:
        """Plan by this look from now on. What failed is in `error`: then nothing else changed."""
        self._gone = None
        if isinstance(look, RemotingError):
            self.error = look
            return
        self.error, self._unchecked = None, look.unchecked
        self._rows, self._ends = look.topics, look.ends
        self.unread = {name: range(ends.min_offset, ends.max_offset) for name, ends in look.unread.items()}
        self.refused, self.failed, self.topic_names = look.refused, look.failed, look.topic_names
        self.passed_over = {name: row.obstacle for name, row in look.topics.items() if row.obstacle}
        self._settings, self._is_boot_reported = look.settings, look.is_boot_reported
        self._take_life(look.boot)
        average = _count(look.runtime.get("putMessageAverageSize", "").partition(".")[0])
        self.record_bytes = average + RECORD_HEAD_BYTES if average else RECORD_BYTES
        self.earliest_ms = _count(look.runtime.get("earliestMessageTimeStamp", ""))
        hours = _count(self._settings.get("fileReservedTime", ""))
        self.retention_ms = hours * HOUR_MS if hours else None
        self._looked_s = self._monotonic()
        self._looks += 1
        for name, queue in self._ends.items():
            if queue.flushed_offset is None:
                seen = self._seen.get(name)
                if seen is None:
                    seen = self._seen[name] = _Seen()
                seen.note(self._looked_s, queue.max_offset)
        for name in self._seen.keys() - self._ends.keys():
            del self._seen[name]
        self._gaps.keep_only(set(self._ends))

    def _take_life(self, boot: object) -> None:
        if boot != self._boot:
            if self._boot is not None:
                self.life += 1
                self._seen.clear()
            self._boot = boot

    async def _runtime(self, client: ClusterClient) -> tuple[object, bool, dict[str, str]]:
        """What changes when the broker is started again, whether it reports that, and its runtime table.

        Without that table, which an account may not see, it is the connection.
        """
        try:
            answer = await self._ask(client, RequestCode.GET_BROKER_RUNTIME_INFO)
            table = text_map_in(decode_object(answer).get("table") or {}, "the runtime table")
            if "bootTimestamp" in table:
                return table["bootTimestamp"], True, table
        except RequestRefused:
            table = {}
        return await client.at(self.wire.address), False, table

    async def _read_settings(self, client: ClusterClient) -> dict[str, str]:
        try:
            return read_properties((await self._ask(client, RequestCode.GET_BROKER_CONFIG)).decode())
        except (RequestRefused, BadConfig, UnicodeDecodeError):
            return {}  # Then it settles as with ASYNC_FLUSH, and its retention is not known.

    def _require_named(self, settings: Mapping[str, str]) -> None:
        """Raises RemotingError when the broker at this address is another one, or may be."""
        found = settings.get("brokerClusterName"), settings.get("brokerName")
        wanted = self.cluster, self.broker
        if any(name not in (None, own) for name, own in zip(found, wanted, strict=True)):
            raise RemotingError(
                f"{self.wire}: expected the broker {'/'.join(wanted)}, found {found[0]}/{found[1]} at that address; "
                "two clusters at one name server need different broker names"
            )
        if self.is_shared_name and found != wanted:
            raise RemotingError(
                f"{self.wire}: two clusters of the name server have a broker {self.broker}, and the settings of the "
                "one at this address, which would show its cluster, cannot be read. Give one of the two another "
                "brokerName, or use an administrator's account"
            )

    async def _read_topics(
        self, client: ClusterClient, settings: Mapping[str, str]
    ) -> tuple[dict[str, TopicRow], list[str], dict[str, str]]:
        """The wanted topics, the names of all, and topics whose entry cannot be read.

        A TierMQ broker that follows jobs leaves to them what its own settings say of its tier.
        """
        with_transactions = settings.get("tierTransactionsEnable") == "true"
        try:
            address, code = self.wire.address, RequestCode.GET_ALL_TOPIC_CONFIG
            answer = await ask_table(client, address, code, timeout_s=LOOK_TIMEOUT_S)
        except RequestRefused as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            return await self._routed_topics(client, with_transactions)
        found, failed = {}, {}
        table = object_in(decode_object(answer).get("topicConfigTable") or {}, "topicConfigTable")
        for name in table:
            if not self._wanted(name, with_transactions):
                continue
            try:
                row = object_in(table[name], f"the settings of topic {name}")
                attributes = text_map_in(row.get("attributes") or {}, f"the attributes of topic {name}")
                perm = int32_in(row, "perm", PERM_READ)
                queues = int32_in(row, "readQueueNums"), int32_in(row, "writeQueueNums", 0)
                found[name] = TopicRow(name, *queues, perm, attributes)
            except RequestRefused as error:
                failed[name] = str(error)
        return found, sorted(table), failed

    async def _routed_topics(
        self, client: ClusterClient, with_transactions: bool
    ) -> tuple[dict[str, TopicRow], list[str], dict[str, str]]:
        """For an account that may not ask brokers for all topics: name servers know which there are, and where."""
        answer = await client.ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        names = sorted(text_in(name, "topicList") for name in list_in(decode_object(answer.body), "topicList"))
        wanted = [name for name in names if self._wanted(name, with_transactions)]
        found, failed = {}, {}

        async def count(name: str) -> int | RequestRefused:
            try:
                route = await client.find_route(name)
            except RequestRefused as error:
                return error
            return 0 if route is None else sum(place.broker_name == self.broker for place in route.readable)

        for name, queues in zip(wanted, await _some_at_a_time(map(count, wanted)), strict=True):
            if isinstance(queues, RequestRefused):
                failed[name] = str(queues)
            elif queues:
                found[name] = TopicRow(name, queues)
        return found, names, failed

    async def _read_ends(
        self, client: ClusterClient, topics: Mapping[str, TopicRow], failed: dict[str, str]
    ) -> tuple[dict[QueueName, QueueEnds], dict[str, str]]:
        """Where queues begin and end, and the topics that may not be read. Those that fail are added to `failed`."""
        refused: dict[str, str] = {}
        asked = [row for row in topics.values() if not row.obstacle]
        answers = await _some_at_a_time(self._stats(client, row) for row in asked)
        ends: dict[QueueName, QueueEnds] = {}
        for row, found in zip(asked, answers, strict=True):
            if not isinstance(found, RequestRefused):
                ends.update(found)
            elif found.code == ResponseCode.NO_PERMISSION:
                refused[row.name] = str(found)
            else:
                failed[row.name] = f"where its queues begin and end cannot be read: {found}"
        return ends, refused

    async def _stats(self, client: ClusterClient, row: TopicRow) -> dict[QueueName, QueueEnds] | RequestRefused:
        try:
            answer = await self._ask(client, RequestCode.GET_TOPIC_STATS_INFO, topic=row.name)
            table = object_in(decode_object(answer).get("offsetTable") or {}, "offsetTable")
            found = {}
            for key, each in table.items():
                queue_id = int32_in(object_in(decode_body(key.encode()), "a key of offsetTable"), "queueId")
                ends = _ends_of(object_in(each, "a row of offsetTable"))
                if queue_id < 0:
                    raise RequestRefused(f"expected ids of queues from 0 on, found {queue_id}")
                found[row.name, queue_id] = ends
            return found | await self._unlisted(client, row, found)
        except RequestRefused as error:
            return {} if error.code == ResponseCode.TOPIC_NOT_EXIST else error  # Deleted since.

    async def _unlisted(
        self, client: ClusterClient, row: TopicRow, listed: Container[QueueName]
    ) -> dict[QueueName, QueueEnds]:
        """Queues that the broker has and does not list: RocketMQ 4.9 leaves out those that have no writers any more,
        and every version those behind both counts of the topic. Raises RequestRefused.
        """
        count = max(row.read_queues, row.write_queues, self._queues_in_tier.get(row.name, 0))
        each = (queue_id for queue_id in range(count) if (row.name, queue_id) not in listed)
        left_out = list(islice(each, QUEUES_ASKED_MAX + 1))
        if len(left_out) > QUEUES_ASKED_MAX:
            raise RequestRefused(f"expected its {count} queues in the broker's list, found them left out")

        async def ends_of(queue_id: int) -> QueueEnds:
            low, high = [
                await client.ask(
                    self.wire.address, code, timeout_s=LOOK_TIMEOUT_S, topic=row.name, queueId=queue_id
                )
                for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
            ]  # fmt: skip
            return _ends_of({"minOffset": int_field(low, "offset"), "maxOffset": int_field(high, "offset")})

        found = await _some_at_a_time(map(ends_of, left_out))
        return {(row.name, queue_id): ends for queue_id, ends in zip(left_out, found, strict=True)}

    def expect(self, names: Iterable[QueueName]) -> None:
        """The tier has these queues: from now on a look asks for those, too, that the broker does not list."""
        behind: dict[str, int] = {}
        for topic, queue_id in names:
            behind[topic] = max(queue_id + 1, behind.get(topic, 0))
        self._queues_in_tier = behind
        shown = ((row, behind.get(name, 0)) for name, row in self._rows.items() if not row.obstacle)
        if any(count > max(row.read_queues, row.write_queues) for row, count in shown):
            self.take(self._client.run(self.ask()))

    async def _ask(self, client: ClusterClient, code: RequestCode, **fields: Any) -> bytes:
        return bytes((await client.ask(self.wire.address, code, timeout_s=LOOK_TIMEOUT_S, **fields)).body)

    async def check_readable(self) -> None:
        """Pull once of each topic: whether this account may read it. Refusals are in `refused`.

        A topic of which that is not known is in `failed`, and left out until a look finds out.
        """
        refused, unchecked = await self._check({topic for topic, _ in self._ends}, self._ends)
        self.refused, self.failed = self.refused | refused, self.failed | unchecked
        self._ends = {name: queue for name, queue in self._ends.items() if name[0] not in unchecked}
        self._unchecked = frozenset(unchecked)

    async def _check(
        self, topics: Iterable[str], ends: Mapping[QueueName, QueueEnds]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """By a pull behind the end of queue 0: topics that may not be read, and those of which it is not known."""
        refused: dict[str, str] = {}
        unchecked: dict[str, str] = {}

        async def check(topic: str) -> None:
            queue = self._access((topic, 0))
            queue.timeout_s = PULL_TIMEOUT_S
            try:
                await queue.pull(ends[topic, 0].max_offset, "*", 1, tries=TRIES)
            except RequestRefused as error:
                refused[topic] = str(error)
            except RemotingError as error:
                unchecked[topic] = f"whether this account may read it is not known: {error}"

        await _some_at_a_time(check(topic) for topic in sorted(topics) if (topic, 0) in ends)
        return refused, unchecked

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
        if self._settle_s is None:
            return self._safe_settle_s
        return min(SYNC_SETTLE_S, self._settle_s) if self._flushes_each else self._settle_s

    @property
    def _safe_settle_s(self) -> float:
        return SYNC_SETTLE_S if self._flushes_each else flush_bound_s(self._settings or {})

    @property
    def _flushes_each(self) -> bool:
        return (self._settings or {}).get("flushDiskType") == "SYNC_FLUSH"

    @property
    def settle_risk(self) -> str:
        """What the operator's settle time gives up; empty when nothing."""
        if not self.must_be_seen or self.settle_s >= self._safe_settle_s:
            return ""
        return (
            f"--settle {self.settle_s:g} s is shorter than the {self._safe_settle_s:g} s for which this broker may "
            "leave a message unflushed: if its machine loses power, it may give copied offsets to other messages, and "
            "such a queue is refused from then on"
        )

    @property
    def must_be_seen(self) -> bool:
        """Whether messages count only after the settle time, since the broker does not report what it has flushed."""
        return bool(self._seen)

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
        if (wait_s := self._gaps.wait_s(name, self._monotonic(), self.settle_s)) is not None:
            return wait_s
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
        is_begun, at = offset >= 0, offset if offset >= 0 else low
        if at >= high:
            return LocalState(low, high)
        look = Look(self._looks, self._looked_s, low, ends.max_offset)
        found = self._gaps.next_message(name, at, look, self.settle_s, is_begun=is_begun)
        if found is None:
            return LocalState(min(low, at), high)  # Not a gap yet.
        if found >= high:
            return LocalState(low, high)
        return LocalState(low, high, found, self._clock.now_ms(), self.record_bytes * (high - found))

    def collect(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> CollectedRecords:
        """One answer's records. Raises RemotingError, also when there are none where the broker reports some."""
        pulled = self._pull((topic, queue_id), offset)
        found = rebased(pulled.records, offset, max_count, max_bytes, tier_offset, (topic, queue_id))
        if not found.count and self.min_offset(topic, queue_id) <= offset < self.max_offset(topic, queue_id):
            raise RemotingError(
                f"topic {topic!r}, queue {queue_id}: expected message {offset}, which the broker reports, to compare "
                f"it with the tier's; found none (code {pulled.code}, next offset {pulled.next_offset})"
            )
        return found

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
        if self._gone is not None:
            raise self._gone
        queue = self._access(name)
        queue.timeout_s = PULL_TIMEOUT_S
        try:
            return self._client.run(queue.pull(offset, "*", 1, tries=1))
        except (PeerGone, RequestTimedOut) as error:
            self._gone = error
            raise

    def _access(self, name: QueueName) -> QueueAccess:
        return QueueAccess(self._client.client, name[0], QueuePlace(self.broker, self.wire.address, name[1]))


def flush_bound_s(settings: Mapping[str, str]) -> float:
    """How long after a message can be read it is on disk, with ASYNC_FLUSH, by the broker's settings.

    RocketMQ's flush service leaves less than flushCommitLogLeastPages alone until the thorough interval has passed. It
    looks at that before it waits for its interval, and flushes one file at a time: so two intervals more.
    """
    thorough = _count(settings.get("flushCommitLogThoroughInterval", "")) or THOROUGH_FLUSH_MS
    interval = _count(settings.get("flushIntervalCommitLog", "")) or FLUSH_INTERVAL_MS
    return (thorough + 2 * interval) / 1000 + FLUSH_S


def _count(text: str) -> int:
    """A positive number of 32 bits; 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) <= INT_MAX else 0


def _ends_of(row: Mapping[str, Any]) -> QueueEnds:
    """Raises RequestRefused for offsets that cannot be."""
    low, high = max(0, int64_in(row, "minOffset")), max(0, int64_in(row, "maxOffset"))
    flushed = int64_in(row, "flushedOffset") if row.get("flushedOffset") is not None else None
    if high > OFFSET_MAX:
        raise RequestRefused(f"expected offsets of queues up to {OFFSET_MAX}, found {high}")
    return QueueEnds(min(low, high), high, None if flushed is None else max(0, min(high, flushed)))


async def _some_at_a_time(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of coroutines, LOOKS_MAX of them at a time."""
    limit = asyncio.Semaphore(LOOKS_MAX)

    async def one(work: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await work

    return list(await asyncio.gather(*(one(work) for work in works)))
