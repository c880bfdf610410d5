"""JobReport: what a job planned and did, in a shape that is the same for every job, for people and for scripts.

`planned` and `done` hold numbers by name (`queues`, `messages`, `bytes`, `segments`, …): a dry run has `done` empty.
`problems` are sentences; a job with problems did what it could, and its command ends with exit code 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

Number = int | float


@dataclass(slots=True)
class JobReport:
    """See the module. `details` is the job's own: rows, tables, ranges; whatever JSON can hold."""

    job: str
    place: str  # The tier or store it worked on, without anything secret.
    dry_run: bool = False
    master: str = ""
    took_s: float = 0.0
    planned: dict[str, Number] = field(default_factory=dict)
    done: dict[str, Number] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not self.problems

    def add(self, **numbers: Number) -> None:
        """Add to what was done."""
        for name, number in numbers.items():
            self.done[name] = self.done.get(name, 0) + number

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time that the block takes, also when it fails."""
        started_s = time.monotonic()
        try:
            yield
        finally:
            self.took_s = round(self.took_s + time.monotonic() - started_s, 3)

    def lines(self) -> list[str]:
        """The report for eyes, without details."""
        head = f"{self.job} of {self.place}" + (" (dry run: nothing was written)" if self.dry_run else "")
        lines = [head]
        for title, numbers in (("planned", self.planned), ("done", self.done)):
            if numbers:
                lines.append(f"  {title}: " + ", ".join(f"{shown(number)} {name}" for name, number in numbers.items()))
        if not self.dry_run and self.is_clean and not any((*self.planned.values(), *self.done.values())):
            lines.append("  nothing to do")
        lines.extend(f"  problem: {problem}" for problem in self.problems)
        rate = self.done.get("bytes", 0) / self.took_s if self.took_s else 0
        lines.append(f"  took {self.took_s:.1f} s" + (f", {rate / 1e6:,.0f} MB/s" if rate else ""))
        return lines


def shown(number: Number) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.3g}"
