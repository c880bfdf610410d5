"""Figures as people read them: three digits that count, a unit, and a dash where there is nothing."""

from __future__ import annotations

from benchmarks.compare import ratios
from benchmarks.compare.ratios import Figure, Ratio
from benchmarks.compare.results import Outcome, Point
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, TUNED, Goal, Kind

NOTHING = "–"
NAMES = {TIERMQ: "TierMQ", ROCKETMQ: "RocketMQ", TUNED: "RocketMQ, tuned", LIMIT: "limit"}
UNITS = {
    Kind.RATE: "messages/s",
    Kind.SECONDS: "s",
    Kind.BYTES: "MB",
    Kind.DISK: "B a queue",
    Kind.PERCENT: "% of a processor",
    Kind.CPU: "µs a message",
}
SCALES = {Kind.BYTES: 1e-6, Kind.CPU: 1e6}
"""From a figure of a kind to its unit."""


def digits(value: float) -> str:
    """Three digits that count, in groups of three, never in powers of ten."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 100:
        return f"{rounded:,.0f}"
    return f"{rounded:.1f}" if abs(rounded) >= 10 else f"{rounded:.2f}" if abs(rounded) >= 0.1 else f"{rounded:.2g}"


def value(number: float, kind: Kind) -> str:
    """One figure of a kind, with its unit."""
    if kind is Kind.RATE:
        return f"{digits(number)}/s"
    if kind is Kind.SECONDS and number < 0.1:
        return f"{digits(1e3 * number)} ms"
    return megabytes(number) if kind is Kind.BYTES else f"{digits(number * SCALES.get(kind, 1))} {UNITS[kind]}"


def figure(found: Figure | None, kind: Kind) -> str:
    """A side's median and spread."""
    return NOTHING if found is None else f"{value(found.median, kind)} ± {found.spread:.0%}"


def megabytes(count: float) -> str:
    return f"{digits(count / 1e6)} MB" if count < 1e9 else f"{digits(count / 1e9)} GB"


def ratio(found: Ratio | None) -> str:
    return NOTHING if found is None else digits(found.median)


def ratio_range(found: Ratio | None) -> str:
    return NOTHING if found is None else f"{digits(found.low)} to {digits(found.high)}"


def plain(number: float | None) -> str:
    return NOTHING if number is None else digits(number)


def goal(wanted: Goal | None, kind: Kind) -> str:
    if wanted is None:
        return ""
    if wanted.own:
        return f"≤ {value(wanted.own, kind)}"
    return f"{'≤' if wanted.at_most else '≥'} {wanted.ratio:g}"


def verdict(outcome: Outcome) -> str:
    """Whether the goal is met, and in how many pairs of rounds where not in all or none of them."""
    met = ratios.is_met(outcome)
    if met is None:
        return ""
    count, of = ratios.pairs_that_meet(outcome)
    pairs = "" if count == (of if met else 0) else f", in {count} of {of} pairs"
    return f"{'yes' if met else '**no**'}{pairs}"


def memory(point: Point, side: str) -> str:
    """Peak, settled, and the peak of what is its own."""
    found = point.memory.get(side)
    if found is None:
        return NOTHING
    return (
        f"{megabytes(found.peak_bytes)}, {megabytes(found.settled_bytes)} settled, "
        f"{megabytes(found.peak_own_bytes)} own"
    )


def duration(seconds: float) -> str:
    """Hours, minutes and seconds as a clock shows them."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
