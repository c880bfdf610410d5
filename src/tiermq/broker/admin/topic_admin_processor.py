"""TopicAdminProcessor: admin requests for topics.

    17 make or change      351 one's settings       202 ends and times of its queues    305 those of the system
    18 the same, many      21 settings of all       300 which groups consume it         316 delete unknown queues
    215 delete

A list is checked whole before anything of it is changed, and costs one write to the disk.

A change is on disk, and known to the name servers that can be reached, before it is answered: the next command finds
it. A name server that hangs holds an answer up for some seconds, and no longer. Deleting a topic deletes its messages
from the store and the tier, the groups' offsets of it, and the retry topics that POP made for it. What reads or writes
files runs in the pool; remarks that tools show are RocketMQ's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tiermq.broker.admin.rates import NOTE_PERIOD_S
from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.pop.pop_topics import pop_retry_topics
from tiermq.broker.topic.attributes import altered_attributes, parse_attributes
from tiermq.broker.topic.table_file import TABLE_ENTRIES_MAX, page_of
from tiermq.broker.topic.topic_table import check_topic_name
from tiermq.errors import RequestRefused, StoreError, TierError
from tiermq.message.topic_name import TOPIC_QUEUES_MAX, lite_parent
from tiermq.namesrv.topic_config import (
    FILTER_MULTI_TAG,
    FILTER_SINGLE_TAG,
    NO_VERSION,
    RETENTION,
    TopicConfig,
    retention_of,
)
from tiermq.remoting.access import ADMINISTRATOR, ANY_ACCOUNT, knows, reads, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, bool_field, int32_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import ObjectKeyed, decode_object, encode_body, list_in, quoted
from tiermq.remoting.limits import check_count
from tiermq.store.durable_end import durable_end

_log = logging.getLogger(__name__)

PERM_MAX = 7


class TopicAdminProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        parts.hooks.every(NOTE_PERIOD_S, self.note_rates)

    def note_rates(self) -> None:
        self._parts.put_rates.note(self._parts.local.put_counts())

    # Changing.

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC, access=ADMINISTRATOR, in_pool=True)
    def update(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        asked = TopicConfig(
            text_field(command, "topic"),
            int32_field(command, "readQueueNums"),
            int32_field(command, "writeQueueNums"),
            int32_field(command, "perm"),
            int32_field(command, "topicSysFlag", 0),
            bool_field(command, "order", default=False),
            filter_type=command.ext.get("topicFilterType") or "",
        )
        self._change([(asked, parse_attributes(command.ext.get("attributes") or ""))])
        return command.respond()

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, access=ADMINISTRATOR, in_pool=True)
    def update_all(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Attributes are changes here too: `{"+message.type": "FIFO", "-reserve.time": ""}`."""
        asked = []
        wanted = list_in(decode_object(command.body), "topicConfigList")
        check_count("topics in a list", len(wanted), TABLE_ENTRIES_MAX)
        for each in wanted:
            topic = TopicConfig.from_json(each)
            signed = (name if name.startswith("-") else f"{name}={text}" for name, text in topic.attributes.items())
            asked.append((topic, parse_attributes(",".join(signed))))
        self._change(asked)
        return command.respond()

    def _change(self, asked: Sequence[tuple[TopicConfig, Mapping[str, str | None]]]) -> None:
        """Make topics what they were asked to be: all of them are checked before one changes."""
        self._require_own_broker()
        wanted = [self._wanted(topic, changes) for topic, changes in asked]
        for topic, (_, changes) in zip(wanted, asked, strict=True):
            self._retain(topic.name, topic.attributes, changes)
        changed = [each for each in wanted if each != self._parts.topics.get(each.name)]
        if changed:
            self._parts.topics.put_all(changed)
            self._wait_registered(changed[0].name)

    def _wanted(self, asked: TopicConfig, changes: Mapping[str, str | None]) -> TopicConfig:
        """The topic after the change. Raises RequestRefused for an invalid one."""
        self._refuse_system(asked.name)
        check_topic_name(asked.name)
        _check_queues("readQueueNums", asked.read_queues)
        _check_queues("writeQueueNums", asked.write_queues)
        _check_perm(asked.perm)
        known = self._parts.topics.get(asked.name)
        return replace(
            asked,
            attributes=altered_attributes(None if known is None else known.attributes, changes),
            filter_type=FILTER_MULTI_TAG if asked.filter_type == FILTER_MULTI_TAG else FILTER_SINGLE_TAG,
        )

    def _retain(self, name: str, attributes: Mapping[str, str], changes: Mapping[str, str | None]) -> None:
        """Update the tier before the topics' file: a start applies the file again."""
        changed = [each for each in RETENTION if each in changes]
        if not changed:
            return
        tiered = self._parts.tiered
        if tiered is None:
            raise RequestRefused(
                f"{changed[0]}: expected a broker with a tier, which applies this retention, found none; local "
                "files are kept by fileReservedTime. Start the broker with --tier",
                ResponseCode.INVALID_PARAMETER,
            )
        if tiered.tier.follower is not None:
            return  # A job copies the topics' file into the tier, and `pipeline expire` applies it from there.
        try:
            tiered.set_retention(name, *retention_of(attributes))
        except TierError as error:
            raise RequestRefused(f"{changed[0]} of topic {name} is not changed: {error}") from error

    def _wait_registered(self, name: str) -> None:
        if not self._parts.wait_registered():
            _log.warning(
                "topic %s: changed, but not yet registered at all name servers; the registration is retried", name
            )

    def _require_own_broker(self) -> None:
        """Refuse changes where another process has the broker: its topics are the ones that count."""
        if self._parts.local.is_fenced:
            raise RequestRefused(
                f"no topic is changed here: {self._parts.local.why_not_writeable}", ResponseCode.SERVICE_NOT_AVAILABLE
            )

    def _refuse_system(self, name: str) -> None:
        if self._parts.topics.is_system(name):
            raise RequestRefused(f"The topic[{name}] is conflict with system topic.", ResponseCode.INVALID_PARAMETER)

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER, access=ADMINISTRATOR, in_pool=True)
    def delete(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "topic", "")
        if not name.strip():
            raise RequestRefused("The specified topic is blank.", ResponseCode.INVALID_PARAMETER)
        check_topic_name(name)  # It becomes a path.
        self._refuse_system(name)
        self._require_own_broker()
        parts = self._parts
        gone = [name]
        for group in parts.offsets.groups_of(name):
            gone += [each for each in pop_retry_topics(group, name) if parts.topics.get(each) is not None]
        parts.topics.delete(gone)
        self._wait_registered(name)
        gone += [each for each in parts.local.topics() if lite_parent(each) == name]
        parts.offsets.remove_topics(gone)
        parts.offsets.flush()
        try:
            parts.store.delete_topics(gone)
        except TierError as error:
            raise RequestRefused(
                f"topic {name} is deleted here; its history is hidden, and deleted when the tier answers: {error}"
            ) from error
        return command.respond()

    @serves(RequestCode.CLEAN_UNUSED_TOPIC, access=ADMINISTRATOR, in_pool=True)
    def clean_unused(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Delete the queues of topics that are in the store but not in the topic table."""
        self._require_own_broker()
        try:
            self._parts.store.clean_unused_topics(self._parts.topics.table)
        except (StoreError, TierError) as error:
            raise RequestRefused(str(error)) from error
        return command.respond()

    # Queries.

    @serves(RequestCode.GET_TOPIC_CONFIG, access=knows("topic"))
    def settings(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "topic")
        found = self._parts.topics.get(name)
        if found is None:
            raise RequestRefused(f"No topic in this broker. topic: {name}", ResponseCode.TOPIC_NOT_EXIST)
        return command.respond(body=encode_body(found.to_json()))

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG, access=ADMINISTRATOR, in_pool=True)
    def all_settings(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topics = self._parts.topics
        version = topics.data_version
        table, fields = page_of(command, "Topic", topics.table, version)
        encoded = ",".join(f"{quoted(name)}:{each.encode()}" for name, each in table.items())
        body = (
            f'{{"dataVersion":{encode_body(version.to_json()).decode()},'
            f'"mappingDataVersion":{encode_body(NO_VERSION.to_json()).decode()},'
            f'"topicConfigTable":{{{encoded}}},"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{}}}}'
        )
        return command.respond(ext=fields, body=body.encode())

    @serves(RequestCode.GET_TOPIC_STATS_INFO, access=knows("topic"), in_pool=True)
    def stats(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "topic")
        found = self._parts.topics.get(name)
        if found is None:
            raise RequestRefused(f"topic[{name}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        queues, local = range(max(found.read_queues, found.write_queues)), self._parts.local
        if any(local.max_offset(name, each, committed=False) > local.max_offset(name, each) for each in queues):
            local.dispatch_now()  # What was acknowledged before the request is in the answer.
        body = {
            "offsetTable": ObjectKeyed(
                (queue_key(self._parts, name, queue_id), self._ends(name, queue_id)) for queue_id in queues
            ),
            "topicPutTps": self._parts.put_rates.per_second(name),
        }
        return command.respond(body=encode_body(body))

    def _ends(self, topic: str, queue_id: int) -> dict[str, int]:
        """RocketMQ's fields, and one of ours: `flushedOffset`, below which no crash can take messages back."""
        store = self._parts.store
        end = max(0, store.max_offset(topic, queue_id))
        is_here = self._parts.local.max_offset(topic, queue_id) > 0
        return {
            "flushedOffset": min(end, durable_end(self._parts.local, topic, queue_id)) if is_here else end,
            "lastUpdateTimestamp": max(0, store.store_time_of(topic, queue_id, end - 1)) if end else 0,
            "maxOffset": end,
            "minOffset": max(0, store.min_offset(topic, queue_id)),
        }

    @serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, access=reads("topic"))
    def consumed_by(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = text_field(command, "topic")
        groups = {*self._parts.clients.groups_subscribing(name), *self._parts.offsets.groups_of(name)}
        return command.respond(body=encode_body({"groupList": sorted(groups)}))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, access=ANY_ACCOUNT)
    def system_topics(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topics = self._parts.topics
        return command.respond(body=encode_body({"topicList": sorted(filter(topics.is_system, topics.table))}))


def queue_key(parts: BrokerContext, topic: str, queue_id: int) -> dict[str, Any]:
    """A queue as Java's maps have it for a key."""
    return {"brokerName": parts.config.broker_name, "queueId": queue_id, "topic": topic}


def _check_queues(name: str, count: int) -> None:
    if not 0 <= count <= TOPIC_QUEUES_MAX:
        raise RequestRefused(
            f"{name}: expected 0 to {TOPIC_QUEUES_MAX} queues, found {count}", ResponseCode.INVALID_PARAMETER
        )


def _check_perm(perm: int) -> None:
    if not 0 <= perm <= PERM_MAX:
        raise RequestRefused(
            f"perm: expected a sum of 4 (read), 2 (write) and 1 (inherit), found {perm}", ResponseCode.INVALID_PARAMETER
        )
