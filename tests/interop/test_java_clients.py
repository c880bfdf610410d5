"""RocketMQ's own Java clients use `tiermq serve`: every kind of producer and consumer that its users know."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.java_client import Event, JavaClient, bodies, received
from interop.rocketmq import Distribution
from servers.serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("java-clients")]

BODIES = [f"order {number}" for number in range(20)]
TOPICS = [f"J{number}" for number in range(40)]
PATIENCE_MS = 60_000
"""Of the loads' sends: with RocketMQ's own 3 s, a client that gets no processor for as long counts as a failure."""
_next_topic = itertools.count()


@pytest.fixture
def client(distribution: Distribution, broker: Serving, tmp_path: Path) -> JavaClient:
    return JavaClient(distribution, broker.name_server, tmp_path)


@pytest.fixture
def topic() -> str:
    """One that no other test uses."""
    return TOPICS[next(_next_topic)]


def sent(events: list[Event]) -> list[Event]:
    found = [event["sent"] for event in events]
    assert {result["status"] for result in found} == {"SEND_OK"}
    return found


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_push_consumer_receives_what_a_producer_sent(client: JavaClient, topic: str, way: str) -> None:
    job = {"topic": topic, "group": "P", "bodies": BODIES, "tag": "paid", "key": "order-42", "async": way == "async"}
    results = sent(client.run(**job))
    assert len({result["offset_id"] for result in results}) == len(BODIES)
    got = client.run(topic=topic, group=f"G-{topic}", receive=len(BODIES))
    assert sorted(bodies(got)) == sorted(BODIES)
    assert {(message["tag"], message["key"]) for message in received(got)} == {("paid", "order-42")}
    places = {(result["queue"], result["offset"]) for result in results}
    assert places == {(message["queue"], message["offset"]) for message in received(got)}


def test_a_producer_with_the_vip_channel_sends_to_the_port_two_below(
    client: JavaClient, topic: str, distribution: Distribution, tmp_path: Path
) -> None:
    assert len(sent(client.run(topic=topic, group="P", bodies=BODIES, vip=True))) == len(BODIES)
    assert sorted(bodies(client.run(topic=topic, group=f"G-{topic}", receive=len(BODIES)))) == sorted(BODIES)
    with Serving(tmp_path / "store", fast_listen_port="OFF") as without:
        refused = JavaClient(distribution, without.name_server, tmp_path)
        with pytest.raises(AssertionError, match=f"connect to 127.0.0.1:{without.port - 2} failed"):
            refused.run(topic="TBW102", group="P", bodies=BODIES[:1], vip=True)


def test_one_way_sends_arrive(client: JavaClient, topic: str) -> None:
    with client.standing(topic=topic, group=f"G-{topic}", receive=len(BODIES)) as events:
        assert "started" in next(events)
        assert client.run(topic=topic, group="P", bodies=BODIES, oneway=True) == []
        assert sorted(event["received"]["body"] for event in events) == sorted(BODIES)


def test_a_topic_is_made_by_the_first_send(client: JavaClient) -> None:
    sent(client.run(topic="JavaUnheard", group="P", bodies=BODIES))
    assert sorted(bodies(client.run(topic="JavaUnheard", group="G", receive=len(BODIES)))) == sorted(BODIES)


def test_a_lite_pull_consumer_polls_everything_and_its_commit_is_kept(client: JavaClient, topic: str) -> None:
    sent(client.run(topic=topic, group="P", bodies=BODIES))
    assert sorted(bodies(client.run(topic=topic, group=f"L-{topic}", receive=20, lite=True))) == sorted(BODIES)
    sent(client.run(topic=topic, group="P", bodies=["after the commit"]))
    assert bodies(client.run(topic=topic, group=f"L-{topic}", receive=1, lite=True)) == ["after the commit"]


def test_an_ordered_consumer_gets_the_messages_of_a_queue_in_their_order(client: JavaClient, topic: str) -> None:
    assert {result["queue"] for result in sent(client.run(topic=topic, group="P", bodies=BODIES, orderly=True))} == {1}
    assert bodies(client.run(topic=topic, group=f"G-{topic}", receive=len(BODIES), orderly=True)) == BODIES


def test_every_consumer_of_a_broadcast_gets_every_message(client: JavaClient, topic: str) -> None:
    job = {"topic": topic, "group": f"B-{topic}", "receive": len(BODIES), "broadcast": True}
    with client.standing(**job) as one, client.standing(**job) as other:
        assert "started" in next(one)
        assert "started" in next(other)
        sent(client.run(topic=topic, group="P", bodies=BODIES))
        for events in (one, other):
            assert sorted(event["received"]["body"] for event in events) == sorted(BODIES)


def test_two_consumers_of_a_group_share_the_queues(client: JavaClient, topic: str) -> None:
    with client.standing(topic=topic, group=f"G-{topic}", receive=0) as one:
        assert "started" in next(one)
        sent(client.run(topic=topic, group="P", bodies=BODIES))
        # Whoever joins later gets queues of its own by the notice that the group has changed; the rest is read already.
        with client.standing(topic=topic, group=f"G-{topic}", receive=1) as other:
            assert "started" in next(other)
            while not (got := _one_more(client, topic, other)):
                continue
            assert got


def _one_more(client: JavaClient, topic: str, events: Iterator[Event]) -> bool:
    """Messages to all four queues: one of them is the second consumer's, once it has its share."""
    sent(client.run(topic=topic, group="P", bodies=BODIES[:8]))
    return "received" in next(events)


def test_a_batch_is_stored_and_received_message_by_message(client: JavaClient, topic: str) -> None:
    [result] = sent(client.run(topic=topic, group="P", bodies=BODIES, batch=True))
    assert len(result["offset_id"].split(",")) == len(BODIES)
    got = received(client.run(topic=topic, group=f"G-{topic}", receive=len(BODIES)))
    in_order = sorted(got, key=lambda message: int(message["offset"]))
    assert [message["body"] for message in in_order] == BODIES
    assert {message["queue"] for message in got} == {result["queue"]}


def test_tags_and_sql92_are_filtered_by_the_broker(client: JavaClient, topic: str) -> None:
    for number in range(8):
        properties = {"amount": str(number), "place": "north" if number % 2 else "south"}
        tag = "even" if number % 2 == 0 else "odd"
        sent(client.run(topic=topic, group="P", bodies=[f"{number}"], tag=tag, properties=properties))
    by_tag = client.run(topic=topic, group=f"T-{topic}", receive=4, tag="even || none")
    assert sorted(bodies(by_tag)) == ["0", "2", "4", "6"]
    sql = "amount BETWEEN 2 AND 6 AND place = 'north' AND TAGS IS NOT NULL"
    by_sql = client.run(topic=topic, group=f"S-{topic}", receive=2, sql=sql)
    assert sorted(bodies(by_sql)) == ["3", "5"]


def test_a_delayed_message_and_a_refused_one_come_when_they_are_due(client: JavaClient, topic: str) -> None:
    sent(client.run(topic=topic, group="P", bodies=["in a second"], delay=1))
    got = received(client.run(topic=topic, group=f"G-{topic}", receive=2, failures=1))
    assert [(message["body"], message["times"], message["topic"]) for message in got] == [
        ("in a second", 0, topic),
        ("in a second", 1, topic),
    ]


@pytest.mark.parametrize("size", [128, 1024])
def test_sixty_four_threads_send_without_a_failure_and_a_consumer_drains_them(
    client: JavaClient, topic: str, size: int
) -> None:
    reported = client.load(kind="send", topic=topic, threads=64, bytes=size, messages=50_000, timeoutMs=PATIENCE_MS)
    assert (reported["messages"], reported["failed"]) == (50_000, 0), client.errors()
    reported = client.load(kind="consume", topic=topic, threads=20, messages=50_000, group=f"G-{topic}")
    assert reported["failed"] == 0, client.errors()


def test_sixty_four_threads_send_batches_without_a_failure(client: JavaClient, topic: str) -> None:
    job = {"kind": "batch", "threads": 64, "bytes": 128, "messages": 160_000, "batch": 16, "timeoutMs": PATIENCE_MS}
    reported = client.load(topic=topic, **job)
    assert (reported["messages"], reported["failed"]) == (160_000, 0), client.errors()
    client.load(kind="consume", topic=topic, threads=20, messages=160_000, group=f"G-{topic}")


ACCOUNTS = """
[[accounts]]
accessKey = "orders-service"
secretKey = "a long secret"
topicPerms = ["orders=PUB|SUB"]
groupPerms = ["billing=SUB", "audit=SUB", "ordered=SUB"]
"""
ACCOUNT = {"accessKey": "orders-service", "secretKey": "a long secret"}


def test_clients_with_an_account_need_their_topic_and_their_group_and_nothing_else(
    distribution: Distribution, tmp_path: Path
) -> None:
    """Every request that a producer, a push, an ordered and a lite pull consumer make, retries and commits too."""
    (tmp_path / "acl.toml").write_text(ACCOUNTS)
    with Serving(tmp_path / "store", "--acl", str(tmp_path / "acl.toml")) as served:
        client = JavaClient(distribution, served.name_server, tmp_path)
        sent(client.run(topic="orders", group="P", bodies=BODIES, **ACCOUNT))
        [_] = sent(client.run(topic="orders", group="P", bodies=["one", "two"], batch=True, **ACCOUNT))
        count = len(BODIES) + 2
        got = received(client.run(topic="orders", group="billing", receive=count + 1, failures=1, **ACCOUNT))
        assert len(got) == count + 1, "one was given back, and came again"
        in_order = client.run(topic="orders", group="ordered", receive=count, orderly=True, **ACCOUNT)
        assert len(received(in_order)) == count
        assert len(bodies(client.run(topic="orders", group="audit", receive=count, lite=True, **ACCOUNT))) == count
        with pytest.raises(AssertionError, match="may not PUB the topic 'secret'"):
            client.run(topic="secret", group="P", bodies=["refused"], **ACCOUNT)
        with pytest.raises(AssertionError, match="No route info"):  # What a client makes of an unsigned question.
            client.run(topic="orders", group="P", bodies=["refused"])
