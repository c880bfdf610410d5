"""Pictures of a run: all ratios with their goals, rounds over time, rates and memory over data.

    ratios.png                 every work, one bar, on a logarithmic axis; goals are marked
    time-GROUP[-n].png         figures of the rounds of both sides, over the seconds of the run
    growth-GROUP[-n].png       figure and memory of both sides at 1, 4 and 16 times a part of the data

Drawn for a page at its full size: 100 dots an inch, no letter below eight points.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # No screen is needed, and none is looked for.

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter, NullLocator

from benchmarks.compare import growth, ratios, wording
from benchmarks.compare.picture_files import RATIOS, slug
from benchmarks.compare.results import Comparison, Outcome
from benchmarks.compare.work import ROCKETMQ, TIERMQ, Kind

DOTS_PER_INCH = 100
COLOURS = {TIERMQ: "#1a66c4", ROCKETMQ: "#d8700a"}
MARKERS = {TIERMQ: "o", ROCKETMQ: "s"}
MET, MISSED, NO_GOAL = "#2f8f4e", "#c0392b", "#8a97a6"
SIDES = (TIERMQ, ROCKETMQ)
PANELS_PER_PICTURE = 15
PANELS_PER_ROW = 3
WORKS_PER_GROWTH_PICTURE = 6
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "savefig.dpi": DOTS_PER_INCH,
}


def draw_all(found: Comparison, out: Path) -> list[Path]:
    """Every picture for which there are figures; where they are."""
    drawn: list[Path] = []
    with mpl.rc_context(STYLE):
        if made := draw_ratios([outcome for outcome in found.outcomes.values() if outcome.base]):
            drawn.append(_save(made, out / RATIOS))
        for group, outcomes in found.groups().items():
            timed = [outcome for outcome in outcomes if outcome.base]
            grown = [outcome for outcome in outcomes if len(outcome.grown()) > 1]
            for kind, chosen, most, draw in (
                ("time", timed, PANELS_PER_PICTURE, draw_time),
                ("growth", grown, WORKS_PER_GROWTH_PICTURE, draw_growth),
            ):
                parts = _evenly(chosen, most)
                for number, part in enumerate(parts, start=1):
                    end = f"-{number}" if len(parts) > 1 else ""
                    drawn.append(_save(draw(group, part), out / f"{kind}-{slug(group)}{end}.png"))
    return drawn


def _evenly(outcomes: Sequence[Outcome], most: int) -> list[Sequence[Outcome]]:
    """Parts of about the same size, none above `most`."""
    count = -(-len(outcomes) // most)
    if not count:
        return []
    size = -(-len(outcomes) // count)
    return [outcomes[at : at + size] for at in range(0, len(outcomes), size)]


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Software": None})  # Nothing that differs when only the program's version does.
    plt.close(figure)
    return path


# All ratios


def draw_ratios(outcomes: Sequence[Outcome]) -> Figure | None:
    """One bar for each work, in two parts: where more is better, and where less is."""
    compared = [outcome for outcome in outcomes if outcome.base and ratios.ratio(outcome.base, outcome.kind)]
    parts = [[each for each in compared if ratios.is_higher_better(each.kind) is higher] for higher in (True, False)]
    shown = [(part, higher) for part, higher in zip(parts, (True, False), strict=True) if part]
    if not shown:
        return None
    rows = [len(part) for part, _ in shown]
    figure, panels = plt.subplots(
        len(shown),
        1,
        figsize=(10, 1.3 + 0.95 * len(shown) + 0.26 * sum(rows)),
        height_ratios=[count + 1 for count in rows],
        squeeze=False,
        layout="constrained",
    )
    for axes, (part, higher) in zip(panels[:, 0], shown, strict=True):
        _bars(axes, part)
        words = "rates: to the right TierMQ is faster" if higher else "time and memory: to the left TierMQ needs less"
        axes.set_xlabel(f"TierMQ : RocketMQ, {words} (logarithmic)")
    figure.suptitle("TierMQ : RocketMQ, medians of pairs of rounds", fontsize=11, fontweight="bold")
    figure.legend(handles=_ratio_legend(), loc="outside lower center", ncols=5, fontsize=9)
    return figure


def _ratio_legend() -> list[Any]:
    return [
        Patch(color=MET, label="goal met"),
        Patch(color=MISSED, label="goal missed"),
        Patch(color=NO_GOAL, label="no goal"),
        Line2D([], [], color="black", marker="|", markersize=12, markeredgewidth=2.5, linestyle="none", label="goal"),
        Line2D([], [], color="#333333", linewidth=1, label="range of pairs"),
    ]


def _bars(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    seen = [1.0]
    for row, outcome in enumerate(outcomes):
        assert outcome.base is not None
        found = ratios.ratio(outcome.base, outcome.kind)
        assert found is not None
        met = ratios.is_met(outcome)
        colour = NO_GOAL if met is None else MET if met else MISSED
        axes.barh(row, found.median - 1, left=1, height=0.62, color=colour)
        axes.plot([found.low, found.high], [row, row], color="#333333", linewidth=1)
        if outcome.goal and outcome.goal.ratio:
            axes.plot(outcome.goal.ratio, row, marker="|", markersize=13, markeredgewidth=2.5, color="black")
            seen.append(outcome.goal.ratio)
        seen += [found.low, found.high]
        end = max(found.high, found.median, outcome.goal.ratio if outcome.goal else 0, 1)
        axes.annotate(
            wording.digits(found.median),
            (end, row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.set_xscale("log")
    axes.set_xlim(min(seen) / 1.25, max(seen) * 1.45)
    _plain_ticks(axes)
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_yticks(range(len(outcomes)), [outcome.name for outcome in outcomes])
    axes.set_ylim(len(outcomes) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _plain_ticks(axes: Axes) -> None:
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in TICKS if low <= tick <= high])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())


# Rounds over time


def draw_time(group: str, outcomes: Sequence[Outcome]) -> Figure:
    """A panel for each work: figures of the rounds of both sides over the seconds since the first of them."""
    columns = min(PANELS_PER_ROW, len(outcomes))
    rows = -(-len(outcomes) // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(max(6.0, 3.6 * columns), 1.0 + 2.3 * rows), squeeze=False, layout="constrained"
    )
    axes: Axes
    for place, axes in enumerate(panels.flat):
        if place < len(outcomes):
            _time_panel(axes, outcomes[place])
        else:
            axes.set_axis_off()
    figure.suptitle(f"{group}: rounds over time", fontsize=11, fontweight="bold")
    figure.legend(handles=_side_legend(), loc="outside lower center", ncols=2)
    return figure


def _time_panel(axes: Axes, outcome: Outcome) -> None:
    point = outcome.base
    assert point is not None
    begin = min(sample.at for samples in point.samples.values() for sample in samples)
    for side in SIDES:
        samples = point.samples.get(side, [])
        # A round is drawn where it ended, which is when its figure was known.
        at = [sample.at - begin + sample.done.seconds for sample in samples]
        axes.plot(
            at,
            [_scaled(value, outcome.kind) for value in ratios.figures(samples, outcome.kind)],
            color=COLOURS[side],
            marker=MARKERS[side],
            markersize=4,
            linewidth=1,
        )
    axes.set_title(outcome.name)
    axes.set_xlabel("seconds of the run")
    axes.set_xlim(left=0)
    _figure_axis(axes, outcome.kind)


def _scaled(value: float, kind: Kind) -> float:
    return value * wording.SCALES.get(kind, 1)


def _figure_axis(axes: Axes, kind: Kind) -> None:
    axes.set_ylabel(wording.UNITS[kind])
    axes.set_ylim(0, axes.get_ylim()[1] * 1.06)
    if kind is Kind.RATE:
        axes.yaxis.set_major_formatter(EngFormatter(sep=" "))


def _side_legend() -> list[Line2D]:
    return [
        Line2D([], [], color=COLOURS[side], marker=MARKERS[side], markersize=5, label=wording.NAMES[side])
        for side in SIDES
    ]


# Growth


def draw_growth(group: str, outcomes: Sequence[Outcome]) -> Figure:
    """A row for each work: its figure and its peak memory over the data, both sides."""
    figure, panels = plt.subplots(
        len(outcomes), 2, figsize=(10, 1.0 + 2.2 * len(outcomes)), squeeze=False, layout="constrained"
    )
    for (left, right), outcome in zip(panels, outcomes, strict=True):
        _growth_panel(left, outcome)
        _memory_panel(right, outcome)
    figure.suptitle(f"{group}: with more data", fontsize=11, fontweight="bold")
    handles = [*_side_legend(), Line2D([], [], color="#555555", linestyle=":", label="memory of its own")]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _growth_panel(axes: Axes, outcome: Outcome) -> None:
    for side in SIDES:
        found = [(point.scale, ratios.figures(point.samples.get(side, []), outcome.kind)) for point in outcome.grown()]
        found = [(scale, [_scaled(value, outcome.kind) for value in values]) for scale, values in found if values]
        middles = [sorted(values)[len(values) // 2] for _, values in found]
        below = [middle - min(values) for middle, (_, values) in zip(middles, found, strict=True)]
        above = [max(values) - middle for middle, (_, values) in zip(middles, found, strict=True)]
        axes.errorbar(
            [scale for scale, _ in found],
            middles,
            yerr=[below, above],
            color=COLOURS[side],
            marker=MARKERS[side],
            markersize=5,
            linewidth=1.4,
            capsize=3,
        )
    axes.set_title(outcome.name)
    _scale_axis(axes, outcome)
    _figure_axis(axes, outcome.kind)


def _memory_panel(axes: Axes, outcome: Outcome) -> None:
    for side in SIDES:
        points = [point for point in outcome.grown() if side in point.memory]
        scales = [point.scale for point in points]
        whole = [point.memory[side].peak_bytes / 1e6 for point in points]
        own = [point.memory[side].peak_own_bytes / 1e6 for point in points]
        axes.plot(scales, whole, color=COLOURS[side], marker=MARKERS[side], markersize=5, linewidth=1.4)
        axes.plot(scales, own, color=COLOURS[side], marker=MARKERS[side], markersize=3, linewidth=1.2, linestyle=":")
    axes.set_title(f"{outcome.name}: peak memory")
    axes.set_ylabel("MB resident")
    _scale_axis(axes, outcome)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,.0f}"))


def _scale_axis(axes: Axes, outcome: Outcome) -> None:
    first = outcome.grown()[0]
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.85, 19)
    axes.set_xticks(growth.SCALES, [f"{scale}×" for scale in growth.SCALES])
    axes.xaxis.set_minor_locator(NullLocator())
    size = f", {first.scale}× is {first.amount[0]:,} {first.amount[1]}" if first.amount else ""
    axes.set_xlabel(f"data{size}")
