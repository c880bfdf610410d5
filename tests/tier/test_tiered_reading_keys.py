"""Queries by key over both stores: what is said when the tier's index lags behind the tier."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from scenarios.broker_world import HOUR_MS, BrokerWorld
from tiermq.errors import DiskFull

T = "orders"


def test_a_key_that_only_the_tier_has_is_not_denied_before_the_index_was_notified_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = BrokerWorld(tmp_path)
    world.open(tiered_store_file_reserved_time=10_000)
    world.put(300)

    def full(*_values: object) -> NoReturn:
        raise DiskFull("no room for an index file")

    assert world.store.tier.index is not None
    world.store.tier.index.run_once()  # It learns that no life before this one indexed anything.
    monkeypatch.setattr(world.store.tier.index, "put_batch", full)
    assert not world.store.flush_to_tier()
    assert world.store.query(T, "key-1").complete  # The local index has it.
    world.clock.advance_ms(73 * HOUR_MS)
    assert world.evict() > 0
    page = world.store.query(T, "key-1")
    assert (page.messages, page.complete) == ([], False)
    monkeypatch.undo()
    world.clock.advance_ms(60_000)
    assert world.store.flush_to_tier()
    page = world.store.query(T, "key-1")
    assert ([message.queue_offset for message in page.messages], page.complete) == ([0], True)
    world.bury()
