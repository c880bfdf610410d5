"""ActingDelivery: what a slave delivers while it acts for its master.

    delay levels, timers, open half messages, popped messages ─► EscapeBridge ─► another master

Each service goes on from the master's tables and log, and records its progress in the slave's files, which the master
takes over when it returns. Opened when the slave begins to act, and stopped before the master is answered.
Tiered timers wait for the master: only it may change what the tier has. Threads: opened and stopped by one at a time.
"""

from __future__ import annotations

from tiermq.broker.acting.acting_pops import ActingPopLog
from tiermq.broker.acting.escape_bridge import EscapeBridge
from tiermq.broker.broker_context import BrokerContext, config_directory
from tiermq.broker.delivery.delivery_services import timer_settings
from tiermq.broker.pop.pop_revive import PopRevive
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.transactions.half_messages import TransactionRules
from tiermq.delivery.transactions.op_messages import OpLog
from tiermq.delivery.transactions.transaction_check import Question, TransactionCheck
from tiermq.service import Service
from tiermq.settings import INT_MAX, LONG_MAX


class ActingDelivery:
    """See the module."""

    def __init__(self, parts: BrokerContext, bridge: EscapeBridge) -> None:
        """Raises StoreDamaged for files that cannot be read, DiskFull."""
        config, local, clock = parts.config, parts.local, parts.clock
        local.dispatch_now()
        self._config = config
        self._pops = ActingPopLog(parts)
        revive = PopRevive(parts, self._pops, bridge.put)
        if self._pops.recover():
            revive.recover()
        self.timers: TimerService | None = None
        self._services: list[Service] = [
            DelayLevels(
                local, config_directory(local.config.root_path), clock, config.flush_delay_offset_interval,
                escape=bridge.put,
            ),
            TransactionCheck(
                local, OpLog(local, clock), parts.offsets, clock, self._rules, _not_asked, escape=bridge.put
            ),
            revive,
        ]  # fmt: skip
        if config.timer_wheel_enable:
            self.timers = TimerService(local, local.config.root_path, clock, timer_settings(config), escape=bridge.put)
            self._services.append(self.timers)

    def _rules(self) -> TransactionRules:
        """As the broker's settings are now. No half message is given up here: the master that gets it counts."""
        config = self._config
        return TransactionRules(
            timeout_ms=config.transaction_time_out,
            check_max=INT_MAX,
            interval_ms=config.transaction_check_interval,
            reserved_ms=LONG_MAX,
        )

    def start(self) -> None:
        for service in self._services:
            service.start()

    def stop(self) -> ActingPopLog:
        """What was delivered is in the files on return. The popped messages among it are for the master."""
        for service in self._services:
            service.ask_to_stop()
        for service in self._services:
            service.stop()
        if self.timers is not None:
            self.timers.release()
        return self._pops


def _not_asked(_question: Question) -> None:
    raise AssertionError("a slave asks no producer")
