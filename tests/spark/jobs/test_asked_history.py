"""An empty tier is a wrong address, until a store is given beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.source_world import SourceWorld
from tiermq.errors import BadHistory
from tiermq.history.open_history import open_history
from tiermq.spark.jobs.asked_history import require_queues
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.scan_request import base_request, open_catalog


def check(given: dict[str, str]) -> None:
    options = SourceOptions.of(given, Use.BATCH)
    with open_history(options.place) as history:
        require_queues(open_catalog(history, options, base_request(options, ())), options)


def test_only_a_tier_alone_must_have_something(tmp_path: Path) -> None:
    world = SourceWorld(tmp_path)
    with pytest.raises(BadHistory, match="expected the history of a broker, found none"):
        check(world.cold)
    check(world.both)
    check(world.hot)
    world.put(1, "orders", 0)
    world.tier_now()
    check(world.cold)
    world.bury()
