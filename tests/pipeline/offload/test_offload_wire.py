"""An offload of running brokers, over the wire: what is in the tier afterwards, and what an operator is told."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import QUEUES, SMALL, TIER, run_twice
from pipeline.offload.wire_world import CLUSTER, Waiting, WireWorld, fill, wire_world
from tiermq import Message
from tiermq.broker.admin.topic_admin_processor import TopicAdminProcessor
from tiermq.errors import BadConfig, CorruptRecord, TierUnavailable
from tiermq.message.record import encode_record
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.offload.task import run_offload_task
from tiermq.pipeline.offload.wire_broker import WireBroker
from tiermq.pipeline.offload.wire_source import ByteThrottle, rebased
from tiermq.pipeline.task_runner import LocalRunner
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.testing import MovableClock
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.names import KEYS_STEM, QueueKey
from tiermq.tier.tiered_store import TieredStore
from tiermq.tier.verify.verify import verify_tier


def by_directory(world: WireWorld, tier: str, number: int = 0, **options: Any) -> WireWorld:
    """The tier that an offload of the same broker's store directory makes, in another place."""
    other = WireWorld(world.root)
    other.tier = tier
    store = f"{world.brokers[number].directory}={CLUSTER}/broker-{number}"
    report = offload([store], tier, **{"settings": SMALL, "config": TIER, "index": "later", **options})
    assert report.problems == []
    return other


@pytest.mark.parametrize("suffix", ["", "?driver=object"], ids=["files", "objects"])
def test_the_tier_has_the_same_bytes_as_by_the_store_directory(tmp_path: Path, suffix: str) -> None:
    with wire_world(tmp_path, suffix=suffix) as world:
        fill(world.broker, 400)
        report = world.offload()
        assert (report.problems, report.done["messages"]) == ([], 400)
        assert report.done["keys"] > 0
        other = by_directory(world, (tmp_path / "other").as_uri() + suffix)
        assert world.segments() == other.segments()
        assert len(world.segments()) > 12
        assert verify_tier(open_driver(world.tier)).problems == []


def test_a_second_run_copies_nothing_and_a_third_goes_on_where_the_manifests_end(tmp_path: Path) -> None:
    with wire_world(tmp_path, 2) as world:
        for broker in world.brokers:
            fill(broker, 250)
        assert world.offload().done["messages"] == 500
        before = world.segments()
        again = world.offload()
        assert (again.done["messages"], again.problems) == (0, [])
        assert world.segments() == before
        for broker in world.brokers:
            fill(broker, 150, seed=2, first=250)
        assert world.offload().done["messages"] == 300
        for number in range(2):
            other = by_directory(world, (tmp_path / f"other{number}").as_uri(), number)
            mine = {path: data for path, data in world.segments().items() if f"/broker-{number}/" in path}
            assert mine == other.segments()
            assert manifests(world, number) == manifests(other, number)
        assert verify_tier(open_driver(world.tier)).problems == []


def manifests(world: WireWorld, number: int) -> list[Any]:
    """What manifests say of segments and offsets: sizes, checksums of blocks, times."""
    reader = ManifestStore(open_driver(world.tier), "a test")
    found = [reader.read(QueueKey(CLUSTER, f"broker-{number}", *name)) for name in QUEUES]
    assert all(found)
    return [
        [
            (
                row.key,
                row.size,
                row.status,
                row.begin_ms,
                row.end_ms,
                row.crc32,
                row.begin_offset,
                row.end_offset,
                row.sums,
            )
            for row in manifest.segments
        ]
        + [manifest.min_offset, manifest.max_offset, manifest.time_index, manifest.gaps]
        for manifest in found
        if manifest is not None
    ]


def test_tasks_that_are_run_twice_and_a_driver_that_dies_change_nothing(tmp_path: Path) -> None:
    class Died(BaseException):
        pass

    def die_at(step: str) -> Any:
        def die(name: str) -> None:
            if name == step:
                raise Died

        return die

    with wire_world(tmp_path, suffix="?driver=object") as world:
        fill(world.broker, 300)
        for step in ("tasks", "commit", "committed", "manifests"):
            with pytest.raises(Died):
                world.offload(step=die_at(step), run=run_twice)
        report = world.offload(run=run_twice)
        assert report.problems == []
        other = by_directory(world, (tmp_path / "other").as_uri() + "?driver=object")
        assert world.segments() == other.segments()


def test_messages_that_are_not_flushed_yet_are_waited_for_and_later_ones_are_not_copied(tmp_path: Path) -> None:
    with wire_world(tmp_path, flush_interval_commit_log=3_600_000) as world:
        fill(world.broker, 100)
        local = world.broker.broker.parts.local
        local.put(Message("payments", b"in memory", 0))
        local.dispatch_now()
        end = local.max_offset("payments", 0)

        def flush_and_put() -> None:
            local.flush()
            local.put(Message("payments", b"later", 0))
            local.dispatch_now()

        stop = Waiting()
        stop.happens[1] = flush_and_put
        assert world.offload(stop=stop).done["messages"] == 101
        assert len(stop.waits) == 1
        reader = ManifestStore(open_driver(world.tier), "a test")
        manifest = reader.read(QueueKey(CLUSTER, "broker-0", "payments", 0))
        assert manifest is not None
        assert manifest.max_offset == end


# RocketMQ's flush service: fewer than four pages wait for the thorough interval, and for the interval of its loop.
RARE = {"flush_commit_log_thorough_interval": 60_000, "flush_interval_commit_log": 2_000}


@pytest.mark.parametrize(
    ("settings", "settle_s"),
    [
        ({}, 15.0),
        (RARE, 68.0),
        ({"flush_disk_type": "SYNC_FLUSH"}, 1.0),
        (RARE | {"flush_disk_type": "SYNC_FLUSH"}, 1.0),
    ],
    ids=["defaults", "rare", "each", "each, rare"],
)
def test_of_a_broker_that_does_not_report_flushes_only_what_was_seen_long_enough_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], settle_s: float
) -> None:
    as_rocketmq(monkeypatch)
    with wire_world(tmp_path, **settings) as world:
        fill(world.broker, 60)
        stop = Waiting()
        stop.happens[1] = lambda: fill(world.broker, 30, seed=2)
        report = world.offload(stop=stop)
        assert (report.done["messages"], report.details["notes"]) == (60, [])
        assert stop.waits == [settle_s]


@pytest.mark.parametrize(
    ("settings", "chosen_s", "waits_s", "is_short"),
    [
        ({}, 2.0, 2.0, True),
        ({}, 20.0, 20.0, False),
        (RARE, 20.0, 20.0, True),
        ({"flush_disk_type": "SYNC_FLUSH"}, 2.0, 1.0, False),
    ],
)
def test_a_settle_time_of_the_operator_is_kept_and_one_that_gives_up_the_promise_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], chosen_s: float, waits_s: float,
    is_short: bool,
) -> None:  # fmt: skip
    as_rocketmq(monkeypatch)
    with wire_world(tmp_path, **settings) as world:
        fill(world.broker, 60)
        stop = Waiting()
        report = world.offload(stop=stop, scope=world.scope(settle_s=chosen_s))
        assert (report.done["messages"], stop.waits) == (60, [waits_s])
        risks = ["may give copied offsets to other messages" in note for note in report.details["notes"]]
        assert risks == [True] * is_short
        stop, lines = Waiting(), list[str]()
        stop.happens[1] = stop.set
        world.offload(stop=stop, scope=world.scope(settle_s=chosen_s), trigger_s=6.0, say=lines.append)
        noted = [line for line in lines if f"note: {CLUSTER}/broker-0" in line]
        assert [f"--settle {chosen_s:g} s is shorter" in line for line in noted] == [True] * is_short


def test_of_a_broker_whose_settings_may_not_be_read_the_settle_time_is_that_of_rocketmq_s_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hidden(_self: WireBroker, _client: Any) -> dict[str, str]:
        return {}

    as_rocketmq(monkeypatch)
    monkeypatch.setattr(WireBroker, "_read_settings", hidden)
    with wire_world(tmp_path, flush_disk_type="SYNC_FLUSH") as world:
        fill(world.broker, 60)
        stop = Waiting()
        assert world.offload(stop=stop).done["messages"] == 60
        assert stop.waits == [15.0]


def test_with_a_trigger_what_a_wave_has_seen_is_copied_by_the_first_one_after_the_settle_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rocketmq(monkeypatch)
    with wire_world(tmp_path) as world:
        fill(world.broker, 60)
        counted: list[int] = []

        def count() -> None:
            counted.append(sum(len(data) // 20 for path, data in world.segments().items() if "/CONSUME_QUEUE/" in path))

        stop = Waiting()

        def count_and_fill() -> None:
            count()
            fill(world.broker, 30, seed=2)

        stop.happens = {1: count, 2: count_and_fill, 3: count, 4: count, 5: stop.set}
        world.offload(stop=stop, trigger_s=6.0, scope=world.scope(settle_s=10.0))
        assert counted == [0, 0, 60, 60]
        assert set(stop.waits) == {6.0}


def test_with_a_trigger_longer_than_the_settle_time_a_look_between_waves_lets_the_next_one_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rocketmq(monkeypatch)
    with wire_world(tmp_path) as world:
        fill(world.broker, 60)
        counted: list[int] = []

        def count() -> None:
            counted.append(sum(len(data) // 20 for path, data in world.segments().items() if "/CONSUME_QUEUE/" in path))

        stop = Waiting()

        def fill_more() -> None:
            count()
            fill(world.broker, 30, seed=2)

        def count_and_stop() -> None:
            count()
            stop.set()

        stop.happens = {1: count, 3: fill_more, 4: count, 5: count_and_stop}
        world.offload(stop=stop, trigger_s=6.0, scope=world.scope(settle_s=2.0))
        assert stop.waits == [4.0, 2.0, 4.0, 2.0, 4.0]
        assert counted == [0, 60, 60, 90]


def test_a_broker_that_reports_flushes_is_not_looked_at_between_waves(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        stop = Waiting()
        stop.happens[2] = stop.set
        world.offload(stop=stop, trigger_s=6.0, scope=world.scope(settle_s=2.0))
        assert stop.waits == [6.0, 6.0]


def as_rocketmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers answer as RocketMQ does, without our field."""
    ends = TopicAdminProcessor._ends

    def without(self: TopicAdminProcessor, topic: str, queue_id: int) -> dict[str, int]:
        return {name: value for name, value in ends(self, topic, queue_id).items() if name != "flushedOffset"}

    monkeypatch.setattr(TopicAdminProcessor, "_ends", without)


def test_what_a_broker_deleted_before_it_was_copied_is_a_recorded_gap_with_its_range(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        fill(world.broker, 50)
        world.offload()
        fill(world.broker, 3_000, seed=2)
        expire(world)
        low = world.broker.broker.parts.store.min_offset("orders", 0)
        report = world.offload()
        assert report.problems == []
        rows = {(row["topic"], row["queue"]): row for row in report.details["gaps"]}
        row = rows["orders", 0]
        assert (row["broker"], row["to"], row["keeps_s"]) == ("broker-0", low, 72 * 3600)
        assert row["from"] < row["to"]
        assert report.done["gap_messages"] == sum(each["to"] - each["from"] for each in rows.values())
        assert verify_tier(open_driver(world.tier)).problems == []
        assert world.offload().details["gaps"] == []


def test_messages_that_are_deleted_while_tasks_are_on_their_way_become_a_gap_of_the_next_wave(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        fill(world.broker, 50)
        world.offload()
        fill(world.broker, 3_000, seed=2)
        left = [1]

        def delete(step: str) -> None:
            if step == "tasks" and left:
                left.pop()
                expire(world)

        report = world.offload(step=delete)
        assert report.problems == []
        assert {row["topic"] for row in report.details["gaps"]} == {"orders", "payments"}
        assert world.offload().done["messages"] == 0


def expire(world: WireWorld) -> None:
    world.broker.advance(hours=100)
    world.broker.broker.parts.local.clean_now()
    assert world.broker.broker.parts.store.min_offset("orders", 0) > 50


def test_a_queue_with_another_history_is_refused_with_both_records_and_never_overwritten(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        fill(world.broker, 60)
        world.offload()
        before = world.segments()
        begin_again(world, 80, seed=9)
        report = world.offload()
        assert world.segments() == before
        assert {(row["topic"], row["queue"]) for row in report.details["refused"]} == set(QUEUES)
        row = report.details["refused"][0]
        assert row["tier"] != row["source"]
        assert {"bytes", "stored_ms", "body_crc", "keys"} <= row["tier"].keys() & row["source"].keys()
        assert "Nothing more of this queue is copied" in report.problems[0]


def test_a_broker_that_comes_back_with_another_history_while_a_job_runs_is_refused_too(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        fill(world.broker, 60)
        stop = Waiting()
        stop.happens = {1: lambda: begin_again(world, 200, seed=9), 2: stop.set}
        report = world.offload(stop=stop, trigger_s=20.0)
        assert report.done["messages"] == 60
        assert len(report.details["refused"]) == len(QUEUES)


def begin_again(world: WireWorld, count: int, seed: int) -> None:
    """The broker loses its disk, and gives the same offsets to other messages."""
    world.broker._stop_broker()
    shutil.rmtree(world.broker.directory)
    world.broker.start()
    world.broker.create_topic("orders", 2)
    world.broker.create_topic("payments", 1)
    fill(world.broker, count, seed)


def test_a_broker_that_is_down_delays_only_its_own_queues_and_is_copied_when_it_is_back(tmp_path: Path) -> None:
    with wire_world(tmp_path, 2) as world:
        for broker in world.brokers:
            fill(broker, 40)
        first, second = world.brokers
        troubles: list[str] = []

        def down() -> None:
            second._stop_broker()
            fill(first, 30, seed=2)

        def up() -> None:
            troubles.extend(job._troubles)
            second.start()
            fill(second, 20, seed=3)

        stop = Waiting()
        stop.happens = {1: down, 2: up, 3: stop.set}
        job = world.job(stop=stop, trigger_s=20.0)
        report = job.run()
        assert [text.split()[0] for text in troubles] == [f"{CLUSTER}/broker-1"]
        assert report.problems == []
        assert {row["broker"]: row["messages"] for row in report.details["stores"]} == {"broker-0": 70, "broker-1": 60}


def test_a_broker_that_is_unknown_when_a_continuous_job_begins_is_a_problem_until_it_is_back(tmp_path: Path) -> None:
    with wire_world(tmp_path, 2) as world:
        for broker in world.brokers:
            fill(broker, 20)
        world.offload()
        second = world.brokers[1]
        second._stop_broker()
        stop, lines = Waiting(), list[str]()

        def up() -> None:
            second.start()
            fill(second, 20, seed=3)

        stop.happens = {2: up, 4: stop.set}
        assert world.job(stop=stop, trigger_s=20.0, say=lines.append).run().problems == []
        reported = [line.split(" ", 1)[1] for line in lines]
        assert reported[0].startswith("copying 1 broker into file://")
        assert reported[1].startswith(
            "problem: broker broker-1 of DefaultCluster: it has history in the tier, but no name"
        )
        assert reported[2].startswith("copied 20 messages, ")
        assert reported[3].startswith("over: broker broker-1 of DefaultCluster")
        assert len(reported) == 4


def test_a_continuous_job_goes_on_after_any_number_of_failed_waves_and_reports_each(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        fill(world.broker, 20)
        stop, lines, failures = Waiting(), list[str](), 6

        def run(tasks: Sequence[Any]) -> list[Any]:
            nonlocal failures
            if failures:
                failures -= 1
                raise TierUnavailable("the bucket does not answer")
            return [run_offload_task(task) for task in tasks]

        stop.happens = {8: stop.set}
        path = tmp_path / "metrics.prom"
        report = world.job(run=run, stop=stop, trigger_s=20.0, say=lines.append, metrics_path=str(path)).run()
        assert report.done["messages"] == 20
        assert stop.waits == [40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 20.0, 20.0]
        failed = [line for line in lines if "a wave failed" in line]
        assert len(failed) == 6
        assert failed[3].endswith(
            "a wave failed (4 in a row), the next one starts in 5 min 0 s: the bucket does not answer"
        )
        assert "tiermq_offload_waves_failed 0" in path.read_text()


def test_a_quiet_job_gives_a_sign_of_life_now_and_then(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        stop, lines = world.waiting, list[str]()  # Its time is the job's.
        stop.happens = {10: stop.set}
        world.job(stop=stop, trigger_s=200.0, say=lines.append).run()
        reported = [line.split(" ", 1)[1] for line in lines]
        assert reported[1:] == [
            f"running: {waves} waves, 0 messages copied since the start, 0 problems now" for waves in (4, 7, 10)
        ]


def test_a_registered_broker_that_does_not_answer_is_a_problem_and_others_are_copied(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world, closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))  # Nothing listens there.
        with registered(world, "broker-9", f"127.0.0.1:{silent.getsockname()[1]}"):
            fill(world.broker, 40)
            report = world.offload()
        assert report.done["messages"] == 40
        assert len(report.problems) == 1
        assert "broker-9" in report.problems[0]


@contextmanager
def registered(world: WireWorld, name: str, address: str) -> Iterator[None]:
    """A name server that knows one more broker."""
    host, _, port = world.broker.name_server.rpartition(":")
    named = {"brokerName": name, "brokerAddr": address, "clusterName": CLUSTER, "haServerAddr": "", "brokerId": "0"}
    with BlockingClient(host, int(port)) as client:
        body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{},"dataVersion":{"counter":1,"timestamp":1}}}'
        answer = client.request(RemotingCommand(RequestCode.REGISTER_BROKER, ext=named, body=body))
        assert answer.code == 0, answer.remark
        yield


def test_topics_are_chosen_by_name_by_pattern_and_by_kind_and_the_systems_never_are(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        fill(world.broker, 30)
        for topic in ("audit-log", "%RETRY%g", "%DLQ%g", "rmq_sys_own", "RMQ_SYS_TRANS_HALF_TOPIC"):
            world.broker.broker.parts.topics.put(TopicConfig(topic, 1, 1))
            world.broker.send(topic, b"x")
        world.broker.broker.parts.local.flush()

        def planned(**chosen: Any) -> set[str]:
            report = world.offload(scope=world.scope(**chosen), dry_run=True)
            return {row["topic"] for row in report.details["queues"]}

        usual = {"orders", "payments", "audit-log"}
        assert planned() == usual
        assert planned(exclude=("audit-*", "pay*")) == {"orders"}
        assert planned(topics={"orders", "%RETRY%g"}) == {"orders", "%RETRY%g"}
        assert planned(include={"retry", "dlq"}) == usual | {"%RETRY%g", "%DLQ%g"}
        assert planned(include={"transactions"}) == usual | {"RMQ_SYS_TRANS_HALF_TOPIC"}
        world.offload(scope=world.scope(include={"retry", "transactions"}))
        assert world.copied() == usual | {"%RETRY%g", "RMQ_SYS_TRANS_HALF_TOPIC"}
        with pytest.raises(BadConfig, match="did you mean 'orders'"):
            world.offload(scope=world.scope(topics={"order"}))
        with pytest.raises(BadConfig, match="did you mean 'broker-0'"):
            world.offload(scope=world.scope(brokers={"broker-1"}))
        with pytest.raises(BadConfig, match="--include is retry, dlq, transactions"):
            world.scope(include={"all"})


def test_the_rate_of_a_broker_is_shared_out_to_the_tasks_that_run_at_a_time(tmp_path: Path) -> None:
    shares: list[list[float]] = []

    def run(tasks: Any) -> Any:
        shares.append([task.rate for task in tasks])
        return LocalRunner().run(run_offload_task, tasks)

    with wire_world(tmp_path) as world:
        fill(world.broker, 300)
        job = world.job(run=run, rate=60_000_000.0)
        job._tasks.parallelism = 2
        assert job.run().problems == []
    assert all(len(each) > 2 for each in shares[:1])
    assert {rate for each in shares if len(each) > 1 for rate in each} == {30_000_000.0}


def test_messages_close_to_their_brokers_retention_are_reported_before_they_are_lost(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        fill(world.broker, 60)
        assert world.offload().details["danger"] == []
        fill(world.broker, 30, seed=2)
        clock = MovableClock()
        clock.advance(timedelta(hours=60))
        path = tmp_path / "metrics.prom"
        report = world.offload(clock=clock, metrics_path=str(path))
        rows = report.details["danger"]
        assert {(row["topic"], row["queue"]) for row in rows} == set(QUEUES)
        assert sum(row["behind"] for row in rows) == 30
        assert all(11 * 3600 < row["left_s"] <= 12 * 3600 for row in rows)
        text = path.read_text()
        assert 'tiermq_offload_queues_in_danger{cluster="DefaultCluster",broker="broker-0"} 0' in text  # Copied since.
        assert 'tiermq_offload_messages{cluster="DefaultCluster",broker="broker-0"} 30' in text
        assert world.offload(clock=clock).details["danger"] == []


def test_the_first_run_over_an_old_backlog_reports_its_danger_too(tmp_path: Path) -> None:
    with wire_world(tmp_path) as world:
        fill(world.broker, 60)
        clock = MovableClock()
        clock.advance(timedelta(hours=60))
        rows = world.offload(clock=clock).details["danger"]
        assert {(row["topic"], row["queue"]) for row in rows} == set(QUEUES)
        assert all(11 * 3600 < row["left_s"] <= 12 * 3600 for row in rows)


def test_a_record_that_is_damaged_at_the_broker_is_not_copied() -> None:
    record = encode_record(
        topic="orders", queue_id=0, body=b"body", queue_offset=7, physical_offset=0, born_timestamp_ms=1,
        store_timestamp_ms=1, born_host="1.2.3.4:5", store_host="1.2.3.4:6",
    )  # fmt: skip
    assert rebased(record, 7, 9, 999, 0, ("orders", 0)).count == 1
    assert rebased(record, 6, 9, 999, 0, ("orders", 0)).count == 0  # Another message's: the broker has jumped.
    bad = record.replace(b"body", b"b0dy")
    with pytest.raises(CorruptRecord, match="offset 7 whole and undamaged"):
        rebased(bad, 7, 9, 999, 0, ("orders", 0))


def test_bytes_above_the_rate_are_waited_for() -> None:
    now = [0.0]
    throttle = ByteThrottle(1_000, monotonic=lambda: now[0])
    waited = 0.0
    for _ in range(50):
        wait_s, reserved = throttle.reserve()
        waited += wait_s
        now[0] += wait_s
        throttle.note(500, reserved)
    assert now[0] == pytest.approx(24.5, abs=0.6)
    assert ByteThrottle(0).reserve() == (0.0, 0.0)


def test_the_first_pulls_of_a_task_are_not_sent_at_once_either() -> None:
    throttle = ByteThrottle(64 << 10, monotonic=lambda: 100.0)
    reserved = [throttle.reserve() for _ in range(4)]
    assert [wait_s for wait_s, _ in reserved] == [0.0, 0.5, 1.0, 1.5]
    for _, size in reserved:
        throttle.note(16 << 10, size)
    assert [throttle.reserve()[0] for _ in range(3)] == [1.0, 1.25, 1.5], "they had half of what was thought"


def test_a_broker_whose_lease_is_lost_is_begun_again_and_others_are_copied_meanwhile(tmp_path: Path) -> None:
    with wire_world(tmp_path, 2) as world:
        for broker in world.brokers:
            fill(broker, 40)
        stop = Waiting()

        def steal() -> None:
            """Another process takes the second broker for a moment, and gives it back."""
            lease = next(each.lease for each in job._brokers if each.place.broker == "broker-1")
            assert lease is not None
            driver = open_driver(world.tier)
            driver.delete_object(lease.name)
            other = BrokerLease(driver, CLUSTER, "broker-1", "somebody else")
            other.acquire(epoch_min=lease.epoch + 1)
            other.release()
            for each in world.brokers:
                fill(each, 30, seed=2)

        stop.happens = {1: steal, 3: stop.set}
        path = tmp_path / "metrics.prom"
        job = world.job(stop=stop, trigger_s=20.0, metrics_path=str(path))
        report = job.run()
        assert report.problems == []
        assert report.done["messages"] == 140
        assert report.done["queues"] == 2 * len(QUEUES)
        for name in ("broker-0", "broker-1"):
            assert f'tiermq_offload_messages{{cluster="{CLUSTER}",broker="{name}"}} 70' in path.read_text()
        other = by_directory(world, (tmp_path / "other").as_uri(), 1)
        mine = {path: data for path, data in world.segments().items() if "/broker-1/" in path}
        assert mine == other.segments()


# Keys


def found_by_the_tier_alone(world: WireWorld, directory: Path, number: int, keys: Sequence[str]) -> None:
    """A new machine with nothing but the bucket finds each key once, and reads nothing back for it."""
    names: dict[str, Any] = {"broker_name": f"broker-{number}", "broker_cluster_name": CLUSTER}
    with TieredStore.open(directory, tier=world.tier, restore=True, background=False, **names) as store:
        index = store.tier.index
        assert index is not None
        index.run_once()
        assert (index.is_complete, index.counts.filled) == (True, 0)
        for key in keys:
            found = [store.query(topic, key) for topic in ("orders", "payments")]
            assert all(each.complete for each in found)
            assert [message.keys for each in found for message in each.messages] == [[key]]


def test_keys_of_running_brokers_are_found_as_soon_as_a_wave_is_committed(tmp_path: Path) -> None:
    with wire_world(tmp_path, 2) as world:
        for number, broker in enumerate(world.brokers):
            fill(broker, 100, seed=number)
        first = world.offload()
        assert (first.problems, first.done["messages"]) == ([], 200)
        assert first.done["index_files"] > 0
        for number in range(2):
            found_by_the_tier_alone(world, tmp_path / f"n{number}", number, ["key-1", "key-98"])
        assert world.offload().done["index_files"] == 0
        fill(world.broker, 40, seed=7, first=500)
        assert world.offload().done["keys"] == 27
        found_by_the_tier_alone(world, tmp_path / "again", 0, ["key-98", "key-500", "key-539"])
        assert verify_tier(open_driver(world.tier)).problems == []


@pytest.mark.parametrize("step", ["build", "committed", "cover", "rows", "manifests"])
def test_a_job_without_a_directory_that_dies_at_a_step_of_the_index_is_completed(tmp_path: Path, step: str) -> None:
    class Died(BaseException):
        pass

    is_dead: list[str] = []

    def die(name: str) -> None:
        if is_dead or name == step:  # Nothing is written at the end either.
            is_dead.append(name)
            raise Died

    with wire_world(tmp_path) as world:
        fill(world.broker, 100)
        with pytest.raises(Died):
            world.offload(step=die)
        assert world.offload().problems == []
        found_by_the_tier_alone(world, tmp_path / "n", 0, [f"key-{number}" for number in range(1, 100, 3)])
        driver = open_driver(world.tier)
        assert verify_tier(driver).problems == []
        assert [name for name in driver.list_objects() if KEYS_STEM in name] == []
