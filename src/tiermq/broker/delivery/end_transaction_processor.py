"""EndTransactionProcessor: END_TRANSACTION (37), and CHECK_TRANSACTION_STATE (39) to producers that did not send it.

    send of a half message ─► SendProcessor ─► RMQ_SYS_TRANS_HALF_TOPIC
    37 commit, rollback    ─► EndTransaction ─► the message's topic, or the queue of its delay; op
    no 37 in time          ─► TransactionCheck ─► 39 to one live producer of the group, round robin ─► 37 again

Invariants: under SYNC_FLUSH a 37 that waits for an answer gets it once its effect is durable. A 37 that is neither
(0: the producer does not know yet) changes nothing. Checks start with the broker and stop before its store
is closed; what they did is on disk before the consumer offsets move. Handlers run on the loop.
"""

from __future__ import annotations

import itertools
import logging

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.client_processor import ACCOUNT
from tiermq.broker.send.put_answers import LOOK_S, DurableAnswers, code_of
from tiermq.broker.send.send_checks import Destination, stored_destination
from tiermq.clock import HOUR_MS
from tiermq.delivery.transactions.end_transaction import Ended, EndRequest, EndStatus, EndTransaction
from tiermq.delivery.transactions.half_messages import HALF_QUEUE, TransactionRules
from tiermq.delivery.transactions.op_messages import OP_QUEUE, OpLog, Outcome
from tiermq.delivery.transactions.transaction_check import Question, TransactionCheck, waiting_halves
from tiermq.errors import IllegalMessage, RequestRefused
from tiermq.kernel import Message
from tiermq.message.topic_name import (
    HALF_TOPIC,
    OPERATION_HALF_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    TRANSACTION_GROUP,
)
from tiermq.remoting.access import reaches, require_topic, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, bool_field, int32_field, int_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.frame import encode_frame
from tiermq.remoting.permissions import Account, Permission

_log = logging.getLogger(__name__)

LABELS = ("cluster", "node_type", "node_id", "topic")
FINISH_S = (5.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)
"""RocketMQ's buckets of `rocketmq_finish_message_latency`."""
_OUTCOMES = {each.value: each for each in Outcome}
_REMARKS = {
    EndStatus.NOT_FOUND: "Find prepared transaction message failed",
    EndStatus.OTHER_GROUP: "The producer group wrong",
    EndStatus.OTHER_OFFSET: "The transaction state table offset wrong",
}
"""RocketMQ's words."""
NOT_TO_END = frozenset(_REMARKS.values()) | {EndStatus.OTHERWISE.value}
"""Refusals of a transaction that there is not, or that has ended otherwise."""
_CODES = {
    EndStatus.DONE: ResponseCode.SUCCESS,
    EndStatus.ALREADY: ResponseCode.SUCCESS,
    EndStatus.TOO_LATE: ResponseCode.ILLEGAL_OPERATION,
    EndStatus.BUSY: ResponseCode.SYSTEM_BUSY,
}


class EndTransactionProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._config = config = parts.config
        local = parts.local
        self._levels = len(local.config.delay_levels_ms)
        self._is_slave = parts.replication.is_slave
        self._turn = itertools.count()
        self.unanswerable_count = 0
        self.ops = OpLog(
            local,
            parts.clock,
            max_bytes=config.transaction_op_msg_max_size,
            interval_ms=config.transaction_op_batch_interval,
        )
        self.ending = EndTransaction(
            local, self.ops, parts.clock, rules=self._rules, rewrite=self._rewritten, queue_for=parts.queue_for
        )
        self.check = TransactionCheck(
            local, self.ops, parts.offsets, parts.clock, self._rules, self._ask, self._make_discard_topic
        )
        self.durable = DurableAnswers(local, parts.server, parts.clock, parts.replication.waiting_master)
        parts.metrics.counter(
            "tiermq_transaction_ends_answered_late_total",
            "ends of transactions that were not flushed or replicated in time",
            (),
            lambda: self.durable.timed_out,
        )
        self._owner = (config.broker_cluster_name, "broker", config.broker_name)
        self._ended = {
            Outcome.COMMIT: parts.metrics.counter(
                "rocketmq_commit_messages_total", "transactional messages that were committed", LABELS
            ),
            Outcome.ROLLBACK: parts.metrics.counter(
                "rocketmq_rollback_messages_total", "transactional messages that were rolled back", LABELS
            ),
        }
        self._finish = parts.metrics.histogram(
            "rocketmq_finish_message_latency",
            "seconds from the birth of a half message to its commit",
            LABELS,
            FINISH_S,
        )
        self._register_metrics()
        parts.offsets.before_write.append(self._before_offsets)
        if not self._is_slave:  # A slave asks no producer.
            parts.hooks.run(self.check)
            parts.hooks.holds("open transactions", lambda: self.waiting)
        parts.hooks.every(LOOK_S, self._look_for_late)
        parts.hooks.busy_while(lambda: self.durable.waiting > 0)
        parts.hooks.on_stop(self._write_ops)

    def _rules(self) -> TransactionRules:
        """As they are now: an operator may change them."""
        config = self._config
        return TransactionRules(
            timeout_ms=config.transaction_time_out,
            check_max=config.transaction_check_max,
            interval_ms=config.transaction_check_interval,
            reserved_ms=self._parts.local.config.file_reserved_time * HOUR_MS,
        )

    def _register_metrics(self) -> None:
        check, metrics = self.check, self._parts.metrics
        counters = {
            "tiermq_transaction_checks_total": ("questions to producers", lambda: check.asked_count),
            "tiermq_transaction_checks_unsent_total": (
                "questions that no producer of the group was there for",
                lambda: self.unanswerable_count,
            ),
            "tiermq_transaction_rounds_total": ("rounds over the half messages", lambda: check.rounds_count),
            "tiermq_transactions_skipped_total": (
                "records of half messages and ops that cannot be used",
                lambda: check.skipped_count,
            ),
            "tiermq_transactions_discarded_total": ("half messages that were given up", lambda: check.discarded_count),
        }
        for name, (text, read) in counters.items():
            metrics.counter(name, text, (), read)
        metrics.gauge("rocketmq_half_messages", "half messages of open transactions", (), lambda: self.waiting)
        metrics.gauge("tiermq_half_messages_waiting", "half messages of open transactions", (), lambda: self.waiting)

    @property
    def waiting(self) -> int:
        """How many half messages are open."""
        offsets = self._parts.offsets
        half_at = offsets.query(TRANSACTION_GROUP, HALF_TOPIC, HALF_QUEUE)
        op_at = offsets.query(TRANSACTION_GROUP, OPERATION_HALF_TOPIC, OP_QUEUE)
        return waiting_halves(self._parts.local, half_at, op_at, self.ops.pending)

    # Ends.

    @serves(RequestCode.END_TRANSACTION, access=reaches("PUB of the topic that the half message is for"))
    def end(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        """Runs on the loop. Raises RequestRefused."""
        outcome = _OUTCOMES.get(int32_field(command, "commitOrRollback"))
        request = EndRequest(
            outcome=outcome or Outcome.ROLLBACK,
            group=text_field(command, "producerGroup"),
            log_offset=int_field(command, "commitLogOffset"),
            queue_offset=int_field(command, "tranStateTableOffset"),
            is_answer=bool_field(command, "fromTransactionCheck", default=False),
        )
        if self._is_slave:
            raise RequestRefused("expected a master, found a slave", ResponseCode.SLAVE_NOT_AVAILABLE)
        if outcome is None:
            return command.respond()
        ended = self.ending.end(request, lambda topic: require_topic(command, topic, Permission.PUB))
        if ended.status is EndStatus.DONE:
            self._ended[outcome].labels(*self._owner, ended.topic).add()
            if outcome is Outcome.COMMIT:
                took_ms = max(0, self._parts.clock.now_ms() - ended.born_ms)
                self._finish.labels(*self._owner, ended.topic).observe(took_ms // 1000)
        code = _CODES.get(ended.status, ResponseCode.SYSTEM_ERROR)
        if code is not ResponseCode.SUCCESS:
            raise self._refusal(request, ended, code)
        return self._answer(connection, command, ended)

    def _refusal(self, request: EndRequest, ended: Ended, code: ResponseCode) -> RequestRefused:
        remark = _REMARKS.get(ended.status, ended.status.value)
        if ended.status is EndStatus.NOT_STORED:
            code, reason = code_of(ended.put_status, self._parts.local.why_not_writeable)
            remark = reason or ended.put_status.name
        # Producers do not wait for an answer: this line is what an operator finds.
        _log.warning("group %s cannot end the half message at %d: %s", request.group, request.log_offset, remark)
        return RequestRefused(remark, code)

    def _answer(self, connection: Connection, command: RemotingCommand, ended: Ended) -> RemotingCommand | None:
        if not self.durable.waits or ended.end_offset < 0:
            return None if command.is_oneway else command.respond()
        if command.is_oneway:
            self.durable.flush_soon(ended.end_offset)
            return None
        self.durable.add(
            ended.end_offset,
            connection,
            encode_frame(command.respond()),
            lambda status: encode_frame(command.respond(*code_of(status))),
        )
        return None

    def _look_for_late(self) -> None:
        self.durable.answer_late()

    def _rewritten(self, message: Message) -> Message:
        """A committed message that is delayed is stored in the queue of its delay level. Raises IllegalMessage."""
        destination = Destination(message.topic, message.queue_id, message.encoded_properties)
        try:
            stored = stored_destination(destination, message.sys_flag, self._levels, self._parts.timers)
        except RequestRefused as error:
            raise IllegalMessage(str(error)) from error
        if stored is destination:
            return message
        return Message(
            stored.topic,
            message.body,
            stored.queue_id,
            encoded_properties=stored.properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )

    # Questions.

    def _ask(self, question: Question) -> None:
        """In the rounds' thread."""
        self._parts.server.call_threadsafe(self._send_question, question)

    def _send_question(self, question: Question) -> None:
        group = self._parts.clients.producers(question.group)
        connections = [] if group is None else [each for each in group.clients if _may_be_asked(each, question)]
        if not connections:
            self.unanswerable_count += 1
            _log.info(
                "transaction %s: no producer of group %s is connected for the check",
                question.transaction_id,
                question.group,
            )
            return
        ext = {
            "topic": HALF_TOPIC,
            "msgId": question.transaction_id,
            "transactionId": question.transaction_id,
            "offsetMsgId": question.message_id,
            "tranStateTableOffset": str(question.queue_offset),
            "commitLogOffset": str(question.log_offset),
            "bname": self._config.broker_name,
        }
        connection = connections[next(self._turn) % len(connections)]
        connection.oneway(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, ext=ext, body=question.record))

    def _make_discard_topic(self) -> None:
        self._parts.topics.make(TRANSACTION_CHECK_MAX_TIME_TOPIC, 1, 1)

    # Life.

    def _before_offsets(self) -> None:
        if self._parts.local.max_offset(HALF_TOPIC, HALF_QUEUE) > 0:
            self._parts.local.flush()

    def _write_ops(self) -> None:
        """What ended since the last op was written, also where the check never ran."""
        self.ops.write()


def _may_be_asked(connection: Connection, question: Question) -> bool:
    """Whether a producer may see the message of a check: its own, or one that it may read."""
    account: Account | None = connection.attributes.get(ACCOUNT)
    if connection.closing or account is None:
        return not connection.closing
    is_its_own = question.sender == account.access_key
    may_read = account.may_use_topic(question.topic, Permission.SUB)
    return account.may_use_topic(question.topic, Permission.PUB) and (is_its_own or may_read)
