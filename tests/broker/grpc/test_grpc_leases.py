"""What a push consumer has popped is its own while it lives, and another's when it is gone, or never got it."""

from __future__ import annotations

import contextlib
import shutil
import struct
import threading
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import broker_config, running
from broker.grpc.grpc_peer import GrpcPeer
from broker.grpc.test_http2 import RawPeer
from broker.grpc.test_lite_topics import LITE, PARENT, LitePeer, bind, send
from broker.grpc.test_lite_topics import PUSH as LITE_PUSH
from servers.loopback import free_ports
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.broker.grpc import grpc_leases, receive_calls
from tiermq.broker.grpc.grpc_leases import RENEWED_MS
from tiermq.broker.pop.order_infos import OrderInfos
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.broker.pop.pop_reader import PopResult
from tiermq.grpc import http2
from tiermq.grpc.call import framed
from tiermq.grpc.http2 import ACK, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, TAKEN
from tiermq.grpc.messages import SERVICE, Code, request_class
from tiermq.namesrv.topic_config import TopicConfig
from waiting import until

PUSH: dict[str, Any] = {
    "client_type": 2,
    "subscription": {"group": {"name": "G"}, "subscriptions": [{"topic": {"name": "T"}}]},
}


def pops_of(broker: Broker) -> PopProcessor:
    return next(each for each in broker.processors if isinstance(each, PopProcessor))


def on_loop(broker: Broker, peer: GrpcPeer, call: Any) -> None:
    """Run it on the broker's loop, and wait for it."""
    done: list[bool] = []

    def run() -> None:
        call()
        done.append(True)

    broker.parts.server.call_threadsafe(run)
    while not done:
        peer.call("QueryRoute", topic={"name": "T"})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_push_consumer_keeps_a_message_for_longer_than_its_first_time(tmp_path: Path, clock: ManualClock) -> None:
    [port] = free_ports(1)
    with running(tmp_path, config=broker_config(grpc_server_port=port), clock=clock) as broker, GrpcPeer(port) as peer:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        assert broker.grpc is not None
        peer.settle(**PUSH)
        peer.send(peer.message("T", b"long work"))
        [found] = peer.receive("T", auto_renew=True)
        until(pops_of(broker).log.points.leased)
        for _ in range(6):
            clock.advance_ms(50_000)
            on_loop(broker, peer, broker.grpc.leases.renew)
        assert broker.grpc.leases.renewed_count == 6
        pops_of(broker).revive.run_once()
        assert broker.parts.local.max_offset("%RETRY%G_T", 0) <= 0
        assert peer.acknowledge("T", found).status.code == Code.OK  # With its first receipt, five minutes later.
        assert len(pops_of(broker).log.points) == 0


def test_what_a_client_had_goes_to_another_when_it_ends(tmp_path: Path, clock: ManualClock) -> None:
    [port] = free_ports(1)
    with running(tmp_path, config=broker_config(grpc_server_port=port), clock=clock) as broker, GrpcPeer(port) as peer:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        peer.settle(**PUSH)
        peer.send(peer.message("T", b"left"))
        assert len(peer.receive("T", auto_renew=True)) == 1
        until(pops_of(broker).log.points.leased)
        assert peer.call("NotifyClientTermination", group={"name": "G"}).status.code == Code.OK
        clock.advance_ms(2_000)
        pops_of(broker).revive.run_once()
        with GrpcPeer(port) as other:
            [found] = other.receive("T")
            assert (found.body, found.system_properties.delivery_attempt) == (b"left", 2)


def test_a_lease_outlives_the_broker_and_so_does_the_receipt(tmp_path: Path, clock: ManualClock) -> None:
    [port] = free_ports(1)
    config = broker_config(grpc_server_port=port)
    with running(tmp_path, config=config, clock=clock) as broker, GrpcPeer(port, client_id="one") as peer:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        peer.settle(**PUSH)
        peer.send(peer.message("T", b"1"), peer.message("T", b"2"))
        broker.parts.local.dispatch_now()
        first, found = peer.receive("T", auto_renew=True)
        until(pops_of(broker).log.points.leased)
        assert peer.acknowledge("T", first).status.code == Code.OK
        clock.advance_ms(50_000)
        assert broker.grpc is not None
        on_loop(broker, peer, broker.grpc.leases.renew)
    with running(tmp_path, config=config, clock=clock) as broker, GrpcPeer(port, client_id="one") as peer:
        [point] = pops_of(broker).log.points.leased()
        assert point.lease == ("one", "")
        assert len(point.open) == 1
        peer.settle(**PUSH)
        clock.advance_ms(50_000)
        assert broker.grpc is not None
        on_loop(broker, peer, broker.grpc.leases.renew)
        clock.advance_ms(50_000)
        pops_of(broker).revive.run_once()
        assert peer.acknowledge("T", found).status.code == Code.OK
        assert len(pops_of(broker).log.points) == 0
        assert broker.parts.local.max_offset("%RETRY%G_T", 0) <= 0


def test_a_consumer_that_never_ends_loses_a_message_after_the_longest_time(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_leases, "LEASE_MS_MAX", 100_000)
    [port] = free_ports(1)
    with running(tmp_path, config=broker_config(grpc_server_port=port), clock=clock) as broker, GrpcPeer(port) as peer:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        assert broker.grpc is not None
        peer.settle(**PUSH)
        peer.send(peer.message("T", b"stuck"))
        peer.receive("T", auto_renew=True)
        until(pops_of(broker).log.points.leased)
        for _ in range(3):
            clock.advance_ms(50_000)
            on_loop(broker, peer, broker.grpc.leases.renew)
            pops_of(broker).revive.run_once()
        assert broker.grpc.leases.renewed_count == 1
        assert [each.body for each in peer.receive("T")] == [b"stuck"]


def test_what_a_client_had_that_is_silent_for_too_long_goes_to_another(tmp_path: Path, clock: ManualClock) -> None:
    [port] = free_ports(1)
    config = broker_config(grpc_server_port=port, channel_expired_timeout=100_000)
    with (
        running(tmp_path, config=config, clock=clock) as broker,
        GrpcPeer(port) as silent,
        GrpcPeer(port) as other,
    ):
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        assert broker.grpc is not None
        silent.settle(**PUSH)
        silent.send(silent.message("T", b"left"))
        assert len(silent.receive("T", auto_renew=True)) == 1
        until(pops_of(broker).log.points.leased)
        for step_ms in (50_000, 49_000, 2_000):
            clock.advance_ms(step_ms)
            on_loop(broker, other, broker.grpc.leases.renew)
            on_loop(broker, other, broker.grpc.clients.sweep)
        assert pops_of(broker).log.points.leased() == []
        clock.advance_ms(grpc_leases.RELEASE_MS)
        pops_of(broker).revive.run_once()
        assert [each.body for each in other.receive("T")] == [b"left"]


def test_a_consumer_that_receives_before_it_has_sent_its_settings_keeps_what_it_gets(
    tmp_path: Path, clock: ManualClock
) -> None:
    """As clients do that were there before the broker started again."""
    [port] = free_ports(1)
    with running(tmp_path, config=broker_config(grpc_server_port=port), clock=clock) as broker, GrpcPeer(port) as peer:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        peer.send(peer.message("T", b"early"))
        [found] = peer.receive("T", auto_renew=True)
        until(pops_of(broker).log.points.leased)
        peer.settle(**PUSH)
        clock.advance_ms(50_000)
        assert broker.grpc is not None
        on_loop(broker, peer, broker.grpc.leases.renew)
        clock.advance_ms(50_000)
        pops_of(broker).revive.run_once()
        assert peer.acknowledge("T", found).status.code == Code.OK
        assert broker.parts.local.max_offset("%RETRY%G_T", 0) <= 0


def test_the_lease_of_messages_in_order_is_kept_in_their_file(tmp_path: Path, clock: ManualClock) -> None:
    orders, queue = OrderInfos(str(tmp_path), clock), ("T", "G", 0)
    now_ms = clock.now_ms()
    orders.popped(queue, (4, 5), now_ms, 60_000, "attempt")
    assert orders.leased() == []
    orders.lease(queue, now_ms - 1, ("two", "key"))  # Of an older pop: nothing changes.
    orders.lease(queue, now_ms, ("one", "key"))
    orders.flush()
    assert OrderInfos(str(tmp_path), clock).leased(("two", "key")) == []
    [(found, lease, pop_ms, until_ms)] = OrderInfos(str(tmp_path), clock).leased(("one", "key"))
    assert (found, lease, pop_ms, until_ms) == (queue, ("one", "key"), now_ms, now_ms + 60_000)
    orders.extend(queue, now_ms, now_ms + 120_000, lease)
    clock.advance_ms(100_000)
    assert orders.blocked_until_ms(queue) == now_ms + 120_000
    orders.extend(queue, now_ms - 1, now_ms, None)  # Of an older pop: nothing changes.
    assert orders.blocked_until_ms(queue) == now_ms + 120_000
    orders.acknowledge(queue, 4, now_ms)
    orders.acknowledge(queue, 5, now_ms)
    assert orders.leased() == []


# What does not reach its client.


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    [port] = free_ports(1)
    with running(tmp_path, config=broker_config(grpc_server_port=port), clock=clock, **LITE) as made:
        made.parts.topics.put(TopicConfig("T", 1, 1))
        made.parts.topics.put(TopicConfig(PARENT, 1, 1, attributes={"message.type": "LITE"}))
        bind(made, "agents")
        yield made


@pytest.fixture
def living(broker: Broker) -> Iterator[GrpcPeer]:
    """The push consumer, which lives on, whatever happens to one connection of its process."""
    with GrpcPeer(broker.config.grpc_server_port, client_id="raw") as made:
        made.settle(**PUSH)
        yield made


class ReceivingPeer(RawPeer):
    """A connection of the push consumer with one receive, which takes `window` bytes of its answer."""

    def __init__(
        self,
        broker: Broker,
        topic: str = "T",
        group: str = "G",
        *,
        window: int,
        client_id: str = "raw",
        **fields: Any,
    ) -> None:
        super().__init__(broker.config.grpc_server_port)
        self.send(SETTINGS, 0, 0, struct.pack(">HI", http2.SET_WINDOW, window))
        self.request = request_class("ReceiveMessage")(
            group={"name": group}, message_queue={"topic": {"name": topic}, "id": -1}, batch_size=8, **fields
        )
        self.request.long_polling_timeout.seconds = 5
        if not self.request.auto_renew:
            self.request.invisible_duration.seconds = 12 * 3600
        self.client_id = client_id
        self.ask(1)

    def ask(self, stream: int) -> None:
        fields = {":path": f"{SERVICE}ReceiveMessage", "x-mq-client-id": self.client_id}
        self.send(HEADERS, END_HEADERS, stream, self.headers(**fields))
        self.send(DATA, END_STREAM, stream, framed(self.request.SerializeToString()))

    def await_ping(self) -> None:
        next(payload for kind, flags, _, payload in self.frames() if kind == PING and not flags and payload == TAKEN)


def gone(broker: Broker, raw: RawPeer) -> None:
    """Its connection is broken, and the broker knows."""
    host, port = raw.socket.getsockname()
    raw.socket.close()
    until(lambda: (host, port) not in {each.peer for each in tuple(broker.parts.server.connections)})


def points(broker: Broker) -> list[Any]:
    return list(pops_of(broker).log.points)


def has_points(broker: Broker, count: int) -> bool:
    return len(points(broker)) == count


def require_soon_for_others(broker: Broker, clock: ManualClock, body: bytes) -> None:
    """Another consumer gets it after a second."""
    clock.advance_ms(grpc_leases.RELEASE_MS)
    pops_of(broker).revive.run_once()
    with GrpcPeer(broker.config.grpc_server_port) as other:
        [found] = other.receive("T")
        assert (found.body, found.system_properties.delivery_attempt) == (body, 2)


@pytest.mark.parametrize("push", [True, False], ids=["push", "simple"])
def test_what_waits_for_the_window_of_a_connection_that_breaks_goes_to_another(
    broker: Broker, living: GrpcPeer, clock: ManualClock, push: bool
) -> None:
    living.send(living.message("T", b"unread"))
    raw = ReceivingPeer(broker, window=0, auto_renew=push)
    until(lambda: points(broker))
    gone(broker, raw)
    require_soon_for_others(broker, clock, b"unread")


def test_what_was_written_and_is_not_known_to_be_there_goes_to_another(
    broker: Broker, living: GrpcPeer, clock: ManualClock
) -> None:
    living.send(living.message("T", b"on its way"))
    raw = ReceivingPeer(broker, window=100_000, auto_renew=True)
    raw.await_ping()
    assert pops_of(broker).log.points.leased() == []
    gone(broker, raw)
    require_soon_for_others(broker, clock, b"on its way")


def test_what_a_client_cancels_while_it_is_on_its_way_goes_to_another(
    broker: Broker, living: GrpcPeer, clock: ManualClock
) -> None:
    living.send(living.message("T", b"too late"))
    raw = ReceivingPeer(broker, window=100_000, auto_renew=True)
    raw.await_ping()
    raw.send(RST_STREAM, 0, 1, (8).to_bytes(4, "big"))
    raw.send(PING, ACK, 0, TAKEN)
    assert broker.grpc is not None
    leases = broker.grpc.leases
    until(lambda: leases.returned_count)
    require_soon_for_others(broker, clock, b"too late")
    gone(broker, raw)


def test_a_peer_that_answers_no_ping_is_closed_before_too_much_waits_for_it(
    broker: Broker, living: GrpcPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "STREAMS_MAX", 3)
    raw = ReceivingPeer(broker, window=100_000, auto_renew=True)
    for number in range(4):
        if number:
            raw.ask(2 * number + 1)
        living.send(living.message("T", b"%d" % number))
        until(partial(has_points, broker, number + 1))
    assert {kind for kind, _, _, _ in raw.frames()} >= {PING}  # Until the connection ends.
    until(lambda: broker.grpc is not None and broker.grpc.leases.returned_count == 4)
    raw.socket.close()


def test_what_has_arrived_is_kept_when_its_connection_breaks(
    broker: Broker, living: GrpcPeer, clock: ManualClock
) -> None:
    living.send(living.message("T", b"being consumed"))
    raw = ReceivingPeer(broker, window=100_000, auto_renew=True)
    raw.await_ping()
    raw.send(PING, ACK, 0, TAKEN)
    until(pops_of(broker).log.points.leased)
    gone(broker, raw)
    assert broker.grpc is not None
    for _ in range(3):
        clock.advance_ms(RENEWED_MS - 1)
        on_loop(broker, living, broker.grpc.leases.renew)
        pops_of(broker).revive.run_once()
    assert broker.parts.local.max_offset("%RETRY%G_T", 0) <= 0
    assert broker.grpc.leases.returned_count == 0


def test_what_the_tier_gives_for_a_connection_that_is_gone_goes_to_another(
    broker: Broker, living: GrpcPeer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read of the tier goes on when its client is gone, and its pop is made nevertheless."""
    reader, reads, go_on = pops_of(broker).reader, threading.Event(), threading.Event()
    gather = reader.gather

    def cold(pop: Any, topic: Any, *, may_wait: bool) -> Generator[None, None, PopResult]:
        if not may_wait:
            return PopResult(clock.now_ms(), 0, met_cold=True)
        reads.set()
        go_on.wait()
        return (yield from gather(pop, topic, may_wait=True))

    living.send(living.message("T", b"cold"))
    broker.parts.local.dispatch_now()
    with monkeypatch.context() as patched:
        patched.setattr(reader, "gather", cold)
        raw = ReceivingPeer(broker, window=100_000, auto_renew=True)
        reads.wait()
        gone(broker, raw)
        go_on.set()
        until(lambda: points(broker))
    assert broker.grpc is not None
    leases = broker.grpc.leases
    until(lambda: leases.returned_count)
    require_soon_for_others(broker, clock, b"cold")


def test_what_is_encoded_in_the_pool_for_a_connection_that_is_gone_goes_to_another(
    broker: Broker, living: GrpcPeer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, encoded, body = threading.Event(), threading.Event(), receive_calls._encoded, bytes(300_000)

    def slow(*words: Any) -> list[bytes]:
        begun.set()
        go_on.wait()
        return encoded(*words)

    living.send(living.message("T", body))
    with monkeypatch.context() as patched:
        patched.setattr(receive_calls, "_encoded", slow)
        raw = ReceivingPeer(broker, window=0, auto_renew=True)
        begun.wait()
        gone(broker, raw)
        go_on.set()
    require_soon_for_others(broker, clock, body)


def test_messages_in_order_that_did_not_arrive_are_free_after_a_second_for_one_that_waits(
    broker: Broker, living: GrpcPeer, clock: ManualClock
) -> None:
    group = broker.parts.groups.find_or_make("G")
    assert group is not None
    broker.parts.groups.put(type(group)("G", consume_message_orderly=True))
    living.send(living.message("T", b"first", message_group="g"))
    raw = ReceivingPeer(broker, window=0, auto_renew=True)
    orders = pops_of(broker).orders
    until(lambda: orders.blocked_until_ms(("T", "G", 0)))
    waiting = ReceivingPeer(broker, window=100_000, auto_renew=True)
    until(lambda: pops_of(broker).waiting.held)
    gone(broker, raw)
    assert orders.blocked_until_ms(("T", "G", 0)) == clock.now_ms() + grpc_leases.RELEASE_MS
    clock.advance_ms(grpc_leases.RELEASE_MS)
    assert b"first" in waiting.answer(1)[0]
    gone(broker, waiting)


def test_a_lite_message_that_did_not_arrive_is_free_after_a_second(broker: Broker, clock: ManualClock) -> None:
    with LitePeer(broker, kind=LITE_PUSH, group="agents") as client, LitePeer(broker, group="agents") as other:
        send(client, "ann", "hello")
        broker.parts.local.dispatch_now()
        client.want("ann")
        other.want("ann")
        raw = ReceivingPeer(broker, PARENT, "agents", window=0, auto_renew=True, client_id=client.client_id)
        until(lambda: pops_of(broker).orders.blocked_until_ms(("%LMQ%$Sessions$ann", "agents", 0)))
        gone(broker, raw)
        clock.advance_ms(grpc_leases.RELEASE_MS)
        [found] = other.got()
        assert (found.body, found.system_properties.delivery_attempt) == (b"hello", 2)


def test_a_killed_broker_gives_others_what_was_not_known_to_be_there_and_keeps_the_rest(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Files as a kill leaves them, while one message is being consumed and the answer with another is on its way."""
    config = broker_config(grpc_server_port=free_ports(1)[0])
    with running(tmp_path / "alive", config=config, clock=clock) as broker:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        with GrpcPeer(config.grpc_server_port, client_id="raw") as living:
            living.settle(**PUSH)
            living.send(living.message("T", b"being consumed"))
            assert len(living.receive("T", auto_renew=True)) == 1
            until(pops_of(broker).log.points.leased)
            assert broker.grpc is not None
            clock.advance_ms(5_000)
            on_loop(broker, living, broker.grpc.leases.renew)
            living.send(living.message("T", b"on its way"))
            raw = ReceivingPeer(broker, window=100_000, auto_renew=True)
            raw.await_ping()
            broker.parts.offsets.flush()
            copy_as_killed(tmp_path)
            raw.socket.close()
    with (
        running(tmp_path / "died", config=config, clock=clock) as broker,
        GrpcPeer(config.grpc_server_port, client_id="raw") as living,
    ):
        living.settle(**PUSH)
        assert broker.grpc is not None
        for _ in range(8):
            on_loop(broker, living, broker.grpc.leases.renew)
            clock.advance_ms(15_000)
            pops_of(broker).revive.run_once()
        with GrpcPeer(config.grpc_server_port) as other:
            assert [each.body for each in other.receive("T")] == [b"on its way"]
        [point] = pops_of(broker).log.points.leased()
        assert point.offsets == (0,)


@pytest.mark.parametrize("ends", ["killed", "closed"])
def test_a_lease_in_order_goes_on_after_a_stop_and_ends_a_minute_after_its_pop_after_a_kill(
    tmp_path: Path, clock: ManualClock, ends: str
) -> None:
    """The acknowledgement is lost with the process, its client lives on, and sends no second one."""
    config = broker_config(grpc_server_port=free_ports(1)[0])
    with (
        running(tmp_path / "alive", config=config, clock=clock) as broker,
        GrpcPeer(config.grpc_server_port, client_id="raw") as living,
    ):
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        broker.parts.groups.put(SubscriptionGroup("G", consume_message_orderly=True))
        living.settle(**PUSH)
        living.send(*(living.message("T", b"%d" % number, message_group="g") for number in range(2)))
        broker.parts.local.dispatch_now()
        found = living.receive("T", auto_renew=True)
        assert [each.body for each in found] == [b"0", b"1"]
        until(pops_of(broker).orders.leased)
        broker.parts.offsets.flush()
        pops_of(broker).orders.flush()
        copy_as_killed(tmp_path)
        if ends == "killed":
            assert living.acknowledge("T", *found).status.code == Code.OK
    died = ends == "killed"
    with (
        running(tmp_path / ("died" if died else "alive"), config=config, clock=clock) as broker,
        GrpcPeer(config.grpc_server_port, client_id="raw") as living,
    ):
        living.settle(**PUSH)
        assert broker.grpc is not None
        for _ in range(3):
            clock.advance_ms(RENEWED_MS // 3)
            on_loop(broker, living, broker.grpc.leases.renew)
        if died:
            assert pops_of(broker).orders.blocked_until_ms(("T", "G", 0)) is None
            assert [each.body for each in living.receive("T", auto_renew=True)] == [b"0", b"1"]
        else:
            assert pops_of(broker).orders.leased()
            assert living.acknowledge("T", *found).status.code == Code.OK
            assert broker.parts.offsets.query("G", "T", 0) == 2


def copy_as_killed(directory: Path) -> None:
    """What is in files when the process is killed now. It goes on meanwhile."""

    def copied(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # A file that is being put in another's place.
            shutil.copy2(source, target)

    shutil.copytree(directory / "alive", directory / "died", copy_function=copied)
    (directory / "died" / "store" / "lock").unlink(missing_ok=True)


@pytest.mark.parametrize("ends", [False, True], ids=["renew", "release"])
def test_leases_are_looked_at_in_slices(
    broker: Broker, living: GrpcPeer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    server, leases, ways = broker.parts.server, broker.grpc.leases if broker.grpc else None, []
    assert leases is not None
    for number in range(5):
        living.send(living.message("T", b"%d" % number))
        assert len(living.receive("T", auto_renew=True)) == 1
    until(lambda: len(pops_of(broker).log.points.leased()) == 5)
    give_way = server.give_way

    def counted(resume: Any) -> None:
        ways.append(1)
        give_way(resume)

    monkeypatch.setattr(grpc_leases, "SLICE_S", 0.0)
    monkeypatch.setattr(server, "give_way", counted)
    if ends:
        living.call("NotifyClientTermination", group={"name": "G"})
        until(lambda: not pops_of(broker).log.points.leased())
    else:
        on_loop(broker, living, leases.renew)
        until(lambda: leases.renewed_count == 5)
    assert len(ways) >= 5
