"""One task of a replay to brokers: read source queues, and send each in its order to one target queue.

    scan ─► rows ─► map ─► windows ─► batches, one in flight per source queue ─► acknowledged ─► window in the record

A task that is run again continues after the last recorded window. What follows may have been sent by the attempt that
died: its first batch was acknowledged before others left, so if the first message of the window is at no broker, none
is; otherwise each message of the window is asked for, by its unique key and its mark. An account without the right to
ask (SUB), or a broker whose key index is behind, has that window twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tiermq.client.cluster_client import Access, BlockingCluster, ClusterClient, QueuePlace
from tiermq.client.producer import Outgoing, Producer, batches_of
from tiermq.errors import BadOption, RemotingError
from tiermq.history.scan_values import ScanCounters, ScanTask
from tiermq.message.properties import UNIQ_KEY
from tiermq.pipeline.replay.message import MARK, ReplayMapping, ReplayMessage
from tiermq.pipeline.replay.plan import RateLimiter
from tiermq.pipeline.replay.task import made_of_row, scanned, staged_row
from tiermq.pipeline.replay.wire_record import RENEW_S, SentLine, SentWindows, TargetQueue, TaskClaim
from tiermq.pipeline.worker_cache import driver_of
from tiermq.remoting.tls import ANY_SERVER, ClientTls
from tiermq.tier.names import QueueKey

GROUP = "tiermq_replay"
SEND_WINDOW_MESSAGES = 2000
SEND_WINDOW_BYTES = 4 << 20
LANES_AT_ONCE = 16
CLAIM_LOOK_S = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WireTarget:
    """The brokers that are replayed to. The keys of an account are in the environment of each process."""

    name_servers: str
    tls: bool = False
    certificates: ClientTls = ANY_SERVER

    def access(self) -> Access:
        return Access.of_environment(self.name_servers, tls=self.tls, certificates=self.certificates)


@dataclass(frozen=True, slots=True)
class SendTask:
    """Parts of source queues, no queue twice. `rate` and `messages_max` are for all of them together."""

    name: str  # Of the replay: the first part of marks.
    number: int  # Of the task within its wave.
    record: str
    target: WireTarget
    mapping: ReplayMapping
    targets: dict[str, tuple[TargetQueue, ...]]
    brokers: tuple[str, ...]  # Of the sources, sorted.
    scans: tuple[ScanTask, ...]
    rate: float | None = None
    messages_max: int | None = None


@dataclass(slots=True)
class SentQueue:
    """What became of one scan: everything before `next_offset` is done."""

    queue: QueueKey
    next_offset: int
    messages: int = 0
    found: int = 0  # Of these, sent by an attempt that died before.
    read_rows: int = 0
    read_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def send_replay(task: SendTask) -> list[SentQueue]:
    """Do a task. Raises what reading raises, BadOption, IllegalMessage, SendOvertaken, and RemotingError."""
    with BlockingCluster(task.target.access()) as cluster:
        return cluster.run(_Sending(cluster.client, task).run())


def target_queue(message: ReplayMessage, queues: Sequence[TargetQueue], brokers: Sequence[str]) -> TargetQueue:
    """Where a message goes: the queue of the same broker and id if there is one; otherwise source queues are spread.

    The same for all messages of a source queue with one queue id: so they keep their order.
    """
    source = message.source.broker
    if (source, message.queue_id) in queues:
        return source, message.queue_id
    own = [each for each in queues if each[0] == source]
    if own:
        return own[message.queue_id % len(own)]
    return queues[(message.queue_id * len(brokers) + brokers.index(source)) % len(queues)]


class _Sending:
    """One attempt of a task. Belongs to the client's loop; one thread reads, as a history is read by one."""

    def __init__(self, client: ClusterClient, task: SendTask) -> None:
        self._client = client
        self._task = task
        self._producer = Producer(client, GROUP)
        self._limiter = RateLimiter(task.rate)
        self._left = task.messages_max
        self._writer = uuid.uuid4().hex
        self._room = asyncio.Semaphore(LANES_AT_ONCE)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="replay-reader")
        self._places: dict[str, dict[TargetQueue, QueuePlace]] = {}
        self._chosen: dict[tuple[str, str, int], QueuePlace] = {}

    async def run(self) -> list[SentQueue]:
        """All source queues, several at a time. What fails for one does not stop the others, and is raised at last."""
        claim = TaskClaim(driver_of(self._task.record), f"{self._task.number:04d}", self._writer)
        while not await asyncio.to_thread(claim.take, time.monotonic()):
            await asyncio.sleep(CLAIM_LOOK_S)
        sending = asyncio.gather(*map(self._replay_queue, self._task.scans), return_exceptions=True)
        renewing = asyncio.create_task(_renew(claim))
        try:
            both: set[asyncio.Future[Any]] = {sending, renewing}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                renewing.result()  # It ends by an error only.
            done = sending.result()
        finally:
            renewing.cancel()
            sending.cancel()
            await asyncio.gather(renewing, sending, return_exceptions=True)
            self._reader.shutdown()
            await asyncio.to_thread(claim.release)
        for each in done:
            if isinstance(each, BaseException):
                raise each
        return [each for each in done if isinstance(each, SentQueue)]

    async def _replay_queue(self, scan: ScanTask) -> SentQueue:
        async with self._room:
            windows = SentWindows(driver_of(self._task.record), scan.queue, self._writer)
            before = await self._off_loop(lambda: windows.since(scan.from_offset))
            done = SentQueue(scan.queue, scan.from_offset, len(before), len(before))
            if before:
                done.next_offset = before[-1].source_offset + 1
            if done.next_offset >= scan.to_offset:
                return done
            read = _windows(replace(scan, from_offset=done.next_offset), self._task.mapping, done)
            is_first = True
            while self._left != 0:
                wanted = await self._off_loop(lambda: next(read, None))
                if wanted is None:
                    done.next_offset = scan.to_offset
                    break
                some = self._allowed(wanted)
                if some:
                    lines = await self._send(some, done, may_be_there=is_first)
                    await self._off_loop(lambda lines=lines: windows.add(lines))  # type: ignore[misc] # As lambdas are.
                    done.next_offset = some[-1].source.queue_offset + 1
                    done.messages += len(some)
                    is_first = False
            return done

    def _allowed(self, wanted: list[ReplayMessage]) -> list[ReplayMessage]:
        """As many of the first ones as may still be sent by this task."""
        if self._left is None:
            return wanted
        some = wanted[: self._left]
        self._left -= len(some)
        return some

    async def _send(self, messages: Sequence[ReplayMessage], done: SentQueue, *, may_be_there: bool) -> list[SentLine]:
        """Send a window; returns its lines when all of it is acknowledged."""
        outgoing = [await self._outgoing(each) for each in messages]
        offsets: dict[str, int] = {}
        if may_be_there and await self._producer.find_stored(outgoing[0], is_strict=False) is not None:
            found = await self._producer.stored(outgoing, is_strict=False)
            offsets = {
                _mark(message): there.queue_offset
                for message, there in zip(outgoing, found, strict=True)
                if there is not None
            }
            done.found += len(offsets)
        for batch in batches_of([message for message in outgoing if _mark(message) not in offsets]):
            for at in range(0, len(batch), self._limiter.at_once):
                some = batch[at : at + self._limiter.at_once]
                for message, offset in zip(some, await self._producer.send_batch(some), strict=True):
                    offsets[_mark(message)] = offset
                await asyncio.sleep(self._limiter.after(len(some)))
        return [
            SentLine(
                message.source.queue_offset, out.topic, out.place.broker_name, out.place.queue_id, offsets[_mark(out)]
            )
            for message, out in zip(messages, outgoing, strict=True)
        ]

    async def _outgoing(self, message: ReplayMessage) -> Outgoing:
        place = await self._place(message)
        key = message.properties.get(UNIQ_KEY)
        if not key:
            key = hashlib.sha256(f"{self._task.name}:{message.source.text}".encode()).hexdigest()[:32].upper()
            message = replace(message, properties={**message.properties, UNIQ_KEY: key})
        row = staged_row(self._task.name, message)
        mark = (MARK, f"{self._task.name}:{message.source.text}")
        return Outgoing(
            row["topic"], place, row["body"], row["properties"], key, row["bornMs"], flag=row["flag"], mark=mark
        )

    async def _place(self, message: ReplayMessage) -> QueuePlace:
        name = (message.topic, message.source.broker, message.queue_id)
        if name not in self._chosen:
            places = await self._places_of(message.topic)
            queues = self._task.targets.get(message.topic) or tuple(sorted(places))
            queue = target_queue(message, queues, self._task.brokers)
            if queue not in places:
                raise RemotingError(
                    f"topic {message.topic}: expected queue {queue[1]} of broker {queue[0]} to write to, as at the "
                    "start of this replay, found it at no name server; run it again when it is there"
                )
            self._chosen[name] = places[queue]
        return self._chosen[name]

    async def _places_of(self, topic: str) -> dict[TargetQueue, QueuePlace]:
        if topic not in self._places:
            route = await self._client.find_route(topic)
            if route is None or not route.writable:
                raise no_target(topic)
            self._places[topic] = {(place.broker_name, place.queue_id): place for place in route.writable}
        return self._places[topic]

    async def _off_loop(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, work)


async def _renew(claim: TaskClaim) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        await asyncio.to_thread(claim.renew)


def no_target(topic: str) -> BadOption:
    return BadOption(
        f"expected a topic {topic} with queues to write to, found none: `tiermq topic create {topic}` creates it, and "
        "so does this command with --create QUEUES"
    )


def _mark(message: Outgoing) -> str:
    assert message.mark is not None
    return message.mark[1]


def _windows(scan: ScanTask, mapping: ReplayMapping, done: SentQueue) -> Iterator[list[ReplayMessage]]:
    """What is to be sent of a scan, in its order, in windows of limited size."""
    counters = ScanCounters()
    window: list[ReplayMessage] = []
    size = 0
    for batch in scanned(scan, counters, done.problems):
        done.read_bytes = counters.hot_bytes_read + counters.cold_bytes_read
        for row in batch.to_pylist():
            if row["queueOffset"] < scan.from_offset:
                continue
            done.read_rows += 1
            made = made_of_row(row, mapping, done.problems)
            if made is not None and not made.body:
                done.problems.append(f"{made.source.text}: it has no body; brokers refuse such messages")
            elif made is not None:
                window.append(made)
                size += len(made.body)
            if len(window) >= SEND_WINDOW_MESSAGES or size >= SEND_WINDOW_BYTES:
                yield window
                window, size = [], 0
    if window:
        yield window
