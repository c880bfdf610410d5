"""ActingMaster: a slave that acts for its master while that is away.

    members by the name server   no id 0, this slave has the smallest id, and the master's stream has ended
        ─► acts: serves reads as the master would, and delivers (`ActingDelivery`)
    master announces itself (906), or is a member again, or the name servers are away
        ─► stops; what it delivered is in its tables, from which the master goes on

Invariants: while a slave acts it copies no tables, since they would take back what it did; it begins again once the
master is a member, which it is after it has taken over. A master that announces itself is not acted for until it is a
member, or has not become one within `brokerNotActiveTimeoutMillis`. Threads: `run_once` is the service's own; requests
come from the pool.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import threading
from pathlib import Path

from tiermq.broker.acting.acting_pops import ActingPopLog
from tiermq.broker.acting.escape_bridge import EscapeBridge, forget_kept, kept_before
from tiermq.broker.acting.member_group import MemberGroup
from tiermq.broker.broker_context import BrokerContext, config_directory
from tiermq.broker.delivery.delivery_services import timer_settings
from tiermq.broker.pop.pop_revive import PopRevive
from tiermq.broker.replication.metadata_sync import MetadataSync
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.delivery.timer.timer_checkpoint import FILE as TIMER_FILE
from tiermq.delivery.timer.timer_checkpoint import TimerProgress, decode_progress, encode_progress
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.transactions.half_messages import TransactionRules
from tiermq.delivery.transactions.op_messages import OpLog
from tiermq.delivery.transactions.transaction_check import Question, TransactionCheck
from tiermq.namesrv.route_table import MASTER_ID
from tiermq.remoting.client import parse_name_servers
from tiermq.remoting.permissions import Credentials
from tiermq.service import Service
from tiermq.settings import INT_MAX, LONG_MAX

# ActingDelivery: what a slave delivers while it acts for its master.
#
#     delay levels, timers, open half messages, popped messages ─► EscapeBridge ─► another master
#
# Each service goes on from the master's tables and log, and records its progress in the slave's files, which the
# master takes over when it returns. Opened when the slave begins to act, and stopped before the master is answered.
# Tiered timers wait for the master: only it may change what the tier has. Threads: opened and stopped by one at a
# time.


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


_log = logging.getLogger(__name__)


class ActingMaster(Service):
    """See the module."""

    def __init__(
        self,
        parts: BrokerContext,
        group: MemberGroup,
        sync: MetadataSync,
        name_servers: str,
        credentials: Credentials | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__("acting-master")
        self._parts = parts
        self._group = group
        self._sync = sync
        self._reach = (name_servers, credentials, tls)
        self._lock = threading.RLock()
        self._is_acting = False
        self._running: tuple[ActingDelivery, EscapeBridge] | None = None
        """None also while it acts without `enable_remote_escape`: it has nowhere to deliver to."""
        self._announced_s: float | None = None
        self._has_master = False
        parts.replication.acting = self
        parts.metrics.gauge(
            "tiermq_acting_master", "1 while this slave acts for its master", (), lambda: self.is_acting
        )

    @property
    def is_acting(self) -> bool:
        return self._is_acting

    @property
    def has_master(self) -> bool:
        """Whether the master is a member: its tables may be copied."""
        return self._has_master

    def run_once(self) -> float:
        members = self._group.look(beats=True)
        with self._lock:
            self._decide(members)
        return self._parts.config.broker_heartbeat_interval / 1000

    def _decide(self, members: dict[int, str] | None) -> None:
        """The lock is held."""
        has_master = members is not None and MASTER_ID in members
        if has_master:
            self._announced_s = None
        elif self._announced_s is not None:
            waited_ms = (self._parts.clock.monotonic() - self._announced_s) * 1000
            if waited_ms > self._parts.config.broker_not_active_timeout_millis:
                _log.warning("the master announced itself, and did not become a member of the set")
                self._announced_s = None
        slave = self._parts.replication.slave
        acts = (
            bool(members)
            and members is not None
            and min(members) == self._parts.config.broker_id
            and members[min(members)] == self._group.address
            and self._announced_s is None
            and not (slave is not None and slave.is_connected)
            and not self.stopping
        )
        if acts and not self.is_acting:
            self._begin()
        elif not acts and self.is_acting:
            self._end()
        if has_master and not self._has_master:
            forget_kept(self._parts.local.config.root_path)
        self._has_master = has_master

    def _begin(self) -> None:
        self._has_master = False
        self._sync.forget_pending()
        if self._parts.config.enable_remote_escape:
            bridge = EscapeBridge(self._parts, *self._reach)
            try:
                delivery = ActingDelivery(self._parts, bridge)
            except BaseException:
                bridge.close()
                raise
            self._running = delivery, bridge
            delivery.start()
        self._is_acting = True
        _log.warning(
            "the master is away: this slave (%d) serves reads and %s", self._parts.config.broker_id,
            "delivers to other masters" if self._parts.config.enable_remote_escape else "keeps what is due",
        )  # fmt: skip

    def _end(self) -> ActingPopLog | None:
        self._is_acting = False
        running, self._running = self._running, None
        if running is None:
            return None
        delivery, bridge = running
        pops = delivery.stop()
        bridge.close()
        self._parts.offsets.flush()
        _log.warning(
            "this slave stops acting for its master: %d messages went to other masters, %d had been delivered",
            bridge.sent_count, bridge.passed_count,
        )  # fmt: skip
        return pops

    def master_announced(self, ha_address: str, address: str) -> None:
        """The master is back, and takes over as soon as this returns. In the pool. Raises RemotingError."""
        with self._lock:
            self._announced_s = self._parts.clock.monotonic()
            pops = self._end() or ActingPopLog(self._parts)
            if pops.has_acted:
                [(host, port)] = parse_name_servers(address)
                with contextlib.closing(self._parts.ask_name_server(host, port)) as client:
                    pops.hand_over(client)
        self._parts.replication.follow(ha_address, address)

    def timer_check_point(self) -> bytes:
        """As it was written last, by this slave or of its master, for the master that returns. Any thread may call."""
        root = self._parts.local.config.root_path
        path = os.path.join(config_directory(root), TIMER_FILE)
        progress = decode_progress(Path(path).read_bytes()) if os.path.exists(path) else TimerProgress()
        kept_ms = kept_before(root)
        if kept_ms is not None and kept_ms < progress.read_time_ms:
            progress = progress._replace(read_time_ms=kept_ms)
        return encode_progress(progress)[0]

    def look_soon(self) -> None:
        """A name server reports that the members have changed. Any thread may call."""
        self.wake()

    def finish(self) -> None:
        with self._lock:
            self._end()
        self._group.close()
