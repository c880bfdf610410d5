"""Spark and S3: a job that copies a store into a tier, over a network that fails between its tasks and the bucket.

A run ends, with or without success, whatever the network does. When it has healed, the next run copies what is missing,
and then the tier has every message once and agrees with itself.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from campaign.networks.faults import Step, apply, schedule, shortest
from campaign.networks.proxy import CLEAR, Proxy
from campaign.part import Finding, Outcome
from servers.seaweedfs import SeaweedFS, Unavailable, program
from tiermq import LocalStore, Message
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.verify import verify_tier

STEPS = 3
COUNT = 3000
TIER = "s3://history/t"
POLL_S = 0.05
PROMISE = "a run ends whatever the network does, and the next one over a sound network completes the copy"


@dataclass(frozen=True)
class PipelinesPart:
    """See the module."""

    steps: int = STEPS
    rounds: int = 6
    name: str = "network-spark"
    title: str = "partitions, slow and half-open links and cut requests between Spark and S3"

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
        _fill(scratch / "store")
        with SeaweedFS(scratch / "s3") as server:
            server.create_bucket("history")
            with Proxy("127.0.0.1", int(server.endpoint.rpartition(":")[2])) as proxy:
                wrong = _live(scratch, steps, server, proxy, outcome)
        outcome.counts["rounds"] += 1
        outcome.counts["faults_injected"] += len(steps)
        outcome.findings += [Finding(PROMISE, each, seed, tuple(map(str, steps))) for each in wrong]
        return outcome


def _fill(path: Path) -> None:
    with LocalStore.open(path, background=False, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(COUNT):
            store.put(Message("orders", b"%d " % number + b"x" * 300, number % 3, keys=[f"key-{number}"]))
        store.dispatch_now()


def _live(scratch: Path, steps: list[Step], server: SeaweedFS, proxy: Proxy, outcome: Outcome) -> list[str]:
    environment = {**os.environ, **server.environment, "AWS_ENDPOINT_URL": f"http://{proxy.address}"}
    weather = iter(steps)
    process = _offload(scratch, environment)
    while process.poll() is None:
        seen = proxy.counts["connections"] + proxy.counts["bytes"]
        step = next(weather, None)
        if step is None:
            proxy.set(CLEAR)
            process.wait()
            break
        apply(step, proxy)
        # The next trouble comes when this one was met: by a new connection, by more bytes, or by the end of the run.
        while process.poll() is None and proxy.counts["connections"] + proxy.counts["bytes"] == seen:
            threading.Event().wait(POLL_S)
    outcome.counts["runs_that_failed"] += process.returncode != 0
    proxy.set(CLEAR)
    again = _offload(scratch, environment)
    said, errors = again.communicate()
    if again.returncode != 0:
        return [f"over a sound network the job ended with {again.returncode}: {errors[-600:]}"]
    outcome.counts["messages_copied_again"] += int(json.loads(said)["done"]["messages"])
    driver = open_driver(TIER, environment=server.environment)
    report = verify_tier(driver)
    wrong = [f"verification: {problem}" for problem in report.problems[:3]]
    if report.counts["records"] != COUNT:
        wrong.append(f"expected {COUNT} messages in the tier, found {report.counts['records']}")
    outcome.counts["messages_checked"] += COUNT
    for name in ("connections", "refused", "cut_in_frame"):
        outcome.counts[f"links_{name}"] += proxy.counts[name]
    return wrong


def _offload(scratch: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    words = ["pipeline", "offload", "--store", f"{scratch / 'store'}=prod/b1", "--tier", TIER, "--json"]
    command = [sys.executable, "-m", "tiermq.cli", *words, "--master", "local[2]"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
