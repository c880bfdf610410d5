"""The part of the campaign: a round is a life, a failing one prints its steps, and a shrunk one the fewest of them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from campaign.part import Finding, Outcome, Part
from campaign.simulation.lives import World
from campaign.simulation.model import Broken
from campaign.simulation.shrinking import simplest
from campaign.simulation.steps import Life, Step, draw
from simulation.simulated_replicas import simulate
from tiermq import kernel

ROOT = Path(__file__).resolve().parent.parent.parent
NO_ERROR = "a life ends without an error"


def live(life: Life) -> tuple[Outcome, World | None]:
    """One life; findings say which promise was broken, or which error was not expected."""
    outcome = Outcome()
    world: World | None = None
    with _quiet():
        try:
            world = World(life)
            world.run()
        except Exception as error:
            outcome.findings.append(_finding(life, error))
    if world is not None:
        outcome.counts.update(_counts(world))
    return outcome, world


def _counts(world: World) -> Counter[str]:
    counts = Counter(world.counts)
    counts["rounds"] = 1
    faults = world.weather.injected
    counts.update({f"tier_{name}": count for name, count in faults.items()})
    ends = counts["kills"] + counts["power_cuts"] + counts["disks_lost"]
    counts["faults_injected"] = faults.total() + ends + counts["disk_errors"]
    return counts


def _finding(life: Life, error: Exception) -> Finding:
    notes = "; ".join(getattr(error, "__notes__", []))
    reported = tuple(str(step) for step in life.steps)
    if isinstance(error, Broken):
        return Finding(error.promise, f"{error.found} ({notes})", life.seed, reported)
    trail = "".join(traceback.format_exception(error, limit=-6))
    return Finding(NO_ERROR, f"{type(error).__name__}: {error} ({notes})\n{trail}", life.seed, reported)


@contextmanager
def _quiet() -> Iterator[None]:
    """What stores say of their troubles is what a life is about, and no one reads it thousands of times."""
    logger = logging.getLogger("tiermq")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def shrunk(life: Life) -> Finding | None:
    """The finding of the shortest life that breaks the same promise; None when this one breaks none."""
    outcome, _ = live(life)
    if not outcome.findings:
        return None
    found = [outcome.findings[0]]

    def fails(steps: Sequence[Step]) -> bool:
        findings = live(replace(life, steps=tuple(steps)))[0].findings
        if findings and _kind(findings[0]) == _kind(found[0]):
            found[0] = findings[0]
            return True
        return False

    least = simplest(life.steps, fails)
    fails(least)
    return found[0]


def _kind(finding: Finding) -> str:
    """The promise; of an error, its type: another error on the way down would be another finding."""
    return finding.promise if finding.promise != NO_ERROR else finding.found.partition(":")[0]


class Simulation:
    """Lives by the compiled kernel, or, where there is none, by the pure one."""

    name = "simulation"
    title = "store, tier, dispatcher, retention and readers on a simulated clock, disk and object store"
    rounds = 2_000

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:  # noqa: ARG002
        return live(draw(seed))[0]

    def shrink(self, seed: int, scratch: Path) -> Finding | None:  # noqa: ARG002
        return shrunk(draw(seed))


class PureSimulation(Simulation):
    """The same lives by the pure kernel, each in a process of its own, since a process has one kernel."""

    name = "simulation-pure"
    title = "the same, by the kernel in pure Python"
    rounds = 200

    def missing(self) -> str:
        return "" if kernel.KERNEL == "compiled" else "a compiled kernel: `simulation` runs the pure one already"

    def round(self, seed: int, scratch: Path) -> Outcome:  # noqa: ARG002
        reported = json.loads(self._child("round", seed))
        findings = [Finding(**{**each, "steps": tuple(each["steps"])}) for each in reported["findings"]]
        return Outcome(Counter(reported["counts"]), findings)

    def shrink(self, seed: int, scratch: Path) -> Finding | None:  # noqa: ARG002
        reported = json.loads(self._child("shrink", seed))
        return None if reported is None else Finding(**{**reported, "steps": tuple(reported["steps"])})

    @staticmethod
    def _child(what: str, seed: int) -> bytes:
        command = [sys.executable, "-m", "campaign.simulation.part", what, str(seed)]
        environment = {**os.environ, "TIERMQ_PURE": "1"}
        return subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout


class Elections:
    """Replicas of one broker elect their masters, and clients see one log."""

    name = "elections"
    title = (
        "replication and elections of masters, with faults of machines, power, clocks, network and bucket, simulated"
    )
    rounds = 1_000

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:  # noqa: ARG002
        outcome = Outcome(Counter({"rounds": 1}))
        with _quiet():
            try:
                cluster = simulate(seed)
            except AssertionError as error:
                outcome.findings.append(Finding("the log of elected masters is linearizable", str(error), seed))
                return outcome
        outcome.counts.update(cluster.counts)
        outcome.counts["messages_checked"] = cluster.history.acknowledged
        outcome.counts["reads"] = cluster.history.reads
        outcome.counts["tails_cut"] = outcome.counts.pop("cuts", 0)
        outcome.counts["faults_injected"] = cluster.counts.total() - cluster.counts["cuts"]
        return outcome

    def shrink(self, seed: int, scratch: Path) -> Finding | None:  # noqa: ARG002
        return None  # A run follows from its seed.


PARTS: list[Part] = [Simulation(), PureSimulation(), Elections()]


def main(what: str, seed: int) -> None:
    """For the process of a pure round."""
    if what == "shrink":
        finding = shrunk(draw(seed))
        print(json.dumps(None if finding is None else asdict(finding)))
    else:
        outcome = live(draw(seed))[0]
        print(json.dumps({"counts": outcome.counts, "findings": [asdict(each) for each in outcome.findings]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
