"""Timers that are due late wait in the tier of a broker, come back in time, and outlive its disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.brokers import Producer
from broker.consuming import SIZES, Peer, bodies_of, until
from present import present
from servers.faulty_driver import Down, FaultyDriver
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.delivery.tiered_timers import HORIZON_MS_MIN, horizon_ms
from tiermq.cli.main import cli
from tiermq.delivery.tiered_timers.tier_timers import TierTimers
from tiermq.delivery.tiered_timers.timer_discovery import discover_timers
from tiermq.message.topic_name import TIMER_TOPIC
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.offload.wire_fleet import FleetScope
from tiermq.testing import LocalBroker
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tiered_store import TieredStore

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
QUICK = {"timer_flush_interval_ms": 50}


@pytest.fixture
def tier(tmp_path: Path) -> str:
    return (tmp_path / "tier").as_uri()


@pytest.fixture
def far_broker(tmp_path: Path, tier: str) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path / "store", tier=tier, **QUICK) as broker:
        broker.create_topic("T", queues=1)
        yield broker


def far_of(broker: LocalBroker) -> TierTimers:
    service = broker.broker.delivery.tiered_timers
    assert service is not None
    timers: TierTimers = service.timers
    return timers


def send(broker: LocalBroker, body: str, due_ms: int, **more: str) -> None:
    properties = {"UNIQ_KEY": body, "WAIT": "true", "TIMER_DELIVER_MS": str(due_ms), **more}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    with Producer(broker.broker) as producer:
        answer = producer.send("T", body.encode(), properties=text)
    assert answer.code == 0, answer.remark


def kept(broker: LocalBroker, count: int) -> None:
    """Wait until the tier keeps so many."""
    until(broker.broker, lambda: far_of(broker).kept_count == count)


def delivered(broker: LocalBroker) -> list[str]:
    return [message.body.decode() for message in broker.messages("T")]


def test_a_reminder_a_year_away_is_written_once_and_comes_when_it_is_due(far_broker: LocalBroker) -> None:
    now_ms = far_broker.clock.now_ms()
    send(far_broker, "next year", now_ms + 365 * DAY_MS)
    kept(far_broker, 1)
    timers = far_of(far_broker)

    def timers_are_past(moment_ms: int) -> bool:
        return timers._given_ms > moment_ms

    for _ in range(4):
        far_broker.advance(days=90)
        asked_ms = far_broker.clock.now_ms()
        until(far_broker.broker, partial(timers_are_past, asked_ms))
        # Neither delivered nor written again on the way, as a roll every two days would.
        assert delivered(far_broker) == []
        assert len(far_broker.messages(TIMER_TOPIC)) == 1
    far_broker.advance(days=4, hours=12)
    until(far_broker.broker, lambda: timers.given_count == 1)
    until(far_broker.broker, lambda: len(far_broker.messages(TIMER_TOPIC)) == 2)
    assert delivered(far_broker) == []
    far_broker.advance(hours=13)
    until(far_broker.broker, lambda: delivered(far_broker) == ["next year"])
    until(far_broker.broker, lambda: timers.kept_count == 0)


def test_a_far_timer_waits_through_restarts_of_its_broker(far_broker: LocalBroker) -> None:
    send(far_broker, "far", far_broker.clock.now_ms() + 30 * DAY_MS)
    send(far_broker, "near", far_broker.clock.now_ms() + HOUR_MS)
    kept(far_broker, 1)
    far_broker.restart()
    far_broker.advance(hours=2)
    until(far_broker.broker, lambda: delivered(far_broker) == ["near"])
    far_broker.advance(days=40)  # Overdue when it is looked for.
    far_broker.restart()
    until(far_broker.broker, lambda: delivered(far_broker) == ["near", "far"])


@pytest.mark.parametrize("is_overdue", [False, True], ids=["in time", "when it is pulled too late"])
def test_a_far_timer_is_cancelled_by_its_key(far_broker: LocalBroker, is_overdue: bool) -> None:
    due_ms = far_broker.clock.now_ms() + 30 * DAY_MS
    send(far_broker, "cancelled", due_ms)
    send(far_broker, "stays", due_ms)
    send(far_broker, "0", due_ms, UNIQ_KEY="cancelled", TIMER_DEL_UNIQKEY="T+cancelled")
    kept(far_broker, 3)
    wheel = far_broker.broker.delivery.timers
    assert wheel is not None
    if not is_overdue:
        far_broker.advance(days=29, hours=13)
        until(far_broker.broker, lambda: far_of(far_broker).given_count == 3)
        until(far_broker.broker, lambda: wheel.queue_offset >= 6)
    far_broker.advance(days=40)
    until(far_broker.broker, lambda: "stays" in delivered(far_broker))
    send(far_broker, "afterwards", far_broker.clock.now_ms() + 1_000)
    far_broker.advance(minutes=1)
    until(far_broker.broker, lambda: "afterwards" in delivered(far_broker))
    assert delivered(far_broker) == ["stays", "afterwards"]


def test_far_timers_outlive_the_disk_of_their_broker(tmp_path: Path, tier: str) -> None:
    with LocalBroker(tmp_path / "one", tier=tier, **QUICK) as broker:
        broker.create_topic("T", queues=1)
        broker.send("T", b"history")
        now_ms = broker.clock.now_ms()
        for body, days in (("soon", 2), ("later", 20), ("pulled", 2)):
            send(broker, body, now_ms + days * DAY_MS + (0 if body != "pulled" else HOUR_MS))
        kept(broker, 3)
        broker.advance(days=1, hours=23)  # Two have come back to the disk that is lost.
        until(broker.broker, lambda: far_of(broker).given_count == 2)
        assert broker.broker.store.flush_to_tier(60)  # type: ignore[union-attr]
        moved_ms = broker.clock.now_ms()
    shutil.rmtree(tmp_path / "one")
    reported = CliRunner().invoke(cli, ["tier", "restore", tier, "--store", str(tmp_path / "two")])
    assert reported.exit_code == 0, reported.output
    with LocalBroker(tmp_path / "two", tier=tier, **QUICK) as broker:
        broker.advance(milliseconds=moved_ms - broker.clock.now_ms() + 3 * HOUR_MS)
        until(broker.broker, lambda: {"soon", "pulled"} <= set(delivered(broker)))
        assert "later" not in delivered(broker)
        broker.advance(days=19)
        until(broker.broker, lambda: sorted(delivered(broker)) == ["history", "later", "pulled", "soon"])


def test_the_topic_of_a_timer_is_served_also_when_the_disk_that_knew_it_was_lost(tmp_path: Path, tier: str) -> None:
    with LocalBroker(tmp_path / "one", tier=tier, **QUICK) as broker:
        broker.create_topic("T", queues=1)
        send(broker, "alone", broker.clock.now_ms() + 2 * DAY_MS)
        kept(broker, 1)
    shutil.rmtree(tmp_path / "one")
    with LocalBroker(tmp_path / "two", tier=tier, **QUICK) as broker:
        assert broker.broker.parts.topics.get("T") is None
        broker.advance(days=3)
        until(broker.broker, lambda: delivered(broker) == ["alone"])
        with Peer(broker.broker) as peer:
            peer.join()
            assert bodies_of(peer.pull(0)) == ["alone"]


def test_what_waits_is_shown_by_metrics_and_by_the_tier_alone(far_broker: LocalBroker, tier: str) -> None:
    due_ms = far_broker.clock.now_ms() + 30 * DAY_MS
    send(far_broker, "far", due_ms)
    kept(far_broker, 1)
    assert "tiermq_far_timers 1" in far_broker.broker.render_metrics()
    driver = open_driver(tier)
    [listing] = discover_timers(driver)
    assert listing.count == 1
    assert due_ms - 2_000 <= listing.first_ms <= due_ms
    driver.close()


def test_a_tier_that_is_down_holds_up_no_near_timer_and_loses_no_far_one(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    driver = FaultyDriver(MemoryDriver())
    store = TieredStore.open(tmp_path, driver=driver, clock=manual_clock, broker_name="broker-a", **SIZES)
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="broker-a", timer_flush_interval_ms=1)
    with Broker(store, config, clock=manual_clock) as broker:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        timers = present(broker.delivery.tiered_timers).timers
        wheel = broker.delivery.timers
        assert wheel is not None

        def later(body: str, ms: int) -> None:
            due_ms = manual_clock.now_ms() + ms
            with Producer(broker) as producer:
                text = f"UNIQ_KEY\x01{body}\x02WAIT\x01true\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
                assert producer.send("T", body.encode(), properties=text).code == 0

        def flushed(condition: Callable[[], bool]) -> None:
            """Let the wheel flush until it is so: it rests after a flush just before it read, until time passes."""

            def moved() -> bool:
                manual_clock.advance_ms(1)
                return condition()

            until(broker, moved)

        def reported() -> list[str]:
            broker.parts.local.dispatch_now()
            return [message.body.decode() for message in broker.parts.local.get("T", 0, 0).messages]

        def pass_time(ms: int) -> None:
            """A day at a time, as time goes by: each must be over for the wheel before the next."""
            while ms > 0:
                manual_clock.advance_ms(min(ms, DAY_MS))
                ms -= DAY_MS
                until(broker, lambda: wheel.read_ms >= manual_clock.now_ms() - 2_000)

        until(broker, lambda: wheel.running)
        later("kept", 5 * DAY_MS)
        flushed(lambda: timers.kept_count == 1)
        driver.plan = Down()
        later("held", 5 * DAY_MS)  # Nobody knows yet that the tier is down: it is taken, and flushed when it is back.
        flushed(lambda: wheel.counts.far_errors > 0)
        later("rolls", 5 * DAY_MS)
        later("near", 1_000)
        pass_time(2 * HOUR_MS)
        until(broker, lambda: reported() == ["near"])
        pass_time(6 * DAY_MS)
        until(broker, lambda: "rolls" in reported())
        assert reported() == ["near", "rolls"]
        driver.plan = None
        pass_time(HOUR_MS)
        until(broker, lambda: sorted(reported()) == ["held", "kept", "near", "rolls"])


@pytest.mark.parametrize(
    ("configured_ms", "hours", "expected_ms"),
    [(0, 72, DAY_MS), (0, 48, DAY_MS), (0, 10, 5 * HOUR_MS), (0, 0, HORIZON_MS_MIN), (7_000, 72, 7_000)],
)
def test_local_files_are_kept_for_longer_than_timers_stay_local(
    configured_ms: int, hours: int, expected_ms: int
) -> None:
    assert horizon_ms(configured_ms, hours) == expected_ms


def test_a_broker_without_a_tier_keeps_no_tiered_timers(tmp_path: Path) -> None:
    with LocalBroker(tmp_path / "plain") as broker:
        assert broker.broker.delivery.tiered_timers is None


@pytest.mark.parametrize("over_the_wire", [False, True], ids=["directory", "wire"])
def test_a_tiered_timer_fires_on_a_broker_whose_messages_a_job_copies(
    tmp_path: Path, tier: str, over_the_wire: bool
) -> None:
    following: dict[str, Any] = {"tier": tier, "tier_dispatch_enable": False}
    with LocalBroker(tmp_path / "store", **{**following, **QUICK}) as broker:
        broker.create_topic("T", queues=1)
        send(broker, "far", broker.clock.now_ms() + 30 * DAY_MS)
        kept(broker, 1)

        def copied() -> Any:
            if not over_the_wire:
                return offload([f"{tmp_path / 'store'}=DefaultCluster/broker-a"], tier).done["messages"]
            broker.broker.parts.local.flush()
            report = offload([], tier, fleet=FleetScope(broker.name_server))
            assert report.problems == []
            return report.done["messages"]

        assert copied() == 0, "the job holds the lease of messages beside the broker"
        broker.restart()
        kept(broker, 1)
        broker.advance(days=31)
        until(broker.broker, lambda: delivered(broker) == ["far"])
        assert copied() == 1


def test_an_operator_sees_far_timers_and_cancels_them(far_broker: LocalBroker, tier: str) -> None:
    due_ms = far_broker.clock.now_ms() + 30 * DAY_MS
    for body in ("A1", "B2"):
        send(far_broker, body, due_ms, KEYS=f"key-{body}")
    kept(far_broker, 2)
    environment = {"NAMESRV_ADDR": far_broker.name_server}

    def run(*words: str) -> Any:
        result = CliRunner().invoke(cli, ["delayed", *words, "--tier", tier, "--json"], env=environment)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    rows = run("ls")
    assert {(row["uniqueKey"], row["topic"], row["broker"]) for row in rows} == {
        ("A1", "T", "broker-a"), ("B2", "T", "broker-a"),
    }  # fmt: skip
    assert {due_ms <= row["deliverMs"] <= due_ms + 1_000 for row in rows} == {True}
    assert [row["uniqueKey"] for row in run("ls", "--key", "key-B2")] == ["B2"]
    run("cancel", "T", "A1")
    kept(far_broker, 3)
    assert [row["uniqueKey"] for row in run("ls")] == ["B2"]
