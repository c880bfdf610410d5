"""Replays to running brokers: what was asked for, in order; after a crash once; nothing without permission."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.replay.replay_world import ReplayWorld
from present import present
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.client.cluster_client import Access, BlockingCluster
from tiermq.client.producer import Outgoing, Producer
from tiermq.errors import BadOption, ForeignCheckpoint, PeerGone, RequestRefused, SendOvertaken
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.replay import wire_job, wire_task
from tiermq.pipeline.replay.job import replay
from tiermq.pipeline.replay.message import MARK, ReplayMessage, SourcePosition
from tiermq.pipeline.replay.wire_record import TAKE_OVER_S, SentLine, SentWindows, TaskClaim, WireRecord, record_url
from tiermq.pipeline.replay.wire_task import SendTask, WireTarget, send_replay, target_queue
from tiermq.pipeline.task_runner import LocalRunner
from tiermq.pipeline.worker_cache import driver_of
from tiermq.remoting.permissions import AccessTable
from tiermq.remoting.tls import TlsMode, TlsSettings
from tiermq.spark import SparkRunner
from tiermq.testing import LocalBroker
from tiermq.tier.names import QueueKey


class WireWorld(ReplayWorld):
    """The source is hot and cold; the target is a broker."""

    def __init__(self, path: Path, broker: LocalBroker) -> None:
        super().__init__(path)
        self.broker = broker

    def replay(self, runner: Any = None, **more: Any) -> JobReport:
        given = {"tier": self.url, "store": self.disk, "broker": "broker-a", "topic": "orders", "record": self.record}
        given |= {"namesrv": self.broker.name_server, "to_topic": "again"}
        return replay(runner, **{**given, **more})

    def arrived(self, queue_id: int, topic: str = "again") -> list[bytes]:
        return [message.body for message in self.broker.messages(topic, queue_id)]

    def sent_lines(self) -> list[list[Any]]:
        documents = [json.loads(file.read_bytes()) for file in sorted(self.record.glob("sent/**/*.json"))]
        return [line for document in documents for line in document["lines"]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WireWorld]:
    with LocalBroker(tmp_path / "broker", auto_create_topic_enable=False) as broker:
        broker.create_topic("again", queues=2)
        made = WireWorld(tmp_path, broker)
        yield made
        made.bury()


class Died(Exception):
    """What a replay dies of in these tests."""


def dying(monkeypatch: pytest.MonkeyPatch, where: type, name: str, *, after: int, done: bool) -> list[int]:
    """Let a call die, before or after it is done; once, the `after`th time."""
    calls: list[int] = []
    original = getattr(where, name)

    async def send(self: Any, batch: Sequence[Outgoing]) -> Any:
        calls.append(len(batch))
        if len(calls) != after:
            return await original(self, batch)
        if done:
            await original(self, batch)
        raise Died

    def add(self: Any, lines: Any) -> None:
        calls.append(len(lines))
        if len(calls) == after and not done:
            raise Died
        original(self, lines)
        if len(calls) == after:
            raise Died

    monkeypatch.setattr(where, name, send if where is Producer else add)
    return calls


def test_brokers_get_each_queue_in_its_order(world: WireWorld) -> None:
    report = world.replay()
    assert (report.done["messages"], report.problems) == (35, [])
    for queue_id in (0, 1):
        assert world.arrived(queue_id) == world.bodies("orders", queue_id)


def test_a_message_keeps_its_identity_and_gets_a_mark(world: WireWorld) -> None:
    report = world.replay(properties={"why": "test"})
    source = world.sent["orders", 0][3]
    message = world.broker.messages("again", 0)[3]
    assert (message.body, message.tags) == (source.body, source.tags)
    assert message.get_property(MARK) == f"{report.details['name']}:broker-a/orders/0/3"
    assert message.get_property("why") == "test"
    assert message.unique_key


def test_the_record_reports_where_each_message_is_now(world: WireWorld) -> None:
    world.replay()
    lines = world.sent_lines()
    assert len(lines) == 35
    for offset, topic, broker, queue_id, now in lines:
        assert (topic, broker) == ("again", "broker-a")
        assert world.arrived(queue_id)[now] == world.bodies("orders", queue_id)[offset]


def test_a_second_run_sends_nothing(world: WireWorld) -> None:
    world.replay()
    again = world.replay()
    assert (again.done["messages"], again.done["messages_before"]) == (0, 35)
    assert len(world.arrived(0)) == 25


def test_a_record_of_another_replay_is_refused(world: WireWorld) -> None:
    world.replay()
    with pytest.raises(ForeignCheckpoint, match="record of another replay: --subscribe was"):
        world.replay(topic="returns")


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_task_that_dies_at_a_send_repeats_nothing_that_brokers_have(
    world: WireWorld, monkeypatch: pytest.MonkeyPatch, after: int, done: bool
) -> None:
    monkeypatch.setattr(wire_task, "SEND_WINDOW_MESSAGES", 6)
    dying(monkeypatch, Producer, "send_batch", after=after, done=done)
    with pytest.raises(Died):
        world.replay(rate=100_000.0)
    world.broker.broker.parts.local.dispatch_now()
    report = world.replay(rate=100_000.0)
    assert report.done["messages"] + report.done["messages_before"] == 35
    for queue_id in (0, 1):
        assert world.arrived(queue_id) == world.bodies("orders", queue_id)
    assert len(world.sent_lines()) == 35


@pytest.mark.parametrize("done", [False, True])
def test_a_task_that_dies_at_its_record_repeats_nothing(
    world: WireWorld, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    monkeypatch.setattr(wire_task, "SEND_WINDOW_MESSAGES", 6)
    dying(monkeypatch, SentWindows, "add", after=3, done=done)
    with pytest.raises(Died):
        world.replay()
    world.broker.broker.parts.local.dispatch_now()
    world.replay()
    for queue_id in (0, 1):
        assert world.arrived(queue_id) == world.bodies("orders", queue_id)


def test_a_replay_into_its_own_topic_is_not_taken_for_the_original(world: WireWorld) -> None:
    """The originals have the same unique keys: a message counts as sent only with the mark of this replay."""
    world.replay()
    world.broker.broker.parts.local.dispatch_now()
    world.replay(record=f"{world.record}-2")
    assert world.arrived(0) == world.bodies("orders", 0) * 2


def test_a_send_without_an_answer_is_asked_for_before_it_is_repeated(
    world: WireWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Producer.send
    lost: list[int] = []

    async def unanswered(self: Producer, messages: Sequence[Outgoing]) -> int:
        offset = await send(self, messages)
        if not lost:
            lost.append(offset)
            world.broker.broker.parts.local.dispatch_now()
            raise PeerGone("the answer was lost")
        return offset

    monkeypatch.setattr(Producer, "send", unanswered)
    world.replay()
    assert lost
    assert world.arrived(0) == world.bodies("orders", 0)
    assert len(world.sent_lines()) == 35


def test_of_two_copies_of_a_task_one_records_a_window(tmp_path: Path) -> None:
    driver, queue = driver_of(record_url(tmp_path)), QueueKey("c", "b", "orders", 0)
    lines = [SentLine(5, "again", "b", 0, 0), SentLine(6, "again", "b", 0, 1)]
    SentWindows(driver, queue, "first").add(lines)
    with pytest.raises(SendOvertaken, match="these 2 were sent twice"):
        SentWindows(driver, queue, "second").add(lines)
    assert SentWindows(driver, queue).since(5) == lines
    assert SentWindows(driver, queue).since(6) == []


DAMAGED = ["", "[]", "5", "{", '{"lines": 5}', '{"lines": [[1]]}', '{"lines": [["0", "again", "b", 0, 0]]}']


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_object_of_a_record_is_named_and_a_damaged_claim_ends(tmp_path: Path, text: str) -> None:
    driver, queue = driver_of(record_url(tmp_path)), QueueKey("c", "b", "orders", 0)
    SentWindows(driver, queue).add([SentLine(5, "again", "b", 0, 0)])
    (window,) = driver.list_objects("sent/")
    driver.put_object(window, text.encode())
    with pytest.raises(ForeignCheckpoint, match=f"{window}: expected a window of a replay"):
        SentWindows(driver, queue).since(5)
    driver.put_object("replay.tiermq.json", text.encode())
    with pytest.raises(ForeignCheckpoint, match="expected the record of a replay to brokers, found another object"):
        WireRecord.find(record_url(tmp_path), {})
    driver.put_object("claims/0000.tiermq.json", text.encode())
    claim = TaskClaim(driver, "0000", "second")
    assert not claim.take(0.0)
    assert claim.take(TAKE_OVER_S)


def test_of_two_attempts_of_a_task_one_sends_until_it_ends_or_stands_still(tmp_path: Path) -> None:
    driver = driver_of(record_url(tmp_path))
    first, second = (TaskClaim(driver, "0000", writer) for writer in ("first", "second"))
    assert first.take(0.0)
    assert not second.take(100.0)
    first.renew()
    assert not second.take(100.0 + TAKE_OVER_S), "it was renewed since"
    assert second.take(101.0 + 2 * TAKE_OVER_S), "it was not renewed for a while"
    with pytest.raises(SendOvertaken):
        first.renew()
    first.release()
    second.renew()
    second.release()
    assert TaskClaim(driver, "0000", "third").take(0.0)


def test_a_second_copy_of_a_task_waits_for_the_first_and_sends_nothing(world: WireWorld) -> None:
    class AtOnce(LocalRunner):
        def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], **more: Any) -> list[Any]:
            del more
            with ThreadPoolExecutor(2 * len(tasks)) as pool:
                copies = [pool.submit(function, task) for task in (*tasks, *tasks)]
                return [copy.result() for copy in copies[: len(tasks)]]

    report = world.replay(AtOnce())
    assert report.done["messages"] == 35
    for queue_id in (0, 1):
        assert world.arrived(queue_id) == world.bodies("orders", queue_id)


def test_of_two_drivers_with_one_record_one_goes_on(world: WireWorld) -> None:
    class Another(LocalRunner):
        def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], **more: Any) -> list[Any]:
            done = super().run(function, tasks, **more)
            if not others:
                others.append(world.replay())
            return done

    others: list[JobReport] = []
    with pytest.raises(ForeignCheckpoint, match="only one at this replay"):
        world.replay(Another())
    assert world.arrived(0) == world.bodies("orders", 0)


# Targets.


def test_a_topic_that_does_not_exist_is_refused_before_anything_is_sent(world: WireWorld) -> None:
    with pytest.raises(BadOption, match="expected a topic nowhere with queues to write to, found none"):
        world.replay(to_topic="nowhere")
    assert not world.record.exists()
    with pytest.raises(BadOption, match="copy-orders"):
        world.replay(to_topic=None, function="pipeline.replay.replay_world:moved")


def test_a_missing_topic_is_created_on_request(world: WireWorld) -> None:
    dry = world.replay(to_topic="new", create=3, dry_run=True)
    assert dry.details["notes"] == ["topic new: created with 3 queues at each broker"]
    world.replay(to_topic="new", create=3)
    assert world.arrived(1, "new") == world.bodies("orders", 1)
    assert present(world.broker.broker.parts.topics.get("new")).write_queues == 3


ACCOUNTS = """
[[accounts]]
accessKey = "root"
secretKey = "root's secret"
admin = true
[[accounts]]
accessKey = "reader"
secretKey = "reader's secret"
topicPerms = ["again=SUB"]
[[accounts]]
accessKey = "writer"
secretKey = "writer's secret"
topicPerms = ["again=PUB"]
[[accounts]]
accessKey = "both"
secretKey = "both's secret"
topicPerms = ["again=PUB|SUB"]
"""


@contextmanager
def guarded(path: Path) -> Iterator[tuple[Broker, WireTarget]]:
    """A broker that demands TLS and accounts, with the topic `again`."""
    (path / "accounts.toml").write_text(ACCOUNTS)
    accounts, tls = AccessTable.load(path / "accounts.toml"), TlsSettings(TlsMode.ENFORCING)
    config = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path="")
    with NameServer(config, tls=tls, acl=accounts) as name_server:
        address = f"127.0.0.1:{name_server.port}"
        settings = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="broker-a", namesrv_addr=address)
        opened = Broker.open(
            path / "guarded",
            config=settings,
            tls=tls,
            acl=accounts,
            credentials=accounts.administrator(),
            name_server_tls=tls.client_context(),
        )
        with opened as broker:
            broker.parts.topics.put(TopicConfig("again", 2, 2))
            registration = present(broker.registration)
            assert registration.wait_registered(60)
            with BlockingCluster(Access(address, "root", "root's secret", tls=True)) as cluster:
                while cluster.run(cluster.client.find_route("again")) is None:
                    continue
            yield broker, WireTarget(address, tls=True)


@pytest.mark.parametrize(
    ("account", "sent", "reported"),
    [
        ("both", 35, ""),
        ("writer", 35, "give the account SUB on the topic"),
        ("reader", 0, "topic again, broker broker-a"),
    ],
)
def test_permissions_are_checked_before_anything_is_sent(
    world: WireWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: str, sent: int, reported: str
) -> None:
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", account)
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", f"{account}'s secret")
    with guarded(tmp_path) as (broker, target):
        if sent:
            notes = world.replay(namesrv=target).details.get("notes", [])
            assert any(reported in text for text in notes) == bool(reported)
        else:
            with pytest.raises(RequestRefused, match=reported):
                world.replay(namesrv=target)
            assert not world.record.exists()
        broker.parts.local.dispatch_now()
        assert sum(broker.parts.local.max_offset("again", queue_id) for queue_id in (0, 1)) == sent


def test_checking_permissions_stores_nothing(world: WireWorld) -> None:
    world.replay(dry_run=True)
    assert world.arrived(0) + world.arrived(1) == []


@pytest.mark.parametrize(
    ("source", "queue_id", "queues", "found"),
    [
        ("a", 1, [("a", 0), ("a", 1), ("b", 0)], ("a", 1)),
        ("a", 3, [("a", 0), ("a", 1), ("b", 3)], ("a", 1)),
        ("a", 0, [("x", 0), ("x", 1), ("y", 0), ("y", 1)], ("x", 0)),
        ("b", 0, [("x", 0), ("x", 1), ("y", 0), ("y", 1)], ("x", 1)),
        ("a", 1, [("x", 0), ("x", 1), ("y", 0), ("y", 1)], ("y", 0)),
        ("b", 1, [("x", 0), ("x", 1), ("y", 0), ("y", 1)], ("y", 1)),
        ("b", 2, [("x", 0), ("x", 1), ("y", 0), ("y", 1)], ("x", 1)),
    ],
)
def test_source_queues_go_to_their_own_queue_or_are_spread(
    source: str, queue_id: int, queues: list[tuple[str, int]], found: tuple[str, int]
) -> None:
    message = ReplayMessage("t", b"", queue_id, SourcePosition(source, "t", queue_id, 9))
    assert target_queue(message, queues, ("a", "b")) == found


# Rate, waves, stops.


class Several(LocalRunner):
    """Keeps the tasks that it ran."""

    parallelism = 2

    def __init__(self) -> None:
        self.waves: list[list[SendTask]] = []

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], **more: Any) -> list[Any]:
        self.waves.append(list(tasks))
        return super().run(function, tasks, **more)


def test_the_rate_is_shared_out_over_tasks(world: WireWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = world.replay(dry_run=True).planned["bytes"]
    monkeypatch.setattr(wire_job, "TASK_BYTES", planned // 2)
    runner = Several()
    world.replay(runner, rate=200_000.0)
    shares = [[(task.rate, task.messages_max) for task in wave] for wave in runner.waves]
    assert shares == [[(100_000.0, 1_000_000)] * 2, [(200_000.0, 2_000_000)]]


def test_a_task_sends_no_more_than_its_part_of_a_wave(world: WireWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a stop is noticed soon, whatever the rate, and what is left of a scan is in the next wave."""
    monkeypatch.setattr(wire_job, "WAVE_S", 0.001)
    runner = Several()
    report = world.replay(runner, rate=10_000.0)
    assert report.done["messages"] == 35
    assert len(runner.waves) >= 4
    for queue_id in (0, 1):
        assert world.arrived(queue_id) == world.bodies("orders", queue_id)


def test_a_stopped_replay_continues(world: WireWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_job, "WAVE_S", 0.001)
    stop = threading.Event()
    stop.set()
    first = world.replay(rate=10_000.0, stop=stop)
    assert 0 < first.done["messages"] < 35
    assert "stopped" in first.details["notes"][-1]
    reported: list[tuple[int, int]] = []
    second = world.replay(rate=10_000.0, progress=lambda *some: reported.append(some))
    assert first.done["messages"] + second.done["messages"] == 35
    assert reported[-1] == (second.planned["bytes"], second.planned["bytes"])
    for queue_id in (0, 1):
        assert world.arrived(queue_id) == world.bodies("orders", queue_id)


def test_a_task_that_is_run_again_continues_after_its_windows(world: WireWorld) -> None:
    class Twice(LocalRunner):
        def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], **more: Any) -> list[Any]:
            assert function is send_replay
            super().run(function, tasks, **more)
            return super().run(function, tasks, **more)

    report = world.replay(Twice())
    assert (report.done["messages"], report.done["messages_found"]) == (35, 35)
    assert world.arrived(0) == world.bodies("orders", 0)


def test_executors_send(spark: Any, world: WireWorld) -> None:
    report = world.replay(SparkRunner(spark))
    assert report.done["messages"] == 35
    for queue_id in (0, 1):
        assert world.arrived(queue_id) == world.bodies("orders", queue_id)
