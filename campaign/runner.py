"""Runs rounds of parts in turn, writes each finished one down, and goes on where an interrupted campaign stopped.

    root seed ─► seed of each round, by part and number ─► Part.round in a directory of its own ─► a line in the record

Parts take turns, so that a campaign that is ended early has tried everything. A round that raises is a finding. The
directory of a round with findings is kept, and named beside them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from campaign.part import Finding, Outcome, Part

RECORD = "rounds.jsonl"
FRAMES_MAX = 12


def seed_of(root_seed: int, part: str, number: int) -> int:
    """The seed of a part's n-th round: small enough to be typed."""
    digest = hashlib.sha256(f"{root_seed} {part} {number}".encode()).digest()
    return int.from_bytes(digest[:5], "big")


def reported_of(error: BaseException) -> str:
    """An error and the way to it, without directories: a report is published."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]
    way = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return "\n".join([*way, f"{type(error).__name__}: {error}"])


@dataclass(frozen=True, slots=True)
class Done:
    """One finished round, as it is written down."""

    part: str
    seed: int
    seconds: float
    outcome: Outcome
    kept: str = ""
    """Where its directory was kept, relative to the campaign's; "" when nothing was found."""

    def to_line(self) -> str:
        reported = {
            "counts": dict(self.outcome.counts),
            "findings": [asdict(found) for found in self.outcome.findings],
            "peaks": self.outcome.peaks,
        }
        return json.dumps(
            {"part": self.part, "seed": self.seed, "seconds": self.seconds, "outcome": reported, "kept": self.kept}
        )

    @staticmethod
    def of_line(line: str) -> Done:
        row: dict[str, Any] = json.loads(line)
        reported = row["outcome"]
        findings = [Finding(**{**each, "steps": tuple(each["steps"])}) for each in reported["findings"]]
        outcome = Outcome(Counter(reported["counts"]), findings, dict(reported["peaks"]))
        return Done(row["part"], row["seed"], row["seconds"], outcome, row["kept"])


@dataclass(slots=True)
class Total:
    """All rounds of a part together."""

    rounds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    peaks: dict[str, float] = field(default_factory=dict)
    findings: list[Done] = field(default_factory=list)

    def add(self, done: Done) -> None:
        self.rounds += 1
        self.seconds += done.seconds
        self.counts.update(done.outcome.counts)
        for name, value in done.outcome.peaks.items():
            self.peaks[name] = max(self.peaks.get(name, value), value)
        if done.outcome.findings:
            self.findings.append(done)


class Campaign:
    """`directory` holds the record and what was kept; used by one thread."""

    def __init__(self, directory: Path, parts: Sequence[Part], root_seed: int) -> None:
        self.directory = directory
        self.parts = list(parts)
        self.root_seed = root_seed
        self.totals: dict[str, Total] = {part.name: Total() for part in parts}
        self._record = directory / RECORD

    def resume(self) -> int:
        """Take in what an earlier run of this campaign wrote down; how many rounds. A torn last line does not count."""
        if not self._record.exists():
            return 0
        lines = self._record.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) != len(lines):
            self._record.write_text("".join(whole), encoding="utf-8")
        known = [done for done in map(Done.of_line, whole) if done.part in self.totals]
        for done in known:
            self.totals[done.part].add(done)
        return len(known)

    def turns(self, rounds: int | None) -> Iterator[tuple[Part, int]]:
        """Part and seed of every round that is still to be done: parts in turn, each with its own number of rounds."""
        left = {part.name: max(0, (rounds or part.rounds) - self.totals[part.name].rounds) for part in self.parts}
        while any(left.values()):
            for part in self.parts:
                if left[part.name]:
                    left[part.name] -= 1
                    yield part, seed_of(self.root_seed, part.name, self.totals[part.name].rounds)

    def run(
        self,
        rounds: int | None,
        until_s: float | None,
        begins: Callable[[Part, int], object],
        ends: Callable[[Done], object],
    ) -> None:
        """Rounds until all are done, or until this moment of `time.monotonic`: a round that has begun is finished."""
        for part, seed in self.turns(rounds):
            if until_s is not None and time.monotonic() >= until_s:
                return
            begins(part, seed)
            ends(self.one(part, seed))

    def one(self, part: Part, seed: int) -> Done:
        """One round, written down."""
        place = self.directory / f"{part.name}-{seed}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        before = time.monotonic()
        try:
            outcome = part.round(seed, place)
        except Exception as error:  # Whatever a round raises is what the campaign looks for.
            found = Finding("a round ends without an error", reported_of(error), seed)
            outcome = Outcome(findings=[found])
        seconds = round(time.monotonic() - before, 3)
        if not outcome.findings:
            shutil.rmtree(place, ignore_errors=True)
        done = Done(part.name, seed, seconds, outcome, place.name if outcome.findings else "")
        with self._record.open("a", encoding="utf-8") as record:
            record.write(done.to_line() + "\n")
        self.totals[part.name].add(done)
        return done
