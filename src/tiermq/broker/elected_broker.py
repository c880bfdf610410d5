"""ElectedBroker: a broker whose role an election gives, for as long as its process runs.

    join the election ─► open as a slave ─► decisions ─┬─ the same role: pass it on (master's address, in-sync set)
                                                       ├─ another role: stop, open again in it
    HaSlave.needs_cut ─► a tail of an earlier master ──┴─ stop, cut the log, keep the tail aside, open again

A broker that stops leaves the name server and closes its connections, so that clients ask for the route again. Its
ports stay reserved by sockets that are bound and never listen: while roles change, connections are refused at once.

Invariants: one thread (`role-keeper`) opens and stops brokers; the process does not end for a role; a broker that could
not be opened is tried again until there is another decision; nothing is cut that is not kept in `cut-tails`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig, FastListenPort
from tiermq.broker.listen_address import bound_socket, bound_sockets, port_of
from tiermq.broker.replication.replication import HA_PORT, HA_PORT_ABOVE, Elected
from tiermq.clock import Clock, SystemClock
from tiermq.config import StoreConfig
from tiermq.errors import RemotingError, RequestRefused, TierMQError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.topic_name import is_broker_topic
from tiermq.metrics import Registry
from tiermq.remoting.client import parse_name_servers
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.replication.election import (
    LEASED_QUEUES_MAX,
    Candidate,
    Decision,
    Election,
    LogEnds,
    Loss,
    QueueRanges,
    Role,
)
from tiermq.replication.epoch_file import FILE as EPOCH_FILE
from tiermq.replication.epoch_file import EpochFile
from tiermq.replication.ha_master import HaMaster
from tiermq.store.cut_log import DIRECTORY as CUT_TAILS
from tiermq.store.cut_log import cut_log

_log = logging.getLogger(__name__)

RETRY_S = 1.0
OPEN_TRIES = 3
"""After so many failures to open as the master another replica in sync is asked to be the master."""
SWITCH_DRAIN_S = 0.5
"""How long a change of roles waits for clients to take their answers."""
DRAIN_LOOK_S = 0.01
TABLES_TIMEOUT_S = 8.0
LAST_HANDOVER_S = 3.0
RELEASE_S = 2.0
OpenBroker = Callable[[BrokerConfig, Elected], Broker]


@dataclass(frozen=True, slots=True)
class CutTail:
    """Bytes of an earlier master that were cut from this log, and are kept in a file."""

    path: str
    epoch: int
    begin: int
    end: int

    def to_json(self) -> dict[str, object]:
        return {"path": self.path, "epoch": self.epoch, "begin": self.begin, "end": self.end}


def cut_tails(root: str | os.PathLike[str]) -> list[CutTail]:
    """All that were cut from the log of the store in `root`, oldest first."""
    found = []
    directory = Path(root) / CUT_TAILS
    for path in directory.glob("*.log") if directory.is_dir() else ():
        with contextlib.suppress(ValueError):  # A file that an operator has put there.
            epoch, begin, end = map(int, path.stem.split("-"))
            found.append(CutTail(str(path), epoch, begin, end))
    return sorted(found, key=lambda each: (each.epoch, each.begin))


class ElectedBroker:
    """See the module. `start` and `stop` are called by one thread; the figures may be read by any."""

    def __init__(
        self,
        election: Election,
        config: BrokerConfig,
        store_config: StoreConfig,
        open_broker: OpenBroker,
        *,
        clock: Clock | None = None,
    ) -> None:
        """`open_broker` opens the store of `store_config` in a role, at the ports of the configuration it is given."""
        self.election = election
        self.broker: Broker | None = None
        """The open one; None while roles change."""
        self.switch_count = 0
        self.last_switch_s = 0.0
        """How long the last change of roles took."""
        self.problem = ""
        """Why the broker is not open in the role that was decided, as text."""
        self.on_role: Callable[[Decision, Broker], None] = lambda _decision, _broker: None
        """Called on the keeper's thread when the broker runs in another role, or follows another master."""
        self.last: Broker | None = None
        """The broker that was stopped last."""
        self._open_broker = open_broker
        self._store_config = store_config
        self._root = str(store_config.root_path)
        self._clock = clock or SystemClock()
        self._changed = threading.Condition()
        self._decision: Decision | None = None
        self._tried: Decision | None = None
        self._applied: Decision | None = None
        self._cut_at: int | None = None
        self._is_stopping = False
        self._open_failures = 0
        self._is_handing_over = False
        self._ends = LogEnds(0, 0)
        self._queues: QueueRanges | None = None
        self._lost: dict[str, object] | None = None
        self._lost_epoch = 0
        self._missing: QueueRanges = {}
        self._reserved = contextlib.ExitStack()
        self._config = self._reserve(config)
        self._thread = threading.Thread(target=self._run, name="role-keeper", daemon=True)

    def _reserve(self, config: BrokerConfig) -> BrokerConfig:
        """Take the ports, for good; the settings with their numbers. Raises OSError."""
        sockets = bound_sockets(config.bind_address, config.listen_port, config.fast_listen_port)
        self._reserved.callback(sockets.close)
        port = sockets.main.getsockname()[1]
        ha_port = config.ha_listen_port
        if ha_port < 0:
            ha_port = port + 1 if config.listen_port else 0
        ha_host = config.ha_bind_address or config.bind_address
        with port_of(HA_PORT if config.ha_listen_port >= 0 else HA_PORT_ABOVE, ha_host, ha_port):
            ha = bound_socket(ha_host, ha_port)
        self._reserved.callback(ha.close)
        return config.with_settings(
            listen_port=port,
            fast_listen_port=FastListenPort.OFF if sockets.fast is None else FastListenPort.ON,
            ha_listen_port=ha.getsockname()[1],
        )

    @property
    def address(self) -> str:
        return f"{self._config.broker_ip1}:{self._config.listen_port}"

    @property
    def ha_address(self) -> str:
        host = self._config.broker_ip2 or self._config.broker_ip1
        return f"[{host}]:{self._config.ha_listen_port}" if ":" in host else f"{host}:{self._config.ha_listen_port}"

    def start(self) -> None:
        """Open the broker as a slave, and follow the election from then on. Raises what opening it raises."""
        try:
            first = Decision(replica_id=self.election.join())
            self._open(first)
        except BaseException:
            self._reserved.close()
            raise
        self._thread.start()
        self.election.start(
            Candidate(
                address=self.address,
                ha_address=self.ha_address,
                ends=self._log_ends,
                on_change=self._decided,
                queues=self._client_queues,
                holes=self._holes,
            )
        )

    def wait_for_role(self, timeout_s: float) -> Broker:
        """Wait until the broker is open in a role that was decided, and return it; or when the time is over, as it is.
        Raises RemotingError when it cannot be opened.
        """

        def is_open() -> bool:
            return self._applied is not None and self.broker is not None

        with self._changed:
            self._changed.wait_for(
                lambda: is_open() and self._applied is not None and self._applied.role is not Role.NONE, timeout_s
            )
            if self.broker is None and not self._changed.wait_for(is_open, timeout_s):
                raise RemotingError(self.problem or "the broker was not open in time")
            assert self.broker is not None
            return self.broker

    def stop(self) -> None:
        """Hand over to a replica in sync, if there is one, then stop the broker and leave the election."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self.demote(0, LAST_HANDOVER_S)
        except RequestRefused as error:
            _log.info("nothing is handed over: %s", error)
        self._stop_broker(None)
        self.election.stop()
        self._reserved.close()

    @property
    def decision(self) -> Decision | None:
        """What was applied."""
        return self._applied

    # For operators: `RoleKeeper`.

    def status(self) -> dict[str, object]:
        broker, decision, ends = self.broker, self._applied, self._log_ends()
        master = None if broker is None else broker.replication.master
        return {
            "broker": self._config.broker_name,
            "role": Role.NONE.value if decision is None else decision.role.value,
            "epoch": 0 if decision is None else decision.epoch,
            "replicaId": self.election.decision.replica_id,
            "address": self.address,
            "haAddress": self.ha_address,
            "mayAcknowledge": self._may_acknowledge(),
            "logEnd": ends.end,
            "confirmedOffset": ends.confirmed,
            "election": {**self.election.status(), "lost": self._lost},
            "slaves": []
            if master is None
            else [
                {"address": each.address, "acknowledged": each.ack, "behindBytes": max(0, ends.end - each.ack)}
                for each in master.slaves()
            ],
            "restored": None if broker is None else _restored(broker),
            "cutTails": [each.to_json() for each in cut_tails(self._root)],
            "roleChanges": self.switch_count,
            "lastRoleChangeMs": round(self.last_switch_s * 1000),
            "problem": self.problem,
        }

    def _may_acknowledge(self) -> bool:
        """Whether the open broker is a master that answers."""
        broker = self.broker
        may_answer = None if broker is None else broker.parts.server.may_answer
        return may_answer is not None and may_answer()

    def cut_tails(self) -> list[str]:
        return [each.path for each in cut_tails(self._root)]

    def demote(self, successor: int, timeout_s: float) -> None:
        with self._changed:
            if self._is_handing_over:
                raise RequestRefused("expected one handover at a time, found another one under way: wait for its end")
            self._is_handing_over = True
        try:
            self._hand_over(successor, timeout_s)
        finally:
            self._is_handing_over = False

    def _hand_over(self, successor: int, timeout_s: float) -> None:
        broker, decision = self.broker, self._applied
        master = None if broker is None else broker.replication.master
        if broker is None or decision is None or master is None or master.sync is None:
            raise RequestRefused("expected a master, found a replica that is none: demote the master")
        others = master.sync.recorded - {decision.replica_id}
        if not others or (successor and successor not in others):
            found = ", ".join(map(str, sorted(others))) or "none"
            raise RequestRefused(
                f"expected {f'replica {successor}' if successor else 'another replica'} in sync to take over, found "
                f"{found}: wait until it has the log, or start one"
            )
        try:
            broker.parts.local.set_draining("it hands over to another replica")
            self._wait_drained(broker, master, decision.epoch, self._clock.monotonic() + timeout_s)
            broker.replication.is_handing_over = True  # Tables must not change any more.
            chosen = self._with_tables(broker, [successor] if successor else sorted(others))
            if chosen not in master.sync.recorded:
                raise RequestRefused("the replica that was to take over is gone")
            self.election.resign(chosen)
        except RequestRefused as error:
            broker.replication.is_handing_over = False
            broker.parts.local.set_draining("")
            raise RequestRefused(f"{error}: this broker remains the master") from error
        deadline_s = self._clock.monotonic() + RELEASE_S
        while self.election.decision.role is Role.MASTER and self._clock.monotonic() < deadline_s:
            time.sleep(DRAIN_LOOK_S)

    def _wait_drained(self, broker: Broker, master: HaMaster, epoch: int, deadline_s: float) -> None:
        """Wait until all members have the log, and clients their answers. Raises RequestRefused."""
        local = broker.parts.local
        while (end := local.max_physical_offset) > min(local.confirm_offset, master.state.confirmed):
            if self._clock.monotonic() > deadline_s or not self.election.may_acknowledge(epoch):
                raise RequestRefused(
                    f"expected the replicas in sync to have the log up to {end} in time, found them at "
                    f"{master.state.confirmed}"
                )
            time.sleep(DRAIN_LOOK_S)
        answered_s = self._clock.monotonic() + SWITCH_DRAIN_S
        while broker.owes_answers and self._clock.monotonic() < answered_s:
            time.sleep(DRAIN_LOOK_S)

    def _with_tables(self, broker: Broker, candidates: Sequence[int]) -> int:
        """The first of these replicas that has copied the tables of this master now. Raises RequestRefused."""
        addresses = self.election.addresses()
        problems = []
        for each in candidates:
            if not addresses.get(each):
                problems.append(f"replica {each}: its address is not known")
                continue
            try:
                [(host, port)] = parse_name_servers(addresses[each])
                with broker.parts.ask_replica(host, port) as client:
                    answer = client.request(RemotingCommand(RequestCode.SYNC_BROKER_TABLES), timeout_s=TABLES_TIMEOUT_S)
                if answer.code == ResponseCode.SUCCESS:
                    return each
                problems.append(f"replica {each}: {answer.remark}")
            except (TierMQError, OSError, ValueError) as error:
                problems.append(f"replica {each}: {error}")
        raise RequestRefused(f"expected a replica with the tables of this master, found {'; '.join(problems)}")

    def accept_loss(self) -> None:
        self.election.accept_loss()

    def look_soon(self) -> None:
        self.election.look_soon()

    # On the election's and the slave's threads.

    def _decided(self, decision: Decision) -> None:
        broker, applied = self.broker, self._applied
        if broker is not None and applied is not None and _is_same_role(applied, decision):
            broker.replication.take_decision(decision)  # At once, and also if nothing in it is new.
        with self._changed:
            self._decision = decision
            self._changed.notify_all()

    def _needs_cut(self, offset: int) -> None:
        with self._changed:
            self._cut_at = offset
            self._changed.notify_all()

    def _log_ends(self) -> LogEnds:
        broker = self.broker
        if broker is not None and broker.store.running:
            local = broker.parts.local
            epoch = broker.replication.last_epoch
            self._ends = LogEnds(local.max_physical_offset, min(local.dispatched_where, local.confirm_offset), epoch)
        return self._ends

    def _client_queues(self) -> QueueRanges | None:
        broker = self.broker
        if broker is not None and broker.store.running:
            local = broker.parts.local
            names = [
                (topic, queue_id)
                for topic, ids in local.topics().items()
                if not is_broker_topic(topic)
                for queue_id in ids
            ]
            self._queues = None
            if len(names) <= LEASED_QUEUES_MAX:
                ranges = {name: (max(0, local.min_offset(*name)), local.max_offset(*name)) for name in names}
                self._queues = {name: (begin, end) for name, (begin, end) in ranges.items() if begin < end}
        return self._queues

    def _holes(self, queues: QueueRanges) -> QueueRanges:
        """Of topics that are not deleted."""
        broker = self.broker
        if broker is None or broker.parts.tiered is None or not broker.store.running:
            return {}
        topics = broker.parts.topics.table
        return broker.parts.tiered.holes({name: bounds for name, bounds in queues.items() if name[0] in topics})

    # The keeper's thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, None if not self.problem else RETRY_S)
                if self._is_stopping:
                    return
                decision, cut_at = self._decision or self._applied, self._cut_at
                self._tried, self._cut_at = self._decision, None
            assert decision is not None, "a broker was opened by a first decision"
            try:
                self._apply(decision, cut_at)
                self.problem, self._open_failures = "", 0
            except (OSError, TierMQError) as error:
                self._note(decision, error)
            except Exception as error:  # noqa: BLE001 - the thread's outermost edge
                _log.exception("the broker cannot be opened as %s, trying again", decision.role.value)
                self._note(decision, error)

    def _has_work(self) -> bool:
        """What failed is tried again after a while, and something new at once."""
        return self._is_stopping or self._cut_at is not None or self._decision not in (None, self._tried)

    def _note(self, decision: Decision, error: Exception) -> None:
        words = f"expected to be open as {decision.role.value} of epoch {decision.epoch}, found: {error}"
        if words != self.problem:
            _log.error("%s", words)
        self.problem = words
        self._open_failures = self._open_failures + 1 if decision.role is Role.MASTER else 0
        if self._open_failures == OPEN_TRIES:
            self._open_failures = 0
            try:
                self.election.resign(0)
            except RequestRefused as refusal:
                _log.warning("no other replica is asked to be the master: %s", refusal)

    def _apply(self, decision: Decision, cut_at: int | None) -> None:
        applied, broker = self._applied, self.broker
        is_same = applied is not None and _is_same_role(applied, decision)
        if broker is not None and is_same and cut_at is None:
            broker.replication.take_decision(decision)
            self._note_applied(decision)
            return
        began_s = self._clock.monotonic()
        if applied is not None and not is_same:
            _log.warning(
                "epoch %d: this replica, %d, becomes %s", decision.epoch, decision.replica_id, decision.role.value
            )
        if decision.role is Role.MASTER and broker is not None:
            self._missing = self._find_missing(broker)
        self._stop_broker(SWITCH_DRAIN_S)
        if cut_at is not None:
            self._cut(cut_at)
        self._open(decision)
        self.switch_count += 1
        self.last_switch_s = self._clock.monotonic() - began_s

    def _find_missing(self, broker: Broker) -> QueueRanges:
        """Before a slave becomes the master, and writes the tier: what is in neither of its log and the tier."""
        tiered, loss = broker.parts.tiered, self.election.loss
        if tiered is None:
            return {}
        ends = {file.queue.name: file.commit_offset for file in tiered.tier.files}
        local = broker.parts.local
        wanted = {name: (end, local.max_offset(*name)) for name, end in ends.items() if end > 0}
        if loss is not None and loss.queues:
            # Of a queue that is not in this log at all, `Loss.lacking` has everything.
            wanted |= {name: bounds for name, bounds in loss.queues.items() if local.max_offset(*name) > 0}
        return self._holes(wanted)

    def _cut(self, offset: int) -> None:
        epochs = EpochFile(OsFileAccess(), os.path.join(self._root, EPOCH_FILE))
        cut_log(self._store_config, offset, epochs.last_epoch)
        epochs.cut(offset)

    def _open(self, decision: Decision) -> None:
        is_empty = not decision.is_clean and self._ends.end == 0
        broker = self._open_broker(self._config, Elected(decision, self.election, is_empty))
        self._register_metrics(broker.parts.metrics)
        broker.replication.keeper = self
        self._note_loss(decision, broker)
        if broker.replication.slave is not None:
            broker.replication.slave.needs_cut = self._needs_cut
        try:
            broker.start()
        except BaseException:
            broker.stop()
            raise
        self.broker = broker
        if self._config.metrics_port == 0 and broker.metrics_port is not None:
            self._config = self._config.with_settings(metrics_port=broker.metrics_port)
        broker.replication.take_decision(decision)
        self._note_applied(decision)
        if decision.role is Role.MASTER:
            self.election.look_soon()  # It may acknowledge from now on.

    def _note_loss(self, decision: Decision, broker: Broker) -> None:
        """Before this master takes messages: compare what the one before it had with what came from log and tier."""
        loss = None if decision.is_clean else self.election.loss
        if (
            decision.role is not Role.MASTER
            or self._lost_epoch == decision.epoch
            or (loss is None and not self._missing)
        ):
            return
        local = broker.parts.local
        if loss is None:
            loss = Loss(decision.epoch - 1, local.max_physical_offset, local.max_physical_offset, 0.0, {})
        lacking = loss.lacking(lambda topic, queue_id: local.max_offset(topic, queue_id, committed=False))
        self._lost, self._lost_epoch = _reported(loss, lacking, self._missing), decision.epoch
        _log.error("epoch %d: lost of epoch %d: %s", decision.epoch, loss.epoch, self._lost)

    def _register_metrics(self, metrics: Registry) -> None:
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "tiermq_role_epoch": ("epoch of the role", lambda: 0 if self._applied is None else self._applied.epoch),
            "tiermq_cut_tails": ("files with bytes of replaced masters", lambda: len(self.cut_tails())),
            "tiermq_may_acknowledge": ("1 while this process is the master for certain", self._may_acknowledge),
        }
        for name, (text, read) in gauges.items():
            metrics.gauge(name, text, (), read)
        metrics.counter("tiermq_role_changes_total", "changes of this process's role", (), lambda: self.switch_count)

    def _note_applied(self, decision: Decision) -> None:
        with self._changed:
            before, self._applied = self._applied, decision
            self._changed.notify_all()
        if self.broker is not None and before is not None and _is_news(before, decision):
            self.on_role(decision, self.broker)

    def _stop_broker(self, drain_s: float | None) -> None:
        self._log_ends()
        self._client_queues()
        broker, self.broker = self.broker, None
        if broker is not None:
            self.last = broker
            if drain_s is None:
                broker.stop()
            else:
                broker.stop(drain_s)


def _is_same_role(applied: Decision, decision: Decision) -> bool:
    """Whether a broker that was opened by `applied` serves `decision` as it is."""
    is_master = applied.role is Role.MASTER
    if is_master != (decision.role is Role.MASTER):
        return False
    return not is_master or applied.epoch == decision.epoch


def _is_news(before: Decision, now: Decision) -> bool:
    return (before.role, before.epoch, before.address) != (now.role, now.epoch, now.address)


def _reported(loss: Loss, lacking: QueueRanges | None, holes: QueueRanges) -> dict[str, object]:
    """What is lost, as JSON: behind the end of a log, and before its begin (`holes`). What cannot be known is named."""
    ranges = sorted([*({} if lacking is None else lacking).items(), *holes.items()])
    queues = [
        {"topic": topic, "queueId": queue_id, "fromOffset": begin, "toOffset": end}
        for (topic, queue_id), (begin, end) in ranges
    ]
    unknown = ["delayed messages, timers and open transactions that only the old master's log had"]
    if loss.unknown_s:
        unknown.insert(0, f"what was acknowledged within {loss.unknown_s:g} s after the lease was renewed last")
    if lacking is None:
        unknown.insert(0, "which queues the lost physical offsets are of")
    return {
        "epoch": loss.epoch,
        "fromOffset": loss.begin,
        "toOffset": loss.end,
        "queues": None if lacking is None and not holes else queues,
        "messages": None if lacking is None and not holes else sum(end - begin for _, (begin, end) in ranges),
        "unknown": unknown,
    }


def _restored(broker: Broker) -> dict[str, object] | None:
    """What a master got from the tier alone, because no replica had it."""
    report = None if broker.parts.tiered is None else broker.parts.tiered.restored
    if report is None:
        return None
    return {
        "topics": report.topic_count,
        "queues": report.queue_count,
        "messages": report.message_count,
        "lastMessageMs": report.last_message_ms,
        "notRestored": report.not_restored,
        "remarks": [str(each) for each in report.remarks],
    }
