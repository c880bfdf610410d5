"""Spark and S3: a job that copies a store into a tier, over a network that fails between its tasks and the bucket.

A run ends, with or without success, whatever the network does: each trouble lasts until the run has met it, partitions
and half-open links until requests have given up and come again. When the network has healed, the next run copies what
is missing, and then the tier has every message once and agrees with itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campaign.networks.faults import Fault, Step, apply
from campaign.networks.proxy import CLEAR, Proxy
from campaign.networks.scheduled_part import BucketScheduledPart
from campaign.part import Outcome
from servers.seaweedfs import SeaweedFS
from tiermq import Message
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.verify.verify import verify_tier

COUNT = 3000
TIER = "s3://history/t"
SAID, ERRORS = "said.json", "errors"
POLL_S = 0.05
OF_LINKS = frozenset((Fault.RESET, Fault.CUT, Fault.TRUNCATE, Fault.HALF_CLOSE))
"""These befall links that are open."""
HOLDING = frozenset((Fault.PARTITION, Fault.NO_ANSWERS, Fault.NO_REQUESTS))
MET_BYTES = 10_000
REQUEST_TIMEOUT_S = 4
IMPATIENT = f"""from tiermq.tier.driver import tier_url

tier_url.REQUEST_TIMEOUT_S = {REQUEST_TIMEOUT_S}
"""
"""Read at the start by every Python process of the job: requests that give up earlier than a user's do."""


@dataclass(frozen=True, kw_only=True)
class PipelinesPart(BucketScheduledPart):
    """See the module."""

    steps: int = 4
    rounds: int = 6
    name: str = "network-spark"
    title: str = "partitions, slow and half-open links and cut requests between Spark and S3"
    promise = "a run ends whatever the network does, and the next one over a sound network completes the copy"

    def live_with(
        self, server: SeaweedFS, proxy: Proxy, seed: int, scratch: Path, steps: list[Step], outcome: Outcome
    ) -> list[str]:
        del seed
        _fill(scratch / "store")
        return _live(scratch, steps, server, proxy, outcome)


def _fill(path: Path) -> None:
    with LocalStore.open(path, background=False, mapped_file_size_commit_log=1 << 20) as store:
        for number in range(COUNT):
            store.put(Message("orders", b"%d " % number + b"x" * 300, number % 3, keys=[f"key-{number}"]))
        store.dispatch_now()


def _live(scratch: Path, steps: list[Step], server: SeaweedFS, proxy: Proxy, outcome: Outcome) -> list[str]:
    impatient = scratch / "impatient"
    impatient.mkdir()
    (impatient / "sitecustomize.py").write_text(IMPATIENT)
    path = os.pathsep.join(filter(None, (str(impatient), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ, **server.environment, "AWS_ENDPOINT_URL": f"http://{proxy.address}", "PYTHONPATH": path
    }  # fmt: skip
    with _offload(scratch, environment) as process:
        for step in steps:
            _suffer(step, process, proxy, outcome)
        proxy.set(CLEAR)
        process.wait()
    outcome.counts["runs_that_failed"] += process.returncode != 0
    with _offload(scratch, environment) as again:
        again.wait()
    if again.returncode != 0:
        errors = (scratch / ERRORS).read_text()
        return [f"over a sound network the job ended with {again.returncode}: {errors[-600:]}"]
    outcome.counts["messages_copied_again"] += int(json.loads((scratch / SAID).read_text())["done"]["messages"])
    driver = open_driver(TIER, environment=server.environment)
    report = verify_tier(driver)
    wrong = [f"verification: {problem}" for problem in report.problems[:3]]
    if report.counts["records"] != COUNT:
        wrong.append(f"expected {COUNT} messages in the tier, found {report.counts['records']}")
    outcome.counts["messages_checked"] += COUNT
    return wrong


def _suffer(step: Step, process: subprocess.Popen[bytes], proxy: Proxy, outcome: Outcome) -> None:
    """Let it befall the run, and wait until the run has met it, or has ended."""
    if step.fault in OF_LINKS:
        _wait(process, lambda: proxy.open_links > 0)
    before = Counter(proxy.counts)
    if process.poll() is None:
        apply(step, proxy)
        _wait(process, lambda: is_met(step.fault, proxy.counts - before))
        outcome.counts[f"met_{step.fault.name.lower()}"] += process.poll() is None


def is_met(fault: Fault, since: Counter[str]) -> bool:
    """By what a proxy counted since then. A client that gave up waiting for an answer comes again by another link."""
    if fault is Fault.REFUSE:
        return since["refused"] > 0
    if fault in HOLDING:
        return since["connections"] >= 2
    if fault in OF_LINKS:
        return since["cut_in_frame"] + since["connections"] > 0
    return since["bytes"] >= MET_BYTES or since["connections"] >= 2


def _wait(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    while process.poll() is None and not condition():
        threading.Event().wait(POLL_S)


def _offload(scratch: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    words = ["pipeline", "offload", "--store", f"{scratch / 'store'}=prod/b1", "--tier", TIER, "--json"]
    command = [sys.executable, "-m", "tiermq.cli", *words, "--master", "local[2]"]
    with (scratch / SAID).open("wb") as said, (scratch / ERRORS).open("wb") as errors:
        return subprocess.Popen(command, env=environment, stdout=said, stderr=errors)
