"""plan: what is to be done with one queue now. A function of values; everything that acts is in `execute`.

Evaluated in this order, the first that fits decides (the numbers are those of RocketMQ's procedure):

    -   no epoch: another writer may own the queue    Nothing
    4   no place in the tier yet                      Init at the oldest local message, or Nothing without one
    5   appended and not committed, or not indexed    RetryCommit
    7   the next message is gone locally              Gap up to the oldest that is there; history stays
    8   the tier is ahead of the local queue          Nothing, loudly
    9   the commit log is old and large enough        Roll
    10  everything is there                           Nothing
    11  no record at the next offset                  Gap up to the next message, or Nothing if there is none yet
    12  few messages, small and young                 Hold until the oldest is old enough
    13  otherwise                                     Upload

Rows 1 to 3 (paused, busy, filtered) are decided by the engine before it reads the queue's state; row 6 (index what a
failed batch left) is part of RetryCommit. Offsets are queue offsets.

Which topics never enter the tier and are always read locally.

Blank names, the system's own topics and light queues. Retry and dead-letter topics do enter it. With a whitelist, only
its topics do (and those of the rules above still do not). System topics that are named (`also`) enter it all the same:
those of transactions, when a broker is configured to keep their outcomes.
What the tier has of a filtered topic from earlier stays until it expires.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tiermq.clock import HOUR_MS
from tiermq.message.topic_name import is_light_queue, is_system_topic


class TopicFilter:
    """Any thread may call. Results are cached: a call is one lookup."""

    def __init__(
        self,
        broker: str = "",
        cluster: str = "",
        *,
        whitelist: Iterable[str] | None = None,
        also: Iterable[str] = (),
    ) -> None:
        self._own_names = {broker, cluster} - {""}
        self._also = frozenset(also)
        self._whitelist = None if whitelist is None else frozenset(whitelist)
        self._answers: dict[str, bool] = {}

    def is_filtered(self, topic: str) -> bool:
        """True: never tiered."""
        answer = self._answers.get(topic)
        if answer is None:
            answer = self._answers[topic] = self._decide(topic)
        return answer

    def _decide(self, topic: str) -> bool:
        if topic in self._also:
            return False
        if not topic or topic.isspace() or is_system_topic(topic) or is_light_queue(topic):
            return True
        return topic in self._own_names or (self._whitelist is not None and topic not in self._whitelist)


class Reason(enum.Enum):
    """Why nothing is to be done."""

    NO_EPOCH = "this writer does not own the queue"
    NO_LOCAL_QUEUE = "the local store has no such queue"
    NO_MESSAGES = "the queue has had no message yet"
    AHEAD_OF_LOCAL = "the tier holds more than the local queue"
    CAUGHT_UP = "everything is in the tier"
    UNREADABLE = "the local store has a unit but not yet its record"


@dataclass(frozen=True, slots=True)
class Nothing:
    reason: Reason


@dataclass(frozen=True, slots=True)
class Init:
    """Let the queue begin in the tier at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class RetryCommit:
    """Repeat the commit that failed, and give the index what it has not got."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages [from_offset, to_offset) are lost: record a gap, and continue behind it."""

    from_offset: int
    to_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Roll:
    """End the commit log's segment before it is full."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait for more messages, but not beyond `until_ms`."""

    reason: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Upload:
    """Copy messages from `offset` on, one at least. `repeat`: there will be more to do right afterwards."""

    offset: int
    max_count: int
    max_bytes: int
    repeat: bool


Plan: TypeAlias = Nothing | Init | RetryCommit | Gap | Roll | Hold | Upload


@dataclass(frozen=True, slots=True)
class DispatchConfig:
    """RocketMQ's settings, by its names: tieredStoreGroupCommit, …Timeout, …Count, …Size, commitLogRolling…."""

    group_commit: bool = True
    group_commit_timeout_ms: int = 30_000
    group_commit_count: int = 4_096
    group_commit_bytes: int = 4_194_304
    rolling_interval_hours: int = 24
    rolling_minimum_bytes: int = 16_777_216


@dataclass(frozen=True, slots=True)
class QueueState:
    """The queue as the tier and its writer see it."""

    initialised: bool = True
    commit_offset: int = 0
    append_offset: int = 0
    epoch: int = 1
    unindexed: bool = False
    log_bytes: int = 0
    log_created_ms: int = 0


@dataclass(frozen=True, slots=True)
class LocalState:
    """The queue in the local store: messages [min_offset, max_offset) may be copied, as they are durable there.

    `next_offset` is the first of them, at or behind the next offset of the tier, whose record can be read, and
    `next_ms` when it was stored; None: there is none. `backlog_bytes` is an estimate of what waits.
    """

    min_offset: int
    max_offset: int
    next_offset: int | None = None
    next_ms: int = 0
    backlog_bytes: int = 0


def plan(
    queue: QueueState, local: LocalState | None, config: DispatchConfig, now_ms: int, *, force: bool = False
) -> Plan:
    """See the module. `force`: do not hold anything back."""
    if queue.epoch <= 0:
        return Nothing(Reason.NO_EPOCH)
    unfinished = queue.commit_offset < queue.append_offset or queue.unindexed
    if queue.initialised and unfinished:
        return RetryCommit()
    if local is None:
        return Nothing(Reason.NO_LOCAL_QUEUE)
    if not queue.initialised:
        return Nothing(Reason.NO_MESSAGES) if local.next_offset is None else Init(local.next_offset)
    at = queue.append_offset
    if at < local.min_offset:
        to_offset = local.min_offset if local.next_offset is None else local.next_offset
        return Gap(at, to_offset, "gone from the local store before they were copied")
    if at > local.max_offset:
        return Nothing(Reason.AHEAD_OF_LOCAL)
    old = now_ms - queue.log_created_ms > config.rolling_interval_hours * HOUR_MS
    if old and queue.log_bytes >= max(1, config.rolling_minimum_bytes):
        return Roll()
    if at == local.max_offset:
        return Nothing(Reason.CAUGHT_UP)
    if local.next_offset is None:
        return Nothing(Reason.UNREADABLE)
    if local.next_offset > at:
        return Gap(at, local.next_offset, "the local queue has no message at these places")
    return _batch(at, local, config, now_ms, force or not config.group_commit)


def _batch(at: int, local: LocalState, config: DispatchConfig, now_ms: int, force: bool) -> Plan:
    waiting = local.max_offset - at
    timed_out = local.next_ms + config.group_commit_timeout_ms < now_ms
    full = waiting > config.group_commit_count or local.backlog_bytes >= config.group_commit_bytes
    if not (timed_out or full or force):
        # Strictly older than the timeout, as RocketMQ counts it.
        return Hold("waiting for more messages", local.next_ms + config.group_commit_timeout_ms + 1)
    repeat = timed_out or force or full
    return Upload(at, min(waiting, config.group_commit_count), config.group_commit_bytes, repeat)
