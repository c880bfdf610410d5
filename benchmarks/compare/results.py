"""What a run found, as values and as the JSON that keeps them: every round of every side of every point.

    Comparison        environment, the commands that were given, and an Outcome per work
      Outcome         the work as it was (kind, goal, limit), its Point, and a Point per scale of its growth
        Point         measured, left out or failed; samples of each side, memory, notes
          Sample      one round, when it began, and the most memory that its side held meanwhile

Rounds of a point stand in pairs: the n-th samples of all sides were taken next to each other in time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Self

from benchmarks.compare.work import Goal, Kind, Work
from benchmarks.report import Round

FORMAT = 1


class Status(Enum):
    """What became of a point."""

    MEASURED = "measured"
    LEFT_OUT = "left out"
    FAILED = "failed"


class BadResult(ValueError):
    """A file is not what `python3 dev.py bench compare` writes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round. Memory is 0 where the side named no process."""

    at: float
    """Seconds since 1970 when it began."""
    done: Round
    resident_bytes: int = 0
    own_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a side's process with its children: everything resident, and what is its own, not pages of mapped files."""

    peak_bytes: int
    peak_own_bytes: int
    settled_bytes: int
    settled_own_bytes: int


@dataclass(slots=True)
class Point:
    """A work at one scale."""

    scale: int
    status: Status
    quick: bool = False
    reason: str = ""
    """Why it was left out or failed."""
    version: str = ""
    """Which TierMQ it was: points of a run that was resumed may differ in it."""
    started_at: float = 0.0
    seconds: float = 0.0
    load_average: float = 0.0
    others: float | None = None
    """How many processors other programs used meanwhile, on the mean; None in results from before it was measured."""
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    files_bytes: dict[str, int] = field(default_factory=dict)
    """The most that lay in the work's directories, by `directory` and `disk`."""
    notes: dict[str, object] = field(default_factory=dict)
    part: int = 1
    """Of growth: 1× is this part of the work's own size."""

    @property
    def amount(self) -> tuple[int, str] | None:
        """How much data it had, and of what, as its work noted it."""
        for name in ("messages", "records", "keys", "items"):
            if isinstance(count := self.notes.get(name), int):
                return count, name
        return None

    @property
    def is_measured(self) -> bool:
        return self.status is Status.MEASURED

    def as_dict(self) -> dict[str, Any]:
        made = dataclasses.asdict(self)
        made["status"] = self.status.value
        return made

    @classmethod
    def from_dict(cls, reported: Mapping[str, Any]) -> Self:
        samples = {
            side: [Sample(**{**each, "done": Round(**each["done"])}) for each in rounds]
            for side, rounds in reported["samples"].items()
        }
        memory = {side: Memory(**each) for side, each in reported["memory"].items()}
        known = {name: reported[name] for name in cls.__dataclass_fields__ if name in reported}
        return cls(**{**known, "status": Status(reported["status"]), "samples": samples, "memory": memory})


@dataclass(slots=True)
class Outcome:
    """A work, its point at its own size (by scale 1), and the points of its growth by their scale."""

    name: str
    group: str
    title: str
    kind: Kind
    goal: Goal | None
    limit: str
    points: dict[int, Point] = field(default_factory=dict)
    growth: dict[int, Point] = field(default_factory=dict)

    @classmethod
    def of(cls, work: Work) -> Self:
        return cls(work.name, work.group, work.title, work.kind, work.goal, work.limit)

    @property
    def base(self) -> Point | None:
        """The point at the work's own size, if it was measured."""
        point = self.points.get(1)
        return point if point is not None and point.is_measured else None

    def all_points(self) -> list[Point]:
        """The work's own size first, then its growth from small to large."""
        return [*self.points.values(), *(point for _, point in sorted(self.growth.items()))]

    def grown(self) -> list[Point]:
        """What was measured of its growth, from small to large."""
        return [point for _, point in sorted(self.growth.items()) if point.is_measured]

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "group": self.group,
            "title": self.title,
            "kind": self.kind.value,
            "goal": dataclasses.asdict(self.goal) if self.goal else None,
            "limit": self.limit,
            "points": [point.as_dict() for point in self.points.values()],
            "growth": [point.as_dict() for _, point in sorted(self.growth.items())],
        }

    @classmethod
    def from_dict(cls, reported: Mapping[str, Any]) -> Self:
        goal = Goal(**reported["goal"]) if reported["goal"] else None
        # Files from before growth had sizes of its own kept larger points here; theirs are no part of its curve.
        points = [Point.from_dict(each) for each in reported["points"] if each["scale"] == 1]
        growth = [Point.from_dict(each) for each in reported.get("growth", [])]
        return cls(
            reported["name"],
            reported["group"],
            reported["title"],
            Kind(reported["kind"]),
            goal,
            reported["limit"],
            {point.scale: point for point in points},
            {point.scale: point for point in growth},
        )


@dataclass(slots=True)
class Comparison:
    """A run, or one that several commands made together."""

    environment: dict[str, Any] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def points(self) -> list[Point]:
        return [point for outcome in self.outcomes.values() for point in outcome.all_points()]

    def failed(self) -> list[tuple[Outcome, Point]]:
        return [
            (outcome, point)
            for outcome in self.outcomes.values()
            for point in outcome.all_points()
            if point.status is Status.FAILED
        ]

    def groups(self) -> dict[str, list[Outcome]]:
        """Outcomes by group, in the order of the run."""
        found: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes.values():
            found.setdefault(outcome.group, []).append(outcome)
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "environment": self.environment,
            "commands": self.commands,
            "works": [outcome.as_dict() for outcome in self.outcomes.values()],
        }

    @classmethod
    def from_dict(cls, reported: Mapping[str, Any]) -> Self:
        outcomes = [Outcome.from_dict(each) for each in reported["works"]]
        return cls(reported["environment"], reported["commands"], {outcome.name: outcome for outcome in outcomes})


def load(path: Path) -> Comparison:
    """Read what `save` wrote. Raises BadResult, with the file's name, for anything else."""
    try:
        reported = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadResult(f"{path.name}: expected what `python3 dev.py bench compare` writes, found: {error}") from error
    if not isinstance(reported, dict) or reported.get("format") != FORMAT:
        found = reported.get("format") if isinstance(reported, dict) else type(reported).__name__
        raise BadResult(f"{path.name}: expected format {FORMAT} of `python3 dev.py bench compare`, found {found!r}")
    try:
        return Comparison.from_dict(reported)
    except (KeyError, TypeError, ValueError) as error:
        raise BadResult(f"{path.name}: not as `python3 dev.py bench compare` writes it: {error!r}") from error


def save(path: Path, reported: Mapping[str, Any]) -> None:
    """Replace `path` as a whole, so that an interrupted run leaves the state before or the state after."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8", suffix=".new") as file:
        json.dump(reported, file, indent=1, default=str)
        file.write("\n")
    Path(file.name).chmod(0o644)
    os.replace(file.name, path)


PATHS = re.compile(r"(?<![\w.~/:-])/(?:[^\s/:'\"]+/)+")


def without_paths(value: Any) -> Any:
    """The same text (or notes) with directories cut from absolute paths: a report names no machine's places."""
    if isinstance(value, str):
        return PATHS.sub("…/", value)
    if isinstance(value, Mapping):
        return {key: without_paths(each) for key, each in value.items()}
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Iterable):
        return [without_paths(each) for each in value]
    return value
