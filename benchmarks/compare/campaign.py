"""All chosen works, one after the other, kept after each so that an interrupted run can go on.

First every work at its own size, then those that grow at 1, 4 and 16 times a part of it. A work that fails is reported
and the run goes on with the next.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.compare import growth, places, results, runner
from benchmarks.compare.places import Grounds
from benchmarks.compare.results import Comparison, Outcome, Point, Status, without_paths
from benchmarks.compare.runner import Effort
from benchmarks.compare.work import Work

ROUNDS = 9
QUICK_ROUNDS = 3
GROWTH_ROUNDS = 2
GROWTH_ROUNDS_MOST = 5
GROWTH_CHEAP_SECONDS = 3.0
REASON_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class Job:
    """A point that is to be measured."""

    work: Work
    scale: int = 1
    grown: bool = False
    """A point of the work's growth, not of its own size."""

    def points(self, outcome: Outcome) -> dict[int, Point]:
        """Where the outcome keeps it."""
        return outcome.growth if self.grown else outcome.points


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line chose."""

    quick: bool = False
    rounds: int | None = None
    base: bool = True
    """Works at their own size."""
    grow: bool = True
    """Works that grow, at all their sizes."""
    again: bool = False
    """Measure points that are there already."""


class Display(Protocol):
    """Shows how far a run is."""

    def begin(self, job: Job, number: int, count: int, rest_seconds: float | None) -> None: ...

    def step(self, words: str) -> None: ...

    def end(self, point: Point, outcome: Outcome) -> None: ...


def jobs_of(works: Sequence[Work], options: Options, known: Comparison) -> list[Job]:
    """What is to be measured, in order, without what `known` has already."""
    wanted = [Job(work) for work in works] if options.base else []
    if options.grow:
        wanted += [Job(work, scale, grown=True) for work in works if work.grows for scale in growth.SCALES]
    return wanted if options.again else [job for job in wanted if not _is_done(job, options, known)]


def _is_done(job: Job, options: Options, known: Comparison) -> bool:
    outcome = known.outcomes.get(job.work.name)
    point = job.points(outcome).get(job.scale) if outcome else None
    return point is not None and point.is_measured and (options.quick or not point.quick)


def effort_of(job: Job, options: Options) -> Effort:
    """How much is measured: growth gets few rounds, more where they are short, and works may ask for few."""
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    if job.grown:
        rounds = min(rounds, GROWTH_ROUNDS)
    least, most = (1.0, 5.0) if options.quick else (3.0, 8.0) if job.grown else (3.0, 30.0)
    rounds_most = min(options.rounds or GROWTH_ROUNDS_MOST, GROWTH_ROUNDS_MOST) if job.grown else rounds
    fewest = job.work.rounds_max
    return Effort(min(rounds, fewest), least, most, min(rounds_most, fewest), GROWTH_CHEAP_SECONDS)


def in_order(known: Comparison, works: Sequence[Work]) -> None:
    """Put outcomes into the plan's order, with the plan's present titles and goals; works that are gone go."""
    kept = known.outcomes
    known.outcomes = {}
    for work in works:
        if work.name in kept:
            fresh = Outcome.of(work)
            fresh.points, fresh.growth = kept[work.name].points, kept[work.name].growth
            known.outcomes[work.name] = fresh


def run(
    known: Comparison, works: Sequence[Work], options: Options, grounds: Grounds, state: Path, display: Display
) -> None:
    """Measure what is missing in `known` and add it there; `state` holds all of it after each point."""
    jobs = jobs_of(works, options, known)
    took = {
        Job(work, scale, grown): point.seconds
        for work in works
        if work.name in known.outcomes
        for grown in (False, True)
        for scale, point in Job(work, grown=grown).points(known.outcomes[work.name]).items()
        if point.is_measured
    }
    for number, job in enumerate(jobs):
        display.begin(job, number + 1, len(jobs), expected_seconds(jobs[number:], took))
        outcome = known.outcomes.setdefault(job.work.name, Outcome.of(job.work))
        point = _point(job, outcome, options, grounds, display)
        point.version = str(known.environment.get("tiermq", ""))
        job.points(outcome)[job.scale] = point
        if point.is_measured:
            took[job] = point.seconds
        results.save(state, known.as_dict())
        display.end(point, outcome)


def expected_seconds(jobs: Sequence[Job], took: dict[Job, float]) -> float | None:
    """How long these will take: as long as they took before, or as the others did; None when nothing is known."""
    if not took:
        return None
    mean = sum(took.values()) / len(took)
    total = 0.0
    for job in jobs:
        alike = [seconds for at, seconds in took.items() if (at.scale, at.grown) == (job.scale, job.grown)]
        total += took.get(job, sum(alike) / len(alike) if alike else mean)
    return total


def _point(job: Job, outcome: Outcome, options: Options, grounds: Grounds, display: Display) -> Point:
    part = job.work.growth_part if job.grown and not options.quick else 1
    if job.grown and job.scale > 1:
        before = [point for point in outcome.grown() if point.scale < job.scale]
        if reason := growth.why_not(before, job.scale, grounds):
            return Point(job.scale, Status.LEFT_OUT, options.quick, reason, started_at=time.time(), part=part)
    started_at, before_it = time.time(), time.monotonic()
    try:
        with places.fresh(grounds, job.scale, options.quick, part) as place:
            return runner.measure(job.work, place, effort_of(job, options), display.step)
    except (Exception, SystemExit) as error:  # The outermost edge of a work: it is reported, and the next one runs.
        reason = without_paths(f"{type(error).__name__}: {error}".strip())[:REASON_LENGTH]
        seconds = time.monotonic() - before_it
        return Point(job.scale, Status.FAILED, options.quick, reason, started_at=started_at, seconds=seconds, part=part)
