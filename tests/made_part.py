"""A part of the campaign that is made for a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from campaign.part import Finding, Outcome


class Made:
    """A part whose rounds do what the test says, and that remembers their seeds."""

    title = "made for a test"

    def __init__(self, name: str, rounds: int, work: Callable[[int, Path], Outcome] | None = None) -> None:
        self.name, self.rounds = name, rounds
        self.seeds: list[int] = []
        self._work = work or (lambda _seed, _scratch: Outcome(Counter(puts=2), peaks={"memory_mb": 5.0}))

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        self.seeds.append(seed)
        return self._work(seed, scratch)

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        raise AssertionError(f"not asked for: {seed} {scratch}")
