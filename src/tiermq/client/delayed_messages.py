"""Messages that wait at brokers, TierMQ's and RocketMQ's, found and cancelled over the wire.

No request of RocketMQ's asks for them, but the topics that they wait in can be read like others: the timer topic holds
every timer as it was sent and each time that it rolled, cancellations besides; a queue of the schedule topic all
messages of a level. What is due by the broker's clock, was cancelled or came again later is left out.

Timers that wait in a tier only are not found there, since their messages have left the local store: they are read from
the tier (`timers_in_tier`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.client.producer import Outgoing, Producer
from tiermq.client.queue_access import QueueAccess, find_by_key, patiently
from tiermq.config import StoreConfig
from tiermq.delivery.tiered_timers.timer_discovery import discover_timers, waiting_in_tier
from tiermq.delivery.timer.timer_destination import PRECISION_MS, TIMER_QUEUE, delete_key
from tiermq.delivery.timer.timer_listing import WaitingTimer, described, described_level
from tiermq.delivery.timer.timer_record import cancel_key, own_key, read_timer
from tiermq.delivery.timer.timer_service import CANCEL_BODY, CANCEL_TAG
from tiermq.errors import BadConfig, CorruptRecord, RemotingError, RequestRefused
from tiermq.message.properties import TAGS, TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, UNIQ_KEY, encode_properties
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import SCHEDULE_TOPIC, TIMER_TOPIC
from tiermq.remoting.codes import RequestCode
from tiermq.settings import read_properties
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.queue.segments import TierScope

GROUP = "TIERMQ_DELAYED"


@dataclass(frozen=True, slots=True)
class AtBroker:
    """One message that waits, and where."""

    broker_name: str
    waiting: WaitingTimer

    def to_dict(self) -> dict[str, Any]:
        return {"broker": self.broker_name, **self.waiting.to_dict()}


@dataclass(slots=True)
class ReadBounds:
    """How much of what waits is read: of each delay level the next messages, of timers the newest.

    A level is in the order of its times. Timers are in the order in which they came, each before its cancellation.
    """

    each_level: int
    timers: int
    is_over: Callable[[], bool] = lambda: False
    """Whether reading has to end."""
    notes: list[str] = field(default_factory=list)
    """What was left out, in words."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """A broker's settings of delays."""

    precision_ms: int
    delays_ms: tuple[int, ...]


async def delayed_messages(
    cluster: ClusterClient,
    *,
    only_cluster: str | None = None,
    masters: Mapping[str, str] | None = None,
    bounds: ReadBounds | None = None,
) -> AsyncIterator[AtBroker]:
    """What waits at every broker, or these masters: its timers, then its delayed messages, each by level.

    Raises RemotingError.
    """
    is_over = (lambda: False) if bounds is None else bounds.is_over
    for name, address in sorted((await cluster.masters(only_cluster) if masters is None else masters).items()):
        rules = await _rules_of(cluster, address)
        for waiting in await _timers_at(cluster, name, address, rules, bounds):
            yield AtBroker(name, waiting)
        for level, delay_ms in enumerate(rules.delays_ms, start=1):
            queue = QueueAccess(cluster, SCHEDULE_TOPIC, QueuePlace(name, address, level - 1))
            begin, count = await queue.offset_at(_now_ms() - delay_ms), 0
            async for message in _messages(queue, begin, is_over):
                if message.store_timestamp_ms + delay_ms > _now_ms():
                    yield AtBroker(name, described_level(message, level, delay_ms))
                    count += 1
                if bounds is not None and count >= bounds.each_level:
                    break
        if bounds is not None and bounds.is_over():
            bounds.notes.append(f"what waits at {name} was not read to its end")


async def _rules_of(cluster: ClusterClient, address: str) -> _Rules:
    """A broker that does not return its settings (no permission) is assumed to have the defaults."""
    defaults = StoreConfig()
    try:
        answer = await cluster.ask(address, RequestCode.GET_BROKER_CONFIG)
        settings = read_properties(bytes(answer.body).decode())
        delays = settings.get("messageDelayLevel", defaults.message_delay_level)
        precision_ms = int(settings.get("timerPrecisionMs", PRECISION_MS))
        return _Rules(precision_ms, defaults.with_settings(message_delay_level=delays).delay_levels_ms)
    except (RequestRefused, BadConfig, ValueError):
        return _Rules(PRECISION_MS, defaults.delay_levels_ms)


async def _timers_at(
    cluster: ClusterClient, name: str, address: str, rules: _Rules, bounds: ReadBounds | None
) -> list[WaitingTimer]:
    queue = QueueAccess(cluster, TIMER_TOPIC, QueuePlace(name, address, TIMER_QUEUE))
    found: dict[str, WaitingTimer] = {}
    cancelled: set[str] = set()
    low, end = await queue.bounds()
    if bounds is not None and end - low > bounds.timers:
        bounds.notes.append(f"the newest {bounds.timers:,} of {end - low:,} records of timers at {name} were read")
        low = end - bounds.timers
    async for message in _messages(queue, low, (lambda: False) if bounds is None else bounds.is_over):
        try:
            timer = read_timer(message)
        except CorruptRecord:
            continue  # The broker passes it over, too.
        if timer.deliver_ms + rules.precision_ms <= _now_ms():
            continue
        if timer.is_delete:
            cancelled.add(cancel_key(message) or "")
        else:
            # One that rolled is there again, with the same key.
            found[own_key(message) or message.message_id] = described(message, rules.precision_ms)
    return [waiting for key, waiting in found.items() if key not in cancelled]


async def _messages(queue: QueueAccess, offset: int, is_over: Callable[[], bool]) -> AsyncIterator[StoredMessage]:
    _, end = await queue.bounds()
    while offset < end and not is_over():
        pulled = await queue.pull(offset)
        for message in queue.messages_of(pulled):
            yield message
        if pulled.next_offset <= offset:
            return
        offset = pulled.next_offset


async def cancel_timer(cluster: ClusterClient, topic: str, unique_key: str) -> list[AtBroker]:
    """Cancel the timers of a topic with a unique key, wherever they wait; which those were. Raises RemotingError."""
    done = []
    for name, address in sorted((await cluster.masters()).items()):
        rules = await _rules_of(cluster, address)
        for message in await _with_key(cluster, address, unique_key):
            waiting = described(message, rules.precision_ms)
            if waiting.topic == topic and waiting.deliver_ms > _now_ms():
                await send_cancellation(cluster, name, topic, unique_key, read_timer(message).deliver_ms + 1)
                done.append(AtBroker(name, waiting))
                break
    return done


def timers_in_tier(tier: TierDriver, now_ms: int, cluster: str | None = None) -> Iterator[AtBroker]:
    """The tiered timers of every broker. Raises TierError."""
    for listing in discover_timers(tier, TierScope(cluster)):
        for waiting in waiting_in_tier(tier, listing, now_ms):
            yield AtBroker(listing.broker, waiting)


async def cancel_in_tier(cluster: ClusterClient, found: Iterable[AtBroker]) -> None:
    """Send a cancellation to each broker whose tier has one of the timers. Raises RemotingError."""
    for each in found:
        waiting = each.waiting
        assert waiting.unique_key is not None, "it was found by its unique key"
        # A time in the timer's own slot, at any precision of the broker.
        slot_ms = waiting.deliver_ms - PRECISION_MS
        await send_cancellation(cluster, each.broker_name, waiting.topic, waiting.unique_key, slot_ms + 1)


async def _with_key(cluster: ClusterClient, address: str, unique_key: str) -> list[StoredMessage]:
    """The timers of a broker with a unique key, newest first; none if the newest is a cancellation."""
    found = await patiently(lambda: find_by_key(cluster, address, TIMER_TOPIC, unique_key, unique=True))
    found.sort(key=lambda message: message.queue_offset, reverse=True)
    cancelled = {cancel_key(message) for message in found}
    return [message for message in found if cancel_key(message) is None and own_key(message) not in cancelled]


async def send_cancellation(
    cluster: ClusterClient, broker_name: str, topic: str, unique_key: str, deliver_ms: int
) -> None:
    """Send the cancellation to the broker that has the timer: for the timer's own time. Raises RemotingError."""
    producer = Producer(cluster, GROUP)
    place = next((each for each in await producer.places(topic) if each.broker_name == broker_name), None)
    if place is None:
        raise RemotingError(f"topic {topic}: expected a queue to write to at {broker_name}, which has the timer: none")
    properties = {
        TAGS: CANCEL_TAG,
        TIMER_DEL_UNIQKEY: delete_key(topic, unique_key),
        UNIQ_KEY: unique_key,
        TIMER_DELIVER_MS: str(deliver_ms),
    }
    message = Outgoing(topic, place, CANCEL_BODY, encode_properties(properties), unique_key, _now_ms(), alone=True)
    await producer.send([message])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
