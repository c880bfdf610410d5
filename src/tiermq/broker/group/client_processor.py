"""ClientProcessor and LockProcessor: requests of group members.

HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG (46):

    heartbeat ─► groups and retry topics exist ─► registered, answered              (on the loop)
              └► one is missing ─► made in the pool, which writes files ─► back on the loop, the same

A consumer group that may not be created is ignored silently, as in RocketMQ. Silent clients are closed periodically.
"""

from __future__ import annotations

from collections.abc import Generator

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.client_table import MessageQueue
from tiermq.broker.group.group_table import check_group_name
from tiermq.broker.group.subscription import ConsumerData, Heartbeat, Subscription
from tiermq.broker.pull.sql_filter import filter_of
from tiermq.broker.topic.topic_table import check_topic_name
from tiermq.errors import BadExpression, RequestRefused
from tiermq.message.topic_name import RETRY_PREFIX
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.access import of_group, reaches, require_group, require_topic, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import decode_object, encode_body, int32_in, object_in, text_in
from tiermq.remoting.limits import check_count
from tiermq.remoting.permissions import Account, Permission

SILENCE_PERIOD_S = 10.0
ACCOUNT = "account"
"""The attribute of a connection with the account that signed its last heartbeat."""


def _heartbeat_in(command: RemotingCommand) -> Heartbeat:
    return Heartbeat.decode(command.body)


class ClientProcessor:
    """See the module. Runs on the loop but for `_prepare`."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        parts.hooks.every(SILENCE_PERIOD_S, self._close_silent)

    # Heartbeats.

    @serves(
        RequestCode.HEART_BEAT,
        access=reaches("SUB of each consumer group, SUB of each subscribed topic"),
        decode=_heartbeat_in,
    )
    def heartbeat(self, connection: Connection, command: RemotingCommand, beat: Heartbeat) -> RemotingCommand | None:
        if command.account is not None:
            for data in beat.consumers:
                require_group(command, data.group)
                for each in data.subscriptions:
                    require_topic(command, each.topic, Permission.SUB)
        if all(self._is_prepared(each) for each in beat.consumers):
            return self._parts.server.in_steps(connection, command, self._accept(connection, command, beat))
        self._parts.server.hand_to_pool(self._prepare, connection, command)
        return None

    def _is_prepared(self, data: ConsumerData) -> bool:
        topics, groups = self._parts.topics, self._parts.groups
        return groups.get(data.group) is not None and topics.get(RETRY_PREFIX + data.group) is not None

    def _prepare(self, connection: Connection, command: RemotingCommand) -> None:
        """In the pool: make what a heartbeat's groups need. Waits for the disk twice, however many there are."""
        beat = Heartbeat.decode(command.body)
        groups = self._parts.groups.find_or_make_all(data.group for data in beat.consumers)
        self._parts.topics.make_all(
            TopicConfig(RETRY_PREFIX + group.name, max(1, group.retry_queue_nums), max(1, group.retry_queue_nums))
            for group in groups
        )
        self._parts.server.call_threadsafe(self._accept_later, connection, command, beat)

    def _accept_later(self, connection: Connection, command: RemotingCommand, beat: Heartbeat) -> None:
        answer = self._parts.server.in_steps(connection, command, self._accept(connection, command, beat))
        if answer is not None and not command.is_oneway:
            connection.send(answer)

    def _accept(
        self, connection: Connection, command: RemotingCommand, beat: Heartbeat
    ) -> Generator[None, None, RemotingCommand]:
        """One group at a time: other requests are served in between."""
        clients = self._parts.clients
        changed = beat.fingerprint == 0
        for data in beat.consumers:
            yield
            if not self._is_prepared(data):
                continue
            if beat.without_subscriptions:
                known = clients.consumers(data.group)
                alive = clients.consumer_is_alive(data.group, connection)
                changed = changed or not alive or known is None or known.fingerprint != beat.fingerprint
                continue
            clients.consumer_came(data, beat.client_id, connection, command.language, command.version)
            if beat.fingerprint and (known := clients.consumers(data.group)) is not None:
                changed = changed or known.fingerprint != beat.fingerprint
                known.fingerprint = beat.fingerprint
        connection.attributes[ACCOUNT] = command.account
        for group in beat.producers:
            yield
            signer = None if command.account is None else command.account.access_key
            clients.producer_came(group, beat.client_id, connection, command.language, command.version, signer)
        fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if changed else "false"}
        return command.respond(ext=fields)

    def _close_silent(self) -> None:
        self._parts.clients.close_silent()

    # Other requests.

    @serves(RequestCode.UNREGISTER_CLIENT, access=reaches("SUB of the consumer group, if it names one"))
    def unregister(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        text_field(command, "clientID")
        if group := command.ext.get("consumerGroup"):
            require_group(command, group)
        self._parts.clients.unregister(connection, command.ext.get("producerGroup"), command.ext.get("consumerGroup"))
        return command.respond()

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP, access=of_group("consumerGroup"))
    def list_consumers(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group = text_field(command, "consumerGroup")
        found = self._parts.clients.client_ids(group)
        if not found:
            raise RequestRefused(f"no consumer for this group, {group}")
        return command.respond(body=encode_body({"consumerIdList": found}))

    @serves(RequestCode.CHECK_CLIENT_CONFIG, access=reaches("SUB of the topic"), in_pool=True)
    def check_config(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Whether this broker supports the client's filters. Any thread."""
        fields = decode_object(command.body).get("subscriptionData") if command.body else None
        if fields is None:
            return command.respond()
        wanted = Subscription.from_json(fields)
        require_topic(command, wanted.topic, Permission.SUB)
        if wanted.is_by_tag:
            return command.respond()
        if not self._parts.config.enable_property_filter:
            raise RequestRefused(f"The broker does not support consumer to filter message by {wanted.expression_type}")
        try:
            filter_of(wanted)
        except BadExpression as error:
            raise RequestRefused(str(error), ResponseCode.SUBSCRIPTION_PARSE_FAILED) from error
        return command.respond()


def may_take(connection: Connection, topic: str, wanted: Permission) -> bool:
    """Whether a client may be sent a message of a topic, by the account of its last heartbeat."""
    account: Account | None = connection.attributes.get(ACCOUNT)
    return not connection.closing and (account is None or account.may_use_topic(topic, wanted))


LOCKED_QUEUES_MAX = 10_000
"""Queues of one request to lock or unlock."""

EXPIRY_PERIOD_S = 30.0


class LockProcessor:
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), for consumers that consume in order.

    A queue that another live client holds is no error: it is missing from the answer. Any thread may lock and unlock.
    """

    def __init__(self, parts: BrokerContext) -> None:
        self._locks = parts.clients.locks
        parts.hooks.every(EXPIRY_PERIOD_S, self._drop_expired)

    @serves(RequestCode.LOCK_BATCH_MQ, access=reaches("SUB of the group, SUB of each topic"), long_in_pool=True)
    def lock(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, client_id, queues = _decode(command)
        held = self._locks.lock(group, client_id, queues)
        return command.respond(body=encode_body({"lockOKMQSet": [each.to_json() for each in held]}))

    @serves(RequestCode.UNLOCK_BATCH_MQ, access=reaches("SUB of the group, SUB of each topic"), long_in_pool=True)
    def unlock(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, client_id, queues = _decode(command)
        self._locks.unlock(group, client_id, queues)
        return command.respond()

    def _drop_expired(self) -> None:
        self._locks.drop_expired()


def _decode(command: RemotingCommand) -> tuple[str, str, list[MessageQueue]]:
    """Group, client and queues of a request's body. Raises RequestRefused."""
    table = decode_object(command.body)
    group = text_in(table.get("consumerGroup"), "consumerGroup")
    client_id = text_in(table.get("clientId"), "clientId")
    if not group or not client_id:
        raise RequestRefused(f"request {int(command.code)}: expected a consumerGroup and a clientId, found at most one")
    queues = table.get("mqSet") or []
    if not isinstance(queues, list):
        raise RequestRefused(f"expected a list in mqSet, found a {type(queues).__name__}")
    check_count("queues in mqSet", len(queues), LOCKED_QUEUES_MAX)
    require_group(command, group)
    check_group_name(group)
    found = [_queue_in(each) for each in queues]
    for each in found if command.account is not None else ():
        require_topic(command, each.topic, Permission.SUB)
    return group, client_id, found


def _queue_in(value: object) -> MessageQueue:
    table = object_in(value, "a queue of mqSet")
    topic, queue_id = text_in(table.get("topic"), "topic"), int32_in(table, "queueId")
    check_topic_name(topic)
    if queue_id < 0:
        raise RequestRefused(f"queueId: expected 0 or more, found {queue_id}", ResponseCode.INVALID_PARAMETER)
    return MessageQueue(topic, text_in(table.get("brokerName"), "brokerName"), queue_id)
