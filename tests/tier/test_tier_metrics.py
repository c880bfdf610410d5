"""RocketMQ's metrics of the tier, truthful: what was read, from where, how much there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tiermq import Message
from tiermq.tier.tiered_store import TieredStore


def figure(text: str, name: str, **labels: str) -> float:
    """The value of one sample, by some of its labels."""
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if found and all(f'{label}="{value}"' in (found[1] or "") for label, value in labels.items()):
            return float(found[2])
    raise AssertionError(f"no sample of {name} with {labels}")


def test_gets_queries_and_sizes_of_the_tier_are_shown_as_they_are(tmp_path: Path) -> None:
    url = (tmp_path / "tier").as_uri()
    sizes: dict[str, Any] = {"max_hash_slot_num": 10, "max_index_num": 1000, "mapped_file_size_commit_log": 1 << 16}
    cold: dict[str, Any] = {
        "tiered_store_index_file_max_hash_slot_num": 10,
        "tiered_store_index_file_max_index_num": 1000,
    }
    with TieredStore.open(
        tmp_path / "store", tier=url, broker_name="b", tiered_storage_level="FORCE", **sizes, **cold
    ) as store:
        stored = [store.put(Message("T", b"x" * number, keys=[f"k{number}"])) for number in range(1, 41)]
        assert store.flush_to_tier(60)
        assert store.get("T", 0, 0, 10, group="G").count == 10
        assert store.get("T", 0, 10, 5, group="G").count == 5
        assert [message.body for message in store.query("T", "k7").messages] == [b"x" * 7]
        assert store.offset_at("T", 0, 0) == 0
        text = store.metrics.render_prometheus()
    prefix = "rocketmq_tiered_store_"
    assert figure(text, prefix + "messages_out_total", topic="T", group="G") == 15
    assert figure(text, prefix + "api_latency_count", operation="get_message", topic="T", group="G") == 2
    assert figure(text, prefix + "api_latency_count", operation="query_message", topic="T") == 1
    assert figure(text, prefix + "api_latency_count", operation="get_offset_by_time", topic="T") == 1
    assert figure(text, prefix + "read_ahead_cache_access_total") == 2
    assert figure(text, prefix + "read_ahead_cache_hit_total") == 1
    assert figure(text, prefix + "read_ahead_cache_count") == 1
    log_bytes = sum(result.size for result in stored)
    assert figure(text, prefix + "read_ahead_cache_bytes") >= log_bytes
    assert figure(text, "rocketmq_tiered_storage_size", topic="T", file_type="commit_log") == log_bytes
    assert figure(text, "rocketmq_tiered_storage_size", topic="T", file_type="consume_queue") == 40 * 20
    assert figure(text, prefix + "messages_dispatch_total", topic="T") == 40
    assert figure(text, prefix + "dispatch_behind", topic="T") == 0


def test_an_answer_of_the_local_store_in_the_tiers_place_is_counted(tmp_path: Path) -> None:
    url = (tmp_path / "tier").as_uri()
    with TieredStore.open(
        tmp_path / "store", tier=url, broker_name="b", tiered_storage_level="FORCE", message_index_enable=False
    ) as store:
        store.put(Message("T", b"local only"))
        store.local.dispatch_now()
        assert store.get("T", 0, 0).messages[0].body == b"local only"
        text = store.metrics.render_prometheus()
    assert figure(text, "rocketmq_tiered_store_get_message_fallback_total", topic="T") == 1
