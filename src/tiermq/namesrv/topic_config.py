"""TopicConfig and DataVersion: what a broker says of its topics, as values and as RocketMQ's JSON.

    {"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",
     "topicName":"orders","topicSysFlag":0,"writeQueueNums":4}
    {"counter":3,"stateVersion":0,"timestamp":1700000000000}

Invariants: values never change; two versions are equal when all three numbers are; numbers of a topic fit 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiermq.errors import RequestRefused
from tiermq.remoting.json_dialect import as_bool, as_int, encode_body, quoted

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
SYS_FLAG_UNIT = 1
SYS_FLAG_UNIT_SUBSCRIBED = 2
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
FILTER_SINGLE_TAG = "SINGLE_TAG"
FILTER_MULTI_TAG = "MULTI_TAG"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic of one broker."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    filter_type: str = FILTER_SINGLE_TAG

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    def encode(self) -> str:
        """`to_json` as text: tables have tens of thousands of these."""
        attributes = "{}" if not self.attributes else encode_body(dict(self.attributes)).decode()
        return (
            f'{{"attributes":{attributes},"order":{"true" if self.order else "false"},"perm":{self.perm},'
            f'"readQueueNums":{self.read_queues},"topicFilterType":{quoted(self.filter_type)},'
            f'"topicName":{quoted(self.name)},"topicSysFlag":{self.sys_flag},"writeQueueNums":{self.write_queues}}}'
        )

    @classmethod
    def from_json(cls, value: object, name: str = "") -> TopicConfig:
        """`name` is the key it stood under, for writers that leave it out inside. Raises RequestRefused."""
        table = object_in(value, f"the configuration of topic {name[:40]!r}")
        told = text_in(table.get("topicName"), "topicName") or name
        if not told:
            raise RequestRefused("expected a topic with a name, found one without")
        attributes = table.get("attributes")
        return cls(
            told,
            int32_in(table, "readQueueNums", 16),
            int32_in(table, "writeQueueNums", 16),
            int32_in(table, "perm", PERM_READ | PERM_WRITE),
            int32_in(table, "topicSysFlag", 0),
            as_bool(table.get("order")),
            {} if attributes is None else text_map_in(attributes, "attributes"),
            text_in(table.get("topicFilterType"), "topicFilterType") or FILTER_SINGLE_TAG,
        )


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a broker's topic table: it grows with each change, and with each change of mastership."""

    timestamp: int = 0
    counter: int = 0
    state_version: int = 0

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """The version after one more change."""
        state = self.state_version if state_version is None else state_version
        return DataVersion(now_ms, self.counter + 1, state)

    def to_json(self) -> dict[str, Any]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: object) -> DataVersion:
        """Absent numbers are 0. Raises RequestRefused."""
        table = object_in(value, "a data version")
        return cls(int64_in(table, "timestamp"), int64_in(table, "counter"), int64_in(table, "stateVersion"))


NO_VERSION = DataVersion()
"""Of a broker that has said nothing of its topics."""


def object_in(value: object, what: str) -> dict[str, Any]:
    """An object of a body; raises RequestRefused for anything else."""
    if not isinstance(value, dict):
        raise RequestRefused(f"expected {what} to be an object, found a {type(value).__name__}")
    return value


def list_in(table: Mapping[str, Any], name: str) -> list[Any]:
    """A list of a body, empty where there is none; raises RequestRefused for anything else."""
    found = table.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise RequestRefused(f"expected a list in {name}, found a {type(found).__name__}")
    return found


def text_in(value: object, what: str) -> str:
    """Text of a body, "" where there is none; raises RequestRefused for anything else."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestRefused(f"expected text in {what}, found a {type(value).__name__}")
    return value


def text_map_in(value: object, what: str) -> dict[str, str]:
    """A map of text to text; plain values that are no text become it, absent ones are left out, as Java does."""
    found = {}
    for key, each in object_in(value, what).items():
        if isinstance(each, dict | list):
            raise RequestRefused(f"expected text in {what}, found a {type(each).__name__} under {key[:40]!r}")
        if each is not None:
            found[key] = str(each).lower() if isinstance(each, bool) else str(each)
    return found


def int32_in(table: Mapping[str, Any], name: str, default: int = 0) -> int:
    return _within(as_int(table.get(name), default), name, INT_MAX)


def int64_in(table: Mapping[str, Any], name: str, default: int = 0) -> int:
    return _within(as_int(table.get(name), default), name, LONG_MAX)


def _within(value: int, name: str, high: int) -> int:
    if not -high - 1 <= value <= high:
        raise RequestRefused(f"expected a number of {high.bit_length() + 1} bits in {name}, found {value}")
    return value
