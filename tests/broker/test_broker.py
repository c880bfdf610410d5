"""The life of a broker."""

from __future__ import annotations

import re
import socket
import threading
from pathlib import Path

import pytest

from broker.brokers import SMALL, Producer, broker_config, running, stored
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import PROCESSORS, Broker
from tiermq.broker.group.group_table import SubscriptionGroup
from tiermq.errors import RemotingError, RequestRefused, StoreLocked
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.access import declared_by
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.frame import SEND_CODES
from tiermq.remoting.limits import ServerLimits
from tiermq.store.local_store import LocalStore
from tiermq.tier.tiered_store import TieredStore

NODE = 'cluster="DefaultCluster",node_type="broker",node_id="b1"'


def test_what_was_sent_is_there_after_a_restart_and_goes_on_behind(tmp_path: Path) -> None:
    for offset in ("0", "1"):
        with running(tmp_path) as broker, Producer(broker) as producer:
            assert producer.send().ext["queueOffset"] == offset
    with LocalStore.open(tmp_path / "store", **SMALL) as store:
        assert [message.body for message in store.get("T", 0, 0).messages] == [b"hello", b"hello"]


def test_a_tiered_broker_sends_its_history_down(tmp_path: Path) -> None:
    with running(tmp_path, tier=(tmp_path / "tier").as_uri()) as broker, Producer(broker) as producer:
        producer.send()
        assert isinstance(broker.store, TieredStore)
        assert len(stored(broker)) == 1
        assert broker.store.flush_to_tier(30)
        assert "rocketmq_tiered_store_" in broker.render_metrics()


def test_a_taken_port_is_reported_before_the_store_is_touched(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            Broker.open(tmp_path / "store", config=broker_config(listen_port=taken.getsockname()[1]))
    assert not (tmp_path / "store").exists()


def test_a_locked_store_gives_the_port_back(tmp_path: Path) -> None:
    with running(tmp_path), pytest.raises(StoreLocked):
        Broker.open(tmp_path / "store", config=broker_config())


def test_a_taken_metrics_port_leaves_everything_closed(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker = Broker.open(tmp_path / "store", config=broker_config(metrics_port=taken.getsockname()[1]))
        with pytest.raises(OSError, match="in use"):
            broker.start()
        broker.stop()
    with running(tmp_path) as again:
        assert again.store.running


def test_a_broker_that_was_never_started_can_be_stopped_and_stopping_twice_does_no_harm(tmp_path: Path) -> None:
    broker = Broker.open(tmp_path / "store", config=broker_config())
    broker.stop()
    broker.stop()
    with running(tmp_path) as again:
        with pytest.raises(RemotingError, match="not started"):
            again.start()
        again.stop()


def test_name_servers_know_it_from_the_start_to_the_stop(tmp_path: Path) -> None:
    with NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path="")) as name_server:
        config = broker_config(namesrv_addr=f"127.0.0.1:{name_server.port}")
        with running(tmp_path, config=config) as broker:
            assert broker.registration is not None
            assert broker.registration.wait_registered(30)
            assert broker.problems() == {}
            assert name_server.table.route("BenchmarkTest") is not None
            figures = broker.render_metrics()
            assert re.search(r"tiermq_registrations_total\{.*\} [1-9]", figures)
            assert re.search(r"tiermq_registration_failures_total\{.*\} 0", figures)
        assert name_server.table.route("BenchmarkTest") is None


def test_periodic_work_goes_on_when_one_of_it_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Semaphore(0)

    def fails() -> None:
        done.release()
        raise ZeroDivisionError("no reason")

    broker = Broker.open(tmp_path / "store", config=broker_config(), clock=ManualClock())
    broker.parts.hooks.every(0.001, fails)
    with broker:
        for _ in range(3):
            assert done.acquire(timeout=30)
    assert "periodic work failed" in caplog.text


def test_last_words_are_reported_while_the_store_is_open(tmp_path: Path) -> None:
    said: list[bool] = []
    broker = Broker.open(tmp_path / "store", config=broker_config())
    broker.parts.hooks.on_stop(lambda: said.append(broker.store.running))
    with broker:
        pass
    assert (said, broker.store.running) == ([True], False)


def test_a_topic_that_has_messages_keeps_its_kind_of_queues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        producer.send()
        assert len(stored(broker)) == 1
        for kind in ("BatchCQ", "Nonsense"):
            broker.parts.topics.put(TopicConfig("T", 4, 4, attributes={"queue.type": kind}))
        assert caplog.text.count("topic T: the store cannot create queues of this type") == 2
        assert producer.send().ext["queueOffset"] == "1"


def test_work_in_the_pool_comes_back_to_the_loop_and_its_line_is_bounded(tmp_path: Path) -> None:
    limits = ServerLimits(blocking_threads=1, blocking_line_max=1)
    with running(tmp_path, limits=limits) as broker:
        server = broker.parts.server
        assert broker._thread is not None
        held, back = threading.Event(), threading.Event()
        found: list[object] = []

        def work() -> str:
            held.wait()
            raise ValueError(threading.current_thread().name)

        def done(result: object, error: Exception | None) -> None:
            found.extend([result, str(error), threading.current_thread().name])
            back.set()

        broker._thread.call(server.run_in_pool, work, done)
        with pytest.raises(RequestRefused, match="wait already") as busy:
            broker._thread.call(server.run_in_pool, work, done)
        assert busy.value.code == ResponseCode.SYSTEM_BUSY
        held.set()
        assert back.wait(30)
        assert found == [None, "remoting_0", "broker-loop"]


def figure(broker: Broker, name: str) -> float:
    wanted = f"{name}{{{NODE}}} "
    (line,) = [line for line in broker.render_metrics().splitlines() if line.startswith(wanted)]
    return float(line.removeprefix(wanted))


def test_figures_follow_what_happens(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        topics, groups = figure(broker, "rocketmq_topic_number"), figure(broker, "rocketmq_consumer_group_number")
        assert figure(broker, "rocketmq_broker_permission") == 6
        assert figure(broker, "tiermq_connections") == 0
        with Producer(broker) as producer:
            producer.send()
            broker.parts.groups.put(SubscriptionGroup("CG"))
            assert figure(broker, "rocketmq_topic_number") == topics + 1
            assert figure(broker, "rocketmq_consumer_group_number") == groups + 1
            assert figure(broker, "tiermq_connections") == 1
        for name in ("tiermq_connections_refused_total", "tiermq_request_errors_total"):
            assert figure(broker, name) == 0


def test_processors_stand_in_the_order_of_their_names() -> None:
    names = [getattr(each, "__name__", "") for each in PROCESSORS]
    assert names == sorted(set(names))


def test_a_broker_has_each_of_them_and_serves_what_they_declare(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        assert [type(each) for each in broker.processors] == list(PROCESSORS)
        assert [each for each in broker.processors if not any(declared_by(each))] == []
        declared = {each.code for processor in broker.processors for each, _ in declared_by(processor)}
        server = broker.parts.server
        assert declared <= server.declared.keys() == server.codes | SEND_CODES
        with pytest.raises(ValueError, match="expected one handler"):
            server.serve(broker.processors[0])
