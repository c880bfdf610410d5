"""JobReport: what a job planned and did, in a shape that is the same for every job, for people and for scripts.

`planned` and `done` hold numbers by name (`queues`, `messages`, `bytes`, `segments`, …): a dry run has `done` empty.
`problems` are sentences; a job with problems did what it could, and its command ends with exit code 1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

Number = int | float
WRITES_TO = ("offload", "export", "replay")
"""Jobs whose place is where they write; others work on it."""
_PLURAL = re.compile(r"s((?: \w+)?)$")
"""The plural's end, also before a participle: `index files merged`."""


@dataclass(slots=True)
class JobReport:
    """See the module. `details` is the job's own: rows, tables, ranges; anything JSON can hold."""

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

    def join(self, part: JobReport) -> None:
        """Add the report of a part of the job: numbers are added up, problems and lists are appended."""
        for mine, theirs in ((self.planned, part.planned), (self.done, part.done)):
            for name, number in theirs.items():
                mine[name] = mine.get(name, 0) + number
        self.problems += part.problems
        for name, rows in part.details.items():
            self.details.setdefault(name, []).extend(rows)

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
        """The report as text, without details."""
        head = f"{self.job} {'to' if self.job in WRITES_TO else 'of'} {self.place}" + (
            " (dry run: nothing was written)" if self.dry_run else ""
        )
        lines = [head]
        for title, numbers in (("planned", self.planned), ("done", self.done)):
            parts = [counted(name, number) for name, number in numbers.items() if number]
            if parts:
                lines.append(f"  {title}: " + ", ".join(parts))
        if self.is_clean and not any((*self.planned.values(), *self.done.values())):
            lines.append("  nothing to do")
        lines.extend(f"  problem: {problem}" for problem in self.problems)
        lines.append(f"  took {span_text(self.took_s)}{self._rate_text()}")
        return lines

    def _rate_text(self) -> str:
        """The byte rate, if meaningful: at least a tenth of a mebibyte per second."""
        rate = self.done.get("bytes", 0) / self.took_s if self.took_s else 0.0
        return f" ({size_text(rate)}/s)" if rate >= (1 << 20) / 10 else ""


def span_text(seconds: float) -> str:
    """0.4 s, 22.9 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def counted(name: str, number: Number) -> str:
    """`3 index files`, `1 queue`, `5.1 MiB`, `0.02 s of task CPU`: a number with its unit as text."""
    if name == "bytes" or name.endswith("_bytes"):
        of = name.removesuffix("bytes").replace("_", " ").strip()
        return f"{size_text(number)}{' ' + of if of else ''}"
    if name.endswith("_s"):
        return f"{number:,.3g} s of {name.removesuffix('_s').replace('_', ' ').replace('cpu', 'CPU')}"
    words = name.replace("_", " ")
    if number == 1:
        words = _PLURAL.sub(r"\1", words)
    return f"{shown(number)} {words}"


def shown(number: Number) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.3g}"


def counted_noun(number: int, noun: str) -> str:
    """1 queue, 2,000 queues."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(count: float) -> str:
    """1536 -> 1.5 KiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
