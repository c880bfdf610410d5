"""DeliveryProcessor: runs the delivery of delayed messages beside a broker. It serves no request.

It begins a second after the broker, as RocketMQ does, and ends before the store is closed.
"""

from __future__ import annotations

from tiermq.broker.parts import BrokerParts, config_directory
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.remoting.server import RemotingServer

FIRST_S = 1.0


class DeliveryProcessor:
    """See the module."""

    def __init__(self, parts: BrokerParts) -> None:
        directory = config_directory(parts.local.config.root_path)
        interval_ms = parts.config.flush_delay_offset_interval
        self.delay_levels = DelayLevels(parts.local, directory, parts.clock, interval_ms)
        self._stopped = False
        levels = self.delay_levels
        parts.metrics.counter(
            "tiermq_delayed_delivered_total", "delayed messages that were delivered", (), lambda: levels.delivered_count
        )
        parts.metrics.counter(
            "tiermq_delayed_skipped_total", "delayed messages that cannot be", (), lambda: levels.skipped_count
        )
        parts.metrics.gauge("tiermq_delayed_waiting", "delayed messages that wait", (), lambda: levels.waiting_count)
        parts.periodic.append((FIRST_S, self._ensure_running))
        parts.on_stop.append(self._stop)

    def register(self, server: RemotingServer) -> None:
        """Nothing: it works by itself."""

    def _ensure_running(self) -> None:
        if not self._stopped and not self.delay_levels.running:
            self.delay_levels.start()

    def _stop(self) -> None:
        self._stopped = True
        self.delay_levels.stop()
