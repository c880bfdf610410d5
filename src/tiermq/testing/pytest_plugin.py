"""Fixtures that pytest discovers where tiermq is installed.

def test_a_paid_order_is_reported(tiermq_broker):
    pay(order=42, name_server=tiermq_broker.name_server)
    assert [message.tags for message in tiermq_broker.messages("orders")] == ["paid"]

@pytest.fixture
def tiermq_broker_settings():
    return {"auto_create_topic_enable": False}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # Loaded in every run of pytest where the package is installed: unused fixtures must cost nothing.
    from tiermq.testing.local_broker import LocalBroker


@pytest.fixture
def tiermq_broker_settings() -> dict[str, Any]:
    """Override it to choose settings of the broker and its store."""
    return {}


@pytest.fixture
def tiermq_broker(tmp_path: Path, tiermq_broker_settings: object) -> Iterator[LocalBroker]:
    """A RocketMQ-compatible broker of this test's own, in this process, on a free port, with a movable clock."""
    from tiermq.testing.local_broker import LocalBroker, check_settings

    with LocalBroker(tmp_path / "tiermq-store", **check_settings(tiermq_broker_settings)) as broker:
        yield broker
