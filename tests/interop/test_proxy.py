"""gRPC clients behind RocketMQ's own proxy, which has our broker in the place of RocketMQ's.

The proxy makes receipts of nine words, pops with attempt ids, and asks for all that a simple consumer needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import available
from clients.environments import GRPC_CLIENTS, GRPC_JAVA, GRPC_JAVA_OLDER, ForeignClient
from interop.proxy import Proxy, fetch_proxy
from interop.rocketmq import Unavailable
from servers.serving import Serving
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

BODIES = [f"order {number}" for number in range(10)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("behind-a-proxy") / "store") as served:
        yield served


@pytest.fixture(scope="module")
def endpoints(broker: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        distribution = fetch_proxy()
    except Unavailable as reason:
        pytest.skip(f"no proxy here: {reason}")
    with Proxy(distribution, broker.name_server, tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy.endpoints


@pytest.fixture(params=[GRPC_CLIENTS[0], GRPC_JAVA_OLDER, GRPC_JAVA], ids=lambda each: each.name)
def client(request: pytest.FixtureRequest) -> ForeignClient:
    return available(request.param)


def make(broker: Serving, topic: str, group: str, *, is_ordered: bool) -> None:
    kind = "FIFO" if is_ordered else "NORMAL"
    fields = {"defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "order": "false"}
    fields |= {"topic": topic, "topicFilterType": "SINGLE_TAG", "attributes": f"+message.type={kind}"}
    body = b'{"groupName":"%b","consumeMessageOrderly":%b}' % (group.encode(), str(is_ordered).lower().encode())
    host, _, port = broker.address.rpartition(":")
    with BlockingClient(host, int(port), timeout_s=60) as client:
        made = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields)
        assert client.request(made).code == 0
        made = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert client.request(made).code == 0


def received(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(event["received"]["body"], event["received"]["attempt"]) for event in events]


def test_a_simple_consumer_acknowledges_and_asks_for_another_time(
    broker: Serving, endpoints: str, client: ForeignClient, tmp_path: Path
) -> None:
    place = {"endpoints": endpoints, "topic": f"normal-{client.name}", "group": f"simple-{client.name}"}
    make(broker, place["topic"], place["group"], is_ordered=False)
    assert len(client.run(tmp_path, **place, bodies=BODIES)) == len(BODIES)
    got = received(client.run(tmp_path, **place, receive=len(BODIES), again=[BODIES[3]]))
    assert sorted(got) == sorted([*((body, 1) for body in BODIES), (BODIES[3], 2)])


def test_a_simple_consumer_keeps_the_order_of_a_message_group(
    broker: Serving, endpoints: str, client: ForeignClient, tmp_path: Path
) -> None:
    place = {"endpoints": endpoints, "topic": f"fifo-{client.name}", "group": f"ordered-{client.name}"}
    make(broker, place["topic"], place["group"], is_ordered=True)
    assert len(client.run(tmp_path, **place, bodies=BODIES, messageGroup="one")) == len(BODIES)
    got = received(client.run(tmp_path, **place, receive=len(BODIES)))
    assert got == [(body, 1) for body in BODIES]
