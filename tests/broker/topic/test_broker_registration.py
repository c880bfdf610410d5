"""A broker's registration at real name servers: what is said when, and what happens when one of them is not there."""

from __future__ import annotations

import itertools
import json
import queue
import socket
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest

from servers.loopback import free_ports
from tiermq.broker.topic.broker_registration import BrokerIdentity, BrokerRegistration, TopicSnapshot
from tiermq.namesrv.kv_config import ORDER_TOPIC_CONFIG
from tiermq.namesrv.name_processor import _registration_in
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import DataVersion, TopicConfig
from tiermq.remoting.access import ANY_ACCOUNT
from tiermq.remoting.client import Address, BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection

IDENTITY = BrokerIdentity(cluster="C", name="broker-a", address="127.0.0.1:10911", ha_address="127.0.0.1:10912")
PATIENCE_S = 60


def run_to_the_end(steps: Generator[None, None, object]) -> object:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


class WatchedNameServer(NameServer):
    """The real one; which registrations and farewells came, and how they were answered, can be waited for."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(NameServerConfig(listen_port=port, bind_address="127.0.0.1", kv_config_path=""))
        self.said: queue.Queue[tuple[set[str], int]] = queue.Queue()
        self.farewells: queue.Queue[str] = queue.Queue()
        self.server.register(RequestCode.REGISTER_BROKER, self._register, ANY_ACCOUNT)
        self.server.register(RequestCode.UNREGISTER_BROKER, self._unregister, ANY_ACCOUNT)

    def _register(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        table = json.loads(bytes(request.body))["topicConfigSerializeWrapper"]["topicConfigTable"]
        try:
            steps = self.processor._registering(connection, request, _registration_in(request))
            answer = cast(RemotingCommand, run_to_the_end(steps))
        except Exception:
            self.said.put((set(table), -1))
            raise
        self.said.put((set(table), int(answer.code)))
        return answer

    def _unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        answer = self.processor.unregister_broker(connection, request)
        self.farewells.put(request.ext["brokerName"])
        return answer

    def next_said(self) -> tuple[set[str], int]:
        return self.said.get(timeout=PATIENCE_S)

    def route(self, topic: str) -> RemotingCommand:
        with BlockingClient("127.0.0.1", self.port, timeout_s=PATIENCE_S) as client:
            return client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}))


class Topics:
    """A topic table that the test changes."""

    def __init__(self, *names: str) -> None:
        self.table: dict[str, TopicConfig] = {name: TopicConfig(name, 4, 4) for name in names}
        self.counter = 1

    def put(self, *names: str) -> None:
        self.counter += 1
        self.table = {**self.table, **{name: TopicConfig(name, 4, 4) for name in names}}

    def drop(self, name: str) -> None:
        self.counter += 1
        self.table = {each: config for each, config in self.table.items() if each != name}

    def registration_snapshot(self) -> TopicSnapshot:
        return TopicSnapshot(self.table, DataVersion(7, self.counter))


@contextmanager
def registering(topics: Topics, *name_servers: Address, **options: Any) -> Iterator[BrokerRegistration]:
    """Nothing happens by the period unless a test asks for one; failures are tried again at once."""
    made = {"period_s": 3600.0, "timeout_s": 30.0, "rest_first_s": 0.001, **options}
    registration = BrokerRegistration(IDENTITY, topics, name_servers, **made)
    registration.start()
    try:
        yield registration
    finally:
        registration.stop()


def at(server: NameServer) -> Address:
    return "127.0.0.1", server.port


def test_the_whole_table_is_registered_and_a_stop_takes_it_off() -> None:
    with WatchedNameServer() as server:
        with registering(Topics("a", "b"), at(server)) as registration:
            assert registration.wait_registered(PATIENCE_S)
            route = json.loads(bytes(server.route("a").body))
            assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
            assert [(each.is_registered, each.last_error) for each in registration.status()] == [(True, None)]
        assert server.farewells.get(timeout=PATIENCE_S) == "broker-a"
        assert server.route("a").code == ResponseCode.TOPIC_NOT_EXIST


def test_nothing_is_registered_before_it_may_begin() -> None:
    looks = itertools.count(1)
    seen: list[int] = []

    def may_begin() -> bool:
        seen.append(next(looks))
        return seen[-1] == 3

    with WatchedNameServer() as server, registering(Topics("a", "b"), at(server), may_begin=may_begin) as registration:
        assert server.next_said() == ({"a", "b"}, 0)
        assert seen == [1, 2, 3], "it was asked until it might, and not again"
        assert registration.wait_registered(PATIENCE_S)


def test_a_change_is_said_at_once_and_alone_and_a_burst_of_them_together() -> None:
    topics = Topics("a", "b")
    with WatchedNameServer() as server, registering(topics, at(server)) as registration:
        assert server.next_said() == ({"a", "b"}, 0)
        assert registration.wait_registered(PATIENCE_S)
        topics.put("c", "d")
        registration.topics_changed(["c", "d"])
        said, code = server.next_said()
        assert (said, code) == ({"c", "d"}, 0)
        assert server.route("d").code == 0
        assert server.route("a").code == 0


def test_whoever_waits_goes_on_when_the_change_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics("a", "b")
    with WatchedNameServer() as server, registering(topics, at(server)) as registration:
        assert registration.wait_registered(PATIENCE_S)
        may_look = threading.Event()
        look = topics.registration_snapshot
        monkeypatch.setattr(topics, "registration_snapshot", lambda: may_look.wait(PATIENCE_S) and look())
        topics.put("c")
        registration.topics_changed(["c"])
        assert not registration.wait_accepted(0.05)
        may_look.set()
        assert registration.wait_accepted(PATIENCE_S)
        assert server.route("c").code == 0


def test_a_change_beside_the_first_registration_is_waited_for() -> None:
    topics = Topics("a", "b")
    look, taken, may_go = topics.registration_snapshot, threading.Event(), threading.Event()

    def look_and_wait() -> TopicSnapshot:
        found = look()
        taken.set()
        assert may_go.wait(PATIENCE_S)
        return found

    topics.registration_snapshot = look_and_wait  # type: ignore[method-assign]
    with WatchedNameServer() as server, registering(topics, at(server)) as registration:
        assert taken.wait(PATIENCE_S)
        topics.put("c")
        registration.topics_changed(["c"])
        assert not registration.wait_accepted(0.05)
        may_go.set()
        assert registration.wait_accepted(PATIENCE_S)
        assert server.route("c").code == 0


def test_nobody_waits_for_a_name_server_that_is_away_or_after_the_end() -> None:
    topics = Topics("a", "b")
    [port] = free_ports(1)
    with WatchedNameServer() as server, registering(topics, ("127.0.0.1", port), at(server)) as registration:
        assert registration.wait_registered(PATIENCE_S)
        topics.put("c")
        registration.topics_changed(["c"])
        assert registration.wait_accepted(PATIENCE_S)
        assert server.route("c").code == 0
        server.stop(0)
        topics.put("d")
        registration.topics_changed(["d"])
        assert registration.wait_accepted(PATIENCE_S)
    assert registration.wait_accepted(PATIENCE_S)


def test_a_topic_that_is_gone_makes_the_whole_table_be_said() -> None:
    topics = Topics("a", "b", "c")
    with WatchedNameServer() as server, registering(topics, at(server)) as registration:
        assert server.next_said() == ({"a", "b", "c"}, 0)
        assert registration.wait_registered(PATIENCE_S)
        topics.drop("b")
        registration.topics_changed(["b"])
        assert server.next_said() == ({"a", "c"}, 0)


def test_the_whole_table_is_said_again_every_period() -> None:
    with WatchedNameServer() as server, registering(Topics("a", "b"), at(server), period_s=0.01):
        assert [server.next_said() for _ in range(3)] == [({"a", "b"}, 0)] * 3


def test_a_name_server_that_was_restarted_hears_the_whole_again() -> None:
    topics = Topics("a", "b")
    [port] = free_ports(1)  # Or somebody else takes it in between.
    first = WatchedNameServer(port)
    first.start()
    with registering(topics, at(first)):
        assert first.next_said() == ({"a", "b"}, 0)
        first.stop(0)
        topics.put("c")
        with WatchedNameServer(port) as second:
            assert second.next_said() == ({"a", "b", "c"}, 0)
            assert second.route("c").code == 0


def test_a_name_server_that_is_not_there_keeps_nobody_waiting_and_is_found_when_it_comes() -> None:
    [port] = free_ports(1)
    late = "127.0.0.1", port
    with WatchedNameServer() as server, registering(Topics("a", "b"), late, at(server)) as registration:
        assert registration.wait_registered(PATIENCE_S)
        assert server.next_said() == ({"a", "b"}, 0)
        with WatchedNameServer(port) as there:
            assert there.next_said() == ({"a", "b"}, 0)
            assert there.route("a").code == 0


def test_a_refused_registration_is_tried_again_until_it_is_accepted() -> None:
    topics = Topics("only")  # A first registration with one topic is refused, by RocketMQ's rule.
    with WatchedNameServer() as server, registering(topics, at(server), period_s=0.01) as registration:
        assert server.next_said() == ({"only"}, -1)
        assert not registration.wait_registered(0)
        topics.put("another")
        while server.next_said()[1] != 0:
            pass
        assert registration.wait_registered(PATIENCE_S)
        assert registration.status()[0].failed_count >= 1


def test_a_broker_is_given_the_topics_that_are_ordered() -> None:
    reported: queue.Queue[Mapping[str, str]] = queue.Queue()
    with WatchedNameServer() as server:
        server.kv.put(ORDER_TOPIC_CONFIG, "a", "broker-a:4")
        with registering(Topics("a", "b"), at(server), on_order_topics=reported.put):
            assert reported.get(timeout=PATIENCE_S) == {"a": "broker-a:4"}


def test_a_name_server_that_never_answers_does_not_keep_a_broker_from_ending() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with registering(Topics("a", "b"), deaf.getsockname(), timeout_s=0.05) as registration:
            deaf.accept()[0].close()
            assert not registration.wait_registered(0)
        registration.stop()


def test_a_broker_without_name_servers_registers_nowhere() -> None:
    with registering(Topics("a")) as registration:
        registration.topics_changed(["a"])
        assert registration.status() == []
        assert not registration.wait_registered(0)
