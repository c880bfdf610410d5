"""What the tests of the pipeline's commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq import Message
from tiermq.store.local_store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The directory of a closed store: thirty messages with keys, in two queues of `orders`."""
    with LocalStore.open(tmp_path / "s", background=False) as opened:
        for number in range(30):
            opened.put(Message("orders", b'{"id": %d}' % number, number % 2, keys=[f"k{number}"]))
        opened.dispatch_now()
    return tmp_path / "s"
