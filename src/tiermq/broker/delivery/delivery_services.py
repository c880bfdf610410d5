"""DeliveryProcessor: runs the delivery of delayed messages and of timers beside a broker. It serves no request.

Both begin a second after the broker, as RocketMQ does, and end before the store is closed. Timers are opened with the
broker: what is sent for a time of its own must know the wheel. Those that are due late wait in the tier, if there is
one (`far_delivery`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tiermq.broker.parts import BrokerParts, config_directory
from tiermq.config import BrokerRole
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_settings import TimerSettings
from tiermq.metrics import Registry

if TYPE_CHECKING:
    from tiermq.delivery.far.far_service import FarTimerService

FIRST_S = 1.0


class DeliveryProcessor:
    """See the module."""

    def __init__(self, parts: BrokerParts) -> None:
        root = parts.local.config.root_path
        interval_ms = parts.config.flush_delay_offset_interval
        self.delay_levels = DelayLevels(
            parts.local, config_directory(root), parts.clock, interval_ms, queue_for=parts.queue_for
        )
        self.timers: TimerService | None = None
        self.far: FarTimerService | None = None
        self._stopped = False
        register_delay_metrics(parts.metrics, self.delay_levels)
        if parts.config.timer_wheel_enable and parts.local.config.broker_role is not BrokerRole.SLAVE:
            if parts.tiered is not None:
                from tiermq.broker.far_delivery import far_timers

                self.far = far_timers(parts)
            far = None if self.far is None else self.far.timers
            self.timers = parts.timers = TimerService(
                parts.local, root, parts.clock, timer_settings(parts), far=far, queue_for=parts.queue_for
            )
            register_timer_metrics(parts.metrics, self.timers)
            parts.periodic.append((FIRST_S, _teller_by_topic(parts.metrics, self.timers)))
        parts.periodic.append((FIRST_S, self._ensure_running))
        parts.on_stop.append(self._stop)

    def _ensure_running(self) -> None:
        for service in filter(None, (self.delay_levels, self.timers, self.far)):
            if not self._stopped and not service.running:
                service.start()

    def _stop(self) -> None:
        self._stopped = True
        self.delay_levels.stop()
        if self.timers is not None:
            self.timers.stop()
        if self.far is not None:
            self.far.stop()


def timer_settings(parts: BrokerParts) -> TimerSettings:
    config = parts.config
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
    metrics.counter(
        "tiermq_delayed_delivered_total", "delayed messages that were delivered", (), lambda: levels.delivered_count
    )
    metrics.counter("tiermq_delayed_skipped_total", "delayed messages that cannot be", (), lambda: levels.skipped_count)
    metrics.gauge("tiermq_delayed_waiting", "delayed messages that wait", (), lambda: levels.waiting_count)


def register_timer_metrics(metrics: Registry, timers: TimerService) -> None:
    """Once per registry."""
    counts = timers.counts
    counters = {
        "enqueued": ("timers that were taken into the wheel, rolls too", lambda: counts.enqueued),
        "delivered": ("timers that were delivered", lambda: counts.delivered),
        "rolled": ("timers that went around once more", lambda: counts.rolled),
        "cancelled": ("timers that were cancelled", lambda: counts.cancelled),
        "skipped": ("timers that cannot be delivered", lambda: counts.skipped),
        "far": ("timers that were given to the tier", lambda: counts.far),
        "far_errors": ("times that the tier could not be asked for timers", lambda: counts.far_errors),
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


def _teller_by_topic(metrics: Registry, timers: TimerService) -> Callable[[], None]:
    """What sets, now and then, how many timers wait for each topic."""
    gauge = metrics.gauge("rocketmq_timing_messages", "timers that wait, by the topic that they are for", ("topic",))
    told: set[str] = set()

    def tell() -> None:
        counts = timers.waiting_by_topic()
        for topic in told | counts.keys():
            gauge.labels(topic).set(counts.get(topic, 0))
        told.update(counts)

    return tell
