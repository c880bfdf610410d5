"""What `tiermq delayed` does with timers that wait in a tier: shows them, and cancels them at their broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tiermq.cli.tier_options import opened
from tiermq.client.access import Access
from tiermq.client.cluster_client import ClusterClient
from tiermq.client.delayed_messages import AtBroker, send_cancellation
from tiermq.delivery.far.far_listing import PRECISION_MS, waiting_in_tier
from tiermq.delivery.far.timer_survey import survey_timers
from tiermq.tier.tier_listing import TierScope


def far_timers_at(url: str, cluster: str | None = None) -> Iterator[AtBroker]:
    """The timers that wait in a tier, broker by broker. Exit code 2 when it cannot be read."""
    now_ms = time.time_ns() // 1_000_000
    with opened(url) as driver:
        for survey in survey_timers(driver, TierScope(cluster)):
            for waiting in waiting_in_tier(driver, survey, now_ms):
                yield AtBroker(survey.broker, waiting)


def far_rows(url: str, cluster: str | None = None) -> Iterator[dict[str, Any]]:
    return (each.to_dict() for each in far_timers_at(url, cluster))


def cancel_far(access: Access, url: str, topic: str, unique_key: str) -> list[AtBroker]:
    """Send a cancellation to each broker in whose tier the timer waits; which those were. Raises RemotingError."""
    wanted = (topic, unique_key)
    found = [each for each in far_timers_at(url) if (each.waiting.topic, each.waiting.unique_key) == wanted]

    async def cancel(cluster: ClusterClient) -> None:
        for each in found:
            # A moment of its own slot, whatever the broker's precision is.
            slot_ms = each.waiting.deliver_ms - PRECISION_MS
            await send_cancellation(cluster, each.broker_name, topic, unique_key, slot_ms + 1)

    if found:
        access.run(cancel)
    return found
