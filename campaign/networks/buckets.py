"""A broker and its bucket: while the network between them fails, puts and local reads go on; afterwards all is there.

The tier's work is asked for again and again over a proxy in front of a real S3 server. Each time it must come back,
with or without success, bounded by the timeouts of requests. When the network has healed, the tier has every message
once, agrees with itself, and gives them all when nothing local is left.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from pathlib import Path

from campaign.networks.faults import Step, apply, schedule, shortest
from campaign.networks.proxy import CLEAR, Proxy
from campaign.part import Finding, Outcome
from scenarios.broker_world import HOUR_MS, BrokerWorld
from servers.seaweedfs import SeaweedFS, Unavailable, program
from tiermq.tier.driver import tier_url
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.retrying import RetryPolicy
from tiermq.tier.verify import verify_tier

STEPS = 8
REQUEST_TIMEOUT_S = 2
RETRY = RetryPolicy(tries_max=2, first_wait_ms=20, wait_max_ms=50, failures_max=1000)
REST_MS = 600_000
QUEUES = (("orders", 0), ("orders", 1), ("news", 0))
PROMISE = "puts and local reads go on, the tier's work comes back, and in the end the tier has every message once"


@dataclass(frozen=True)
class BucketsPart:
    """See the module."""

    steps: int = STEPS
    rounds: int = 40
    name: str = "network-s3"
    title: str = "partitions, slow and half-open links and cut requests between a broker and S3"

    def missing(self) -> str:
        try:
            program()
        except Unavailable as reason:
            return str(reason)
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        return self.run(seed, scratch, self._schedule(seed))

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        numbers = iter(range(1_000_000))

        def fails(steps: list[Step]) -> Finding | None:
            findings = self.run(seed, scratch / f"try-{next(numbers)}", steps).findings
            return findings[0] if findings else None

        return shortest(self._schedule(seed), fails)

    def _schedule(self, seed: int) -> list[Step]:
        return schedule(random.Random(seed), self.steps)

    def run(self, seed: int, scratch: Path, steps: list[Step]) -> Outcome:
        """One round with a schedule of one's own."""
        outcome = Outcome()
        scratch.mkdir(parents=True, exist_ok=True)
        with SeaweedFS(scratch / "s3") as server:
            server.create_bucket("history")
            with Proxy("127.0.0.1", int(server.endpoint.rpartition(":")[2])) as proxy:
                wrong = _live(seed, scratch, steps, server, proxy, outcome)
        outcome.counts["rounds"] += 1
        outcome.counts["faults_injected"] += len(steps)
        outcome.findings += [Finding(PROMISE, each, seed, tuple(map(str, steps))) for each in wrong]
        return outcome


def driver_over(proxy: Proxy, server: SeaweedFS, prefix: str) -> TierDriver:
    """The driver that users get, with requests that give up earlier."""
    environment = {**server.environment, "AWS_ENDPOINT_URL": f"http://{proxy.address}"}
    usual = tier_url.REQUEST_TIMEOUT_S
    tier_url.REQUEST_TIMEOUT_S = REQUEST_TIMEOUT_S
    try:
        return tier_url.open_driver(f"s3://history/{prefix}", environment=environment, retry=RETRY)
    finally:
        tier_url.REQUEST_TIMEOUT_S = usual


def _live(seed: int, scratch: Path, steps: list[Step], server: SeaweedFS, proxy: Proxy, outcome: Outcome) -> list[str]:
    chance = random.Random(f"{seed}/puts")
    driver = driver_over(proxy, server, f"round-{seed}")
    world = BrokerWorld(scratch, driver)
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
    wrong += _compare(world, "from the tier alone")
    report = verify_tier(driver)
    wrong += [f"verification: {problem}" for problem in report.problems[:3]]
    outcome.counts["messages_checked"] += sum(len(messages) for messages in world.sent.values())
    world.kill()
    world.open()
    wrong += _compare(world, "after a kill")
    world.close()
    world.bury()
    driver.close()
    for name in ("connections", "refused", "cut_in_frame"):
        outcome.counts[f"links_{name}"] += proxy.counts[name]
    return wrong


def _tier_once(world: BrokerWorld) -> bool:
    """One turn of the tier's work, queues that rest after a failure included; whether all is uploaded."""
    world.clock.advance_ms(REST_MS)
    return world.store.tier_now()


def _compare(world: BrokerWorld, when: str) -> list[str]:
    wrong = []
    for (topic, queue), sent in world.sent.items():
        expected = [(message.offset, message.body) for message in sent]
        found = [(message.queue_offset, message.body) for message in world.read(topic, queue)]
        if found != expected:
            wrong.append(f"{when}: {topic}/{queue}: expected {len(expected)} messages, found {len(found)} or others")
    return wrong
