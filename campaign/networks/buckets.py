"""A broker and its bucket: while the network between them fails, puts and local reads go on; afterwards all is there.

The tier's work is asked for again and again over a proxy in front of a real S3 server. Each time it must come back,
with or without success, bounded by the timeouts of requests. When the network has healed, the tier has every message
once, agrees with itself, and gives them all when nothing local is left.

A request gives up after two seconds here, where users wait for a minute, so that rounds are short. On a machine that
has no time for it, and over links that died while they were idle, one may give up although the network has healed:
`TierUnavailable`, which says to try again. A consumer does, for the same page; so do reads here, but not for ever, and
not while the network fails, for what is local needs no tier.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from campaign.networks.faults import Step, apply
from campaign.networks.proxy import CLEAR, Proxy
from campaign.networks.scheduled_part import BucketScheduledPart
from campaign.part import Outcome
from scenarios.broker_world import HOUR_MS, BrokerWorld
from servers.seaweedfs import SeaweedFS
from tiermq.errors import TierUnavailable
from tiermq.tier.driver import tier_url
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.retry import RetryPolicy
from tiermq.tier.verify.verify import verify_tier

Answer = TypeVar("Answer")

REQUEST_TIMEOUT_S = 2
RETRY = RetryPolicy(tries_max=2, first_wait_ms=20, wait_max_ms=50, failures_max=1000)
REST_MS = 600_000
TRIES_MAX = 20
"""Of one page, or one verification, on a network that has healed."""
QUEUES = (("orders", 0), ("orders", 1), ("news", 0))


@dataclass(frozen=True, kw_only=True)
class BucketsPart(BucketScheduledPart):
    """See the module."""

    steps: int = 8
    rounds: int = 40
    name: str = "network-s3"
    title: str = "partitions, slow and half-open links and cut requests between a broker and S3"
    promise = "puts and local reads go on, the tier's work comes back, and in the end the tier has every message once"

    def live_with(
        self, server: SeaweedFS, proxy: Proxy, seed: int, scratch: Path, steps: list[Step], outcome: Outcome
    ) -> list[str]:
        driver = driver_over(proxy, server, f"round-{seed}")
        try:
            return _live(seed, BrokerWorld(scratch, driver), driver, steps, proxy, outcome)
        finally:
            driver.close()


def driver_over(proxy: Proxy, server: SeaweedFS, prefix: str) -> TierDriver:
    """The driver that users get, with requests that give up earlier."""
    environment = {**server.environment, "AWS_ENDPOINT_URL": f"http://{proxy.address}"}
    usual = tier_url.REQUEST_TIMEOUT_S
    tier_url.REQUEST_TIMEOUT_S = REQUEST_TIMEOUT_S
    try:
        return tier_url.open_driver(f"s3://history/{prefix}", environment=environment, retry=RETRY)
    finally:
        tier_url.REQUEST_TIMEOUT_S = usual


def _live(
    seed: int, world: BrokerWorld, driver: TierDriver, steps: list[Step], proxy: Proxy, outcome: Outcome
) -> list[str]:
    chance = random.Random(f"{seed}/puts")
    world.open()
    wrong: list[str] = []
    for step in steps:
        apply(step, proxy)
        done: list[bool] = []
        work = threading.Thread(target=lambda done=done: done.append(_tier_once(world)), name="tier-work")
        work.start()
        for topic, queue in QUEUES:
            world.put(chance.randrange(1, 30), topic, queue, size=chance.choice((60, 60, 900)))
        wrong += _compare(world, "while the network fails")
        work.join()
        outcome.counts["turns_of_the_tier"] += 1
        outcome.counts["turns_that_failed"] += done != [True]
    proxy.set(CLEAR)
    while not _tier_once(world):
        outcome.counts["turns_of_the_tier"] += 1
    world.clock.advance_ms(73 * HOUR_MS)
    outcome.counts["files_evicted"] += world.evict()
    again = partial(ask_again, outcome=outcome)
    wrong += _compare(world, "from the tier alone", again)
    report = again(lambda: verify_tier(driver))
    wrong += [f"verification: {problem}" for problem in report.problems[:3]]
    outcome.counts["messages_checked"] += sum(len(messages) for messages in world.sent.values())
    world.kill()
    again(world.open)
    wrong += _compare(world, "after a kill", again)
    world.close()
    world.bury()
    return wrong


def _tier_once(world: BrokerWorld) -> bool:
    """One turn of the tier's work, queues that rest after a failure included; whether all is uploaded."""
    world.clock.advance_ms(REST_MS)
    return world.store.flush_to_tier()


def ask_again(work: Callable[[], Answer], outcome: Outcome) -> Answer:
    """The answer of `work`, which is repeated while the tier is not available, a number of times."""
    for _ in range(TRIES_MAX - 1):
        try:
            return work()
        except TierUnavailable:
            outcome.counts["asked_again"] += 1
    return work()


def _at_once(work: Callable[[], Answer]) -> Answer:
    return work()


def _compare(world: BrokerWorld, when: str, ask: Callable[[Callable[[], Any]], Any] = _at_once) -> list[str]:
    wrong = []
    for (topic, queue), sent in world.sent.items():
        expected = [(message.offset, message.body) for message in sent]
        found = [(message.queue_offset, message.body) for message in world.read(topic, queue, ask=ask)]
        if found != expected:
            wrong.append(f"{when}: {topic}/{queue}: expected {len(expected)} messages, found {len(found)} or others")
    return wrong
