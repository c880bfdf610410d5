"""What a name server answers with: queue data, broker data, a topic's route, in the JSON that clients read.

    {"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a",
                     "cluster":"DefaultCluster","enableActingMaster":false}],
     "filterServerTable":{},
     "queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}

Clients before 4.9.4 were written for broker ids without quotes, `{0:"…"}`, and get them so; all others get standard
JSON in ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import PERM_READ, PERM_WRITE, TopicConfig, int32_in, object_in, text_in

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues a topic has at one broker, and what may be done with them."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    @classmethod
    def of_topic(cls, broker_name: str, topic: TopicConfig) -> QueueData:
        return cls(broker_name, topic.read_queues, topic.write_queues, topic.perm, topic.sys_flag)

    @classmethod
    def from_json(cls, value: object) -> QueueData:
        """Raises RequestRefused."""
        table = object_in(value, "queue data")
        name = text_in(table.get("brokerName"), "brokerName")
        if not name:
            raise RequestRefused("expected queue data with a brokerName, found none")
        perm = int32_in(table, "perm", PERM_READ | PERM_WRITE)
        read, write = int32_in(table, "readQueueNums"), int32_in(table, "writeQueueNums")
        return cls(name, read, write, perm, int32_in(table, "topicSysFlag"))

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses of one broker name, by broker id; 0 is the master's."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    acting_master: bool = False
    zone: str | None = None

    def to_json(self) -> dict[str, Any]:
        zone = {} if self.zone is None else {"zoneName": self.zone}
        return {
            "brokerAddrs": {str(each): self.addresses[each] for each in sorted(self.addresses)},
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master,
            **zone,
        }

    def with_acting_master(self) -> BrokerData:
        """The same with the lowest id in the master's place."""
        lowest = min(self.addresses)
        others = {each: address for each, address in self.addresses.items() if each != lowest}
        moved = {MASTER_ID: self.addresses[lowest], **others}
        return BrokerData(self.cluster, self.broker_name, moved, self.acting_master, self.zone)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic can be written and read."""

    brokers: tuple[BrokerData, ...]
    queues: tuple[QueueData, ...]
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order_conf: str | None = None

    def encode(self, *, standard_json: bool = True) -> bytes:
        """The body of a route answer."""
        order = {} if self.order_conf is None else {"orderTopicConf": self.order_conf}
        value = {
            "brokerDatas": [broker.to_json() for broker in self.brokers],
            "filterServerTable": {address: list(found) for address, found in self.filter_servers.items()},
            **order,
            "queueDatas": [queue.to_json() for queue in self.queues],
        }
        if standard_json:
            return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        # Only the ids lose their quotes, so they are put in as a piece of text of their own.
        text = json.dumps({**value, "brokerDatas": []}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        brokers = ",".join(_with_bare_ids(broker) for broker in self.brokers)
        return text.replace('"brokerDatas":[]', f'"brokerDatas":[{brokers}]', 1).encode("utf-8", "replace")


def _with_bare_ids(broker: BrokerData) -> str:
    def text(value: object) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    rest = broker.to_json()
    del rest["brokerAddrs"]
    ids = ",".join(f"{each}:{text(broker.addresses[each])}" for each in sorted(broker.addresses))
    return f'{{"brokerAddrs":{{{ids}}},{text(rest)[1:]}'
