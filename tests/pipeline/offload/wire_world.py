"""Brokers that run, and an offload of them over the wire, for tests. Time passes for the job when it waits."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.offload.offload_world import QUEUES, SMALL, STORE, TIER, ByFunction
from tiermq import Message
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.offload.job import OffloadJob, OffloadOptions
from tiermq.pipeline.offload.wire_fleet import FleetScope
from tiermq.testing import LocalBroker
from tiermq.tier.driver.tier_url import open_driver

CLUSTER = "DefaultCluster"


class Waiting(threading.Event):
    """A job's `stop`. Its waits move the job's monotonic clock, and may let something happen; real waits are short."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.waits: list[float] = []
        self.happens: dict[int, Any] = {}

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now_s += timeout
        self.waits.append(timeout)
        happen = self.happens.get(len(self.waits))
        if happen is not None:
            happen()
        return super().wait(0.01)


class JoiningBroker(LocalBroker):
    """A broker at the name server of another one."""

    def __init__(self, first: LocalBroker, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self._name_server = first._name_server

    def stop(self) -> None:
        self._name_server = None
        super().stop()


class WireWorld:
    """Brokers at one name server, and a tier below a directory."""

    def __init__(self, root: Path, suffix: str = "") -> None:
        self.root = root
        self.tier = (root / "t").as_uri() + suffix
        self.brokers: list[LocalBroker] = []
        self.waiting = Waiting()

    @property
    def broker(self) -> LocalBroker:
        return self.brokers[0]

    def scope(self, **chosen: Any) -> FleetScope:
        for name in ("brokers", "topics", "include"):
            if name in chosen:
                chosen[name] = frozenset(chosen[name])
        return FleetScope(self.broker.name_server, CLUSTER, **chosen)

    def job(
        self, *, scope: FleetScope | None = None, run: Any = None, runner: Any = None, **options: Any
    ) -> OffloadJob:
        chosen = {
            "settings": SMALL, "config": TIER, "stop": self.waiting, "monotonic": lambda: self.waiting.now_s, **options
        }  # fmt: skip
        made = OffloadOptions(fleet=scope or self.scope(), **chosen)
        return OffloadJob([], self.tier, made, runner if run is None else ByFunction(run))

    def offload(self, **options: Any) -> JobReport:
        self.waiting = options.pop("stop", None) or Waiting()
        return self.job(**options).run()

    def segments(self) -> dict[str, bytes]:
        return segments_of(self.tier)

    def copied(self) -> set[str]:
        """The topics that the tier has."""
        return {path.split("/")[2] for path in self.segments()}


def segments_of(tier: str) -> dict[str, bytes]:
    """The bytes of every segment of messages in a tier."""
    driver = open_driver(tier)
    return {
        info.key.path: bytes(driver.read(info.key, 0, info.size))
        for info in driver.list_segments()
        if info.key.type.name != "INDEX" and info.size
    }


def fill(broker: LocalBroker, count: int, seed: int = 1, first: int = 0) -> None:
    """Put messages of all kinds, and make them durable."""
    chance, local = random.Random(seed), broker.broker.parts.local
    for number in range(first, first + count):
        topic, queue_id = chance.choice(QUEUES)
        body = chance.randbytes(chance.choice([0, 10, 200, 900]))
        keys = [f"key-{number}"] if number % 3 else []
        tags = chance.choice(["a", "b", "", "\u00fcber", "a longer tag than sixteen"])
        assert local.put(Message(topic, body, queue_id, keys=keys, tags=tags)).ok
    local.dispatch_now()
    local.flush()


@contextmanager
def wire_world(root: Path, brokers: int = 1, suffix: str = "", **settings: Any) -> Iterator[WireWorld]:
    """Brokers `broker-0`, `broker-1`, … with topics orders (2 queues) and payments (1), still empty."""
    world = WireWorld(root, suffix)
    try:
        for number in range(brokers):
            named = {"broker_name": f"broker-{number}", **STORE, **settings}
            directory = root / f"s{number}"
            made = JoiningBroker(world.broker, directory, **named) if number else LocalBroker(directory, **named)
            world.brokers.append(made)
            made.start()
            for topic, queues in (("orders", 2), ("payments", 1)):
                made.broker.parts.topics.put(TopicConfig(topic, queues, queues))
        yield world
    finally:
        for made in reversed(world.brokers):
            made.stop()
