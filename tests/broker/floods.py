"""Requests with lists of any length, for tests of what one request may cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tiermq.broker.group.client_processor import LOCKED_QUEUES_MAX
from tiermq.broker.group.subscription import HEARTBEAT_GROUPS_MAX, HEARTBEAT_SUBSCRIPTIONS_MAX, HEARTBEAT_TAGS_MAX
from tiermq.broker.pop.pop_acks import ACKS_MAX
from tiermq.broker.pull.cold_flow import THRESHOLDS_MAX
from tiermq.broker.topic.table_file import TABLE_ENTRIES_MAX
from tiermq.namesrv.topic_config import DataVersion, TopicConfig, encode_register_body
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand

MANY = 100_000
SUBSCRIPTION = {"topic": "T", "subString": "*"}
Body = Callable[[int], Any]


def consumers(count: int) -> dict[str, Any]:
    return {"clientID": "c", "consumerDataSet": [{"groupName": f"g{each}"} for each in range(count)]}


def producers(count: int) -> dict[str, Any]:
    return {"clientID": "c", "producerDataSet": [{"groupName": f"g{each}"} for each in range(count)]}


def subscriptions(count: int) -> dict[str, Any]:
    wanted = [{"topic": f"t{each}", "subString": "*"} for each in range(count)]
    return {"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": wanted}]}


def tags(count: int) -> dict[str, Any]:
    wanted = [{**SUBSCRIPTION, "tagsSet": [f"t{each}" for each in range(count)]}]
    return {"clientID": "c", "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": wanted}]}


def queues(count: int) -> dict[str, Any]:
    named = [{"topic": "T", "brokerName": "b", "queueId": each} for each in range(count)]
    return {"consumerGroup": "G", "clientId": "c", "mqSet": named}


def acks(count: int) -> dict[str, Any]:
    return {"acks": [{"c": "G", "t": "T", "q": 0, "so": each, "pt": 1, "b": "AQ=="} for each in range(count)]}


FLOODS: list[tuple[int, Body]] = [
    (34, consumers),
    (34, producers),
    (34, subscriptions),
    (34, tags),
    (41, queues),
    (42, queues),
    (200151, acks),
    (46, lambda count: {"subscriptionData": {**SUBSCRIPTION, "tagsSet": ["a tag"] * count}}),
    (400, lambda count: {"topic": "T", "consumerGroup": "G", "clientId": "c", "more": list(range(count))}),
    (401, lambda count: {"topic": "T", "consumerGroup": "G", "more": list(range(count))}),
    (200, lambda count: {"groupName": "G", "attributes": {f"a{each}": "v" for each in range(count)}}),
]
LISTS: list[tuple[int, Body, int]] = [
    (18, lambda count: {"topicConfigList": [{"topicName": f"t{each}"} for each in range(count)]}, TABLE_ENTRIES_MAX),
    (225, lambda count: {"groupConfigList": [{"groupName": f"g{each}"} for each in range(count)]}, TABLE_ENTRIES_MAX),
    (2001, lambda count: "".join(f"g{each}=1\n" for each in range(count)), THRESHOLDS_MAX),
]
FLOODS += [(code, body) for code, body, _ in LISTS]
TAKEN: list[tuple[int, Body, int]] = [
    (34, consumers, HEARTBEAT_GROUPS_MAX),
    (34, producers, HEARTBEAT_GROUPS_MAX),
    (34, subscriptions, HEARTBEAT_SUBSCRIPTIONS_MAX),
    (34, tags, HEARTBEAT_TAGS_MAX),
    (41, queues, LOCKED_QUEUES_MAX),
    (42, queues, LOCKED_QUEUES_MAX),
    (200151, acks, ACKS_MAX),
    *LISTS,
]
"""The longest lists that are not refused."""
TAKEN_NAMES = [f"{code}-{number}" for number, (code, _, _) in enumerate(TAKEN)]
FLOODS += [(25, lambda count: "".join(f"flushDiskType{each}=1\n" for each in range(count)))]
NAMES = [f"{code}-{body(1) and number}" for number, (code, body) in enumerate(FLOODS)]


def data_of(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


# Name servers


def register(count: int, counter: int = 1, /, *, queue_count: int = 4, **more: Any) -> RemotingCommand:
    body = encode_register_body(
        (TopicConfig(f"t{each}", queue_count, queue_count) for each in range(count)), DataVersion(1, counter)
    )
    ext = {"clusterName": "c", "brokerName": "b", "brokerId": "0", "brokerAddr": "127.0.0.1:1", **more}
    return RemotingCommand(RequestCode.REGISTER_BROKER, ext=ext, body=body)


def filter_servers(count: int, **more: Any) -> RemotingCommand:
    command = register(2, **more)
    named = json.dumps([f"127.0.0.1:{each}" for each in range(count)]).encode()
    command.body = bytes(command.body).replace(b'"filterServerList":[]', b'"filterServerList":' + named)
    return command


def route(count: int) -> RemotingCommand:
    queues = [{"brokerName": f"b{each}"} for each in range(count)]
    return RemotingCommand(217, ext={"topic": "T"}, body=json.dumps({"queueDatas": queues}).encode())


NAME_LISTS: dict[int, dict[str, str]] = {106: {}, 206: {}, 224: {"cluster": "c"}, 304: {}, 311: {}, 312: {}, 313: {}}

CHANGES_TOO_LARGE = {
    "lines": b"x=1\n" * 100_000,
    "bytes": b"orderMessageEnable=true\n#" + b"x" * 300_000,
    "settings": b"".join(b"setting%d=1\n" % each for each in range(1_001)),
    "name": b"x" * 256 + b"=1",
    "value": b"otlpEndpoint=" + b"x" * 4_097,
}
"""Bodies of requests that change settings of a server (25, 318, 1009)."""
