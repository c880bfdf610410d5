"""What the tests of a tiered store share: a second store beside a world's, and what a world's queue should read as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scenarios.broker_world import SETTINGS, BrokerWorld
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.tiered_store import TieredStore


def opened(path: Path, **more: Any) -> TieredStore:
    return TieredStore.open(path, background=False, **{"driver": MemoryDriver(), **SETTINGS, **more})


def bodies(world: BrokerWorld, topic: str = "orders") -> list[bytes]:
    """What a consumer reads of a topic's first queue."""
    return [message.body for message in world.read(topic)]


def sent(world: BrokerWorld, topic: str = "orders") -> list[bytes]:
    """What was put to it."""
    return [message.body for message in world.sent[topic, 0]]
