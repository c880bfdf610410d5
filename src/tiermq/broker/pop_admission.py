"""May this group pop that topic, and what does it want of it? Every check, in the order of RocketMQ.

broker not readable 16     topic missing 17    topic not readable 16    queue out of range 29
group missing 26           group disabled 16   expression that is none 23
"""

from __future__ import annotations

from tiermq.broker.client_commit import require_client_group
from tiermq.broker.filtering.compiled import filter_of
from tiermq.broker.held_weight import weight_of
from tiermq.broker.parts import BrokerParts
from tiermq.broker.pop import Pop
from tiermq.broker.subscriptions import Subscription
from tiermq.errors import RequestRefused, TierMQError
from tiermq.namesrv.topic_config import PERM_READ, TopicConfig
from tiermq.remoting.codes import ResponseCode


def admit(parts: BrokerParts, pop: Pop) -> TopicConfig:
    """Fill in the pop's filter, and give its topic. Raises RequestRefused."""
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
