"""`tiermq delayed --tier`: timers that only the tier still knows are shown, and cancelled at their broker."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from broker.brokers import Producer
from broker.consuming import part, until
from tiermq.broker.delivering import DeliveryProcessor
from tiermq.cli.delayed_far import cancel_far, far_rows, far_timers_at
from tiermq.cli.main import cli
from tiermq.client.access import Access
from tiermq.testing import LocalBroker

DAY_MS = 86_400_000


def test_a_timer_that_its_broker_has_forgotten_is_cancelled_by_what_the_tier_knows(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with LocalBroker(tmp_path / "store", tier=tier, timer_flush_interval_ms=50) as broker:
        broker.create_topic("T", queues=1)
        due_ms = broker.clock.now_ms() + 30 * DAY_MS
        properties = f"UNIQ_KEY\x01A1\x02WAIT\x01true\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
        with Producer(broker.broker) as producer:
            assert producer.send("T", b"x", properties=properties).code == 0
        timers = part(broker.broker, DeliveryProcessor).far.timers
        until(broker.broker, lambda: timers.kept_count == 1)
        access = Access(broker.name_server)
        assert cancel_far(access, tier, "T", "unknown") == []
        [done] = cancel_far(access, tier, "T", "A1")
        assert (done.broker_name, done.waiting.unique_key) == ("broker-a", "A1")
        until(broker.broker, lambda: timers.kept_count == 2)
        assert list(far_rows(tier)) == []


def test_a_tier_without_timers_has_none_and_one_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    tier = (tmp_path / "tier").as_uri()
    assert list(far_timers_at(tier)) == []
    assert CliRunner().invoke(cli, ["delayed", "ls", "--tier", tier]).exit_code == 0
    assert CliRunner().invoke(cli, ["delayed", "ls", "--tier", "nowhere:"]).exit_code == 2
    both = CliRunner().invoke(cli, ["delayed", "ls", "--tier", tier, "--store", str(tmp_path)])
    assert "expected --store or --tier" in both.output
