"""What is checked of a send before it is stored, and where it is stored then. Values only: nothing here waits.

    broker and topic may be sent to ─► queue exists ─► properties ─► retries that are used up go to dead letters
                                                                  ─► delayed ones to the queue of their level
                                                                  ─► those for a time to the timer topic
                                                                  ─► halves of transactions to theirs

Invariants: a message carries each of MSG_REGION, TRACE_ON and CLUSTER once, from this broker, and a unique key; no
client can set a POP receipt (POP_CK), alone or in a batch; a batch goes to its queue at once or is refused; what is
accepted has space in its properties for everything that a broker adds later (`PROPERTIES_RESERVE_BYTES`).

A delayed message is first stored in the queue of its level in SCHEDULE_TOPIC_XXXX.

The message keeps its DELAY, and its topic and queue are in REAL_TOPIC and REAL_QID; the delivery reads
them. Level n is queue n - 1; levels beyond the last are the last one, as in RocketMQ. A delivery time of its own
is dropped: the level counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.send.put_answers import code_of
from tiermq.broker.topic.attributes import BY_PRIORITY, MESSAGE_TYPE
from tiermq.broker.topic.topic_table import check_topic_name
from tiermq.delivery.timer.timer_destination import DELETE_SEPARATOR, asks_for_a_time, without_timer
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.transactions.half_messages import HALF_QUEUE, half_properties, is_half
from tiermq.errors import CorruptRecord, RequestRefused
from tiermq.kernel import SendRequest
from tiermq.kernel.fast_send_path import names_broker_s
from tiermq.message.client_batch import decode_client_batch, encode_client_batch, largest_properties
from tiermq.message.layout import PROPERTIES_BYTES_MAX
from tiermq.message.properties import (
    CLUSTER,
    DELAY,
    GIVEN_BACK,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    KEYS,
    MESSAGE_PRIORITY,
    MSG_REGION,
    POP_CK,
    REAL_QID,
    REAL_TOPIC,
    TIERMQ_SENDER,
    TIMER_DEL_UNIQKEY,
    TRACE_ON,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
    decode_properties,
    delete_property,
    encode_properties,
    get_property,
    get_text_property,
    join_properties,
    with_property,
)
from tiermq.message.topic_name import (
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_broker_topic,
    is_light_queue,
)
from tiermq.namesrv.topic_config import FILTER_MULTI_TAG, PERM_WRITE, TopicConfig
from tiermq.remoting.access import Access, writes
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import Account, Permission
from tiermq.status import PutStatus

VERSION_MAX_RECONSUME_TIMES = 121
"""V3_4_9: clients from this version send the maximum number of retries."""
SYS_FLAG_MULTI_TAGS = 2
DIGITS_MAX = 10
"""Of a priority."""
SYS_FLAG_TRANSACTION = 0x0C
TRANSACTION_COMMIT = 0x08
CLEANUP_POLICY = "cleanup.policy"
PROPERTIES_RESERVE_BYTES = 83 + 135 + 871 + 658 + 57 + 21
"""Kept in the 32,767 bytes of a record's properties for what is added after the send, with the longest names there are:

    questions about a half   83   TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET
    timers                  135   TIMER_OUT_MS of a committed half, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES
    popped, revived         871   1ST_POP_TIME, TIERMQ_GIVEN_BACK, and POP_CK in the answer
    sent back by pulling    658   RETRY_TOPIC, ORIGIN_MESSAGE_ID, WAIT, DELAY, REAL_TOPIC, REAL_QID
    sent back by sending     57   RECONSUME_TIME, MAX_RECONSUME_TIMES
    checksum                 21   __CRC32#

Not more: RocketMQ keeps nothing back (it drops such timers, and never gives such retries out), and its own tests send
10,240 Chinese characters in one property."""
SENT_PROPERTIES_BYTES_MAX = PROPERTIES_BYTES_MAX - PROPERTIES_RESERVE_BYTES


FIRST_LEVEL = 3
"""The delay level of a first retry, 10 s; each further one is a level later."""


class Destination(NamedTuple):
    """Where a message is stored, and with which properties."""

    topic: str
    queue_id: int
    properties: bytes


def delay_level(properties: bytes) -> int:
    """The delay level of a message; 0: no delay. Raises RequestRefused if it is no number."""
    value = get_property(properties, DELAY.encode())
    if value is None:
        return 0
    if not value.lstrip(b"+-").isdigit() or len(value) > 10:
        raise RequestRefused(
            f"expected a delay level in the property {DELAY}, found {value[:40]!r}", ResponseCode.MESSAGE_ILLEGAL
        )
    return int(value)


def delayed(destination: Destination, level: int, levels: int) -> Destination:
    """Where `destination` is stored until a delay of `level` (1 or more, of `levels` that there are) is over."""
    level = min(level, levels)
    properties = with_property(without_timer(destination.properties), DELAY, str(level))
    properties = with_property(properties, REAL_TOPIC, destination.topic)
    properties = with_property(properties, REAL_QID, str(destination.queue_id))
    return Destination(SCHEDULE_TOPIC, level - 1, properties)


def broker_properties(config: BrokerConfig) -> bytes:
    """What a broker adds to every message."""
    trace_on = "true" if config.trace_on else "false"
    return encode_properties({MSG_REGION: config.region_id, TRACE_ON: trace_on, CLUSTER: config.broker_cluster_name})


def check_topic(topic: str, config: BrokerConfig, found: TopicConfig | None) -> None:
    """Raises RequestRefused for a topic that does not accept sends."""
    if not config.broker_permission & PERM_WRITE and found is not None and found.order:
        raise RequestRefused(
            f"expected a writable broker, found {config.broker_name} without the permission to write",
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
        f"topic {request.topic} does not exist, and cannot be created from {request.default_topic!r}: create it first",
        ResponseCode.TOPIC_NOT_EXIST,
    )


def no_such_group(topic: str) -> RequestRefused:
    return RequestRefused(
        f"consumer group {group_of_retry(topic)} does not exist: create it first",
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    )


def queue_of(request: SendRequest, config: TopicConfig, chance: random.Random) -> int:
    """The queue of a send: in a topic by priority, that of the message's. Raises RequestRefused for a queue that the
    topic does not have.
    """
    if request.queue_id >= max(config.read_queues, config.write_queues) or config.write_queues <= 0:
        raise RequestRefused(
            f"topic {config.name}: expected a queue below {max(config.read_queues, config.write_queues)}, "
            f"found {request.queue_id}",
            ResponseCode.INVALID_PARAMETER,
        )
    if config.attributes.get(MESSAGE_TYPE) == BY_PRIORITY:
        found = get_property(request.properties, MESSAGE_PRIORITY.encode())
        if found is not None and found.isdigit():
            return min(int(found[:DIGITS_MAX]), config.write_queues - 1)
    return request.queue_id if request.queue_id >= 0 else chance.randrange(config.write_queues)


def group_of_retry(topic: str) -> str:
    return topic.removeprefix(RETRY_PREFIX)


def is_used_up(request: SendRequest, group: SubscriptionGroup, holds_locks: bool) -> bool:
    """Whether a message for a retry topic goes to the dead letter queue instead.

    A group that holds queues locked consumes in order, and what it sends back would come out of order.
    """
    most = group.retry_max_times
    if request.version >= VERSION_MAX_RECONSUME_TIMES and request.max_reconsume_times >= 0:
        most = request.max_reconsume_times
    return holds_locks or request.reconsume_times > most


def writes_with_light_queues(topic_field: str, properties_field: str) -> Access:
    """PUB for the topic in a field, and for each light queue that the message is also dispatched to."""

    def check(account: Account, command: RemotingCommand) -> None:
        text = command.ext.get(properties_field) or ""
        if INNER_MULTI_DISPATCH not in text:
            return
        names = decode_properties(text.encode(errors="replace")).get(INNER_MULTI_DISPATCH, "")
        for name in filter(is_light_queue, names.split(",")):
            account.require_topic(name, Permission.PUB)

    return writes(topic_field) & Access("PUB of its light queues", check)


def without_broker_s(properties: bytes) -> bytes:
    """A client's properties without those that only a broker sets."""
    for name in (POP_CK, GIVEN_BACK, MSG_REGION, TRACE_ON, CLUSTER, INNER_MULTI_QUEUE_OFFSET):
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


def check_room(topic: str, properties_bytes: int) -> None:
    """Raises RequestRefused for properties, as they are stored, to which a broker could not add its own later.

    A message that a consumer sends to its retry topic may use the reserve: it has the added properties already.
    """
    if properties_bytes > SENT_PROPERTIES_BYTES_MAX and not topic.startswith(RETRY_PREFIX):
        raise RequestRefused(
            f"the message is illegal: its properties take {properties_bytes} bytes with the broker's, more than "
            f"{SENT_PROPERTIES_BYTES_MAX}: {PROPERTIES_RESERVE_BYTES} of {PROPERTIES_BYTES_MAX} are kept for what is "
            "added later. Use the body for large values",
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


def checked_batch(body: bytes, config: TopicConfig, properties: bytes) -> bytes:
    """The body of a batch, its messages checked and stripped as those that are sent alone. Raises RequestRefused.

    `properties` are the batch's own, which each message gets. Most batches name nothing of it, and are not taken apart.
    """
    if len(body) + len(properties) > SENT_PROPERTIES_BYTES_MAX:
        check_room(config.name, largest_properties(body) + len(properties))
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


def stored_destination(
    destination: Destination, sys_flag: int, levels: int, timers: TimerService | None = None
) -> Destination:
    """Where a message is stored now: at its destination, in the queue of its delay, or with the timers until its time.

    Raises RequestRefused.
    """
    level = delay_level(destination.properties)
    if sys_flag & SYS_FLAG_TRANSACTION not in (0, TRANSACTION_COMMIT):
        return destination
    if level > 0:
        return delayed(destination, level, levels)
    if not asks_for_a_time(destination.properties) or destination.topic == TIMER_TOPIC:
        return destination
    cancelled = get_text_property(destination.properties, TIMER_DEL_UNIQKEY) or ""
    if DELETE_SEPARATOR in cancelled and cancelled.partition(DELETE_SEPARATOR)[0] != destination.topic:
        raise RequestRefused(
            f"{TIMER_DEL_UNIQKEY}: expected a timer of {destination.topic}, which it is sent to, "
            f"found {cancelled[:200]!r}",
            ResponseCode.MESSAGE_ILLEGAL,
        )
    found = PutStatus.WHEEL_TIMER_NOT_ENABLE if timers is None else timers.place(*destination)
    if isinstance(found, PutStatus):
        code, remark = code_of(found)
        raise RequestRefused(remark or found.name, code)
    return destination if found is None else Destination(*found)


def is_prepared(request: SendRequest, properties: bytes) -> bool:
    """Whether it is half of a transaction; one that a client before 4.6.1 sends back is an ordinary message."""
    return is_half(properties) and not (request.reconsume_times > 0 and delay_level(properties) > 0)


def half_destination(
    destination: Destination, config: BrokerConfig, levels: int, timers: TimerService | None = None
) -> Destination:
    """Where half of a transaction is stored. Raises RequestRefused for one that could not be committed, either."""
    if config.reject_transaction_message:
        raise RequestRefused(
            f"the broker {config.broker_name} takes no transactional messages (rejectTransactionMessage): send it "
            "without a transaction, or to another broker",
            ResponseCode.NO_PERMISSION,
        )
    stored_destination(destination, TRANSACTION_COMMIT, levels, timers)
    properties = destination.properties
    for name in (TRAN_PREPARED_QUEUE_OFFSET, TRANSACTION_CHECK_TIMES, TIERMQ_SENDER):
        # Only copies that the broker makes have these: a client could name the half message of another client.
        properties = delete_property(properties, name.encode())
    return Destination(HALF_TOPIC, HALF_QUEUE, half_properties(properties, destination.topic, destination.queue_id))


def without_delay(properties: bytes) -> bytes:
    return delete_property(properties, DELAY.encode())
