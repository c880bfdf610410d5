"""The hot/cold map over HTTP, with real segments: every state that a range of a queue can be in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from console.console_world import Browser, console, orders_broker, place_of
from tiermq.cli.main import cli
from tiermq.testing import LocalBroker
from tiermq.tier.tiered_store import TieredStore
from waiting import until

SMALL_SEGMENTS = {"tiered_store_commit_log_max_size": 800}
LARGE = b"x" * 1_000_000


def ranges(at: Browser, topic: str = "orders", queue: int = 0) -> list[tuple[str, int, int]]:
    [shown] = [each for each in at.api("topic.map", topic=topic)["queues"] if each["queueId"] == queue]
    return [(span["where"], span["fromOffset"], span["toOffset"]) for span in shown["spans"]]


def tiered(broker: LocalBroker) -> TieredStore:
    found = broker.broker.parts.tiered
    assert found is not None
    return found


def states(at: Browser, **more: Any) -> list[str]:
    return [where for where, _, _ in ranges(at, **more)]


def logs(directory: Path) -> list[Path]:
    """The segments of a queue, by their bases, which are behind a hash in their names."""
    found = (path for path in (directory / "tier").rglob("orders/0/COMMIT_LOG/*") if len(path.name) == 28)
    return sorted(found, key=lambda path: path.name[8:])


def test_sealed_segments_are_proven_and_evictable_and_damage_shows_once_it_is_known(tmp_path: Path) -> None:
    with (
        orders_broker(tmp_path, **SMALL_SEGMENTS),
        console(place_of(tmp_path)) as files,
        console(place_of(tmp_path, store=False)) as tier,
    ):
        until(lambda: states(files) == ["evictable", "both", "local"])
        alone = ranges(tier)
        assert [where for where, _, _ in alone] == ["proven", "tiered"]
        assert alone[-1][2] == 20
        assert 'class="where proven"' in tier.get("/topics/orders").text
        first = logs(tmp_path)[0]
        data = bytearray(first.read_bytes())
        data[400] ^= 1
        first.write_bytes(data)
        assert states(tier) == ["proven", "tiered"], "nothing has read it yet"
        verified = CliRunner().invoke(cli, ["tier", "verify", f"file://{tmp_path}/tier", "--keep"])
        assert verified.exit_code == 1, verified.output
        assert states(tier) == ["damaged", "proven", "tiered"]
        assert ranges(tier)[0][1:] == (0, ranges(tier)[1][1])
        assert "the last verification" in tier.get("/topics/orders").text
        assert states(files) == ["evictable", "both", "local"], "the disk has the messages"
        page = tier.get("/topics/orders/queues/0?offset=0").text
        assert first.name in page


def test_a_segment_that_is_gone_and_what_retention_deleted_are_shown(tmp_path: Path) -> None:
    with orders_broker(tmp_path, **SMALL_SEGMENTS) as broker:
        with console(place_of(tmp_path, store=False)) as tier:
            until(lambda: states(tier) == ["proven", "tiered"])
        tiered(broker).set_retention("orders", max_bytes=5_000)
        assert tiered(broker).expire_now().segments
        assert tiered(broker).flush_to_tier()
        with console(place_of(tmp_path, store=False)) as tier:
            assert states(tier) == ["expired", "proven", "tiered"]
    with orders_broker(tmp_path / "b", **SMALL_SEGMENTS), console(place_of(tmp_path / "b", store=False)) as before:
        until(lambda: states(before) == ["proven", "tiered"])
        logs(tmp_path / "b")[1].unlink()
        with console(place_of(tmp_path / "b", store=False)) as tier:
            assert states(tier) == ["proven", "damaged", "proven", "tiered"]
            assert "bytes of the log are missing" in tier.get("/topics/orders").text


def test_messages_that_went_before_they_were_copied_are_missing_and_then_a_gap(tmp_path: Path) -> None:
    with orders_broker(tmp_path, tier_evict_on_proof=False) as broker:
        broker.create_topic("large", queues=1)
        broker.send("large", b"first")
        assert tiered(broker).flush_to_tier()
        tiered(broker).tier.engine.pause()
        for _ in range(12):
            broker.send("large", LARGE)
        broker.advance(hours=100)
        local = broker.broker.parts.local
        until(lambda: bool(local.clean_now().log_files) or local.min_offset("large", 0) > 1)
        with console(place_of(tmp_path)) as files:
            assert states(files, topic="large") == ["tiered", "missing", "local"]
        tiered(broker).tier.engine.resume()
        assert tiered(broker).flush_to_tier()
        with console(place_of(tmp_path)) as files:
            assert states(files, topic="large")[:2] == ["tiered", "gap"]
            assert "gone from the local store" in files.get("/topics/large").text
