"""The ground of a broker: its settings, its groups' offsets, delayed messages and timers.

Files of settings are RocketMQ's, JSON without a checksum, and sealed where the file system can. A broker starts with
what was written, with what was written before, or says what is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from broker.brokers import broker_config, send_command
from campaign.disks.ground import Verdict
from tiermq.broker.broker import Broker
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 100,
    "max_hash_slot_num": 64,
    "max_index_num": 400,
}
TOPICS = {"orders": 4, "refunds": 2}
GROUPS = {("billing", "orders", 0): 12, ("billing", "orders", 1): 345, ("audit", "refunds", 1): 7}
OLDER = {place: offset - 5 for place, offset in GROUPS.items()}
SETTINGS_FILES = {
    "topics.json": "topics",
    "consumerOffset.json": "consumer offsets",
    "subscriptionGroup.json": "groups",
    "delayOffset.json": "delay offsets",
    "timermetrics": "timer metrics",
}


class Contents(NamedTuple):
    topics: dict[str, int]
    offsets: dict[tuple[str, str, int], tuple[int, int]]
    """What was written last, and before."""


class BrokerGround:
    """Every file was written twice, so that each has a predecessor."""

    name = "broker"
    repaired = frozenset({"timer metrics"})
    unsummed = frozenset[str]()

    def build(self, root: Path, seed: int) -> Contents:
        with self._opened(root) as broker:
            for name, queues in TOPICS.items():
                broker.parts.topics.put(TopicConfig(name, queues, queues))
            broker.parts.topics.put(TopicConfig("the last one that was made", 1, 1))
            for place, offset in OLDER.items():
                broker.parts.offsets.commit(*place, offset + seed % 3)
            broker.parts.offsets.flush()
            for place, offset in GROUPS.items():
                broker.parts.offsets.commit(*place, offset)
            broker.parts.offsets.flush()
            with BlockingClient("127.0.0.1", broker.port, timeout_s=60) as client:
                delayed = "UNIQ_KEY\x01K1\x02WAIT\x01true\x02DELAY\x0118\x02"
                assert client.request(send_command("orders", b"later", properties=delayed)).code == 0
        offsets = {place: (offset, OLDER[place] + seed % 3) for place, offset in GROUPS.items()}
        return Contents(dict(TOPICS), offsets)

    def kind_of(self, path: Path) -> str:
        return SETTINGS_FILES.get(path.name, "")

    def judge(self, root: Path, expected: Contents) -> Verdict:
        verdict = Verdict()
        with verdict.telling("start"), self._opened(root) as broker:
            topics = {name: broker.parts.topics.get(name) for name in expected.topics}
            found = {name: config.read_queues for name, config in topics.items() if config is not None}
            verdict.compare(expected.topics, found)
            for place, allowed in expected.offsets.items():
                offset = broker.parts.offsets.query(*place)
                if offset < 0:
                    verdict.lost.append(f"the offset of {place}")
                elif offset not in allowed:
                    verdict.wrong.append(f"the offset of {place}: expected one of {allowed}, found {offset}")
        return verdict

    def _opened(self, root: Path) -> Any:
        return Broker.open(root / "store", config=broker_config(), **SIZES)
