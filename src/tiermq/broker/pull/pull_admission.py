"""PullAdmission: whether a group may pull a queue, and with which filter, in the order of RocketMQ's checks.

    broker not readable 16 (1)   group missing 26            group disabled 16 (2)      topic missing 17
    topic not readable 16 (3)    forbidden to group 16 (5)   queue out of range 29
    without a subscription of its own: group unknown 24, broadcasting disabled 16 (4), topic not subscribed 24,
                                       subscription older than the client's 25, invalid SQL92 expression 27
    with one:                          invalid expression 23
    SQL92 switched off 1

In brackets: `forbiddenType`. A successful check is cached per group and topic, and valid as long as group, topic and
subscription stay the same; so the check of a running consumer is a few lookups.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.group.client_table import ClientTable
from tiermq.broker.group.group_table import GroupTable, SubscriptionGroup
from tiermq.broker.group.subscription import MessageModel, Subscription
from tiermq.broker.pop.pop_topics import NotOfOthers, Readable, may_share_retry_topic
from tiermq.broker.pull.sql_filter import RetryFilter, filter_of
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.clock import LINE_INTERVAL_S, Clock
from tiermq.errors import BadExpression, CorruptRecord, CorruptSegment, RequestRefused, SegmentMissing, TierMQError
from tiermq.message.message_filter import MessageFilter
from tiermq.message.topic_name import RETRY_PREFIX
from tiermq.namesrv.topic_config import PERM_READ, TopicConfig
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import RemotingCommand, int32_field, int_field, text_field
from tiermq.remoting.connection import Connection

_log = logging.getLogger(__name__)

LOGGED_MAX = 1_024
DAMAGE = (CorruptRecord, CorruptSegment, SegmentMissing)


class ReadFailures:
    """Messages that the store or the tier cannot read, as reported to clients and to the log.

    A client gets the queue, the offset and the kind of the error; details are logged only. A consumer retries, so the
    log has one line a minute for each damaged queue, and for each other kind of error, which concerns all queues alike
    (a tier that is not reached). Threads: any.
    """

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._logged: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()
        """When a line was logged, and how many were not since then."""

    def refusal(self, topic: str, queue_id: int, offset: int, error: TierMQError) -> RequestRefused:
        """The answer to a request for messages from `offset` on. A refusal is returned unchanged."""
        if isinstance(error, RequestRefused):
            return error
        kind = type(error).__name__
        unlogged = self._due((topic, queue_id) if isinstance(error, DAMAGE) else (kind,))
        if unlogged is not None:
            more = f" ({unlogged} more requests failed since the last line)" if unlogged else ""
            _log.warning(
                "queue %s-%d cannot be read at offset %d: %s: %s%s", topic, queue_id, offset, kind, error, more
            )
        return RequestRefused(
            f"queue {topic}-{queue_id} cannot be read at offset {offset} ({kind}): the broker's log has the details",
            ResponseCode.SYSTEM_ERROR,
        )

    def _due(self, key: tuple[object, ...]) -> int | None:
        """How many lines were left out before this one; None when it is left out as well."""
        now_s = self._clock.monotonic()
        with self._lock:
            self.count += 1
            logged_s, unlogged = self._logged.get(key, (None, 0))
            if logged_s is not None and now_s - logged_s < LINE_INTERVAL_S:
                self._logged[key] = logged_s, unlogged + 1
                return None
            self._logged[key] = now_s, 0
            self._logged.move_to_end(key)
            if len(self._logged) > LOGGED_MAX:
                self._logged.popitem(last=False)
            return unlogged


FLAG_COMMIT = 1
FLAG_SUSPEND = 2
FLAG_SUBSCRIPTION = 4
REMEMBERED_MAX = 65_536


class Pull:
    """One PULL_MESSAGE (11) or LITE_PULL_MESSAGE (361), read from its command.

        sysFlag bits:  0 commitOffset counts   1 may wait   2 brings its subscription   3 class filter   4 lite

    Invariants: the numbers fit their fields; `message_filter` is set once the pull was admitted, None lets all pass;
    `slot`, `weight` and `waits_for_tier` are those of a pull that is held, or was.
    `began_s` is of `perf_counter`.

    Belongs to the loop's thread, or to the thread that reads for it.
    """

    __slots__ = (
        "began_s",
        "command",
        "connection",
        "flags",
        "group",
        "max_messages",
        "message_filter",
        "offset",
        "queue_id",
        "slot",
        "suspend_ms",
        "topic",
        "waits_for_tier",
        "weight",
    )

    def __init__(self, connection: Connection, command: RemotingCommand) -> None:
        """Raises RequestRefused for a request that lacks a field."""
        self.began_s = time.perf_counter()
        self.connection = connection
        self.command = command
        self.group = text_field(command, "consumerGroup")
        self.topic = text_field(command, "topic")
        self.queue_id = int32_field(command, "queueId")
        self.offset = int_field(command, "queueOffset")
        self.max_messages = int32_field(command, "maxMsgNums")
        self.flags = int32_field(command, "sysFlag")
        self.message_filter: MessageFilter | None = None
        self.suspend_ms = int_field(command, "suspendTimeoutMillis") if self.flags & FLAG_SUSPEND else 0
        self.slot = 0
        self.waits_for_tier = False
        self.weight = 0

    @property
    def commit_offset(self) -> int:
        """The group's consumed offset, if `FLAG_COMMIT` is set."""
        return int_field(self.command, "commitOffset")

    @property
    def subscription_version(self) -> int:
        return int_field(self.command, "subVersion", 0)


@dataclass(slots=True)
class Admitted:
    """The admitted settings of one group and topic, and the deliveries since."""

    group: SubscriptionGroup
    topic: TopicConfig
    subscription: Subscription | None
    message_filter: MessageFilter | None
    message_count: int = 0
    byte_count: int = 0


class PullForbidden(RequestRefused):
    """NO_PERMISSION, with RocketMQ's number for the cause."""

    def __init__(self, message: str, forbidden_type: int) -> None:
        super().__init__(message, ResponseCode.NO_PERMISSION)
        self.forbidden_type = forbidden_type


class PullAdmission:
    """See the module. Belongs to the loop's thread."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, groups: GroupTable, clients: ClientTable) -> None:
        self.config = config
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._remembered: dict[tuple[str, str], Admitted] = {}

    @property
    def remembered(self) -> dict[tuple[str, str], Admitted]:
        """By group and topic."""
        return self._remembered

    def admit(self, pull: Pull) -> Admitted:
        """Fill in the pull's filter. Raises RequestRefused."""
        topic, group = self._topics.get(pull.topic), self._groups.get(pull.group)
        known = self._remembered.get((pull.group, pull.topic))
        brings_own = pull.flags & FLAG_SUBSCRIPTION
        if (
            known is not None
            and known.topic is topic
            and known.group is group
            and not brings_own
            and known.subscription is self._clients.subscription(pull.group, pull.topic)
            and known.subscription is not None
            and not self._groups.forbidden_table
        ):
            subscription: Subscription | None = known.subscription
            if known.subscription.version < pull.subscription_version:
                raise _refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
            message_filter = known.message_filter
        else:
            topic, group = self._check_rights(pull, topic, group)
            subscription = self._own(pull) if brings_own else self._registered(pull, group)
            message_filter = self._filter(pull, subscription, bool(brings_own))
            # A filter of the request is not cached: the next pull may have another.
            registered = (None, None) if brings_own else (subscription, message_filter)
            known = self._remember(pull, group, topic, *registered)
        if not 0 <= pull.queue_id < known.topic.read_queues:
            raise _refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{pull.queue_id}] is illegal, topic:[{pull.topic}] "
                f"topicConfig.readQueueNums:[{known.topic.read_queues}] consumer:[{pull.connection.peer[0]}]",
            )
        pull.message_filter = Readable.of(pull.command.account, pull.topic, message_filter)
        return known

    def _check_rights(
        self, pull: Pull, topic: TopicConfig | None, group: SubscriptionGroup | None
    ) -> tuple[TopicConfig, SubscriptionGroup]:
        if not self.config.broker_permission & PERM_READ:
            raise PullForbidden(f"the broker[{self.config.broker_ip1}] pulling message is forbidden", 1)
        if group is None:
            raise _refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{pull.group}] does not exist"
            )
        if not group.consume_enable:
            raise PullForbidden(f"subscription group no permission, {pull.group}", 2)
        if topic is None:
            raise _refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{pull.topic}] not exist, apply first please!")
        if not topic.perm & PERM_READ:
            raise PullForbidden(f"the topic[{pull.topic}] pulling message is forbidden", 3)
        if self._groups.is_forbidden(pull.group, pull.topic, PERM_READ):
            raise PullForbidden(f"the consumer group[{pull.group}] pulling topic[{pull.topic}] message is forbidden", 5)
        return topic, group

    def _own(self, pull: Pull) -> Subscription:
        ext = pull.command.ext
        try:
            return Subscription.of(
                pull.topic, ext.get("subscription"), ext.get("expressionType"), pull.subscription_version
            )
        except RequestRefused as error:
            raise _refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    def _registered(self, pull: Pull, group: SubscriptionGroup) -> Subscription:
        members = self._clients.consumers(pull.group)
        if members is None:
            raise _refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if not group.consume_broadcast_enable and members.message_model is MessageModel.BROADCASTING:
            raise PullForbidden(f"the consumer group[{pull.group}] can not consume by broadcast way", 4)
        subscription = members.subscriptions.get(pull.topic)
        if subscription is None:
            raise _refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: consumers of group {pull.group} must subscribe to the same",
            )
        if subscription.version < pull.subscription_version:
            raise _refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription

    def _filter(self, pull: Pull, subscription: Subscription, is_own: bool) -> MessageFilter | None:
        if not subscription.is_by_tag and not self.config.enable_property_filter:
            raise _refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.expression_type}",
            )
        try:
            if self.config.filter_support_retry and pull.topic == RETRY_PREFIX + pull.group:
                chosen: MessageFilter | None = RetryFilter(lambda topic: self._filter_of_topic(pull.group, topic))
            else:
                chosen = filter_of(subscription)
        except TierMQError as error:
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED if is_own else ResponseCode.FILTER_DATA_NOT_EXIST
            raise _refusal(code, f"parse the consumer's subscription failed: {error}") from error
        shares = may_share_retry_topic(pull.group, pull.topic)
        return NotOfOthers(pull.group, pull.topic, chosen) if shares else chosen

    def _filter_of_topic(self, group: str, topic: str) -> MessageFilter | None:
        subscription = self._clients.subscription(group, topic)
        try:
            return None if subscription is None or subscription.is_by_tag else filter_of(subscription)
        except BadExpression:
            return None  # Pulls of that topic get an error; retries from it must not be lost.

    def _remember(
        self,
        pull: Pull,
        group: SubscriptionGroup,
        topic: TopicConfig,
        subscription: Subscription | None,
        message_filter: MessageFilter | None,
    ) -> Admitted:
        key = (pull.group, pull.topic)
        known = self._remembered.get(key)
        if known is None:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.pop(next(iter(self._remembered)))
            known = self._remembered[key] = Admitted(group, topic, subscription, message_filter)
        known.group, known.topic = group, topic
        known.subscription, known.message_filter = subscription, message_filter
        return known


def _refusal(code: ResponseCode, text: str) -> RequestRefused:
    return RequestRefused(text, code)
