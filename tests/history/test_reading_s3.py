"""The same history on a real S3 server: catalogue, streams' looks, scans with read-ahead, keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from history.history_world import HistoryWorld, as_sent, read_all, read_plan, sent_of
from tiermq.history import cold_reading
from tiermq.history.catalog import read_catalog
from tiermq.history.key_lookup import plan_history
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import HistoryPlace, ScanCounters, ScanRequest, StorePlace
from tiermq.tier.driver.tier_url import open_driver


def test_a_history_on_s3_is_read_by_offset_and_by_key(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reading, "SCAN_RUN_BYTES", 8_000)
    world = HistoryWorld(tmp_path, open_driver(url))
    world.open()
    try:
        world.put(150)
        world.put(40, "payments", 2)
        world.flush_to_tier()
        world.upload_index()
        world.put(30)
        with open_history(HistoryPlace(url, (StorePlace(str(world.disk)),))) as history:
            catalog = read_catalog(history)
            assert history.reads_ahead
            found = read_all(catalog, max_bytes_per_partition=20_000)
            assert as_sent(found["orders", 0]) == sent_of(world.sent["orders", 0])
            assert as_sent(found["payments", 2]) == sent_of(world.sent["payments", 2])
            before = catalog.counters.requests
            catalog.refresh()
            assert catalog.counters.requests == before + 1
            plan = plan_history(catalog, ScanRequest(topics=frozenset({"orders"}), keys=frozenset({"key-77"})))
            counters = ScanCounters()
            rows = read_plan(history, plan, counters)["orders", 0]
            hits = [row for row in rows if "key-77" in row.keys]
            assert as_sent(hits) == sent_of(world.sent["orders", 0][76:77])
            assert counters.cold_bytes_read < 5_000  # The block of a small segment is all of it.
    finally:
        world.bury()
