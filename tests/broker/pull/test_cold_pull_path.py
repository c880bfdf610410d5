"""The layers of a cold fetch, from the request of a consumer to the request of the object store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer, bodies_of, tiered
from tier.class_stack import classes_on_the_stack
from tiermq.tier.driver.object_requests import ObjectRequests


def test_a_cold_pull_passes_eight_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a tier whose segments have checksums of their blocks, as a flush leaves it."""
    fetch, stacks = ObjectRequests.fetch_range, []

    def traced(requests: ObjectRequests, *arguments: Any) -> Any:
        stacks.append([*classes_on_the_stack(sys._getframe(1)), type(requests).__name__])
        return fetch(requests, *arguments)

    with tiered(tmp_path, driver="object") as broker, Peer(broker) as peer:
        peer.join()
        monkeypatch.setattr(ObjectRequests, "fetch_range", traced)
        assert bodies_of(peer.pull(0))[0].startswith("0 ")
    above = ["PullProcessor", "TieredStore", "TierFetcher", "WindowLoader"]
    below = ["RetryingDriver", "ObjectStoreDriver", "ObjectRequests"]
    assert stacks[:2] == [[*above, "FlatConsumeQueue", *below], [*above, "FlatCommitLog", *below]]
    assert all(len(passed) <= 8 for passed in stacks)
