"""PullProcessor: PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).

    admitted ─► the local store has a page ──────────────────────────────────────────────► answered as it is
             ├► only the tier has it ─► queued (`cold_line`) ─►  memory has the page ────►┤
             │                                                 └► a thread asks the tier ─►┘
             └► nothing there, and it may wait ─► held (`long_polling`) ─► asked again once ─► answered

What a store's page means on the wire:

    found                                0     offset 0 of an empty queue, offset = end     19 (held if allowed)
    none matched, being removed, hole    20    any other offset that does not exist         21, and the next offset

Invariants: the loop never waits for the tier; each pull is answered once, a one-way one never; a group's offset that
came with a pull is taken when it comes, not again when it is woken.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.offset_processor import commit_for_client
from tiermq.broker.group.subscription import ConsumeType, MessageModel
from tiermq.broker.pull.cold_read_queue import LOOK_S, ColdReadQueue, ColdReadThrottle
from tiermq.broker.pull.long_polling import SLOT_MS, LongPolling
from tiermq.broker.pull.pull_admission import (
    FLAG_COMMIT,
    FLAG_SUSPEND,
    Admitted,
    Pull,
    PullAdmission,
    PullForbidden,
    ReadFailures,
)
from tiermq.errors import RequestRefused, TierMQError
from tiermq.kernel import GetPage, TierPage, pull_answer
from tiermq.message.topic_name import RETRY_PREFIX, TOOLS_GROUP
from tiermq.metrics import GaugeChild, Metric
from tiermq.namesrv.route_table import MASTER_ID
from tiermq.remoting.access import of_group, reads, serves
from tiermq.remoting.codes import VERSION, RequestCode, ResponseCode, language_of
from tiermq.remoting.command import FLAG_ONEWAY, RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.server import remark_of
from tiermq.status import GetStatus

_log = logging.getLogger(__name__)

COLD_THREADS = 4
COLD_LINE_MAX = 4096
"""Pulls that wait for a thread that reads the tier; beyond it clients must retry later (FLOW_CONTROL)."""
FLOW_LOOK_S = 1.0
"""How often a pull looks whether its group may read the tier again."""
MESSAGES_MAX = 1024
USUAL_MESSAGES_MAX = 32
"""A pull for more by the group of tools copies a queue: it gets larger pages than RocketMQ's limits."""
_SUCCESS = int(ResponseCode.SUCCESS)
_NOT_FOUND = int(ResponseCode.PULL_NOT_FOUND)
_RETRY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)
_FOUND = GetStatus.FOUND
assert _FOUND.name == "FOUND"
_CODES = {
    _FOUND: _SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: _RETRY,
    GetStatus.MESSAGE_WAS_REMOVING: _RETRY,
    GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetStatus.OFFSET_TOO_SMALL: _MOVED,
}
OWNER = ("cluster", "node_type", "node_id")
GIVEN = (*OWNER, "topic", "consumer_group", "is_retry", "is_system")
BEHIND = (*OWNER, "topic", "consumer_group", "is_retry")
CONSUMING = (*OWNER, "consumer_group", "language", "version", "consume_mode")
PRODUCING = (*OWNER, "language", "version")
_MODES = {ConsumeType.CONSUME_ACTIVELY: "pull", ConsumeType.CONSUME_PASSIVELY: "push", ConsumeType.CONSUME_POP: "pop"}
Labels = tuple[str, ...]


class _ColdPull:
    """A pull that only the tier can answer, with what is needed to continue."""

    __slots__ = ("admitted", "count", "may_hold", "promised", "pull", "reader")

    def __init__(self, pull: Pull, reader: str, admitted: Admitted, count: int, may_hold: bool) -> None:
        self.pull = pull
        self.reader = reader
        self.admitted = admitted
        self.count = count
        self.may_hold = may_hold
        self.promised = 0

    @property
    def is_gone(self) -> bool:
        return self.pull.connection.closing


class PullProcessor:
    """See the module. Everything but `_read_cold` runs on the loop."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._offsets = parts.offsets
        self._server = parts.server
        self._tiered = parts.tiered
        self._local = parts.local
        self._end_of = parts.store.max_offset
        self._is_slave = parts.replication.is_slave
        self._keeps_offsets = (
            self._is_slave and parts.config.takes_messages and not parts.local.config.offset_check_in_slave
        )
        self._failures = ReadFailures(parts.clock)
        self._cold_waiting = 0
        self._hot_given = 0
        self.cold_count = 0
        self.admission = PullAdmission(parts.config, parts.topics, parts.groups, parts.clients)
        self.long_polling = LongPolling(parts.server, parts.clock, parts.config.pull_held_max, self._resume)
        self.counts = ConsumeCounts(parts, self.admission)
        parts.metrics.gauge("tiermq_pulls_held", "pulls that wait for a message", (), lambda: self.long_polling.held)
        parts.metrics.counter(
            "tiermq_pulls_woken_total", "held pulls that a message ended", (), lambda: self.long_polling.woken
        )
        parts.metrics.counter(
            "tiermq_pulls_timed_out_total", "held pulls that timed out", (), lambda: self.long_polling.timed_out
        )
        parts.metrics.counter(
            "tiermq_pulls_failed_total", "pulls that failed to read a queue", (), lambda: self._failures.count
        )
        parts.metrics.counter("tiermq_pulls_cold_total", "pulls read from the tier", (), lambda: self.cold_count)
        self._cold = ThreadPoolExecutor(COLD_THREADS, thread_name_prefix="cold-pull")
        config = parts.config
        pace = ColdReadThrottle(parts.clock, lambda: config.cold_pace_bytes_min, self._hot_count)
        self.cold_line = ColdReadQueue(
            pace, parts.clock, lambda: config.wait_time_mills_in_pull_queue, self._go_cold, self._late, self._gone
        )
        parts.metrics.gauge(
            "tiermq_cold_pace_bytes_per_second",
            "limit of bytes per second for pulls from the tier under load; 0: no limit",
            (),
            lambda: pace.rate or 0,
        )
        parts.metrics.counter(
            "tiermq_pulls_cold_waited_total", "pulls from the tier that were throttled", (),
            lambda: self.cold_line.waited_count,
        )  # fmt: skip
        parts.hooks.count_given(
            lambda: {key: each.message_count for key, each in tuple(self.admission.remembered.items())}
        )
        parts.local.add_arrival_listener(self.long_polling.arrived)
        parts.offsets.on_reset.append(self._was_reset)
        parts.hooks.every(SLOT_MS / 1000, self._end_overdue)
        if self._tiered is not None:
            parts.hooks.every(LOOK_S, pace.look)
            self._tiered.tier.engine.on_upload.append(self.long_polling.uploaded)
            self._tiered.on_growth(self._tier_grew)
        parts.hooks.busy_while(lambda: self._cold_waiting > 0)
        parts.hooks.on_stop(self._stop)

    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, access=of_group("consumerGroup") & reads("topic"))
    def pull(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        pull = Pull(connection, command)
        if self._parts.groups.get(pull.group) is None and self._parts.config.auto_create_subscription_group:
            self._server.hand_to_pool(self._make_group, connection, command)
            return None
        return self._first(pull)

    def _make_group(self, connection: Connection, command: RemotingCommand) -> None:
        """In the pool: an auto-created group is written to disk."""
        pull = Pull(connection, command)
        self._parts.groups.find_or_make(pull.group)
        self._server.call_threadsafe(self._first_later, pull)

    def _first_later(self, pull: Pull) -> None:
        try:
            self._answer(pull, self._first(pull))
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered and logged
            self._failed(pull, error)

    def _first(self, pull: Pull) -> RemotingCommand | None:
        """A pull that has just come: its offset is taken, and it may be held."""
        try:
            admitted = self.admission.admit(pull)
        except PullForbidden as error:
            fields = {"forbiddenType": str(error.forbidden_type)}
            return pull.command.respond(error.code, str(error), ext=fields)
        if self._is_slave and (why_not := self._why_no_reads()):
            self._send(pull, _RETRY, why_not, pull.offset, 0, 0)
            return None
        if pull.flags & FLAG_COMMIT:
            commit_for_client(self._parts, pull.group, pull.topic, pull.queue_id, pull.commit_offset)
        self._ask(pull, admitted, may_hold=bool(pull.flags & FLAG_SUSPEND))
        return None

    def _resume(self, pull: Pull) -> None:
        """A pull that was held: it is answered now, with what there is."""
        try:
            self._ask(pull, self.admission.admit(pull), may_hold=False)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered and logged
            self._failed(pull, error)

    # Asking the store.

    def _ask(self, pull: Pull, admitted: Admitted, *, may_hold: bool) -> None:
        if self._offsets.has_resets:
            reset = self._offsets.take_reset(pull.group, pull.topic, pull.queue_id)
            if reset is not None:
                store = self._parts.store
                bounds = store.min_offset(pull.topic, pull.queue_id), store.max_offset(pull.topic, pull.queue_id)
                self._send(pull, _MOVED, "OFFSET_RESET", reset, *bounds)
                return
        count = min(max(1, pull.max_messages), MESSAGES_MAX)
        get = self._local.get if self._tiered is None else self._tiered.get_local
        bulk = count > USUAL_MESSAGES_MAX and pull.group == TOOLS_GROUP
        try:
            page: GetPage | None = get(
                pull.topic, pull.queue_id, pull.offset, count, message_filter=pull.message_filter, bulk=bulk
            )
        except TierMQError as error:
            raise self._failures.refusal(pull.topic, pull.queue_id, pull.offset, error) from error
        if page is None:
            self._ask_cold(_ColdPull(pull, self._reader_of(pull), admitted, count, may_hold))
            return
        self._hot_given += page.count
        self._finish(pull, admitted, page, may_hold)

    def _reader_of(self, pull: Pull) -> str:
        """The reader of consecutive pages: the group, or in broadcasting the client."""
        members = self._parts.clients.consumers(pull.group)
        if members is None or members.message_model is not MessageModel.BROADCASTING:
            return pull.group
        client = members.clients.get(pull.connection)
        return f"{pull.group} {pull.connection.peer if client is None else client.client_id}"

    def _ask_cold(self, cold: _ColdPull) -> None:
        if self._cold_waiting >= COLD_LINE_MAX:
            remark = f"{self._cold_waiting} pulls wait for the tier already; try again"
            self._answer(cold.pull, cold.pull.command.respond(ResponseCode.FLOW_CONTROL, remark))
            return
        self._cold_waiting += 1
        self.cold_count += 1
        self._enter_cold_line(
            cold, self._parts.clock.monotonic() + self._parts.config.wait_time_mills_in_pull_queue / 1000
        )

    def _enter_cold_line(self, cold: _ColdPull, latest_s: float) -> None:
        """At once, or when the group may read the tier again; a pull that would wait too long is refused."""
        if cold.is_gone:
            self._gone(cold)
        elif not (wait_s := self._parts.cold_flow.wait_s(cold.pull.group)):
            self.cold_line.enter(cold, self._server.loop)
        elif self._parts.clock.monotonic() < latest_s:
            self._server.loop.call_later(min(wait_s, FLOW_LOOK_S), self._enter_cold_line, cold, latest_s)
        else:
            self._cold_waiting -= 1
            remark = f"group {cold.pull.group} has read its threshold of cold data; try again"
            self._answer(cold.pull, cold.pull.command.respond(ResponseCode.FLOW_CONTROL, remark))

    def _go_cold(self, cold: _ColdPull) -> None:
        """Serve it: answer from memory, or let a thread read the tier."""
        pull = cold.pull
        assert self._tiered is not None
        try:
            if pull.message_filter is None:
                page = self._tiered.get_cached(
                    pull.topic, pull.queue_id, pull.offset, cold.count, pull.group, reader=cold.reader
                )
                if page is not None:
                    self._cold_done(cold, page)
                    return
            cold.promised = self.cold_line.pace.promise()
            self._cold.submit(self._read_cold, cold)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered and logged
            self._gone(cold)
            self._failed(pull, error)

    def _read_cold(self, cold: _ColdPull) -> None:
        """In a separate thread: read the tier, and return to the loop with the result."""
        pull = cold.pull
        assert self._tiered is not None
        page: GetPage | TierMQError
        try:
            if cold.is_gone:
                raise RequestRefused("the peer is gone")
            page = self._tiered.get(
                pull.topic,
                pull.queue_id,
                pull.offset,
                cold.count,
                message_filter=pull.message_filter,
                group=pull.group,
                reader=cold.reader,
            )
        except TierMQError as error:
            page = error
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: it is answered and logged
            _log.exception("%s: a pull from the tier failed", pull.connection)
            page = RequestRefused(remark_of(error))
        self._server.call_threadsafe(self._cold_done, cold, page)

    def _cold_done(self, cold: _ColdPull, page: GetPage | TierMQError) -> None:
        self._cold_waiting -= 1
        if isinstance(page, TierMQError):
            self.cold_line.pace.gave(0, cold.promised)
            self._failed(cold.pull, page)
        else:
            self.cold_line.pace.gave(len(page.data), cold.promised)
            self._parts.cold_flow.gave(cold.pull.group, len(page.data))
            self._finish(cold.pull, cold.admitted, page, cold.may_hold)

    def _late(self, cold: _ColdPull) -> None:
        self._cold_waiting -= 1
        busy = RequestRefused(
            f"the pull waited {self._parts.config.wait_time_mills_in_pull_queue} ms to read the tier: reads "
            "of the tier are throttled while the broker is busy; try again",
            ResponseCode.SYSTEM_BUSY,
        )
        self._failed(cold.pull, busy)

    def _gone(self, _cold: _ColdPull) -> None:
        self._cold_waiting -= 1

    def _hot_count(self) -> int:
        return self._local.put_count + self._hot_given

    # Answering.

    def _finish(self, pull: Pull, admitted: Admitted, page: GetPage, may_hold: bool) -> None:
        if page.status is _FOUND:
            admitted.message_count += page.count
            admitted.byte_count += len(page.data)
            self._offsets.pulled(pull.group, pull.topic, pull.queue_id, page.next_offset)
            bounds = page.next_offset, page.min_offset, page.max_offset
            self._send(pull, _SUCCESS, "FOUND", *bounds, page.data, self._better_broker(admitted, page))
            return
        code = _code_of(page, pull.offset)
        if self._is_slave and page.status is GetStatus.OFFSET_OVERFLOW_BADLY:
            code = _NOT_FOUND  # The master may have it: a consumer is not sent back because this broker is behind.
        elif code == _MOVED and may_hold and pull.offset > page.max_offset and self._is_behind():
            code = _NOT_FOUND  # What is acknowledged may not be in its queue yet: a consumer waits for it.
        elif code == _MOVED and self._keeps_offsets:
            self._not_corrected(pull, admitted, page, may_hold)
            return
        if code == _NOT_FOUND and self._sends_back():
            code = _RETRY  # The consumer has caught up: its next pull goes to the master.
        if code == _NOT_FOUND and may_hold and self._hold(pull, page):
            return
        self._send(pull, code, page.status.name, page.next_offset, page.min_offset, page.max_offset, page.data)

    def _not_corrected(self, pull: Pull, admitted: Admitted, page: GetPage, may_hold: bool) -> None:
        """Of a slave: its log may begin later than its master's, which has the messages that the consumer wants. The
        master answers; while it is away the consumer waits, since it would come back here at once.
        """
        bounds = pull.offset, page.min_offset, page.max_offset
        if self._sends_back():
            broker_id = admitted.group.broker_id
            away = MASTER_ID if broker_id == self._parts.config.broker_id else broker_id
            self._send(pull, _RETRY, f"{page.status.name}: the master corrects offsets", *bounds, broker_id=away)
        elif not (may_hold and self.long_polling.hold(pull, self._hold_ms(pull), lambda _topic, _queue_id: 0)):
            self._send(pull, _NOT_FOUND, f"{page.status.name}: the master corrects offsets, and is away", *bounds)

    def _better_broker(self, admitted: Admitted, page: GetPage) -> int:
        """The id of the broker that the group's next pull should go to: a slave while it is far behind."""
        if not self._parts.config.takes_messages:
            return self._parts.config.broker_id
        if not self._parts.config.slave_read_enable:
            return MASTER_ID
        group = admitted.group
        return group.which_broker_when_consume_slowly if page.suggest_slave else group.broker_id

    def _is_behind(self) -> bool:
        """Whether messages of the log are not in their queues yet."""
        local = self._parts.local
        return local.dispatched_where < local.max_physical_offset

    def _why_no_reads(self) -> str:
        """Of a slave: why it sends consumers to its master; empty where it serves them."""
        config, replication = self._parts.config, self._parts.replication
        if not replication.is_settled:
            return "this broker is a slave, and may have messages that its master lacks"
        serves = config.slave_read_enable or not config.takes_messages or replication.is_acting
        return "" if serves else "this broker is a slave, and slaveReadEnable is off"

    def _sends_back(self) -> bool:
        return self._is_slave and self._parts.replication.sends_back

    def _hold(self, pull: Pull, page: GetPage) -> bool:
        # The tier's end follows the local one: that there is more here does not mean that there is more to get there.
        pull.waits_for_tier = isinstance(page, TierPage)
        end_of = self._tiered.tier_end if self._tiered is not None and pull.waits_for_tier else self._end_of
        return self.long_polling.hold(pull, self._hold_ms(pull), end_of)

    def _hold_ms(self, pull: Pull) -> int:
        config = self._parts.config
        return pull.suspend_ms if config.long_polling_enable else config.short_polling_time_mills

    def _send(
        self,
        pull: Pull,
        code: int,
        remark: str,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        data: bytes | memoryview = b"",
        broker_id: int = MASTER_ID,
    ) -> None:
        command = pull.command
        if command.flag & FLAG_ONEWAY:
            return
        header = pull_answer(
            command.header_type,
            command.opaque,
            code,
            VERSION,
            remark,
            broker_id,
            next_offset,
            max(0, min_offset),
            max_offset,
            len(data),
        )
        self._note(pull, code)
        if data:
            pull.connection.send_bytes(header, data)
        else:
            pull.connection.send_bytes(header)

    def _answer(self, pull: Pull, answer: RemotingCommand | None) -> None:
        if answer is not None and not pull.command.flag & FLAG_ONEWAY:
            self._note(pull, answer.code)
            pull.connection.send(answer)

    def _note(self, pull: Pull, code: int) -> None:
        """Time an answer that the server does not see, since no handler returned it."""
        if (note := self._server.note_latency) is not None:
            note(pull.command.code, code, time.perf_counter() - pull.began_s, pull.slot > 0)

    def _failed(self, pull: Pull, error: Exception) -> None:
        """A pull that is no longer in the server's hands: it is answered here."""
        if isinstance(error, TierMQError):
            error = self._failures.refusal(pull.topic, pull.queue_id, pull.offset, error)
        else:
            _log.error("%s: a pull failed", pull.connection, exc_info=error)
        code = error.code if isinstance(error, RequestRefused) else ResponseCode.SYSTEM_ERROR
        self._answer(pull, pull.command.respond(code, remark_of(error)))

    # Events.

    def _was_reset(self, _group: str, topic: str, queue_id: int) -> None:
        """In any thread: wake the pulls that wait on that queue."""
        if self.long_polling.held:
            self._server.call_threadsafe(self.long_polling.wake_queue, topic, queue_id)

    def _tier_grew(self, topic: str, queue_id: int, next_offset: int) -> None:
        """On a thread of the tier: another broker has uploaded more. A pull may wait for either part of the queue."""
        self.long_polling.arrived(topic, queue_id, next_offset, None)
        self.long_polling.uploaded(topic, queue_id, next_offset)

    def _end_overdue(self) -> None:
        self.long_polling.end_overdue()

    def _stop(self) -> None:
        self.cold_line.close()
        self._cold.shutdown(cancel_futures=True)


def _code_of(page: GetPage, offset: int) -> int:
    code = _CODES.get(page.status)
    if code is None:  # An empty or unknown queue.
        return _NOT_FOUND if offset == 0 else _MOVED
    if page.status is GetStatus.OFFSET_FOUND_NULL and offset < page.next_offset <= page.max_offset:
        return _RETRY  # There are messages after a gap: no pull should wait for one to arrive.
    return code


class ConsumeCounts:
    """Delivered messages, lag and connections of consumers, under RocketMQ's metric names.

        rocketmq_messages_out_total, rocketmq_throughput_out_total      by group and topic
        rocketmq_consumer_lag_messages, rocketmq_consumer_inflight_messages, rocketmq_consumer_ready_messages
        rocketmq_consumer_lag_latency, rocketmq_consumer_queueing_latency
        rocketmq_consumer_connections, rocketmq_producer_connections

    Counting costs a pull two additions; everything else is computed when metrics are read. What has ended (a group,
    a connection) is reported as 0 from then on. Lag is the distance to the max offset of queues that the group has an
    offset of; in flight is what was delivered and not committed yet, ready what was not delivered yet. Both latencies
    are the age in ms of the oldest such message (lag: not committed; queueing: not delivered), as far as the local disk
    has it: nothing is read from the tier for a metric.

    `collect` may run in any thread, one at a time.
    """

    def __init__(self, parts: BrokerContext, admission: PullAdmission) -> None:
        self._parts = parts
        self._admission = admission
        self._owner = (parts.config.broker_cluster_name, "broker", parts.config.broker_name)
        self._reported: dict[tuple[str, str], tuple[int, int]] = {}
        self._shown: dict[str, set[Labels]] = {}
        registry = parts.metrics
        self._messages = registry.counter("rocketmq_messages_out_total", "messages delivered to consumers", GIVEN)
        self._bytes = registry.counter(
            "rocketmq_throughput_out_total", "bytes of records delivered to consumers", GIVEN
        )
        self._lag = registry.gauge("rocketmq_consumer_lag_messages", "messages that a group has not consumed", BEHIND)
        self._inflight = registry.gauge(
            "rocketmq_consumer_inflight_messages", "messages delivered to a group and not consumed", BEHIND
        )
        self._ready = registry.gauge(
            "rocketmq_consumer_ready_messages", "messages not delivered to a group yet", BEHIND
        )
        self._lag_latency = registry.gauge(
            "rocketmq_consumer_lag_latency",
            "ms since the oldest message was stored that a group has not consumed",
            BEHIND,
        )
        self._queueing_latency = registry.gauge(
            "rocketmq_consumer_queueing_latency",
            "ms since the oldest message was stored that waits for delivery",
            BEHIND,
        )
        self._consumers = registry.gauge("rocketmq_consumer_connections", "consumers that are connected", CONSUMING)
        self._producers = registry.gauge("rocketmq_producer_connections", "producers that are connected", PRODUCING)
        registry.add_collector(self.collect)

    def collect(self) -> None:
        self._collect_given()
        self._collect_behind()
        self._collect_connections()

    def _collect_given(self) -> None:
        topics = self._parts.topics
        for (group, topic), admitted in tuple(self._admission.remembered.items()):
            now = admitted.message_count, admitted.byte_count
            before = self._reported.get((group, topic), (0, 0))
            if now[0] < before[0]:
                before = (0, 0)  # It was removed meanwhile, and counts again from 0.
            labels = (*self._owner, topic, group, _text(_is_retry(topic)), _text(topics.is_system(topic)))
            self._messages.labels(*labels).add(now[0] - before[0])
            self._bytes.labels(*labels).add(now[1] - before[1])
            self._reported[group, topic] = now

    def _collect_behind(self) -> None:
        parts = self._parts
        lag: dict[Labels, float] = {}
        inflight: dict[Labels, float] = {}
        ready: dict[Labels, float] = {}
        ages: tuple[dict[Labels, float], dict[Labels, float]] = ({}, {})
        for key, queues in parts.offsets.snapshot().items():
            topic, _, group = key.partition("@")
            if parts.topics.get(topic) is None:
                continue
            labels = (*self._owner, topic, group, _text(_is_retry(topic)))
            for queue_id, offset in queues.items():
                end = parts.store.max_offset(topic, queue_id)
                behind = end - offset
                pulled = max(offset, parts.offsets.query_pulled(group, topic, queue_id))
                given = pulled - offset
                lag[labels] = lag.get(labels, 0) + max(0, behind)
                inflight[labels] = inflight.get(labels, 0) + max(0, given)
                ready[labels] = ready.get(labels, 0) + max(0, end - pulled)
                for age, at in zip(ages, (offset, pulled), strict=True):
                    age[labels] = max(age.get(labels, 0), self._age_ms(topic, queue_id, at) if at < end else 0)
        self._show("lag", self._lag, lag)
        self._show("inflight", self._inflight, inflight)
        self._show("ready", self._ready, ready)
        self._show("lag_latency", self._lag_latency, ages[0])
        self._show("queueing_latency", self._queueing_latency, ages[1])

    def _age_ms(self, topic: str, queue_id: int, offset: int) -> int:
        stored_ms = self._parts.local.store_time_of(topic, queue_id, offset)
        return max(0, self._parts.clock.now_ms() - stored_ms) if stored_ms > 0 else 0

    def _collect_connections(self) -> None:
        clients = self._parts.clients
        consuming: Counter[Labels] = Counter()
        for name in clients.consumer_groups:
            group = clients.consumers(name)
            for client in () if group is None else tuple(group.clients.values()):
                mode = "push" if group is None else _MODES[group.consume_type]
                labels = (language_of(client.language).name, str(client.version))
                consuming[(*self._owner, name, *labels, mode)] += 1
        producing: Counter[Labels] = Counter()
        for name in clients.producer_groups:
            senders = clients.producers(name)
            for client in () if senders is None else tuple(senders.clients.values()):
                producing[(*self._owner, language_of(client.language).name, str(client.version))] += 1
        self._show("consumers", self._consumers, consuming)
        self._show("producers", self._producers, producing)

    def _show(self, name: str, metric: Metric[GaugeChild], values: Mapping[Labels, float]) -> None:
        """These values, and 0 for series that were shown before and have ended."""
        shown = self._shown.setdefault(name, set())
        for labels in shown - values.keys():
            metric.labels(*labels).set(0)
        for labels, value in values.items():
            metric.labels(*labels).set(value)
        shown.update(values)


def _is_retry(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def _text(value: bool) -> str:
    return "true" if value else "false"
