"""Tiered timers: a broker with a tier keeps timers that are due late in the tier (`tiermq.delivery.tiered_timers`).

`farTimerHorizon` sets which are stored there: by default a day, or half of the time for which the local store keeps
its files if that is shorter: so timers in the wheel never outlive the log files of their records.
They have a lease of their own, so a broker whose messages a job copies keeps them as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.broker_context import config_directory
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.clock import HOUR_MS, Clock
from tiermq.delivery.redeliver import undeliverable
from tiermq.delivery.tiered_timers.tier_timers import PulledRecord, TieredTimerService, TierTimers
from tiermq.delivery.tiered_timers.tiered_timer_state import TieredTimerState
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.errors import CorruptRecord, StaleWriter
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.properties import REAL_QID, REAL_TOPIC
from tiermq.message.record import decode_record
from tiermq.metrics import Registry
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.tier_wiring import TierComponents
from tiermq.tier.tiered_store import TieredStore

_log = logging.getLogger(__name__)


HORIZON_MS_MAX = 24 * HOUR_MS
HORIZON_MS_MIN = 10 * 60_000
QUEUES_MAX = 1024
"""Maximum queues of a topic that is created for a timer, whatever queue id its record has."""


def horizon_ms(configured_ms: int, file_reserved_hours: int) -> int:
    """How far ahead timers stay local; 0: the default of the module."""
    if configured_ms > 0:
        return configured_ms
    return max(HORIZON_MS_MIN, min(HORIZON_MS_MAX, file_reserved_hours * HOUR_MS // 2))


def tiered_timer_service(
    store: TieredStore, broker_config: BrokerConfig, clock: Clock, topics: TopicTable, metrics: Registry
) -> TieredTimerService:
    """Keeps timers in the tier of a store. Asks the tier nothing."""
    tier, local_config = store.tier, store.local.config
    place = (tier.config.broker_cluster_name, tier.config.broker_name)
    state = TieredTimerState(tier.driver, *place, tier_owner(tier))
    record = PulledRecord(config_directory(local_config.root_path), state.place, OsFileAccess())
    horizon = horizon_ms(broker_config.far_timer_horizon, local_config.file_reserved_time)
    timers = TierTimers(state, record, clock, horizon, on_given=KnownTopics(topics).serve)
    service = TieredTimerService(timers)
    register_tiered_timer_metrics(metrics, timers)
    return service


class KnownTopics:
    """Makes the topics of timers that come back, where they are not known: a disk that was lost had its file of topics
    on it, and what is delivered to a topic that is not served cannot be read. Used by the timer service's thread.
    """

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics

    def serve(self, timer: TieredTimer) -> None:
        try:
            message = decode_record(timer.record)
            topic, queue_id = message.get_property(REAL_TOPIC), message.get_property(REAL_QID) or ""
        except CorruptRecord:
            return  # The wheel reports it.
        if topic is None or timer.is_delete or undeliverable(topic, queue_id) or self._topics.get(topic) is not None:
            return
        queues = max(self._topics.config.default_topic_queue_nums, min(int(queue_id) + 1, QUEUES_MAX))
        _log.warning("topic %s is created with %d queues for a timer from the tier", topic, queues)
        self._topics.make(topic, queues, queues)


def register_tiered_timer_metrics(registry: Registry, timers: TierTimers) -> None:
    registry.gauge("tiermq_far_timers", "timers stored in the tier", (), lambda: timers.kept_count)
    registry.gauge("tiermq_far_timer_bytes", "bytes of them", (), lambda: timers.kept_bytes)
    registry.gauge(
        "tiermq_far_timers_unflushed", "timers being uploaded to the tier", (), lambda: timers.buffered_count
    )
    registry.counter("tiermq_far_timers_pulled_total", "timers read back from the tier", (), lambda: timers.given_count)
    registry.counter(
        "tiermq_far_timers_damaged_total", "timers in the tier that cannot be read", (), lambda: timers.damaged_count
    )


class TierOwner:
    """The broker's lease of delivery (`TimerOwner`): its holder writes tiered timers. Any thread may ask.

    `require_broker` raises StaleWriter in a process that may not be this broker at all, such as a copy of its store.
    The lease is renewed when it is asked for: the timer service asks every few seconds. The store releases it.
    """

    def __init__(self, lease: BrokerLease, require_broker: Callable[[], None] = lambda: None) -> None:
        self._lease = lease
        self._require_broker = require_broker
        self._lock = threading.Lock()

    @property
    def writer(self) -> str:
        return self._lease.owner

    def own(self) -> int:
        lease = self._lease
        with self._lock:
            try:
                self._require_broker()
            except StaleWriter:
                lease.release()  # The process that is the broker now need not wait.
                raise
            if lease.is_held:
                if lease.is_renewal_due():
                    lease.renew()
                return lease.epoch
            if lease.has_twin():
                raise StaleWriter(f"{lease.name}: another {lease.owner} owns the tiered timers; stop one of the two")
            try:
                return lease.acquire()
            except LeaseHeld as error:
                raise StaleWriter(f"another process owns the tiered timers: {error}") from error

    def check(self) -> None:
        self._lease.check()


def tier_owner(tier: TierComponents) -> TierOwner:
    """The right of a store to write tiered timers, also where a job copies its messages."""
    writer = tier.writer

    def require_broker() -> None:
        writer.claim()
        if writer.refusal:
            raise StaleWriter(f"{tier.lease.name}: another process owns the tiered timers: {writer.refusal}")

    return TierOwner(tier.delivery_lease, require_broker if tier.follower is None else writer.require_known_tier)
