"""A run beside a kept one: which ratios got worse, or better, by more than their rounds differ among themselves.

A ratio has changed when the new median lies outside the range of the old pairs and the old median outside the range of
the new ones. Anything less could be the same program twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from benchmarks.compare import ratios
from benchmarks.compare.ratios import Ratio
from benchmarks.compare.results import Comparison, Outcome


class Change(Enum):
    """How a ratio moved."""

    WORSE = "worse"
    BETTER = "better"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Moved:
    """One work at its own size or at a scale of its growth, then and now."""

    name: str
    scale: int
    then: Ratio
    now: Ratio
    change: Change
    grown: bool = False

    def as_dict(self) -> dict[str, object]:
        return {
            "work": self.name,
            "scale": self.scale,
            "grown": self.grown,
            "then": self.then.median,
            "now": self.now.median,
            "change": self.change.value,
        }


def change(then: Ratio, now: Ratio, higher_is_better: bool) -> Change:
    """What the two say together."""
    if then.low <= now.median <= then.high or now.low <= then.median <= now.high:
        return Change.SAME
    return Change.BETTER if (now.median > then.median) is higher_is_better else Change.WORSE


def compare(kept: Comparison, new: Comparison) -> list[Moved]:
    """Every point that both have; a quick look is compared with quick looks alone."""
    return [
        moved
        for name, outcome in new.outcomes.items()
        if name in kept.outcomes
        for moved in _points(kept.outcomes[name], outcome)
    ]


def _points(kept: Outcome, new: Outcome) -> list[Moved]:
    if kept.kind is not new.kind:
        return []
    found = []
    for grown, old, fresh in ((False, kept.points, new.points), (True, kept.growth, new.growth)):
        for scale, point in fresh.items():
            before = old.get(scale)
            if before is None or (before.quick, before.part) != (point.quick, point.part):
                continue
            then, now = ratios.ratio(before, kept.kind), ratios.ratio(point, new.kind)
            if then and now:
                what = change(then, now, ratios.is_higher_better(new.kind))
                found.append(Moved(new.name, scale, then, now, what, grown))
    return found
