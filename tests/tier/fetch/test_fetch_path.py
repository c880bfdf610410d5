"""The layers of a cold fetch, from the fetcher to the request of the object store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tier.class_stack import classes_on_the_stack
from tier.fetch.fetch_world import FetchWorld, mails
from tiermq.tier.driver.object_requests import ObjectRequests
from tiermq.tier.driver.tier_url import open_driver


def test_a_cold_fetch_passes_six_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker adds two: PullProcessor and TieredStore."""
    world = FetchWorld(tmp_path, driver=open_driver((tmp_path / "tier").as_uri() + "?driver=object"))
    world.write(mails(200))
    fetch, stacks = ObjectRequests.fetch_range, []

    def traced(requests: ObjectRequests, *arguments: Any) -> Any:
        stacks.append([*classes_on_the_stack(sys._getframe(1)), type(requests).__name__])
        return fetch(requests, *arguments)

    monkeypatch.setattr(ObjectRequests, "fetch_range", traced)
    assert world.get(0).messages[0].queue_offset == 0
    above, below = ["TierFetcher", "WindowLoader"], ["RetryingDriver", "ObjectStoreDriver", "ObjectRequests"]
    assert stacks == [[*above, "FlatConsumeQueue", *below], [*above, "FlatCommitLog", *below]]
