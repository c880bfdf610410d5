"""GroupAdminProcessor: admin requests for consumer groups and their members.

    200 make or change   201 settings of all       203 consumers that are connected   343 which topics it consumes
    225 the same, many   352 one's settings        204 producers that are connected   345 what it subscribes to
    207 delete           353 may it read a topic   328 producers of all groups

A change is on disk before it is answered. A deleted group keeps its offsets unless the request removes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.client_table import Client
from tiermq.broker.group.group_table import SubscriptionGroup, check_group_name, encode_groups
from tiermq.broker.group.offset_processor import require_client_group
from tiermq.broker.group.retry_policy import RetryPolicy
from tiermq.broker.topic.attributes import GROUP_ATTRIBUTES, altered_attributes, signed_changes
from tiermq.broker.topic.table_file import TABLE_ENTRIES_MAX, page_of
from tiermq.broker.topic.topic_table import check_topic_name
from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import PERM_READ
from tiermq.remoting.access import ADMINISTRATOR, of_group, reads, serves
from tiermq.remoting.codes import RequestCode, ResponseCode, language_of
from tiermq.remoting.command import RemotingCommand, bool_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import decode_object, encode_body, list_in
from tiermq.remoting.limits import check_count


class GroupAdminProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts

    # Settings.

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, access=ADMINISTRATOR, in_pool=True)
    def update(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self._put([decode_object(command.body)])
        return command.respond()

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, access=ADMINISTRATOR, in_pool=True)
    def update_all(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Checked whole before anything of it is changed; one write to the disk."""
        wanted = list_in(decode_object(command.body), "groupConfigList")
        check_count("groups in a list", len(wanted), TABLE_ENTRIES_MAX)
        self._put(wanted)
        return command.respond()

    def _put(self, bodies: list[Any]) -> None:
        wanted = [self._wanted(SubscriptionGroup.from_json(each)) for each in bodies]
        changed = [each for each in wanted if each != self._parts.groups.get(each.name)]
        if changed:
            self._parts.groups.put_all(changed)

    def _wanted(self, asked: SubscriptionGroup) -> SubscriptionGroup:
        """The group after the change: its attributes change as a topic's do. Raises RequestRefused."""
        check_group_name(asked.name)
        RetryPolicy.from_json(asked.group_retry_policy)
        known = self._parts.groups.get(asked.name)
        current = None if known is None else known.attributes
        changes = signed_changes(asked.attributes)
        return replace(asked, attributes=altered_attributes(current, changes, rules=GROUP_ATTRIBUTES, fixed=()))

    @serves(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, access=ADMINISTRATOR, in_pool=True)
    def forbidden(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Allow or forbid a group to read a topic, if requested; returns whether it may."""
        groups = self._parts.groups
        group, topic = text_field(command, "group"), text_field(command, "topic")
        check_group_name(group)
        check_topic_name(topic)
        if "readable" in command.ext:
            bits = groups.forbidden_table.get(group, {}).get(topic, 0)
            readable = bool_field(command, "readable", default=True)
            groups.set_forbidden(group, topic, bits & ~PERM_READ if readable else bits | PERM_READ)
        fields = {"group": group, "readable": not groups.is_forbidden(group, topic, PERM_READ), "topic": topic}
        return command.respond(body=encode_body(fields))

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP, access=ADMINISTRATOR, in_pool=True)
    def delete(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "groupName")
        require_client_group(name)
        self._parts.groups.delete(name)
        if bool_field(command, "cleanOffset", default=False):
            self._parts.offsets.remove_group(name)
        return command.respond()

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, access=of_group("group"), in_pool=True)
    def settings(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Settings of one group, which is created if auto-creation is allowed."""
        name = text_field(command, "group")
        found = self._parts.groups.find_or_make(name)
        if found is None:
            raise RequestRefused(f"No group in this broker. group: {name}", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        return command.respond(body=encode_body(found.to_json()))

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, access=ADMINISTRATOR, in_pool=True)
    def all_settings(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        groups = self._parts.groups
        version = groups.data_version
        table, fields = page_of(command, "Group", groups.table, version)
        return command.respond(ext=fields, body=encode_groups(table, groups.forbidden_table, version))

    # Members.

    @serves(RequestCode.GET_CONSUMER_CONNECTION_LIST, access=of_group("consumerGroup"), in_pool=True)
    def consumers(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "consumerGroup")
        group = self._parts.clients.consumers(name)
        if group is None:
            raise RequestRefused(f"the consumer group[{name}] not online", ResponseCode.CONSUMER_NOT_ONLINE)
        body = {
            "connectionSet": [_connection_fields(each) for each in tuple(group.clients.values())],
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: each.to_json() for topic, each in tuple(group.subscriptions.items())},
        }
        return command.respond(body=encode_body(body))

    @serves(RequestCode.GET_PRODUCER_CONNECTION_LIST, access=ADMINISTRATOR, in_pool=True)
    def producers(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "producerGroup")
        group = self._parts.clients.producers(name)
        if group is None:
            raise RequestRefused(f"the producer group[{name}] not exist")
        return command.respond(
            body=encode_body({"connectionSet": [_connection_fields(each) for each in tuple(group.clients.values())]})
        )

    @serves(RequestCode.GET_ALL_PRODUCER_INFO, access=ADMINISTRATOR, in_pool=True)
    def all_producers(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        clients = self._parts.clients
        found = [group for name in clients.producer_groups if (group := clients.producers(name)) is not None]
        body = {
            "data": {
                group.name: [
                    {
                        "clientId": each.client_id,
                        "language": language_of(each.language).name,
                        "lastUpdateTimestamp": each.seen_ms,
                        "remoteIP": f"/{each.address}",  # As Java prints an address without a name.
                        "version": each.version,
                    }
                    for each in tuple(group.clients.values())
                ]
                for group in found
            }
        }
        return command.respond(body=encode_body(body))

    @serves(RequestCode.QUERY_TOPICS_BY_CONSUMER, access=of_group("group"))
    def topics(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Those that the group has offsets of."""
        found = self._parts.offsets.topics_of(text_field(command, "group"))
        address = f"{self._parts.config.broker_ip1}:{self._parts.server.port}"
        return command.respond(body=encode_body({"brokerAddr": address, "topicList": found}))

    @serves(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, access=of_group("group") & reads("topic"))
    def subscription(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, topic = text_field(command, "group"), text_field(command, "topic")
        found = self._parts.clients.subscription(group, topic)
        subscription = None if found is None else found.to_json()
        return command.respond(body=encode_body({"group": group, "subscriptionData": subscription, "topic": topic}))


def _connection_fields(client: Client) -> dict[str, Any]:
    return {
        "clientAddr": client.address,
        "clientId": client.client_id,
        "language": language_of(client.language).name,
        "version": client.version,
    }
