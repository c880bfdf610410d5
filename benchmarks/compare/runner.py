"""One work at one scale: open both sides, warm them, let them take turns.

Rounds go A B, B A, A B, …: whatever gets slower or faster with time hits both sides alike. The n-th rounds of all sides
are a pair. Nothing but the sides' own rounds is timed, and the sides time themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.compare import environment, places
from benchmarks.compare.memory_watch import MemoryWatch
from benchmarks.compare.results import Point, Sample, Status, without_paths
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, TUNED, Kind, Place, Sides, Work
from benchmarks.harness import Side

ORDER = (TIERMQ, ROCKETMQ, TUNED, LIMIT)
UNEQUAL_SHARE = 0.01
FASTER = 1.03
ROUNDS_PER_LOOK = 3

Tell = Callable[[str], None]
"""Called with what happens now, in a few words."""


class UnequalWork(RuntimeError):
    """The sides did not do the same, so a ratio would mean nothing."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured at a point."""

    rounds: int
    warmup_least_seconds: float
    """Of RocketMQ's side, whose compiler needs them."""
    warmup_most_seconds: float
    rounds_most: int = 0
    """So many rounds, instead of `rounds`, where those before took less than `cheap_seconds` together."""
    cheap_seconds: float = 0.0


def turn(sides: Sequence[str], number: int) -> list[str]:
    """Who goes when in the turn of this number, counted from 0."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


def warm_up(side: Side, least_seconds: float, most_seconds: float) -> int:
    """Rounds until three in a row are no faster than those before, within the given times; how many."""
    best_before = best = spent = 0.0
    count = 0
    while spent < most_seconds:
        before = time.monotonic()
        done = side()
        count += 1
        spent += max(done.seconds, time.monotonic() - before)  # What a side does before its clock starts counts too.
        best = max(best, 1 / done.seconds)
        if count % ROUNDS_PER_LOOK == 0:
            if spent >= least_seconds and best < best_before * FASTER:
                break
            best_before, best = max(best_before, best), 0.0
    return count


def measure(work: Work, place: Place, effort: Effort, tell: Tell) -> Point:
    """A measured point. Raises whatever a side raises; what it started has ended then."""
    point = Point(place.scale, Status.MEASURED, place.quick, started_at=time.time(), part=place.part)
    point.load_average = os.getloadavg()[0]
    others = environment.Others()
    before = time.monotonic()
    with ExitStack() as stack:
        tell("opens")
        sides = work.opener(place, stack)
        names = [name for name in ORDER if name in sides.rounds]
        if missing := {TIERMQ, ROCKETMQ} - set(names):
            raise UnequalWork(f"{work.name}: no side {', '.join(sorted(missing))}; there are {sorted(sides.rounds)}")
        watch = stack.enter_context(MemoryWatch(sides.pids))
        warmed = _warm_all(work, sides, names, effort, tell)
        _take_turns(point, work, sides, names, effort, watch, place, tell)
        tell("settles")
        point.memory = watch.settled()
        point.notes = without_paths({**sides.notes, **({"warm-up rounds": warmed} if warmed else {})})
    point.seconds = time.monotonic() - before
    point.others = others.processors()
    return point


def _warm_all(work: Work, sides: Sides, names: list[str], effort: Effort, tell: Tell) -> dict[str, int]:
    if not work.needs_warmup:
        return {}
    counts = {}
    for name in reversed(names):
        tell(f"warms {name}")
        least, most = effort.warmup_least_seconds, effort.warmup_most_seconds
        if name not in (ROCKETMQ, TUNED) and not (name == TIERMQ and work.warms_alike):
            least, most = 0.0, 1e-9  # One round: its files are touched, its code needs no warming.
        counts[name] = warm_up(sides.rounds[name], least, most)
    return counts


def _take_turns(
    point: Point,
    work: Work,
    sides: Sides,
    names: list[str],
    effort: Effort,
    watch: MemoryWatch,
    place: Place,
    tell: Tell,
) -> None:
    point.samples = {name: [] for name in names}
    point.files_bytes = {"directory": 0, "disk": 0}
    before = time.monotonic()
    for number in range(max(effort.rounds, effort.rounds_most)):
        if number >= effort.rounds and time.monotonic() - before > effort.cheap_seconds:
            break
        for name in turn(names, number):
            tell(f"round {number + 1} of {max(effort.rounds, number + 1)}, {name}")
            watch.begin()
            at = time.time()
            done = sides.rounds[name]()
            most = watch.end(name)
            point.samples[name].append(Sample(at, done, most.resident_bytes, most.own_bytes))
            for kind, directory in (("directory", place.directory), ("disk", place.disk)):
                point.files_bytes[kind] = max(point.files_bytes[kind], places.used_bytes(directory))
        _check_equal(work, point)


def _check_equal(work: Work, point: Point) -> None:
    ours, theirs = (point.samples[side][-1].done.messages for side in (TIERMQ, ROCKETMQ))
    if work.kind is Kind.RATE and abs(ours - theirs) > UNEQUAL_SHARE * max(ours, theirs):
        raise UnequalWork(f"{work.name}: TierMQ did {ours:,} messages in a round, RocketMQ {theirs:,}")
