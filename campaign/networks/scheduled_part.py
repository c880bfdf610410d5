"""ScheduledPart: what all parts of a failing network have in common, which is a schedule of faults by a seed.

A part says in `live` what happens under a schedule and what was wrong in the end; rounds, findings and the shortest
schedule that still fails are the same for all of them.
"""

from __future__ import annotations

import abc
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from campaign.networks.faults import FAULTS, Fault, Step, schedule, shortest
from campaign.networks.proxy import Proxy
from campaign.part import Finding, Outcome
from servers.seaweedfs import SeaweedFS
from servers.seaweedfs import missing as missing_server


@dataclass(frozen=True, kw_only=True)
class ScheduledPart(abc.ABC):
    """See the module."""

    steps: int
    rounds: int
    name: str
    title: str
    promise: ClassVar[str]
    faults: ClassVar[tuple[Fault, ...]] = FAULTS

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        return self.run(seed, scratch, self.schedule(seed))

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        numbers = iter(range(1_000_000))

        def fails(steps: list[Step]) -> Finding | None:
            findings = self.run(seed, scratch / f"try-{next(numbers)}", steps).findings
            return findings[0] if findings else None

        return shortest(self.schedule(seed), fails)

    def schedule(self, seed: int) -> list[Step]:
        return schedule(random.Random(seed), self.steps, self.faults)

    def run(self, seed: int, scratch: Path, steps: list[Step]) -> Outcome:
        """One round with a schedule of one's own."""
        outcome = Outcome()
        scratch.mkdir(parents=True, exist_ok=True)
        wrong = self.live(seed, scratch, steps, outcome)
        outcome.counts["rounds"] += 1
        outcome.counts["faults_injected"] += len(steps)
        outcome.findings += [Finding(self.promise, each, seed, tuple(map(str, steps))) for each in wrong]
        return outcome

    @abc.abstractmethod
    def live(self, seed: int, scratch: Path, steps: list[Step], outcome: Outcome) -> list[str]:
        """Go through the schedule; what is wrong in the end. What was done is counted in `outcome`."""


class BucketScheduledPart(ScheduledPart):
    """A part whose network lies in front of a real S3 server."""

    def missing(self) -> str:
        return missing_server()

    def live(self, seed: int, scratch: Path, steps: list[Step], outcome: Outcome) -> list[str]:
        with SeaweedFS(scratch / "s3") as server:
            server.create_bucket("history")
            with Proxy("127.0.0.1", int(server.endpoint.rpartition(":")[2])) as proxy:
                wrong = self.live_with(server, proxy, seed, scratch, steps, outcome)
                count_links(proxy, outcome)
        return wrong

    @abc.abstractmethod
    def live_with(
        self, server: SeaweedFS, proxy: Proxy, seed: int, scratch: Path, steps: list[Step], outcome: Outcome
    ) -> list[str]:
        """The same, with a server that has a bucket `history`, and what is in front of it."""


def count_links(proxy: Proxy, outcome: Outcome) -> None:
    for name in ("connections", "refused", "cut_in_frame"):
        outcome.counts[f"links_{name}"] += proxy.counts[name]


@contextmanager
def ending_its_threads(wrong: list[str]) -> Iterator[None]:
    """Threads that were begun inside and live on behind it are wrong."""
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    wrong += [f"threads that were not ended: {left}"] if left else []
