"""An offload on Spark whose driver, JVM, executors, workers and object store are killed while it runs.

    fill the store ─► start an offload ─► kill a process by chance ─► wait how it ends ─► … ─► one that is not disturbed

Executors are processes of their own (local-cluster). An attempt may fail or die; what is in the tier after the last one
must be, byte for byte, what the store's own dispatcher makes of the same store.
"""

from __future__ import annotations

import random
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.environment import environment
from campaign.kills.processes import descendants, kill, kind_of
from campaign.part import Finding, Outcome
from pipeline.offload.offload_world import OffloadWorld, fill
from servers.seaweedfs import SeaweedFS
from servers.seaweedfs import missing as missing_server
from spark.cluster.cluster_worlds import Expectation
from spark.cluster.driver_process import DriverDied, DriverProcess

MASTER = "local-cluster[2,1,512]"
ATTEMPTS = 3
MESSAGES = 400
VICTIMS = ("driver", "jvm", "executor", "worker", "object store")
BUCKET = "kills"
DELAY_S_MAX = 2.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Attempt:
    """One offload of a round: who is killed, how long after its first process of that kind was there."""

    victim: str
    delay_s: float

    def __str__(self) -> str:
        return f"an offload whose {self.victim} is killed after {self.delay_s:.2f} s"


class OffloadKills:
    name = "kills-spark"
    title = "an offload's driver, executors, workers and object store are killed"
    rounds = 30

    def missing(self) -> str:
        return missing_server()

    def round(self, seed: int, scratch: Path) -> Outcome:
        chance = random.Random(seed)
        attempts = [Attempt(chance.choice(VICTIMS), chance.uniform(0, DELAY_S_MAX)) for _ in range(ATTEMPTS)]
        return _Round(seed, scratch, chance).run(attempts)

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        """One attempt alone, if it finds it as well."""
        chance = random.Random(seed)
        attempts = [Attempt(chance.choice(VICTIMS), chance.uniform(0, DELAY_S_MAX)) for _ in range(ATTEMPTS)]
        for number, attempt in enumerate(attempts):
            place = scratch / f"alone-{number}"
            place.mkdir()
            outcome = _Round(seed, place, random.Random(seed)).run([attempt])
            if outcome.findings:
                return outcome.findings[0]
        return None


class _Round:
    def __init__(self, seed: int, scratch: Path, chance: random.Random) -> None:
        self.seed = seed
        self.scratch = scratch
        self.chance = chance
        self.world = OffloadWorld(scratch)
        self.world.tier = f"s3://{BUCKET}/round"

    def run(self, attempts: list[Attempt]) -> Outcome:
        outcome = Outcome()
        with SeaweedFS(self.scratch / "s3") as server, environment(server.environment):
            server.create_bucket(BUCKET)
            driver = DriverProcess(MASTER, self.scratch / "driver", server.environment)
            try:
                for number, attempt in enumerate(attempts):
                    fill(self.world.store, MESSAGES, self.chance.randrange(2**32), first=number * 10_000)
                    outcome.counts["kills"] += self._disturbed(driver, server, attempt)
                expected = Expectation(self.world, self.scratch / "engine")
                report = self._offload(driver)
                outcome.counts["messages_checked"] += MESSAGES * len(attempts)
                if report["problems"]:
                    raise AssertionError(f"an undisturbed offload says {report['problems']}")
                expected.check(self.world)
            except AssertionError as error:
                promise = "An offload whose processes are killed loses and doubles nothing."
                found = str(error)[-2_000:]
                outcome.findings.append(Finding(promise, found, self.seed, tuple(map(str, attempts))))
            finally:
                driver.stop()
        return outcome

    def _offload(self, driver: DriverProcess) -> Any:
        return driver.call("offload", place=self.world.place(), tier=self.world.tier)

    def _disturbed(self, driver: DriverProcess, server: SeaweedFS, attempt: Attempt) -> bool:
        """One attempt; whether a process was killed before it ended."""
        driver.start()
        driver.send("offload", place=self.world.place(), tier=self.world.tier)
        victim = self._found(driver, attempt.victim)
        time.sleep(attempt.delay_s)
        if attempt.victim == "object store":
            server.kill()
            killed = True
            server.start()
        elif attempt.victim == "driver":
            driver.kill()
            killed = True
        else:
            killed = victim is not None and kill(victim)
        with suppress(DriverDied, AssertionError):  # It may fail, in whatever words; what it left is looked at later.
            driver.answer()
        if attempt.victim == "jvm":
            driver.kill()  # A session whose JVM is gone serves no task; the next attempt has one of its own.
        return killed

    def _found(self, driver: DriverProcess, kind: str) -> int | None:
        """A process of the application of that kind, once there is one; None where the driver ended before."""
        process = driver._process
        assert process is not None
        while kind in ("jvm", "executor", "worker") and process.poll() is None:
            found = [each for each in descendants(process.pid) if kind_of(each) == kind]
            if found:
                return self.chance.choice(found)
            if select.select([driver._answers], [], [], 0)[0]:
                return None
            time.sleep(_POLL_S)
        return None
