"""GroupAdminProcessor: what operators ask and tell of groups and of who is in them.

    200 make or change   201 everyone's settings   203 consumers that are connected   343 which topics it consumes
    207 delete           352 one's settings        204 producers that are connected   345 what it subscribes to

A change is on disk before it is answered. A group that is deleted keeps its offsets unless it is said that they go too.
"""

from __future__ import annotations

from typing import Any

from tiermq.broker.clients import Client
from tiermq.broker.groups import SubscriptionGroup, check_group_name, groups_document
from tiermq.broker.parts import BrokerParts
from tiermq.errors import RequestRefused
from tiermq.remoting.codes import RequestCode, ResponseCode, language_of
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.fields import bool_field, text_field
from tiermq.remoting.json_dialect import decode_object, encode_body
from tiermq.remoting.server import RemotingServer


class GroupAdminProcessor:
    """See the module."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    def register(self, server: RemotingServer) -> None:
        server.register_blocking(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.update)
        server.register_blocking(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete)
        server.register_blocking(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all_settings)
        server.register_blocking(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.settings)
        server.register_blocking(RequestCode.GET_CONSUMER_CONNECTION_LIST, self.consumers)
        server.register_blocking(RequestCode.GET_PRODUCER_CONNECTION_LIST, self.producers)
        server.register(RequestCode.QUERY_TOPICS_BY_CONSUMER, self.topics)
        server.register(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, self.subscription)

    # Settings.

    def update(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        wanted = SubscriptionGroup.from_json(decode_object(command.body))
        check_group_name(wanted.name)
        if wanted != self._parts.groups.get(wanted.name):
            self._parts.groups.put(wanted)
        return command.respond()

    def delete(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "groupName")
        self._parts.groups.delete(name)
        if bool_field(command, "cleanOffset", default=False):
            self._parts.offsets.remove_group(name)
        return command.respond()

    def settings(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Of one group, which is made if groups may come by themselves."""
        name = text_field(command, "group")
        found = self._parts.groups.find_or_make(name)
        if found is None:
            raise RequestRefused(f"No group in this broker. group: {name}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        return command.respond(body=encode_body(found.to_json()))

    def all_settings(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        groups = self._parts.groups
        return command.respond(
            body=encode_body(groups_document(groups.table, groups.forbidden_table, groups.data_version))
        )

    # Members.

    def consumers(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "consumerGroup")
        group = self._parts.clients.consumers(name)
        if group is None:
            raise RequestRefused(f"the consumer group[{name}] not online", ResponseCode.CONSUMER_NOT_ONLINE)
        body = {
            "connectionSet": [_told(each) for each in tuple(group.clients.values())],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: each.to_json() for topic, each in group.subscriptions.items()},
        }
        return command.respond(body=encode_body(body))

    def producers(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "producerGroup")
        group = self._parts.clients.producers(name)
        if group is None:
            raise RequestRefused(f"the producer group[{name}] not exist")
        return command.respond(
            body=encode_body({"connectionSet": [_told(each) for each in tuple(group.clients.values())]})
        )

    def topics(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Those that the group has offsets of."""
        found = self._parts.offsets.topics_of(text_field(command, "group"))
        address = f"{self._parts.config.broker_ip1}:{self._parts.server.port}"
        return command.respond(body=encode_body({"brokerAddr": address, "topicList": found}))

    def subscription(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, topic = text_field(command, "group"), text_field(command, "topic")
        found = self._parts.clients.subscription(group, topic)
        told = None if found is None else found.to_json()
        return command.respond(body=encode_body({"group": group, "subscriptionData": told, "topic": topic}))


def _told(client: Client) -> dict[str, Any]:
    return {
        "clientAddr": client.address,
        "clientId": client.client_id,
        "language": language_of(client.language).name,
        "version": client.version,
    }
