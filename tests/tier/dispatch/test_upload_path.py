"""The layers of an upload, from the engine to the request of the object store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tier.class_stack import classes_on_the_stack
from tiermq import Message
from tiermq.tier.driver.object_requests import ObjectRequests
from tiermq.tier.tiered_store import TieredStore


def test_an_upload_passes_eight_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, stacks = ObjectRequests.create, []

    def traced(requests: ObjectRequests, path: str, data: bytes) -> Any:
        stacks.append([*classes_on_the_stack(sys._getframe(1)), type(requests).__name__])
        return create(requests, path, data)

    monkeypatch.setattr(ObjectRequests, "create", traced)
    with TieredStore.open(tmp_path / "store", tier=(tmp_path / "tier").as_uri() + "?driver=object") as store:
        for number in range(100):
            store.put(Message("orders", b"%d" % number, 0))
        assert store.flush_to_tier()
    records = [passed for passed in stacks if "FlatCommitLog" in passed]
    above = ["DispatchEngine", "DispatchStep", "FlatMessageFile", "FlatCommitLog", "FlatSegment"]
    assert records == [[*above, "RetryingDriver", "ObjectStoreDriver", "ObjectRequests"]]
