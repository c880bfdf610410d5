"""PullAdmission: may this group pull that queue, and what does it want of it? Every check, in the order of RocketMQ.

    broker not readable 16 (1)   group missing 26            group disabled 16 (2)      topic missing 17
    topic not readable 16 (3)    forbidden to group 16 (5)   queue out of range 29
    without a subscription of its own: group unknown 24, broadcasting disabled 16 (4), topic not subscribed 24,
                                       subscription older than the client's 25, SQL92 expression that is none 27
    with one:                          expression that is none 23
    SQL92 switched off 1

In brackets: `forbiddenType`. What was found right is remembered per group and topic, and holds as long as the same
group, topic and subscription do; that makes the check of a running consumer a few look-ups.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.clients import ClientTable
from tiermq.broker.filtering.compiled import RetryFilter, filter_of
from tiermq.broker.groups import GroupTable, SubscriptionGroup
from tiermq.broker.pull import FLAG_SUBSCRIPTION, Pull
from tiermq.broker.subscriptions import MessageModel, Subscription
from tiermq.broker.topics import TopicTable
from tiermq.errors import BadExpression, RequestRefused, TierMQError
from tiermq.message.message_filter import MessageFilter
from tiermq.message.topic_name import RETRY_PREFIX
from tiermq.namesrv.topic_config import PERM_READ, TopicConfig
from tiermq.remoting.codes import ResponseCode

REMEMBERED_MAX = 65_536


@dataclass(slots=True)
class Admitted:
    """What was found right for one group and topic, and what was given out since."""

    group: SubscriptionGroup
    topic: TopicConfig
    subscription: Subscription | None
    message_filter: MessageFilter | None
    message_count: int = 0
    byte_count: int = 0


class PullForbidden(RequestRefused):
    """NO_PERMISSION, with RocketMQ's number for who forbids it."""

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
            known = self._remember(pull, group, topic, None if brings_own else subscription, message_filter)
        if not 0 <= pull.queue_id < known.topic.read_queues:
            raise _refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{pull.queue_id}] is illegal, topic:[{pull.topic}] "
                f"topicConfig.readQueueNums:[{known.topic.read_queues}] consumer:[{pull.connection.peer[0]}]",
            )
        pull.message_filter = message_filter
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
        if self.config.filter_support_retry and pull.topic == RETRY_PREFIX + pull.group:
            return RetryFilter(lambda topic: self._filter_of_topic(pull.group, topic))
        try:
            return filter_of(subscription)
        except TierMQError as error:
            code = ResponseCode.SUBSCRIPTION_PARSE_FAILED if is_own else ResponseCode.FILTER_DATA_NOT_EXIST
            raise _refusal(code, f"parse the consumer's subscription failed: {error}") from error

    def _filter_of_topic(self, group: str, topic: str) -> MessageFilter | None:
        subscription = self._clients.subscription(group, topic)
        try:
            return None if subscription is None or subscription.is_by_tag else filter_of(subscription)
        except BadExpression:
            return None  # Who pulls that topic is told; what comes back from it must not be lost for it.

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
