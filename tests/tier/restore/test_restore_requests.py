"""What an empty machine asks of the tier before it serves: by queues, and not by bytes of history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from small_store import LOG_BYTES
from tiermq import Message
from tiermq.tier.driver.contract import ForwardingDriver
from tiermq.tier.driver.memory import forget
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import SegmentKey, SegmentType
from tiermq.tier.tiered_store import TieredStore

Result = TypeVar("Result")
SMALL: dict[str, Any] = {
    "background": False,
    "broker_name": "b1",
    "mapped_file_size_commit_log": LOG_BYTES,
    "tiered_store_commit_log_max_size": 4_096,
    "tiered_store_consume_queue_max_size": 20 * 16,
    "tiered_store_index_file_max_hash_slot_num": 64,
    "tiered_store_index_file_max_index_num": 100,
}


class Counting(ForwardingDriver):
    """Counts requests by operation, and what listings return."""

    def __init__(self, url: str) -> None:
        super().__init__(open_driver(url))
        self.counts: Counter[str] = Counter()

    def forward(self, operation: str, key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        self.counts[operation] += 1
        return super().forward(operation, key, call)


def asked(path: Path, count: int, queues: int = 4) -> tuple[Counter[str], int, int]:
    """The requests of a restore by operation, and how many segments of queues and index files the tier has."""
    url = f"memory://{path.name}-{count}-{queues}?driver=object"
    with TieredStore.open(path / f"lost{count}-{queues}", tier=url, **SMALL) as store:
        for number in range(count):
            store.put(Message("T", b"%05d" % number + b"." * 200, number % queues, keys=[f"k{number}"]))
            if number % 40 == 39:
                store.local.dispatch_now()
                assert store.flush_to_tier()
    driver = Counting(url)
    kinds = Counter(each.key.type is SegmentType.INDEX for each in open_driver(url).list_segments())
    with TieredStore.open(
        path / f"restored{count}-{queues}",
        tier=url,
        driver=driver,
        restore=True,
        index_later=True,  # As a broker that takes over.
        **SMALL,
    ) as store:
        counts = Counter(driver.counts)
        assert store.restored is not None
        assert (store.restored.queue_count, store.restored.message_count) == (queues, count)
    forget(f"{path.name}-{count}-{queues}")
    return counts, kinds[False], kinds[True]


def test_an_empty_machine_asks_once_for_each_queue_and_index_file_and_for_no_segment(tmp_path: Path) -> None:
    few, small, small_index = asked(tmp_path, 400)
    many, large, large_index = asked(tmp_path, 4_000)
    wide, _, wide_index = asked(tmp_path, 400, queues=16)
    assert large > 5 * small, "segments"
    assert many - few == Counter(read=large_index - small_index)
    assert (wide - few)["get_object"] == 12, "one for each queue: its manifest"
    assert few["read"] == small_index
    assert (few["list_segments"], few["list_objects"]) == (1, 1)
    assert few["get_object"] <= 4 + 10, (few, wide, wide_index)
