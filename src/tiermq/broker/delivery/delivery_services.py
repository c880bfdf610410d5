"""DeliveryServices: delayed messages and timers, delivered beside a broker. It serves no request.

Its services begin a second after the broker, as in RocketMQ, and end before the store is closed. Timers are opened with
the broker: sends of timer messages need the wheel. Tiered timers are stored in the tier, if there
is one (`broker.delivery.tiered_timers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.broker_context import BrokerHooks, config_directory, local_half, tiered_store
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.clock import Clock
from tiermq.config import BrokerRole
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.delivery.redeliver import within_topic
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.metrics import Registry

if TYPE_CHECKING:
    from tiermq.broker.broker_context import Store
    from tiermq.delivery.tiered_timers.tier_timers import TieredTimerService

BY_TOPIC_S = 1.0


class DeliveryServices:
    """See the module."""

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        clock: Clock,
        topics: TopicTable,
        metrics: Registry,
        hooks: BrokerHooks,
    ) -> None:
        local, tiered = local_half(store), tiered_store(store)
        root = local.config.root_path
        queue_for = within_topic(local, topics.queue_count)
        self.delay_levels = DelayLevels(
            local, config_directory(root), clock, config.flush_delay_offset_interval, queue_for=queue_for
        )
        self.timers: TimerService | None = None
        self.tiered_timers: TieredTimerService | None = None
        is_slave = local.config.broker_role is BrokerRole.SLAVE  # Its master delivers, and the log brings it here.
        if not is_slave:
            hooks.run(self.delay_levels)
            hooks.holds("delayed messages", lambda: self.delay_levels.waiting_count)
        register_delay_metrics(metrics, self.delay_levels)
        if not config.timer_wheel_enable or is_slave:
            return
        if tiered is not None:
            from tiermq.broker.delivery.tiered_timers import tiered_timer_service

            self.tiered_timers = tiered_timer_service(tiered, config, clock, topics, metrics)
        in_tier = None if self.tiered_timers is None else self.tiered_timers.timers
        self.timers = TimerService(local, root, clock, timer_settings(config), tiered=in_tier, queue_for=queue_for)
        timers = self.timers
        hooks.run(timers)
        hooks.holds("timers", lambda: timers.waiting_count + timers.behind_count)
        if self.tiered_timers is not None:
            hooks.run(self.tiered_timers)
            hooks.holds("timers in the tier", lambda: 0 if in_tier is None else in_tier.kept_count)
        register_timer_metrics(metrics, self.timers)
        hooks.every(BY_TOPIC_S, _report_by_topic(metrics, self.timers))


def timer_settings(config: BrokerConfig) -> TimerSettings:
    return TimerSettings(
        precision_ms=config.timer_precision_ms,
        roll_window_slots=config.timer_roll_window_slot,
        max_delay_s=config.timer_max_delay_sec,
        congest_num_each_slot=config.timer_congest_num_each_slot,
        flush_interval_ms=config.timer_flush_interval_ms,
        log_file_bytes=config.mapped_file_size_timer_log,
        stop_enqueue=config.timer_stop_enqueue,
        stop_dequeue=config.timer_stop_dequeue,
    )


def register_delay_metrics(metrics: Registry, levels: DelayLevels) -> None:
    """Once per registry."""
    metrics.counter("tiermq_delayed_delivered_total", "delayed messages delivered", (), lambda: levels.delivered_count)
    metrics.counter(
        "tiermq_delayed_skipped_total", "delayed messages skipped as undeliverable", (), lambda: levels.skipped_count
    )
    metrics.gauge("tiermq_delayed_waiting", "delayed messages waiting", (), lambda: levels.waiting_count)


def register_timer_metrics(metrics: Registry, timers: TimerService) -> None:
    """Once per registry."""
    counts = timers.counts
    counters = {
        "enqueued": ("timers enqueued, including re-rolls", lambda: counts.enqueued),
        "delivered": ("timers that were delivered", lambda: counts.delivered),
        "rolled": ("timers rolled to a later slot", lambda: counts.rolled),
        "cancelled": ("timers that were cancelled", lambda: counts.cancelled),
        "skipped": ("timers that cannot be delivered", lambda: counts.skipped),
        "far": ("timers moved to the tier", lambda: counts.far),
        "far_errors": ("failed reads of timers in the tier", lambda: counts.far_errors),
    }
    gauges = {
        "waiting": ("timers that wait in the wheel", lambda: timers.waiting_count),
        "behind": ("messages of the timer topic that are not in the wheel yet", lambda: timers.behind_count),
        "read_time_ms": ("the slot up to which timers were delivered", lambda: timers.read_ms),
        "next_due_ms": ("when the next timer of the wheel is due; 0 is none", lambda: timers.next_due_ms() or 0),
    }
    for name, (text, read) in counters.items():
        metrics.counter(f"tiermq_timers_{name}_total", text, (), read)
    for name, (text, read) in gauges.items():
        metrics.gauge(f"tiermq_timers_{name}", text, (), read)
    # Under RocketMQ's names, for its dashboards.
    metrics.counter("rocketmq_timer_enqueue_total", "timers enqueued", (), lambda: counts.enqueued)
    metrics.counter("rocketmq_timer_dequeue_total", "timers delivered", (), lambda: counts.delivered)
    metrics.gauge("rocketmq_timer_enqueue_lag", "messages not in the wheel yet", (), lambda: timers.behind_count)
    metrics.gauge("rocketmq_timer_dequeue_latency", "ms behind the slot that is due", (), timers.delivery_behind_ms)
    metrics.gauge("rocketmq_timer_enqueue_latency", "ms that messages wait for the wheel", (), timers.enqueue_behind_ms)
    metrics.gauge("rocketmq_timer_dequeue_lag", "timers that are due and not delivered", (), timers.due_count)


def _report_by_topic(metrics: Registry, timers: TimerService) -> Callable[[], None]:
    """Sets periodically how many timers wait for each topic."""
    gauge = metrics.gauge("rocketmq_timing_messages", "waiting timers, by topic", ("topic",))
    reported: set[str] = set()

    def tell() -> None:
        counts = timers.waiting_by_topic()
        for topic in reported | counts.keys():
            gauge.labels(topic).set(counts.get(topic, 0))
        reported.update(counts)

    return tell
