"""GroupTable: the consumer groups of this broker, kept in RocketMQ's `subscriptionGroup.json`.

    {"dataVersion":{"counter":3,"stateVersion":0,"timestamp":…},"forbiddenTable":{"CG":{"orders":4}},
     "subscriptionGroupTable":{"CG":{"attributes":{},"brokerId":0,"consumeEnable":true,…}}}

How a change reaches the disk is in `table_file`: its cost does not grow with the number of groups.

Invariants: a group that a change returned from is on disk; readers need no lock; each change makes a new data version.
The groups that RocketMQ's own tools use always exist.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.topic.table_file import StoredTable, TableChange, is_older
from tiermq.clock import Clock
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import PREDEFINED_GROUPS, is_broker_group
from tiermq.namesrv.topic_config import NO_VERSION, DataVersion
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.json_dialect import (
    as_bool,
    as_int,
    decode_object,
    encode_body,
    int32_in,
    int64_in,
    object_in,
    quoted,
    text_in,
    text_map_in,
)

_log = logging.getLogger(__name__)

FILE = "subscriptionGroup.json"
TABLE_GROUP_CHARACTERS_MAX = 255
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%|-_")


def _customized_policy() -> Mapping[str, Any]:
    return {"type": "CUSTOMIZED"}


_POLICY = encode_body(_customized_policy()).decode()


def _word(value: bool) -> str:
    return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    """What one consumer group may do, and how it retries. The defaults are those of an auto-created group."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    group_retry_policy: Mapping[str, Any] = field(default_factory=_customized_policy)

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minute,
            "groupName": self.name,
            "groupRetryPolicy": dict(self.group_retry_policy),
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }

    def encode(self) -> str:
        """The same as text, without the detour: tables have tens of thousands."""
        attributes = "{}" if not self.attributes else encode_body(dict(self.attributes)).decode()
        policy = (
            _POLICY
            if self.group_retry_policy == _customized_policy()
            else encode_body(self.group_retry_policy).decode()
        )
        return (
            f'{{"attributes":{attributes},"brokerId":{self.broker_id},'
            f'"consumeBroadcastEnable":{_word(self.consume_broadcast_enable)},'
            f'"consumeEnable":{_word(self.consume_enable)},'
            f'"consumeFromMinEnable":{_word(self.consume_from_min_enable)},'
            f'"consumeMessageOrderly":{_word(self.consume_message_orderly)},'
            f'"consumeTimeoutMinute":{self.consume_timeout_minute},"groupName":{quoted(self.name)},'
            f'"groupRetryPolicy":{policy},"groupSysFlag":{self.group_sys_flag},'
            f'"notifyConsumerIdsChangedEnable":{_word(self.notify_consumer_ids_changed_enable)},'
            f'"retryMaxTimes":{self.retry_max_times},"retryQueueNums":{self.retry_queue_nums},'
            f'"whichBrokerWhenConsumeSlowly":{self.which_broker_when_consume_slowly}}}'
        )

    @classmethod
    def from_json(cls, value: object, name: str = "") -> SubscriptionGroup:
        """`name` is the key it stood under, for writers that leave it out inside. Raises RequestRefused."""
        table = object_in(value, f"the configuration of group {name[:40]!r}")
        group_name = text_in(table.get("groupName"), "groupName") or name
        if not group_name:
            raise RequestRefused("expected a consumer group with a name, found one without")
        attributes, policy = table.get("attributes"), table.get("groupRetryPolicy")
        return cls(
            group_name,
            as_bool(table.get("consumeEnable"), default=True),
            as_bool(table.get("consumeFromMinEnable"), default=True),
            as_bool(table.get("consumeBroadcastEnable"), default=True),
            as_bool(table.get("consumeMessageOrderly")),
            int32_in(table, "retryQueueNums", 1),
            int32_in(table, "retryMaxTimes", 16),
            int64_in(table, "brokerId", 0),
            int64_in(table, "whichBrokerWhenConsumeSlowly", 1),
            as_bool(table.get("notifyConsumerIdsChangedEnable"), default=True),
            int32_in(table, "groupSysFlag", 0),
            int32_in(table, "consumeTimeoutMinute", 15),
            {} if attributes is None else text_map_in(attributes, "attributes"),
            _customized_policy() if policy is None else object_in(policy, "groupRetryPolicy"),
        )


Forbidden = Mapping[str, Mapping[str, int]]
"""group → topic → permission bits that the group lacks there."""


class GroupTable(StoredTable[SubscriptionGroup]):
    """See the module. Any thread may call; changes go one at a time and wait for the disk."""

    def __init__(self, directory: str, config: BrokerConfig, clock: Clock) -> None:
        """Reads the file in `directory` if there is one. Raises StoreDamaged when it cannot be read."""
        super().__init__(os.path.join(directory, FILE), clock)
        self.config = config
        self._forbidden: dict[str, dict[str, int]] = {}
        if (found := self._file.read(decode_groups)) is not None:
            self._table, self._forbidden, self.data_version = found
            self._replay()
        missing = [SubscriptionGroup(name) for name in PREDEFINED_GROUPS if name not in self._table]
        if missing:
            self.put_all(missing)

    # Reading.

    @property
    def forbidden_table(self) -> Forbidden:
        """What groups may not do with topics; this map is never changed."""
        return self._forbidden

    def is_forbidden(self, name: str, topic: str, permission: int) -> bool:
        """Whether a group lacks a permission bit (4 read, 2 write) for one topic."""
        return bool(self._forbidden) and bool(self._forbidden.get(name, {}).get(topic, 0) & permission)

    # Changing.

    def find_or_make(self, name: str) -> SubscriptionGroup | None:
        """The group, created if allowed; None if it does not exist and may not be created."""
        return self._table.get(name) or next(iter(self.find_or_make_all([name])), None)

    def find_or_make_all(self, names: Iterable[str]) -> list[SubscriptionGroup]:
        """The groups that exist or may be created; all new ones cost one write to disk."""
        wanted = dict.fromkeys(names)
        with self._lock:
            made = {
                name: SubscriptionGroup(name) for name in wanted if name not in self._table and self._may_make(name)
            }
            if made:
                self._change(made)
        for name in made:
            _log.info("consumer group %s: created", name)
        return [found for name in wanted if (found := self._table.get(name)) is not None]

    def _may_make(self, name: str) -> bool:
        wanted = self.config.auto_create_subscription_group or is_broker_group(name)
        return wanted and is_group_name(name)

    def put(self, group: SubscriptionGroup) -> None:
        """Add or replace one; durable when it returns. Raises OSError."""
        self.put_all([group])

    def put_all(self, groups: Iterable[SubscriptionGroup]) -> None:
        with self._lock:
            self._change({each.name: each for each in groups})

    def follow(
        self,
        table: Mapping[str, SubscriptionGroup],
        forbidden: dict[str, dict[str, int]],
        version: DataVersion,
        *,
        is_logged: bool = False,
    ) -> None:
        """Take the table of a master, with its version. `is_logged`: it is of the master's log. Raises OSError."""
        with self._lock:
            if is_logged:
                self._logged = version
            elif self._is_stale(version):
                return
            self._forbidden = forbidden
            self._take_over(table, version)

    def follow_log(self, change: TableChange, forbidden: dict[str, dict[str, int]] | None) -> bool | None:
        """One change of a master, of its log: see `StoredTable._take_change`. `forbidden`: all of it, if that has
        changed. Raises RequestRefused and OSError.
        """
        with self._lock:
            before = self._forbidden
            if forbidden is None or forbidden == before or not is_older(self.data_version, change.version):
                return self._take_change(change)
            self._forbidden = forbidden
            try:
                taken = self._take_change(change)
            except BaseException:
                self._forbidden = before
                raise
            self._file.write(self.data_version, self._encoded(self._table, self.data_version))
            return taken

    def set_forbidden(self, name: str, topic: str, permission: int) -> None:
        """Which permission bits a group lacks for a topic; 0 lifts it. Durable when it returns."""
        with self._lock:
            topics = {**self._forbidden.get(name, {}), topic: permission}
            if permission == 0:
                del topics[topic]
            forbidden = {**self._forbidden, name: topics}
            if not topics:
                del forbidden[name]
            self._write(forbidden)

    def delete(self, name: str) -> bool:
        """Delete a group and its forbidden topics; returns whether it existed."""
        with self._lock:
            if name not in self._table:
                return False
            self._change({}, (name,))
            if name in self._forbidden:
                self._write({each: value for each, value in self._forbidden.items() if each != name})
        return True

    def _write(self, forbidden: dict[str, dict[str, int]]) -> None:
        """Forbidden topics are not in the journal: they change rarely, and the file is rewritten."""
        base, version = self.data_version, self.data_version.next(self._clock.now_ms())
        self._file.write(version, encode_groups(self._table, forbidden, version))
        self._forbidden, self.data_version = forbidden, version
        self.on_change(TableChange(base, version, {}))

    def _encoded(self, table: Mapping[str, SubscriptionGroup], version: DataVersion) -> bytes:
        return encode_groups(table, self._forbidden, version)

    def _decoded_entry(self, name: str, value: object) -> SubscriptionGroup:
        found = SubscriptionGroup.from_json(value, name)
        if found.name != name:
            raise RequestRefused(f"a group of another name under {name[:80]!r}")
        check_group_name(name)
        return found


def encode_groups(table: Mapping[str, SubscriptionGroup], forbidden: Forbidden, version: DataVersion) -> bytes:
    """The table in RocketMQ's form, on the wire and on disk."""
    groups = ",".join(f"{quoted(name)}:{each.encode()}" for name, each in table.items())
    return b'{"dataVersion":%b,"forbiddenTable":%b,"subscriptionGroupTable":{%b}}' % (
        encode_body(version.to_json()),
        encode_body({name: dict(topics) for name, topics in forbidden.items()}),
        groups.encode("utf-8", "replace"),
    )


def decode_groups(data: bytes) -> tuple[dict[str, SubscriptionGroup], dict[str, dict[str, int]], DataVersion]:
    """Raises RequestRefused for what is no group table."""
    document = decode_object(data)
    groups = object_in(document.get("subscriptionGroupTable"), "subscriptionGroupTable")
    version = document.get("dataVersion")
    return (
        {name: SubscriptionGroup.from_json(each, name) for name, each in groups.items()},
        forbidden_in(document.get("forbiddenTable")),
        NO_VERSION if version is None else DataVersion.from_json(version),
    )


def forbidden_in(value: object) -> dict[str, dict[str, int]]:
    """Raises RequestRefused for what is no table of forbidden topics."""
    return {
        name: {topic: as_int(bits) for topic, bits in object_in(topics, "forbiddenTable").items()}
        for name, topics in object_in(value or {}, "forbiddenTable").items()
    }


def is_group_name(name: str) -> bool:
    return 0 < len(name) <= TABLE_GROUP_CHARACTERS_MAX and _LEGAL.issuperset(name)


def check_group_name(name: str) -> None:
    """Raises RequestRefused (INVALID_PARAMETER) for a name that no group can have."""
    if not is_group_name(name):
        raise RequestRefused(
            f"expected a group of 1 to {TABLE_GROUP_CHARACTERS_MAX} letters, digits, '%', '|', '-' and '_', "
            f"found {name[:40]!r}",
            ResponseCode.INVALID_PARAMETER,
        )
