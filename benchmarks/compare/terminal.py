"""What a person sees: progress on stderr while it runs, a table at the end.

Nothing is drawn while a round runs: the display changes only between rounds, so it costs no side anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.compare import ratios, wording
from benchmarks.compare.against import Change, Moved
from benchmarks.compare.campaign import Job
from benchmarks.compare.results import Comparison, Outcome, Point
from benchmarks.compare.work import ROCKETMQ, TIERMQ, Work


class Progress:
    """A line that says what runs, which round, how long already and how long still; a line for each finished point."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._head = ""
        self._rest_seconds: float | None = None
        self._asked_at = self._started

    def begin(self, job: Job, number: int, count: int, rest_seconds: float | None) -> None:
        self._head = f"[{number}/{count}] {_name(job)}"
        self._rest_seconds = rest_seconds
        self._asked_at = time.monotonic()

    def step(self, words: str) -> None:
        """Rewrites the last line of a terminal; a file or a pipe gets finished points alone."""
        if not self._console.is_terminal:
            return
        now = time.monotonic()
        rest = "" if self._rest_seconds is None else max(0.0, self._rest_seconds - (now - self._asked_at))
        reported = f", about {wording.duration(rest)} to go" if isinstance(rest, float) else ""
        line = f"{self._head}: {words} · {wording.duration(now - self._started)}{reported}"
        self._rewrite(line[: self._console.width - 1])

    def end(self, point: Point, outcome: Outcome) -> None:
        if self._console.is_terminal:
            self._rewrite("")
        self._console.print(
            f"{self._head}: {point_line(outcome, point)}", highlight=False, markup=False, soft_wrap=True
        )

    def _rewrite(self, line: str) -> None:
        self._console.file.write(f"\r\x1b[2K{line}")
        self._console.file.flush()


def _name(job: Job) -> str:
    return f"{job.work.name}, growth at {job.scale}×" if job.grown else job.work.name


def point_line(outcome: Outcome, point: Point) -> str:
    """What a point found, in one line."""
    if not point.is_measured:
        return f"{point.status.value}: {point.reason.splitlines()[0] if point.reason else ''}"
    found = ratios.ratio(point, outcome.kind)
    sides = [
        f"{wording.NAMES[side]} {wording.figure(ratios.figure(point, outcome.kind, side), outcome.kind)}"
        for side in (TIERMQ, ROCKETMQ)
    ]
    met = ratios.is_met(outcome) if point is outcome.base else None
    goal = "" if met is None else f", goal {wording.goal(outcome.goal, outcome.kind)} {'met' if met else 'MISSED'}"
    ends = f"{wording.ratio(found)} ({wording.ratio_range(found)}){goal}, in {wording.duration(point.seconds)}"
    return ": ".join([", ".join(sides), ends])


def results_table(found: Comparison) -> Table:
    """All works at their own size, one row each."""
    table = Table(title="TierMQ : RocketMQ", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("work", no_wrap=True)
    for column in ("ratio", "range", "goal", "met", ": limit", "memory"):
        table.add_column(column, justify="right", no_wrap=True)
    for outcome in found.outcomes.values():
        base = outcome.base
        if base is None:
            status = "growth alone" if outcome.grown() else "not measured"
            status = outcome.points[1].status.value if 1 in outcome.points else status
            table.add_row(outcome.name, status, "", wording.goal(outcome.goal, outcome.kind), "", "", "")
            continue
        against = ratios.ratio(base, outcome.kind)
        met = ratios.is_met(outcome)
        table.add_row(
            outcome.name,
            wording.ratio(against),
            wording.ratio_range(against),
            wording.goal(outcome.goal, outcome.kind),
            "" if met is None else "[green]yes[/]" if met else "[red]no[/]",
            wording.ratio(ratios.limit_ratio(base, outcome.kind)),
            wording.plain(ratios.memory_ratio(base)),
        )
    return table


def works_table(works: Sequence[Work]) -> Table:
    """What there is to measure. Limits are in the JSON: they are sentences."""
    table = Table(
        title=f"{len(works)} works; --only takes names, groups and patterns", title_justify="left", box=SIMPLE
    )
    table.add_column("name", no_wrap=True)
    for column in ("what", "goal", "grows"):
        table.add_column(column)
    group = ""
    for work in works:
        if work.group != group:
            group = work.group
            table.add_section()
            table.add_row(f"[bold]{group}[/]")
        table.add_row(work.name, work.title, wording.goal(work.goal, work.kind), "16×" if work.grows else "")
    return table


def moved_table(moved: Sequence[Moved]) -> Table:
    """What got worse and what got better; what stayed is not shown."""
    same = sum(each.change is Change.SAME for each in moved)
    table = Table(
        title=f"Against the kept run; {same} of {len(moved)} within their spread", title_justify="left", box=SIMPLE
    )
    for column in ("work", "then", "now", "change"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for each in sorted(moved, key=lambda each: each.change.value, reverse=True):
        if each.change is Change.SAME:
            continue
        name = f"{each.name}, growth at {each.scale}×" if each.grown else each.name
        colour = "red" if each.change is Change.WORSE else "green"
        then, now = (f"{wording.ratio(at)} ({wording.ratio_range(at)})" for at in (each.then, each.now))
        table.add_row(name, then, now, f"[{colour}]{each.change.value}[/]")
    return table
