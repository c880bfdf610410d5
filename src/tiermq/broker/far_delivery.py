"""Far delivery: a broker with a tier keeps timers that are due late in the tier (`tiermq.delivery.far`).

Which are late is said by `farTimerHorizon`. By default it is a day, or half of the time for which the local store keeps
its files if that is shorter: so what waits in the wheel never outlives the files that it lies in.
A store that leaves its tier to a job does not own it and keeps no timers there; nor does one without a tier.
"""

from __future__ import annotations

import logging

from tiermq.broker.parts import BrokerParts, config_directory
from tiermq.broker.topics import TopicTable
from tiermq.delivery.far.far_service import FarTimerService
from tiermq.delivery.far.far_state import TimerState
from tiermq.delivery.far.pulled_record import PulledRecord
from tiermq.delivery.far.tier_owner import TierOwner
from tiermq.delivery.far.tier_timers import TierTimers
from tiermq.delivery.put_again import undeliverable
from tiermq.delivery.timer.far_timers import FarTimer
from tiermq.errors import CorruptRecord
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.properties import REAL_QID, REAL_TOPIC
from tiermq.message.record import decode_record
from tiermq.metrics import Registry

_log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
HORIZON_MS_MAX = 24 * HOUR_MS
HORIZON_MS_MIN = 10 * 60_000
QUEUES_MAX = 1024
"""Of a topic that is made because a timer names it: what a record says is no measure of what a topic needs."""


def horizon_ms(configured_ms: int, file_reserved_hours: int) -> int:
    """How far ahead timers stay local; 0 is as the module says."""
    if configured_ms > 0:
        return configured_ms
    return max(HORIZON_MS_MIN, min(HORIZON_MS_MAX, file_reserved_hours * HOUR_MS // 2))


def far_timers(parts: BrokerParts) -> FarTimerService | None:
    """The place for far timers, and who tends it; None where there is none. Asks the tier nothing."""
    store = parts.tiered
    if store is None:
        return None
    tier, root = store.tier, parts.local.config.root_path
    if tier.follower is not None:
        _log.warning(
            "%s: a job writes this tier, so timers that wait in it are not delivered and none are put there; open the "
            "store with tierDispatchEnable=true for that",
            tier.driver.url,
        )
        return None
    state = TimerState(
        tier.driver, tier.config.broker_cluster_name, tier.config.broker_name, TierOwner(tier.writer, tier.lease)
    )
    record = PulledRecord(config_directory(root), state.place, OsFileAccess())
    horizon = horizon_ms(parts.config.far_timer_horizon, parts.local.config.file_reserved_time)
    timers = TierTimers(state, record, parts.clock, horizon, on_given=KnownTopics(parts.topics).serve)
    service = FarTimerService(timers)
    register_far_metrics(parts.metrics, timers)
    return service


class KnownTopics:
    """Makes the topics of timers that come back, where they are not known: a disk that was lost had its file of topics
    on it, and what is delivered to a topic that is not served cannot be read. Used by the timer service's thread.
    """

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics

    def serve(self, timer: FarTimer) -> None:
        try:
            message = decode_record(timer.record)
            topic, queue_id = message.get_property(REAL_TOPIC), message.get_property(REAL_QID) or ""
        except CorruptRecord:
            return  # The wheel reports it.
        if topic is None or timer.is_delete or undeliverable(topic, queue_id) or self._topics.get(topic) is not None:
            return
        queues = max(self._topics.config.default_topic_queue_nums, min(int(queue_id) + 1, QUEUES_MAX))
        _log.warning("topic %s is made, with %d queues: a timer for it has come back from the tier", topic, queues)
        self._topics.make(topic, queues, queues)


def register_far_metrics(registry: Registry, timers: TierTimers) -> None:
    registry.gauge("tiermq_far_timers", "timers that the tier keeps", (), lambda: timers.kept_count)
    registry.gauge("tiermq_far_timer_bytes", "bytes of them", (), lambda: timers.kept_bytes)
    registry.gauge("tiermq_far_timers_unflushed", "timers on their way there", (), lambda: timers.buffered_count)
    registry.counter("tiermq_far_timers_pulled_total", "timers brought back", (), lambda: timers.given_count)
    registry.counter(
        "tiermq_far_timers_damaged_total", "timers in the tier that cannot be read", (), lambda: timers.damaged_count
    )
