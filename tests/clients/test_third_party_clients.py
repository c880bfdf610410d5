"""Clients that others wrote, installed from their registries and unchanged, use `tiermq serve`.

None of them is told that this is not RocketMQ. Each is a process of its own; what it saw is compared with what is in
the store afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clients.conftest import QUEUES, available
from clients.environments import CLIENTS, ForeignClient
from servers.serving import Serving
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand

pytestmark = pytest.mark.xdist_group("third-party-clients")

BODIES = [f"order {number} of ten, with a word in another script: Ωμέγα" for number in range(10)]
SENT_WELL = {"OK", "SEND_OK"}


def stored(broker: Serving, topic: str, queues: int = QUEUES) -> list[StoredMessage]:
    """The records of a topic as they are in the store, queue by queue."""
    found: list[StoredMessage] = []
    host, _, port = broker.address.rpartition(":")
    with BlockingClient(host, int(port), timeout_s=60.0) as client:
        for queue in range(queues):
            fields = {
                "consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": queue, "queueOffset": 0, "maxMsgNums": 32,
                "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
            }  # fmt: skip
            ext = {name: str(value) for name, value in fields.items()}
            answer = client.request(RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext))
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), answer
            found += decode_records(bytes(answer.body))
    return found


def received(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["received"] for event in events if "received" in event]


def bodies(events: list[dict[str, Any]]) -> list[str]:
    return sorted(message["body"] for message in received(events))


def test_a_client_receives_what_it_sent_and_the_store_has_it(
    client: ForeignClient, broker: Serving, topic: str, tmp_path: Path
) -> None:
    place = {"nameServer": broker.name_server, "topic": topic}
    sent = client.run(tmp_path, **place, group="producers", bodies=BODIES, tag="paid", key="order-42")
    assert [event["sent"]["status"] in SENT_WELL for event in sent] == [True] * len(BODIES)
    got = client.run(tmp_path, **place, group="consumers", receive=len(BODIES))
    assert bodies(got) == BODIES
    assert {(message["tag"], message["key"].strip()) for message in received(got)} == {("paid", "order-42")}
    kept = stored(broker, topic)
    assert sorted(message.decompressed_body().decode() for message in kept) == BODIES
    assert {(message.tags, *message.keys) for message in kept} == {("paid", "order-42")}
    assert len({message.unique_key for message in kept}) == len(BODIES)


def test_a_client_s_tag_filter_lets_through_what_has_the_tag(
    client: ForeignClient, broker: Serving, topic: str, tmp_path: Path
) -> None:
    place = {"nameServer": broker.name_server, "topic": topic}
    for tag in ("open", "paid"):
        client.run(tmp_path, **place, group="producers", bodies=[f"{tag} {n}" for n in range(3)], tag=tag)
    got = client.run(tmp_path, **place, group="consumers", receive=3, tag="paid")
    assert bodies(got) == ["paid 0", "paid 1", "paid 2"]


def test_what_one_client_sends_every_client_receives(broker: Serving, topic: str, tmp_path: Path) -> None:
    clients = [available(each) for each in CLIENTS]
    place = {"nameServer": broker.name_server, "topic": topic}
    wanted = sorted(f"{body}, by {client.name}" for client in clients for body in BODIES)
    for client in clients:
        client.run(tmp_path, **place, group="producers", bodies=[f"{body}, by {client.name}" for body in BODIES])
    for client in clients:
        assert bodies(client.run(tmp_path, **place, group=f"group-of-{client.name}", receive=len(wanted))) == wanted


def test_a_consumer_goes_on_where_its_group_was_after_the_broker_was_restarted(
    client: ForeignClient, own_broker: Serving, topic: str, tmp_path: Path
) -> None:
    place = {"nameServer": own_broker.name_server, "topic": topic}
    client.run(tmp_path, **place, group="producers", bodies=["before"])
    assert bodies(client.run(tmp_path, **place, group="consumers", receive=1)) == ["before"]
    own_broker.terminate()
    own_broker.start()
    client.run(tmp_path, **place, group="producers", bodies=["after"])
    assert bodies(client.run(tmp_path, **place, group="consumers", receive=1)) == ["after"]


def test_the_cpp_client_makes_a_topic_by_its_first_send(
    cpp_client: ForeignClient, broker: Serving, tmp_path: Path
) -> None:
    place = {"nameServer": broker.name_server, "topic": "Unheard"}
    cpp_client.run(tmp_path, **place, group="producers", bodies=BODIES)
    assert bodies(cpp_client.run(tmp_path, **place, group="consumers", receive=len(BODIES))) == BODIES


def test_the_cpp_client_s_batch_is_stored_as_messages_in_a_row(
    cpp_client: ForeignClient, broker: Serving, topic: str, tmp_path: Path
) -> None:
    place = {"nameServer": broker.name_server, "topic": topic}
    [event] = cpp_client.run(tmp_path, **place, group="producers", bodies=BODIES, batch=True)
    assert event["sent"]["status"] == "OK"
    assert bodies(cpp_client.run(tmp_path, **place, group="consumers", receive=len(BODIES))) == BODIES
    kept = stored(broker, topic)
    assert [message.body.decode() for message in kept] == BODIES
    assert [message.queue_offset for message in kept] == list(range(len(BODIES)))


def test_the_cpp_client_s_orderly_messages_stay_in_order(
    cpp_client: ForeignClient, broker: Serving, topic: str, tmp_path: Path
) -> None:
    place = {"nameServer": broker.name_server, "topic": topic}
    cpp_client.run(tmp_path, **place, group="producers", bodies=BODIES, orderly=True)
    got = received(cpp_client.run(tmp_path, **place, group="consumers", receive=len(BODIES), orderly=True))
    assert [message["body"] for message in got] == BODIES
    assert len({message["queue"] for message in got}) == 1


def test_the_cpp_client_s_pull_consumer_reads_every_queue_to_its_end(
    cpp_client: ForeignClient, broker: Serving, topic: str, tmp_path: Path
) -> None:
    place = {"nameServer": broker.name_server, "topic": topic}
    cpp_client.run(tmp_path, **place, group="producers", bodies=BODIES)
    assert bodies(cpp_client.run(tmp_path, **place, group="pullers", pull=True, receive=len(BODIES))) == BODIES


def test_a_delayed_message_of_the_cpp_client_comes_after_its_delay(
    cpp_client: ForeignClient, broker: Serving, topic: str, tmp_path: Path
) -> None:
    place = {"nameServer": broker.name_server, "topic": topic}
    cpp_client.run(tmp_path, **place, group="producers", bodies=["later"], delay=1)
    assert bodies(cpp_client.run(tmp_path, **place, group="consumers", receive=1)) == ["later"]
    [message] = stored(broker, topic)
    assert message.store_timestamp_ms - message.born_timestamp_ms >= 1_000


def test_a_message_that_the_js_client_gives_back_comes_again_with_its_count(
    js_client: ForeignClient, broker: Serving, topic: str, tmp_path: Path
) -> None:
    place = {"nameServer": broker.name_server, "topic": topic}
    js_client.run(tmp_path, **place, group="producers", bodies=["refused once"])
    got = received(js_client.run(tmp_path, **place, group="consumers", receive=2, failures=1))
    assert [(message["body"], message["times"]) for message in got] == [("refused once", 0), ("refused once", 1)]
