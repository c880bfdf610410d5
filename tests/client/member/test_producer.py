"""Producers against a broker: what a receipt means, where messages go, and what is refused."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tiermq
from client.member.broker_pair import broker_pair
from loop_runs import LOOP_RUNS, Run
from present import present
from servers.loopback import free_ports
from tiermq import Message
from tiermq.client import Cluster, Producer, SendStatus
from tiermq.client.member.session import ANYWHERE, make_client_id
from tiermq.errors import BadConfig, BadFrame, IllegalMessage, RemotingError, RequestRefused
from tiermq.kernel import FRAME_BYTES_MAX
from tiermq.message.properties import get_text_property
from tiermq.message.system_flag import COMPRESSED
from tiermq.remoting.client import RemotingClient
from tiermq.remoting.command import RemotingCommand
from tiermq.testing import LocalBroker
from waiting import until


def bodies(broker: LocalBroker, topic: str) -> list[bytes]:
    return sorted(message.decompressed_body() for message in broker.messages(topic))


def test_a_receipt_says_where_the_message_is(broker: LocalBroker, cluster: Cluster, topic: str) -> None:
    with cluster.producer("shop") as producer:
        receipt = producer.send(Message(topic, b"two coffees", keys=["order-42"], tags="paid"))
    [stored] = broker.messages(topic)
    assert (stored.body, stored.keys, stored.tags) == (b"two coffees", ["order-42"], "paid")
    assert receipt.message_id == stored.message_id
    assert receipt.unique_key == stored.unique_key
    assert (receipt.queue_id, receipt.offset) == (stored.queue_id, stored.queue_offset)
    assert receipt.broker_name == "broker-a"


def test_messages_go_round_the_queues(broker: LocalBroker, cluster: Cluster, topic: str) -> None:
    with cluster.producer("shop") as producer:
        assert sorted(producer.send(Message(topic, b"x")).queue_id for _ in range(8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_many_are_on_their_way_at_once_and_all_are_stored_at_the_end(
    broker: LocalBroker, cluster: Cluster, topic: str
) -> None:
    expected = sorted(b"%d" % number for number in range(500))
    with cluster.producer("shop", max_in_flight=64, max_in_flight_bytes=4_000) as producer:
        later = [producer.send_later(Message(topic, body)) for body in expected]
        producer.flush()
        assert all(each.done() for each in later)
        assert len({each.result().message_id for each in later}) == 500
        assert producer.metrics == {"sent": 500, "failed": 0, "tried_again": 0, "in_flight": 0}
    assert bodies(broker, topic) == expected


def test_one_sharding_key_goes_to_one_queue_in_order(broker: LocalBroker, cluster: Cluster, topic: str) -> None:
    with cluster.producer("shop") as producer:
        later = [producer.send_later(Message(topic, b"%03d" % number), sharding_key="42") for number in range(100)]
        [queue_id] = {each.result().queue_id for each in later}
        others = {producer.send(Message(topic, b"x"), sharding_key=f"{number}").queue_id for number in range(20)}
    stored = [message.body for message in broker.messages(topic, queue_id) if message.body != b"x"]
    assert stored == [b"%03d" % number for number in range(100)]
    assert others == {0, 1, 2, 3}
    assert broker.messages(topic, queue_id)[0].get_property("__SHARDINGKEY") == "42"


def test_a_queue_may_be_named_or_chosen_by_a_function(cluster: Cluster, topic: str) -> None:
    with cluster.producer("shop") as producer:
        assert producer.send(Message(topic, b"x"), queue=2).queue_id == 2
        assert producer.send(Message(topic, b"x"), queue=lambda queues: queues[-1]).queue_id == 3
        assert [place.queue_id for place in producer.queues(topic)] == [0, 1, 2, 3]
        with pytest.raises(IllegalMessage, match="one of the topic's 4 queues, found queue 4"):
            producer.send(Message(topic, b"x"), queue=4)


def test_a_batch_is_stored_in_one_queue_in_order(broker: LocalBroker, cluster: Cluster, topic: str) -> None:
    with cluster.producer("shop") as producer:
        messages = [Message(topic, b"%03d" % number, keys=[f"k{number}"]) for number in range(300)]
        receipts = producer.send_all(messages)
        with pytest.raises(IllegalMessage, match="without delay"):
            producer.send_all([Message(topic, b"x", properties={"DELAY": "1"})])
    assert len(receipts) == 300
    assert len({(each.queue_id, each.offset) for each in receipts}) == 300
    found = {(each.queue_id, each.queue_offset): each for each in broker.messages(topic)}
    for message, receipt in zip(messages, receipts, strict=True):
        stored = found[receipt.queue_id, receipt.offset]
        assert (stored.body, stored.message_id, stored.unique_key) == (
            message.body,
            receipt.message_id,
            receipt.unique_key,
        )
        assert stored.keys == [f"k{int(message.body)}"]
    assert len({each.queue_id for each in receipts}) == 2  # 256 and 44.


def test_a_oneway_message_arrives(broker: LocalBroker, cluster: Cluster, topic: str) -> None:
    with cluster.producer("shop") as producer:
        producer.send_oneway(Message(topic, b"gone"))
        until(lambda: broker.messages(topic))


def test_a_large_body_is_stored_compressed(broker: LocalBroker, cluster: Cluster, topic: str) -> None:
    body = b"two coffees " * 20_000
    with cluster.producer("shop", compression="zstd") as producer:
        producer.send(Message(topic, body))
    [stored] = broker.messages(topic, as_stored=True)
    assert len(stored.body) < 1_000
    assert stored.decompressed_body() == body
    [sent] = broker.messages(topic)
    assert (sent.body, sent.decompressed_body(), sent.sys_flag & COMPRESSED) == (body, body, 0)


def test_delays_and_timers_are_delivered_when_they_are_due(tmp_path: Path) -> None:
    with LocalBroker(tmp_path, timer_wheel_enable=True) as broker, tiermq.connect(broker.name_server) as cluster:
        broker.create_topic("orders")
        with cluster.producer("shop") as producer:
            producer.send(Message("orders", b"level"), delay_level=4)
            producer.send(Message("orders", b"after"), delay_s=40)
            at = datetime.fromtimestamp(broker.clock.now_ms() / 1000, UTC) + timedelta(seconds=40)
            producer.send(Message("orders", b"at"), deliver_at=at)
        assert broker.messages("orders") == []
        broker.advance(seconds=60)
        until(lambda: bodies(broker, "orders") == [b"after", b"at", b"level"])


def test_a_new_topic_is_made_by_the_first_message(broker: LocalBroker, cluster: Cluster) -> None:
    with cluster.producer("shop") as producer:
        producer.send(Message("made-by-a-send", b"x"))
        producer.send(Message("made-by-a-send", b"x"))
    assert len(broker.messages("made-by-a-send")) == 2


def test_what_the_broker_refuses_is_an_error_with_its_reason(cluster: Cluster, topic: str) -> None:
    with cluster.producer("shop", compress_above=None) as producer:
        with pytest.raises(RequestRefused, match="refuses"):
            producer.send(Message(topic, bytes(5 << 20)))
        with pytest.raises(RequestRefused, match="refuses"):
            producer.send_later(Message("SCHEDULE_TOPIC_XXXX", b"x")).result()


def test_a_topic_that_nobody_makes_is_an_error_in_words(tmp_path: Path) -> None:
    with (
        LocalBroker(tmp_path, auto_create_topic_enable=False) as broker,
        tiermq.connect(broker.name_server) as cluster,
        cluster.producer("shop") as producer,
        pytest.raises(RequestRefused, match="tiermq topic create unheard"),
    ):
        producer.send(Message("unheard", b"x"))


def test_a_restarted_broker_gets_what_was_sent_meanwhile(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker, tiermq.connect(broker.name_server) as cluster:
        broker.create_topic("orders")
        with cluster.producer("shop", patience_s=60) as producer:
            producer.send(Message("orders", b"before"))
            broker._stop_broker()
            later = [producer.send_later(Message("orders", b"%d" % number)) for number in range(10)]
            broker.start()
            assert len({each.result().unique_key for each in later}) == 10
        assert {b"%d" % number for number in range(10)} | {b"before"} == set(bodies(broker, "orders"))


def test_a_broker_that_stays_away_is_an_error_when_patience_ends(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker, tiermq.connect(broker.name_server) as cluster:
        broker.create_topic("orders")
        with cluster.producer("shop", patience_s=0.2) as producer:
            producer.send(Message("orders", b"before"))
            broker._stop_broker()
            with pytest.raises(RemotingError):
                producer.send(Message("orders", b"x"))


def test_a_first_timer_to_an_old_broker_is_refused_and_none_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ 4.9 would deliver it at once. Nothing was sent to the broker before."""
    respond = RemotingCommand.respond

    def respond_as_4_9_7(self: RemotingCommand, *arguments: Any, **named: Any) -> RemotingCommand:
        answer = respond(self, *arguments, **named)
        answer.version = 405
        return answer

    with LocalBroker(tmp_path, timer_wheel_enable=True) as broker:
        broker.create_topic("orders")
        monkeypatch.setattr(RemotingCommand, "respond", respond_as_4_9_7)
        at = datetime.now(UTC) + timedelta(hours=1)
        sends: list[Callable[[Producer], object]] = [
            lambda producer: producer.send(Message("orders", b"timer"), delay_s=3_600),
            lambda producer: producer.send(Message("orders", b"timer"), deliver_at=at),
            lambda producer: producer.send_later(Message("orders", b"timer"), delay_s=3_600).result(),
        ]
        for send in sends:
            with tiermq.connect(broker.name_server) as cluster, cluster.producer("shop") as producer:
                with pytest.raises(IllegalMessage, match="use delay_level"):
                    send(producer)
                assert producer.metrics["failed"] == 1
        assert broker.messages("orders") == []


class MovedTime:
    """What producer and session take for the module `time`."""

    time_ns = staticmethod(time.time_ns)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        for module in ("async_producer", "session"):
            monkeypatch.setattr(f"tiermq.client.member.{module}.time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


def test_sends_go_to_the_other_broker_when_one_dies_and_return_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = MovedTime(monkeypatch)
    with broker_pair(tmp_path) as (left, right), tiermq.connect(left.name_server) as cluster:
        with cluster.producer("shop", patience_s=60) as producer:

            def send(count: int) -> Counter[str]:
                later = [producer.send_later(Message("orders", b"x")) for _ in range(count)]
                return Counter(each.result().broker_name for each in later)

            assert send(16) == {"left": 8, "right": 8}
            right._stop_broker()  # The producer's route has it still.
            assert send(16) == {"left": 16}
            assert producer.metrics["tried_again"] >= 1
            assert {producer.send(Message("orders", b"x")).broker_name for _ in range(4)} == {"left"}
            right.start()
            moved.ahead_s += 31  # The longest time for which a broker is avoided, or a route used.
            until(lambda: send(8)["right"])
            metrics = producer.metrics
        assert metrics["failed"] == 0
        assert len(left.messages("orders")) + len(right.messages("orders")) >= metrics["sent"]


def test_a_slow_broker_is_avoided_and_used_again_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the left one answers, the producer's clock goes on by ten seconds."""
    moved = MovedTime(monkeypatch)
    with (
        broker_pair(tmp_path) as (left, _),
        tiermq.connect(left.name_server) as cluster,
        cluster.producer("shop") as producer,
    ):

        def next_broker() -> str:
            return producer.send(Message("orders", b"x")).broker_name

        assert {next_broker() for _ in range(8)} == {"left", "right"}
        ask = RemotingClient.request_encoded

        def slow(self: RemotingClient, *arguments: Any) -> Any:
            if present(self.connection).peer[1] == left.broker.port:
                moved.ahead_s += 10.0
            return ask(self, *arguments)

        with monkeypatch.context() as slowing:
            slowing.setattr(RemotingClient, "request_encoded", slow)
            until(lambda: next_broker() == "left")
            assert {next_broker() for _ in range(16)} == {"right"}
        moved.ahead_s += 31
        assert {next_broker() for _ in range(8)} == {"left", "right"}


def test_a_closed_producer_and_a_closed_cluster_refuse(broker: LocalBroker, topic: str) -> None:
    cluster = tiermq.connect(broker.name_server)
    producer = cluster.producer("shop")
    producer.close()
    producer.close()
    with pytest.raises(RemotingError, match="found it closed"):
        producer.send(Message(topic, b"x"))
    with pytest.raises(RemotingError, match="found it closed"):
        producer.send_later(Message(topic, b"x"))
    cluster.close()
    cluster.close()
    with pytest.raises(RemotingError):
        cluster.producer("shop")


def test_settings_that_cannot_be_are_refused(broker: LocalBroker, cluster: Cluster) -> None:
    with pytest.raises(BadConfig, match="zlib, lz4 or zstd"):
        cluster.producer("shop", compression="rar")
    with pytest.raises(IllegalMessage):
        cluster.producer("a b")
    with pytest.raises(BadConfig, match="NAMESRV_ADDR"):
        tiermq.connect("")
    with pytest.raises(BadConfig, match="both access_key and secret_key"):
        tiermq.connect(broker.name_server, access_key="a")


def test_name_servers_come_from_the_environment_and_the_second_one_serves(
    broker: LocalBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [nowhere] = free_ports(1)
    monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:{nowhere};{broker.name_server}")
    with tiermq.connect() as cluster, cluster.producer("shop") as producer:
        producer.send(Message(topic, b"x"))
    assert len(broker.messages(topic)) == 1


def test_sends_of_many_threads_are_each_stored_once(broker: LocalBroker, cluster: Cluster, topic: str) -> None:
    with cluster.producer("shop", max_in_flight=8) as producer, ThreadPoolExecutor(32) as pool:
        receipts = list(pool.map(lambda number: producer.send(Message(topic, b"%03d" % number)), range(400)))
        assert producer.metrics == {"sent": 400, "failed": 0, "tried_again": 0, "in_flight": 0}
    assert bodies(broker, topic) == [b"%03d" % number for number in range(400)]
    stored = {(each.queue_id, each.queue_offset): each.message_id for each in broker.messages(topic)}
    assert {(each.queue_id, each.offset): each.message_id for each in receipts} == stored


def test_a_cluster_that_closes_leaves_no_sender_waiting(broker: LocalBroker, topic: str) -> None:
    """Each is stored, or its sender has the error; also those that wait for room, and for a loop that has ended."""
    stored: list[bytes] = []
    ended = threading.Barrier(9)
    cluster = tiermq.connect(broker.name_server)
    producer = cluster.producer("shop", max_in_flight=1)

    def send(thread: int) -> None:
        try:
            for number in itertools.count():
                body = b"%d %d" % (thread, number)
                producer.send(Message(topic, body))
                stored.append(body)
        except RemotingError:
            ended.wait()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(stored) > 20)
    cluster.close()
    ended.wait()
    for thread in threads:
        thread.join()
    assert set(stored) <= set(bodies(broker, topic))
    with pytest.raises(RemotingError):
        producer.send(Message(topic, b"x"))


def test_an_interrupted_send_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalBroker(tmp_path) as broker, tiermq.connect(broker.name_server) as cluster:
        broker.create_topic("orders")
        with cluster.producer("shop", patience_s=600) as producer:
            producer.send(Message("orders", b"before"))
            broker._stop_broker()

            class Interrupted(Future[Any]):
                def result(self, timeout: float | None = None) -> Any:
                    del timeout
                    until(lambda: producer._inner.metrics["tried_again"] >= 1)
                    raise KeyboardInterrupt

            with monkeypatch.context() as interrupting:
                interrupting.setattr("tiermq.client.member.cluster.Future", Interrupted)
                with pytest.raises(KeyboardInterrupt):
                    producer.send(Message("orders", b"x"))
            producer.flush()  # It would wait for ten minutes else.
            assert producer.metrics["failed"] == 1


def test_a_future_that_is_cancelled_is_not_tried_again(tmp_path: Path) -> None:
    async def work(broker: LocalBroker) -> None:
        async with (
            tiermq.aconnect(broker.name_server) as cluster,
            cluster.producer("shop", patience_s=600) as producer,
        ):
            await producer.send(Message("orders", b"before"))
            await asyncio.to_thread(broker._stop_broker)
            later = await producer.send_later(Message("orders", b"x"))
            while producer.metrics["tried_again"] == 0:
                await asyncio.sleep(0)
            later.cancel()
            await producer.flush()
            assert producer.metrics["in_flight"] == 0

    with LocalBroker(tmp_path) as broker:
        broker.create_topic("orders")
        asyncio.run(work(broker))


def test_a_message_larger_than_a_frame_is_an_error_of_its_own_future(cluster: Cluster, topic: str) -> None:
    with cluster.producer("shop", compress_above=None) as producer:
        producer.send(Message(topic, b"x"))
        before, large, behind = (
            producer.send_later(Message(topic, body)) for body in (b"1", bytes(FRAME_BYTES_MAX), b"2")
        )
        with pytest.raises(BadFrame, match="at most"):
            large.result()
        assert {before.result().status, behind.result().status} == {SendStatus.SEND_OK}


def test_no_name_is_looked_up_for_the_client_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made on the loop, which a slow name service would hold."""
    asked: list[str] = []

    class Probe(socket.socket):
        def connect(self, address: Any) -> None:
            asked.append(address[0])

    monkeypatch.setattr("tiermq.client.member.session.socket.socket", Probe)
    for servers in ("names.example:9876", "10.0.0.1:9876;names.example:9876", "[::1]:9876"):
        make_client_id(servers)
    assert asked == [ANYWHERE, "10.0.0.1", ANYWHERE]


@pytest.mark.parametrize("run", LOOP_RUNS)
def test_the_async_form_has_the_same_names(broker: LocalBroker, topic: str, run: Run) -> None:
    async def work() -> None:
        async with tiermq.aconnect([broker.name_server]) as cluster, cluster.producer("shop") as producer:
            await producer.send(Message(topic, b"1"))
            later = [await producer.send_later(Message(topic, b"%d" % number)) for number in range(2, 50)]
            await producer.send_all([Message(topic, b"x"), Message(topic, b"y")])
            await asyncio.gather(*later)
            await producer.send_oneway(Message(topic, b"z"))

    run(work())
    until(lambda: len(broker.messages(topic)) == 52)
    assert all(get_text_property(each.encoded_properties, "WAIT") == "true" for each in broker.messages(topic))
