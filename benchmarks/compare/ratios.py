"""From pairs of rounds to ratios.

A ratio is the median of the ratios of pairs: rounds of two sides that ran next to each other, so that a slow minute of
the machine hits both parts of a pair. Its range is that of the pairs. The spread of one side alone is half the
distance between its least and its greatest figure, as a share of its median.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.compare.results import Outcome, Point, Sample
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Kind
from benchmarks.report import cpu_rate


@dataclass(frozen=True, slots=True)
class Ratio:
    """TierMQ : another side."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figure:
    """What one side reached: its median, and its spread as a share of it."""

    median: float
    spread: float


def figures(samples: Sequence[Sample], kind: Kind) -> list[float]:
    return [kind.of(sample.done) for sample in samples]


def figure(point: Point, kind: Kind, side: str) -> Figure | None:
    """A side's figure, or None where the side was not measured."""
    values = figures(point.samples.get(side, []), kind)
    if not values:
        return None
    middle = statistics.median(values)
    return Figure(middle, (max(values) - min(values)) / 2 / middle if middle else 0.0)


def pair_ratios(point: Point, kind: Kind, other: str = ROCKETMQ) -> list[float]:
    """TierMQ : `other` of every pair of rounds."""
    return [found for found, _ in _pairs(point, kind, other)]


def _pairs(point: Point, kind: Kind, other: str = ROCKETMQ) -> list[tuple[float, float]]:
    """The ratio and TierMQ's own figure of every pair of rounds."""
    ours, theirs = (figures(point.samples.get(side, []), kind) for side in (TIERMQ, other))
    return [(mine / its, mine) for mine, its in zip(ours, theirs, strict=False) if its > 0]


def ratio(point: Point, kind: Kind, other: str = ROCKETMQ) -> Ratio | None:
    """TierMQ : `other`, or None where one of them has no figure."""
    found = pair_ratios(point, kind, other)
    return Ratio(statistics.median(found), min(found), max(found)) if found else None


def limit_ratio(point: Point, kind: Kind) -> Ratio | None:
    """TierMQ : the machine's own limit."""
    return ratio(point, kind, LIMIT)


def cpu_ratio(point: Point, kind: Kind) -> float | None:
    """The same of messages per second of processor time, which says more while others keep the machine busy."""
    ours, theirs = ([each.done for each in point.samples.get(side, [])] for side in (TIERMQ, ROCKETMQ))
    counted = kind is Kind.RATE and any(each.cpu_seconds for each in ours) and any(each.cpu_seconds for each in theirs)
    return cpu_rate(ours) / cpu_rate(theirs) if counted else None


def memory_ratio(point: Point, own: bool = False) -> float | None:
    """Peak memory of TierMQ's process : of RocketMQ's, all that is resident or what is their own."""
    ours, theirs = point.memory.get(TIERMQ), point.memory.get(ROCKETMQ)
    if ours is None or theirs is None:
        return None
    mine, other = (each.peak_own_bytes if own else each.peak_bytes for each in (ours, theirs))
    return mine / other if mine and other else None


def is_higher_better(kind: Kind) -> bool:
    return kind is Kind.RATE


def is_met(outcome: Outcome) -> bool | None:
    """Whether the goal is met; None where there is no goal or no figure."""
    missed_by = _excess(outcome)
    return None if missed_by is None else missed_by <= 0


def _excess(outcome: Outcome) -> float | None:
    found = _pairs(outcome.base, outcome.kind) if outcome.base else []
    if outcome.goal is None or not found:
        return None
    return outcome.goal.excess(*(statistics.median(values) for values in zip(*found, strict=True)))


def pairs_that_meet(outcome: Outcome) -> tuple[int, int]:
    """In how many pairs of rounds the goal was met, and how many there were."""
    pairs = _pairs(outcome.base, outcome.kind) if outcome.base else []
    return sum(outcome.goal is not None and outcome.goal.is_met(*each) for each in pairs), len(pairs)


def shortfall(outcome: Outcome) -> float | None:
    """How far a missed goal is away, as a share of the goal; None where it is met or unknown."""
    missed_by = _excess(outcome)
    return missed_by if missed_by is not None and missed_by > 0 else None
