"""PopProcessor: POP_MESSAGE (200050), NOTIFICATION (200054), and everything that POP needs.

    admitted ─► read (`PopReader`, in steps) ─► answered with messages, and with the data of receipts
             ├► its messages are in the tier ─► read in a thread of the pool ─►┘
             └► no message ─► held (`pop_waiting`) ─► read again ─► … ─► 210 when its time is over

A popped message is hidden from the group for its invisible time. If it is not acknowledged by then, it is delivered
again through the group's retry topic (`pop_revive`), also after a restart of the broker (`pop_log`).

Invariants: the loop never waits for the tier, and reads at most `QUEUES_A_STEP` queues of a pop before it gives way
(what is left shares the slices of all work in steps); each pop is answered once, a one-way one never.

Checks of a pop, in the order of RocketMQ, with response codes:

broker not readable 16     topic missing 17    topic not readable 16    queue out of range 29
group missing 26           group disabled 16   invalid expression 23
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic

from tiermq.broker.broker_context import BrokerContext, config_directory
from tiermq.broker.group.offset_processor import require_client_group
from tiermq.broker.group.subscription import Subscription
from tiermq.broker.pop.order_infos import OrderInfos
from tiermq.broker.pop.pop_acks import PopAcks
from tiermq.broker.pop.pop_log import PopLog
from tiermq.broker.pop.pop_reader import Found, PopReader, PopResult, Steps, whole
from tiermq.broker.pop.pop_revive import PopRevive
from tiermq.broker.pop.pop_waiting import LOOK_MS, Pop, PopWaiting
from tiermq.broker.pull.long_polling import weight_of
from tiermq.broker.pull.sql_filter import filter_of
from tiermq.errors import RequestRefused, TierMQError
from tiermq.namesrv.topic_config import PERM_READ, TopicConfig
from tiermq.remoting.access import of_group, reads, serves
from tiermq.remoting.codes import ANY_QUEUE, RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.limits import SLICE_S
from tiermq.remoting.server import remark_of
from tiermq.service import SHORT_TURNS

_log = logging.getLogger(__name__)

COLD_THREADS = 2
COLD_LINE_MAX = 1024


class PopProcessor:
    """See the module. Everything but `_read_cold` runs on the loop."""

    def __init__(self, parts: BrokerContext) -> None:
        config = parts.config
        self._parts = parts
        self._server = parts.server
        self._given: dict[tuple[str, str], int] = {}
        self._cold_waiting = 0
        self.log = PopLog(parts.local, parts.offsets, config, parts.clock.now_ms)
        self.log.join_offsets()
        self.orders = OrderInfos(config_directory(parts.local.config.root_path), parts.clock)
        self.reader = PopReader(parts, self.log, self.orders)
        self.revive = PopRevive(parts, self.log)
        self.waiting = PopWaiting(
            parts.server, parts.clock, config.max_pop_polling_size, config.pop_polling_size, self._resume
        )
        self.acks = PopAcks(parts, self.log, self.orders, self.queue_freed)
        self._cold = ThreadPoolExecutor(COLD_THREADS, thread_name_prefix="cold-pop")
        parts.server.serve(self.acks)
        parts.server.take_acks_by(self.acks.acknowledge_run)
        if self.log.recover():
            self.revive.recover()
        parts.topics.listeners.append(self._topics_changed)
        parts.local.add_arrival_listener(self.waiting.arrived)
        if parts.tiered is not None:
            parts.tiered.tier.engine.on_upload.append(self.waiting.uploaded)
        parts.offsets.on_reset.append(self._was_reset)
        parts.hooks.count_given(lambda: dict(self._given))
        parts.hooks.busy_while(lambda: self._cold_waiting > 0)
        parts.hooks.every(LOOK_MS / 1000, self._end_overdue)
        parts.hooks.run(self.revive)
        parts.hooks.holds("popped messages", lambda: sum(len(point.open) for point in self.log.points))
        parts.offsets.before_write.append(self._flush_orders)
        parts.hooks.on_stop(self._stop)
        self._tell_metrics()

    def _tell_metrics(self) -> None:
        metrics, revive = self._parts.metrics, self.revive
        metrics.gauge("tiermq_pops_held", "pops that wait for a message", (), lambda: self.waiting.held)
        metrics.gauge(
            "rocketmq_pop_checkpoint_buffer_size", "check points with open messages", (), lambda: len(self.log.points)
        )
        metrics.counter(
            "rocketmq_pop_revive_retry_messages_total",
            "popped messages that were delivered again without an acknowledgement",
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
        metrics.counter(
            "tiermq_pop_lost_messages_total",
            "popped messages that could not be delivered again: deleted, damaged, or refused by the store",
            (),
            lambda: revive.gone.count,
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
        """In the pool: an auto-created group is written to disk."""
        pop = Pop(connection, command, self._parts.clock.now_ms())
        self._parts.groups.find_or_make(pop.group)
        self._server.call_threadsafe(self._resume, pop)

    def _resume(self, pop: Pop) -> None:
        """A pop outside of its handler: its errors are answered here."""
        if not pop.connection.closing:
            self._answering(pop, lambda: self._ask(pop))

    def _answering(self, pop: Pop, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered and logged
            self._failed(pop, error)

    def _ask(self, pop: Pop) -> None:
        topic = admit(self._parts, pop)
        self.waiting.watch(pop)
        if pop.is_notification:
            self._go_on(pop, self.reader.has_message(pop, topic), self._notify)
        else:
            self._go_on(pop, self.reader.gather(pop, topic, may_wait=False), partial(self._gathered, topic))

    def _go_on(self, pop: Pop, steps: Steps[Found], then: Callable[[Pop, Found], None], until_s: float = 0.0) -> None:
        """Read until that time, at least one step; what is left waits for its turn among all work in steps."""
        try:
            while not pop.connection.closing:
                next(steps)
                if monotonic() >= until_s:
                    self._server.give_way(lambda: self._take_slice(pop, steps, then))
                    return
            self.waiting.unwatch(pop)
        except StopIteration as done:
            then(pop, done.value)
        except BaseException:
            self.waiting.unwatch(pop)
            raise

    def _take_slice(self, pop: Pop, steps: Steps[Found], then: Callable[[Pop, Found], None]) -> None:
        self._answering(pop, lambda: self._go_on(pop, steps, then, monotonic() + SLICE_S))

    def _gathered(self, topic: TopicConfig, pop: Pop, found: PopResult) -> None:
        if not found.count and found.met_cold:
            self._ask_cold(pop, topic)
        else:
            self._finish(pop, found)

    def _ask_cold(self, pop: Pop, topic: TopicConfig) -> None:
        try:
            self._require_cold(pop)
        except RequestRefused:
            self.waiting.unwatch(pop)
            raise
        self._cold_waiting += 1
        self._cold.submit(self._read_cold, pop, topic)

    def _require_cold(self, pop: Pop) -> None:
        """Raises RequestRefused."""
        if self._cold_waiting >= COLD_LINE_MAX:
            raise RequestRefused(
                f"{self._cold_waiting} pops wait for the tier already; try again", ResponseCode.FLOW_CONTROL
            )
        if wait_s := self._parts.cold_flow.wait_s(pop.group):
            raise RequestRefused(
                f"group {pop.group} has read its threshold of cold data; try again in {wait_s:.1f} s",
                ResponseCode.FLOW_CONTROL,
            )

    def _read_cold(self, pop: Pop, topic: TopicConfig) -> None:
        """In a separate thread: read the tier, and return to the loop with the result."""
        found: PopResult | Exception
        try:
            if pop.connection.closing:
                raise RequestRefused("the peer is gone")
            with SHORT_TURNS:
                found = whole(self.reader.gather(pop, topic, may_wait=True))
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered and logged
            found = error
        self._server.call_threadsafe(self._cold_done, pop, found)

    def _cold_done(self, pop: Pop, found: PopResult | Exception) -> None:
        self._cold_waiting -= 1
        if isinstance(found, Exception):
            self.waiting.unwatch(pop)
            self._failed(pop, found)
        else:
            self._parts.cold_flow.gave(pop.group, sum(map(len, found.data)))
            self._finish(pop, found)

    # Answering.

    def _finish(self, pop: Pop, found: PopResult) -> None:
        fields = _fields(pop, found)
        if found.count:
            key = (pop.group, pop.topic)
            self._given[key] = self._given.get(key, 0) + found.count
            self._end(pop, pop.command.respond(remark="FOUND", ext=fields, body=b"".join(found.data)))
        elif pop.deadline_ms <= self._parts.clock.now_ms():
            self._end(pop, pop.command.respond(ResponseCode.POLLING_TIMEOUT, "no message came", ext=fields))
        elif not self.waiting.hold(pop, found.look_again_ms):
            self._end(pop, pop.command.respond(ResponseCode.POLLING_FULL, "too many pops are waiting", ext=fields))

    def _notify(self, pop: Pop, has_message: bool) -> None:
        if has_message or pop.deadline_ms <= self._parts.clock.now_ms():
            self._end(pop, pop.command.respond(ext={"hasMsg": str(has_message).lower(), "pollingFull": "false"}))
        elif not self.waiting.hold(pop):
            self._end(pop, pop.command.respond(ext={"hasMsg": "false", "pollingFull": "true"}))

    def _end(self, pop: Pop, answer: RemotingCommand) -> None:
        self.waiting.unwatch(pop)
        self._send(pop, answer)

    def _send(self, pop: Pop, answer: RemotingCommand) -> None:
        if (note := self._server.note_latency) is not None:  # The server does not see it: no handler returned it.
            note(pop.command.code, answer.code, time.perf_counter() - pop.began_s, pop.was_held)
        if not pop.command.is_oneway:
            pop.connection.send(answer)

    def _failed(self, pop: Pop, error: Exception) -> None:
        code = error.code if isinstance(error, RequestRefused) else ResponseCode.SYSTEM_ERROR
        if not isinstance(error, RequestRefused):
            _log.error("%s: a pop failed", pop.connection, exc_info=error)
        self._send(pop, pop.command.respond(code, remark_of(error)))

    # Events.

    def queue_freed(self, topic: str, queue_id: int) -> None:
        """Pops that wait on a queue which is popped in order look again."""
        self.waiting.wake((topic, queue_id))
        self.waiting.wake((topic, ANY_QUEUE))

    def _was_reset(self, _group: str, topic: str, queue_id: int) -> None:
        """In any thread: retry the pops that wait on that queue."""
        if self.waiting.held:
            self._server.call_threadsafe(self.queue_freed, topic, queue_id)

    def _topics_changed(self, names: Collection[str]) -> None:
        """In the thread of the change: messages of a deleted topic are not delivered again."""
        gone = [name for name in names if self._parts.topics.get(name) is None]
        for name in gone:
            self.log.points.forget_topic(name)
        if gone:
            self.orders.forget_topics(gone)

    def _end_overdue(self) -> None:
        self.waiting.end_overdue()

    def _flush_orders(self) -> None:
        self.orders.flush()

    def _stop(self) -> None:
        self._cold.shutdown(cancel_futures=True)
        self.log.commit()
        self.orders.flush()
        self._parts.offsets.flush()


def _fields(pop: Pop, found: PopResult) -> dict[str, str]:
    fields = {
        "popTime": str(found.pop_ms),
        "invisibleTime": str(pop.invisible_ms),
        "reviveQid": str(found.revive_queue),
        "restNum": str(found.rest),
        "startOffsetInfo": ";".join(found.starts),
        "msgOffsetInfo": ";".join(found.offsets),
    }
    if found.order_counts:
        fields["orderCountInfo"] = ";".join(found.order_counts)
    return fields


def admit(parts: BrokerContext, pop: Pop) -> TopicConfig:
    """Check a pop and set its filter; returns its topic. Raises RequestRefused."""
    if not parts.config.broker_permission & PERM_READ:
        raise _refusal(ResponseCode.NO_PERMISSION, f"the broker[{parts.config.broker_ip1}] pop message is forbidden")
    if not pop.is_notification:
        require_client_group(pop.group)
    topic = parts.topics.get(pop.topic)
    if topic is None:
        raise _refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{pop.topic}] not exist, apply first please!")
    if not topic.perm & PERM_READ or parts.groups.is_forbidden(pop.group, pop.topic, PERM_READ):
        raise _refusal(ResponseCode.NO_PERMISSION, f"the topic[{pop.topic}] peeking message is forbidden")
    if pop.queue_id >= topic.read_queues:
        raise _refusal(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{pop.queue_id}] is illegal, topic:[{pop.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[{pop.connection.peer[0]}]",
        )
    group = parts.groups.get(pop.group)
    if group is None:
        raise _refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{pop.group}] does not exist")
    if not group.consume_enable:
        raise _refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {pop.group}")
    ext = pop.command.ext
    try:
        wanted = Subscription.of(pop.topic, ext.get("exp"), ext.get("expType"))
        if not wanted.is_by_tag and not parts.config.enable_property_filter:
            raise RequestRefused(f"The broker does not support consumer to filter message by {wanted.expression_type}")
        pop.message_filter = filter_of(wanted)
        pop.weight = weight_of(pop.command, pop.message_filter)
    except TierMQError as error:
        raise _refusal(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
        ) from error
    return topic


def _refusal(code: ResponseCode, text: str) -> RequestRefused:
    return RequestRefused(text, code)
