"""PopProcessor: POP_MESSAGE (200050), NOTIFICATION (200054), and everything that POP needs.

    admitted ─► gathered (`pop_gathering`) ─► answered with messages, and with what receipts are made of
             ├► the tier must be asked ─► a thread of its own ─►┘
             └► nothing there ─► held (`pop_waiting`) ─► asked again ─► … ─► 210 when its time is over

A popped message is the group's for the time that it asked for. Not acknowledged by then, it comes back through the
group's retry topic (`pop_revive`), also when the broker was started anew meanwhile (`pop_log`).

Invariants: the loop never waits for the tier; each pop is answered once, a one-way one never.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from tiermq.broker.parts import BrokerParts, config_directory
from tiermq.broker.pop import Pop
from tiermq.broker.pop_acks import PopAcks
from tiermq.broker.pop_admission import admit
from tiermq.broker.pop_gathering import Gathered, Gathering
from tiermq.broker.pop_log import PopLog
from tiermq.broker.pop_order import OrderInfos
from tiermq.broker.pop_revive import PopRevive
from tiermq.broker.pop_waiting import ANY_QUEUE, LOOK_MS, PopWaiting, Waiting
from tiermq.errors import RequestRefused, TierMQError
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.access import of_group, reads, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.server import remark_of

_log = logging.getLogger(__name__)

COLD_THREADS = 2
COLD_LINE_MAX = 1024
FIRST_REVIVE_S = 1.0


class PopProcessor:
    """See the module. Everything but `_read_cold` runs on the loop."""

    def __init__(self, parts: BrokerParts) -> None:
        config = parts.config
        self._parts = parts
        self._server = parts.server
        self._given: dict[tuple[str, str], int] = {}
        self._cold_waiting = 0
        self._stopped = False
        self.log = PopLog(parts.local, parts.offsets, config, parts.clock.now_ms)
        self.orders = OrderInfos(config_directory(parts.local.config.root_path), parts.clock)
        self.gathering = Gathering(parts, self.log, self.orders)
        self.revive = PopRevive(parts, self.log)
        self.waiting = PopWaiting(
            parts.server, parts.clock, config.max_pop_polling_size, config.pop_polling_size, self._resume
        )
        self.acks = PopAcks(parts, self.log, self.orders, self._queue_freed)
        self._cold = ThreadPoolExecutor(COLD_THREADS, thread_name_prefix="cold-pop")
        parts.server.serve(self.acks)
        if self.log.recover():
            self.revive.recover()
        parts.topics.listeners.append(self._topics_changed)
        parts.local.add_arrival_listener(self.waiting.arrived)
        if parts.tiered is not None:
            parts.tiered.tier.engine.on_upload.append(self.waiting.uploaded)
        parts.offsets.on_reset.append(self._was_reset)
        parts.given.append(lambda: dict(self._given))
        parts.is_busy.append(lambda: self._cold_waiting > 0)
        parts.periodic.append((LOOK_MS / 1000, self._end_overdue))
        parts.periodic.append((FIRST_REVIVE_S, self._ensure_reviving))
        parts.offsets.before_write.append(self._flush_orders)
        parts.on_stop.append(self._stop)
        self._tell_metrics()

    def _tell_metrics(self) -> None:
        metrics, revive = self._parts.metrics, self.revive
        metrics.gauge("tiermq_pops_held", "pops that wait for a message", (), lambda: self.waiting.held)
        metrics.gauge(
            "rocketmq_pop_checkpoint_buffer_size", "check points with open messages", (), lambda: len(self.log.points)
        )
        metrics.counter(
            "rocketmq_pop_revive_retry_messages_total",
            "popped messages that came back, since nobody acknowledged them",
            (),
            lambda: revive.revived_count,
        )
        metrics.counter(
            "tiermq_pop_log_skipped_total",
            "records of POP's log that cannot be used",
            (),
            lambda: self.log.skipped.count,
        )
        metrics.counter(
            "tiermq_pop_dead_messages_total", "popped messages that became dead letters", (), lambda: revive.dead_count
        )

    # Asking.

    @serves(RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION, access=of_group("consumerGroup") & reads("topic"))
    def pop(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        pop = Pop(connection, command, self._parts.clock.now_ms())
        if self._parts.groups.get(pop.group) is None and self._parts.config.auto_create_subscription_group:
            self._server.hand_to_pool(self._make_group, connection, command)
            return None
        self._ask(pop)
        return None

    def _make_group(self, connection: Connection, command: RemotingCommand) -> None:
        """In the pool: a group that comes by itself is written to disk."""
        pop = Pop(connection, command, self._parts.clock.now_ms())
        self._parts.groups.find_or_make(pop.group)
        self._server.call_threadsafe(self._resume, pop)

    def _resume(self, pop: Waiting) -> None:
        """A pop that is no longer in the server's hands: its errors are answered here."""
        assert isinstance(pop, Pop)
        try:
            self._ask(pop)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered and logged
            self._failed(pop, error)

    def _ask(self, pop: Pop) -> None:
        topic = admit(self._parts, pop)
        if pop.is_notification:
            self._notify(pop, topic)
            return
        found = self.gathering.gather(pop, topic, may_wait=False)
        if not found.count and found.met_cold:
            self._ask_cold(pop, topic)
        else:
            self._finish(pop, topic, found)

    def _ask_cold(self, pop: Pop, topic: TopicConfig) -> None:
        if self._cold_waiting >= COLD_LINE_MAX:
            raise RequestRefused(
                f"{self._cold_waiting} pops wait for the tier already; try again", ResponseCode.FLOW_CONTROL
            )
        if wait_s := self._parts.cold_flow.wait_s(pop.group):
            raise RequestRefused(
                f"group {pop.group} has read its threshold of cold data; try again in {wait_s:.1f} s",
                ResponseCode.FLOW_CONTROL,
            )
        self._cold_waiting += 1
        self._cold.submit(self._read_cold, pop, topic)

    def _read_cold(self, pop: Pop, topic: TopicConfig) -> None:
        """In a thread of its own: ask the tier, and come back to the loop with what it said."""
        found: Gathered | Exception
        try:
            if pop.connection.closing:
                raise RequestRefused("the peer is gone")
            found = self.gathering.gather(pop, topic, may_wait=True)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered and logged
            found = error
        self._server.call_threadsafe(self._cold_done, pop, topic, found)

    def _cold_done(self, pop: Pop, topic: TopicConfig, found: Gathered | Exception) -> None:
        self._cold_waiting -= 1
        if isinstance(found, Exception):
            self._failed(pop, found)
        else:
            self._parts.cold_flow.gave(pop.group, sum(map(len, found.data)))
            self._finish(pop, topic, found)

    # Answering.

    def _finish(self, pop: Pop, topic: TopicConfig, found: Gathered) -> None:
        told = _fields(pop, found)
        if found.count:
            key = (pop.group, pop.topic)
            self._given[key] = self._given.get(key, 0) + found.count
            self._send(pop, pop.command.respond(remark="FOUND", ext=told, body=b"".join(found.data)))
        elif pop.deadline_ms <= self._parts.clock.now_ms():
            self._send(pop, pop.command.respond(ResponseCode.POLLING_TIMEOUT, "no message came", ext=told))
        elif not self.waiting.hold(pop, found.look_again_ms):
            self._send(pop, pop.command.respond(ResponseCode.POLLING_FULL, "too many wait already", ext=told))
        elif self.gathering.end_of(pop, topic) != found.end:
            # What was dispatched between the look and the hold found nobody to wake.
            self._server.loop.call_soon(self.waiting.wake_one, pop)

    def _notify(self, pop: Pop, topic: TopicConfig) -> None:
        has_message = self.gathering.has_message(pop, topic)
        if has_message or pop.deadline_ms <= self._parts.clock.now_ms():
            self._send(pop, pop.command.respond(ext={"hasMsg": str(has_message).lower(), "pollingFull": "false"}))
        elif not self.waiting.hold(pop):
            self._send(pop, pop.command.respond(ext={"hasMsg": "false", "pollingFull": "true"}))
        elif self.gathering.has_message(pop, topic):
            self.waiting.wake_one(pop)

    @staticmethod
    def _send(pop: Pop, answer: RemotingCommand) -> None:
        if not pop.command.is_oneway:
            pop.connection.send(answer)

    def _failed(self, pop: Pop, error: Exception) -> None:
        code = error.code if isinstance(error, RequestRefused) else ResponseCode.SYSTEM_ERROR
        if not isinstance(error, TierMQError):
            _log.error("%s: a pop failed", pop.connection, exc_info=error)
        elif not isinstance(error, RequestRefused):
            _log.info("%s: a pop failed: %s", pop.connection, error)
        self._send(pop, pop.command.respond(code, remark_of(error)))

    # What happens by itself.

    def _queue_freed(self, topic: str, queue_id: int) -> None:
        self.waiting.wake((topic, queue_id))
        self.waiting.wake((topic, ANY_QUEUE))

    def _was_reset(self, _group: str, topic: str, queue_id: int) -> None:
        """In any thread: those who wait on that queue are asked again."""
        if self.waiting.held:
            self._server.call_threadsafe(self._queue_freed, topic, queue_id)

    def _topics_changed(self, names: Collection[str]) -> None:
        """In the thread of the change: of a topic that was deleted nothing comes back."""
        for name in names:
            if self._parts.topics.get(name) is None:
                self.log.points.forget_topic(name)
                self.orders.forget_topic(name)

    def _end_overdue(self) -> None:
        self.waiting.end_overdue()

    def _flush_orders(self) -> None:
        self.orders.flush()

    def _ensure_reviving(self) -> None:
        if not self._stopped and not self.revive.running:
            self.revive.start()

    def _stop(self) -> None:
        self._stopped = True
        self._cold.shutdown(cancel_futures=True)
        self.revive.stop()
        self.log.commit()
        self.orders.flush()
        self._parts.offsets.flush()


def _fields(pop: Pop, found: Gathered) -> dict[str, str]:
    told = {
        "popTime": str(found.pop_ms),
        "invisibleTime": str(pop.invisible_ms),
        "reviveQid": str(found.revive_queue),
        "restNum": str(found.rest),
        "startOffsetInfo": ";".join(found.starts),
        "msgOffsetInfo": ";".join(found.offsets),
    }
    if found.order_counts:
        told["orderCountInfo"] = ";".join(found.order_counts)
    return told
