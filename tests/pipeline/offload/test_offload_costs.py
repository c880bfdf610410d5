"""What an offload costs in requests to a real S3 server, counted: the table of docs/tier.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.wire_world import wire_world
from servers.seaweedfs import SeaweedFS, Unavailable
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.offload.plan import OffloadSettings
from tiermq.pipeline.worker_cache import driver_of
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.object_store import ObjectStoreDriver

pytestmark = pytest.mark.slow
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "tier.md"
QUEUES, QUEUES_PER_TOPIC = 1_000, 8
SMALL_INDEX: dict[str, Any] = {
    "tiered_store_index_file_max_hash_slot_num": 64,
    "tiered_store_index_file_max_index_num": 5_000_000,
}
CLOSE_ENOUGH = 0.02
"""Renewals of the lease follow the clock of the machine, and a wave may see a message that the next one would."""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    try:
        server = SeaweedFS(tmp_path / "server")
    except Unavailable as reason:
        pytest.skip(f"no real S3 server here: {reason}")
    with server:
        server.create_bucket("history")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield "s3://history/" + tmp_path.name


def counts_of(tier: str) -> Counter[str]:
    driver: Any = driver_of(tier)
    while not isinstance(driver, ObjectStoreDriver):
        driver = driver.inner
    return Counter(driver.requests.counts)


def quiet_hours(path: Path, tier: str, *, packs: bool = True, trigger_s: int = 20, hours: int = 1) -> Counter[str]:
    """Each queue gets a message every hour, each at its own time. Counted are so many hours, behind a first one."""
    waves = 3600 // trigger_s
    clock = ManualClock(1_800_000_000_000)
    with wire_world(path) as world:
        world.tier = tier
        parts = world.broker.broker.parts
        for number in range(QUEUES // QUEUES_PER_TOPIC):
            parts.topics.put(TopicConfig(f"quiet-{number}", QUEUES_PER_TOPIC, QUEUES_PER_TOPIC))
        stop, marks, wave = world.waiting, [Counter[str]()], 0

        def next_wave() -> None:
            nonlocal wave
            if wave in (waves, waves * (1 + hours)):
                marks.append(counts_of(tier))
            if wave == waves * (1 + hours):
                stop.set()
                return
            for queue in range(wave % waves, QUEUES, waves):
                topic, queue_id = f"quiet-{queue // QUEUES_PER_TOPIC}", queue % QUEUES_PER_TOPIC
                assert parts.local.put(Message(topic, b"x" * 200, queue_id, keys=[f"k{wave}-{queue}"])).ok
            parts.local.dispatch_now()
            parts.local.flush()
            clock.advance_ms(1_000 * trigger_s)
            wave += 1

        stop.happens = dict.fromkeys(range(1, 10 * waves * (1 + hours)), next_wave)
        settings = OffloadSettings(packs=packs, task_s=3600)  # The job's clock does not wait for a busy machine.
        report: JobReport = world.job(trigger_s=trigger_s, settings=settings, config=SMALL_INDEX, clock=clock).run()
        assert report.problems == []
        assert report.done["messages"] >= (1 + hours) * QUEUES - waves
    return marks[-1] - marks[-2]


def published(row: str) -> Counter[str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    kinds = re.search(r"^\| counted on S3 \|(.*)\|$", text, re.MULTILINE)
    cells = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", text, re.MULTILINE)
    assert kinds is not None
    assert cells is not None, row
    names = [name.strip().lower() for name in kinds[1].split("|")]
    return +Counter({name: int(cell.replace(",", "")) for name, cell in zip(names, cells[1].split("|"), strict=True)})


def assert_published(row: str, counted: Counter[str]) -> None:
    expected = published(row)
    for kind in expected.keys() | counted.keys():
        allowed = max(3, CLOSE_ENOUGH * expected[kind])
        assert abs(counted[kind] - expected[kind]) <= allowed, (row, dict(counted), dict(expected))


@pytest.mark.timeout(1200)
def test_quiet_queues_of_a_job_cost_what_the_document_says(tmp_path: Path, bucket: str) -> None:
    together = quiet_hours(tmp_path / "a", f"{bucket}/a")
    apart = quiet_hours(tmp_path / "b", f"{bucket}/b", packs=False)
    print(dict(together), dict(apart))
    assert_published("1,000 queues with a message an hour, by a job with `--trigger 20s`, an hour", together)
    assert_published("the same with `--no-bundles`", apart)


@pytest.mark.timeout(1800)
def test_a_day_of_quiet_queues_costs_what_the_document_says(tmp_path: Path, bucket: str) -> None:
    """Longer than superseded objects stay, so their removal is in it. Of a wave every 5 minutes: 300 waves to count."""
    counted = quiet_hours(tmp_path / "a", f"{bucket}/a", trigger_s=300, hours=24)
    print(dict(counted))
    assert_published("1,000 queues with a message an hour, by a job with `--trigger 5m`, a day", counted)


@pytest.mark.timeout(1200)
def test_a_million_messages_of_a_job_cost_what_the_document_says(tmp_path: Path, bucket: str) -> None:
    with LocalStore.open(tmp_path / "store", background=False, mapped_file_size_commit_log=64 << 20) as store:
        for number in range(0, 1_000_000, 1_000):
            store.put_many([Message("orders", b"x" * 200, (number // 1_000) % 10) for _ in range(1_000)])
        store.dispatch_now()
    report = offload([f"{tmp_path / 'store'}=c/b"], bucket, config=SMALL_INDEX)
    assert (report.problems, report.done["messages"]) == ([], 1_000_000)
    print(dict(counts_of(bucket)))
    assert_published("1,000,000 messages of 200 bytes without keys in 10 queues, by one job", counts_of(bucket))
