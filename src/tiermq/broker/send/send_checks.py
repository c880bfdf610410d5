"""What is checked of a send before it is stored, and where it is stored then. Values only: nothing here waits.

    broker and topic may be sent to ─► queue exists ─► properties ─► retries that are used up go to dead letters
                                                                  ─► delayed ones to the queue of their level
                                                                  ─► those for a time to the timer topic
                                                                  ─► halves of transactions to theirs

Invariants: a message carries each of MSG_REGION, TRACE_ON and CLUSTER once, from this broker, and a unique key; no
client can set a POP receipt (POP_CK), alone or in a batch; a batch goes to its queue at once or is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.delay_rewrite import Place, delay_level, delayed
from tiermq.broker.groups import SubscriptionGroup
from tiermq.broker.put_answers import code_of
from tiermq.broker.topics import check_topic_name
from tiermq.delivery.timer.timer_place import DELETE_SEPARATOR, asks_for_a_time
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.transactions.half_messages import HALF_QUEUE, half_properties, is_half
from tiermq.errors import CorruptRecord, RequestRefused
from tiermq.kernel import SendRequest
from tiermq.kernel.send_lane import names_broker_s
from tiermq.message.client_batch import decode_client_batch, encode_client_batch
from tiermq.message.properties import (
    CLUSTER,
    DELAY,
    KEYS,
    MSG_REGION,
    POP_CK,
    TIMER_DEL_UNIQKEY,
    TRACE_ON,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    delete_property,
    encode_properties,
    get_property,
    get_text_property,
    join_properties,
    with_property,
)
from tiermq.message.topic_name import DEAD_LETTER_PREFIX, HALF_TOPIC, RETRY_PREFIX, TIMER_TOPIC, is_broker_topic
from tiermq.namesrv.topic_config import FILTER_MULTI_TAG, PERM_WRITE, TopicConfig
from tiermq.remoting.codes import ResponseCode
from tiermq.status import PutStatus

VERSION_MAX_RECONSUME_TIMES = 121
"""V3_4_9: clients from here on say how often a message may be tried."""
SYS_FLAG_MULTI_TAGS = 2
SYS_FLAG_TRANSACTION = 0x0C
TRANSACTION_COMMIT = 0x08
CLEANUP_POLICY = "cleanup.policy"


def broker_properties(config: BrokerConfig) -> bytes:
    """What a broker adds to every message."""
    trace_on = "true" if config.trace_on else "false"
    return encode_properties({MSG_REGION: config.region_id, TRACE_ON: trace_on, CLUSTER: config.broker_cluster_name})


def check_topic(topic: str, config: BrokerConfig, found: TopicConfig | None) -> None:
    """Raises RequestRefused for a topic that nobody may send to here."""
    if not config.broker_permission & PERM_WRITE and found is not None and found.order:
        raise RequestRefused(
            f"expected a broker that takes messages, found {config.broker_name} without the permission to write",
            ResponseCode.NO_PERMISSION,
        )
    if found is None:
        check_topic_name(topic)
    if is_broker_topic(topic):
        raise RequestRefused(
            f"topic {topic}: its messages are the broker's own, clients may not send to it", ResponseCode.NO_PERMISSION
        )


def no_such_topic(request: SendRequest) -> RequestRefused:
    return RequestRefused(
        f"topic {request.topic} does not exist, and may not be made from {request.default_topic!r}: create it first",
        ResponseCode.TOPIC_NOT_EXIST,
    )


def no_such_group(topic: str) -> RequestRefused:
    return RequestRefused(
        f"consumer group {group_of_retry(topic)} does not exist: create it first",
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )


def queue_of(request: SendRequest, config: TopicConfig, chance: random.Random) -> int:
    """The queue that a send goes to. Raises RequestRefused for one that the topic does not have."""
    if request.queue_id >= max(config.read_queues, config.write_queues) or config.write_queues <= 0:
        raise RequestRefused(
            f"topic {config.name}: expected a queue below {max(config.read_queues, config.write_queues)}, "
            f"found {request.queue_id}",
            ResponseCode.INVALID_PARAMETER,
        )
    return request.queue_id if request.queue_id >= 0 else chance.randrange(config.write_queues)


def group_of_retry(topic: str) -> str:
    return topic.removeprefix(RETRY_PREFIX)


def dead_letter_topic(topic: str) -> str:
    """The topic of what a group could not consume, from its retry topic."""
    return DEAD_LETTER_PREFIX + group_of_retry(topic)


def is_used_up(request: SendRequest, group: SubscriptionGroup, holds_locks: bool) -> bool:
    """Whether a message on its way to a retry topic goes to dead letters instead.

    A group that holds queues locked consumes in order, and what it sends back would come out of order.
    """
    most = group.retry_max_times
    if request.version >= VERSION_MAX_RECONSUME_TIMES and request.max_reconsume_times >= 0:
        most = request.max_reconsume_times
    return holds_locks or request.reconsume_times > most


def without_broker_s(properties: bytes) -> bytes:
    """A client's properties without those that only a broker sets."""
    for name in (POP_CK, MSG_REGION, TRACE_ON, CLUSTER):
        properties = delete_property(properties, name.encode())
    return properties


def completed(properties: bytes, added: bytes, new_key: Callable[[], str] | None) -> tuple[bytes, str]:
    """A client's properties with the broker's own behind them, and the unique key; without `new_key` none is made."""
    properties = without_broker_s(properties)
    key = get_property(properties, UNIQ_KEY.encode())
    text = "" if key is None else key.decode("utf-8", "replace")
    if not text and new_key is not None:
        text = new_key()
        properties = with_property(properties, UNIQ_KEY, text)
    return join_properties(properties, added), text


def check_properties(config: TopicConfig, properties: bytes) -> None:
    """Raises RequestRefused for what the topic does not take."""
    if config.attributes.get(CLEANUP_POLICY) == "COMPACTION" and not get_property(properties, KEYS.encode()):
        raise RequestRefused(
            f"topic {config.name} keeps the newest message of each key: expected one in {KEYS}, found none",
            ResponseCode.MESSAGE_ILLEGAL,
        )


def check_batch(properties: bytes, sys_flag: int) -> None:
    """Raises RequestRefused for a batch, or a message of one, that would have to be stored elsewhere first."""
    found = (
        "a transaction" if sys_flag & SYS_FLAG_TRANSACTION or is_half(properties)
        else "a delay" if delay_level(properties) > 0
        else "a delivery time" if asks_for_a_time(properties)
        else ""
    )  # fmt: skip
    if found:
        raise RequestRefused(
            f"the message is illegal: expected a batch of messages for now, found {found}: send such messages alone",
            ResponseCode.MESSAGE_ILLEGAL,
        )


def checked_batch(body: bytes, config: TopicConfig) -> bytes:
    """The body of a batch, its messages checked and stripped as those that are sent alone. Raises RequestRefused.

    Most batches name nothing of it, and are not taken apart.
    """
    is_compacted = config.attributes.get(CLEANUP_POLICY) == "COMPACTION"
    if not is_compacted and not names_broker_s(body):
        return body
    try:
        elements = decode_client_batch(body)
    except CorruptRecord as error:
        raise RequestRefused(str(error), ResponseCode.MESSAGE_ILLEGAL) from error
    for each in elements:
        check_batch(each.encoded_properties, 0)
        check_properties(config, each.encoded_properties)
    return encode_client_batch(
        replace(each, encoded_properties=without_broker_s(each.encoded_properties)) for each in elements
    )


def sys_flag_of(request: SendRequest, config: TopicConfig) -> int:
    return request.sys_flag | SYS_FLAG_MULTI_TAGS if config.filter_type == FILTER_MULTI_TAG else request.sys_flag


def stored_place(place: Place, sys_flag: int, levels: int, timers: TimerService | None = None) -> Place:
    """Where a message is stored now: at its place, in the queue of its delay, or with the timers until its time.

    Raises RequestRefused.
    """
    level = delay_level(place.properties)
    if sys_flag & SYS_FLAG_TRANSACTION not in (0, TRANSACTION_COMMIT):
        return place
    if level > 0:
        return delayed(place, level, levels)
    if not asks_for_a_time(place.properties) or place.topic == TIMER_TOPIC:
        return place
    cancelled = get_text_property(place.properties, TIMER_DEL_UNIQKEY) or ""
    if DELETE_SEPARATOR in cancelled and cancelled.partition(DELETE_SEPARATOR)[0] != place.topic:
        raise RequestRefused(
            f"{TIMER_DEL_UNIQKEY}: expected a timer of {place.topic}, which it is sent to, found {cancelled[:200]!r}",
            ResponseCode.MESSAGE_ILLEGAL,
        )
    found = PutStatus.WHEEL_TIMER_NOT_ENABLE if timers is None else timers.place(*place)
    if isinstance(found, PutStatus):
        code, remark = code_of(found)
        raise RequestRefused(remark or found.name, code)
    return place if found is None else Place(*found)


def is_prepared(request: SendRequest, properties: bytes) -> bool:
    """Whether it is half of a transaction; one that a client before 4.6.1 gives back is an ordinary message."""
    return is_half(properties) and not (request.reconsume_times > 0 and delay_level(properties) > 0)


def half_place(place: Place, config: BrokerConfig, levels: int, timers: TimerService | None = None) -> Place:
    """Where half of a transaction is stored. Raises RequestRefused for one that could not be committed, either."""
    if config.reject_transaction_message:
        raise RequestRefused(
            f"the broker {config.broker_name} takes no transactional messages (rejectTransactionMessage): send it "
            "without a transaction, or to another broker",
            ResponseCode.NO_PERMISSION,
        )
    stored_place(place, TRANSACTION_COMMIT, levels, timers)
    properties = place.properties
    for name in (TRAN_PREPARED_QUEUE_OFFSET, TRANSACTION_CHECK_TIMES):
        # Only copies that the broker makes have these: from a client they would speak for another's half message.
        properties = delete_property(properties, name.encode())
    return Place(HALF_TOPIC, HALF_QUEUE, half_properties(properties, place.topic, place.queue_id))


def without_delay(properties: bytes) -> bytes:
    return delete_property(properties, DELAY.encode())
