"""The demo's picture of time: throughput above, bytes on both sides below, the steps as bands behind. Plain SVG.

Colours are classes, which the page's style sheet fills in, so that the picture follows a light or a dark screen. What
lies locally has the colour of sends, what lies in the tier has the colour of copying.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from tiermq.cli.demo_account import seconds, size
from tiermq.cli.demo_timeline import Sample, Step

SERIES = {
    "put": "sent",
    "copy": "copied to the tier",
    "read": "read",
    "sql": "SQL",
    "export": "exported",
}
"""Class and name of each series, in drawing order."""

WIDTH, HEIGHT = 1120, 502
LEFT, RIGHT = 64, 76
TOP_OF_RATES, RATES_HEIGHT = 56, 190
TOP_OF_BYTES, BYTES_HEIGHT = 298, 176
LABEL_STEP = 24  # Between two numbers of steps.
LETTER_WIDTH = 7.2  # Of a step's title, at most on average; titles are left out where they would touch.
TICKS_MAX = 9


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places: 0 at `origin`, `end` at `origin + length` (which is negative when it goes up)."""

    origin: float
    length: float
    end: float

    def at(self, value: float) -> float:
        return self.origin + self.length * value / self.end


def chart(
    steps: Sequence[Step], rates: dict[str, list[float]], bucket_s: float, samples: Sequence[Sample], evicted: str
) -> str:
    """The picture. `rates` are bytes a second in buckets; `evicted` is said where the local bytes fall."""
    samples = sorted(samples, key=lambda sample: sample.at_s)
    end_s = max([step.end_s for step in steps] + [sample.at_s for sample in samples[-1:]] + [0.1])
    across = Scale(LEFT, WIDTH - LEFT - RIGHT, end_s)
    rate_max = max([value for line in rates.values() for value in line] + [1.0])
    byte_max = max([max(sample.local_bytes, sample.tier_bytes) for sample in samples] + [1])
    up_rates = Scale(TOP_OF_RATES + RATES_HEIGHT, -RATES_HEIGHT, ceiling(rate_max))
    up_bytes = Scale(TOP_OF_BYTES + BYTES_HEIGHT, -BYTES_HEIGHT, ceiling(byte_max))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Throughput and bytes over time">',
        *_bands(steps, across),
        _axis(up_rates, lambda value: f"{size(value)}/s"),
        _axis(up_bytes, size),
        f'<text class="panel" x="0" y="{TOP_OF_RATES - 12}">Rate</text>',
        f'<text class="panel" x="0" y="{TOP_OF_BYTES - 12}">Bytes held</text>',
        *[_area(name, rates[name], bucket_s, across, up_rates) for name in SERIES if name in rates],
        *_held(samples, across, up_bytes),
        *_eviction(steps, samples, across, up_bytes, evicted),
        *_times(across),
        "</svg>",
    ]
    return "\n".join(parts)


def ceiling(value: float) -> float:
    """A little above a value: what divides into four readable parts of a binary unit."""
    unit = 1024.0 ** max(0, math.floor(math.log(max(value, 1.0), 1024)))
    part = value / unit / 4
    power = 10.0 ** math.floor(math.log10(part))
    return (
        next(step for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 20) if step * power >= part * 1.02) * power * 4 * unit
    )


def tick_s(end_s: float) -> float:
    """Seconds between two marks of the time axis."""
    power = 10.0 ** math.floor(math.log10(end_s))
    return next(each for each in (0.1 * power, 0.2 * power, 0.5 * power, power, 2 * power) if end_s / each <= TICKS_MAX)


def label_places(centres: Sequence[float], low: float, high: float) -> list[float]:
    """Places near the centres, in order and never closer than a label is wide; from `low` to `high` if they fit."""
    places: list[float] = []
    for centre in centres:
        places.append(max(centre, low, places[-1] + LABEL_STEP if places else low))
    for at in range(len(places) - 1, -1, -1):
        places[at] = min(places[at], high - LABEL_STEP * (len(places) - 1 - at))
    return places


def _bands(steps: Sequence[Step], across: Scale) -> list[str]:
    centres = [across.at((step.begin_s + step.end_s) / 2) for step in steps]
    places = label_places(centres, LEFT + 10, WIDTH - RIGHT - 10)
    top, bottom = TOP_OF_RATES, TOP_OF_BYTES + BYTES_HEIGHT
    parts = []
    for number, (step, place, room) in enumerate(zip(steps, places, rooms(places), strict=True), 1):
        begin, end = across.at(step.begin_s), across.at(step.end_s)
        middle = (begin + end) / 2
        tone = "band" if number % 2 else "band other"
        about = f"{escape(step.title)}, {seconds(step.took_s)}"
        parts.append(
            f'<g><title>{number}. {about}</title><rect class="{tone}" x="{begin:.1f}" y="{top}" '
            f'width="{max(end - begin, 1):.1f}" height="{bottom - top}"/>'
            f'<path class="leader" d="M{place:.1f} 26V32L{middle:.1f} 42V{top}"/>'
            f'<circle class="number" cx="{place:.1f}" cy="15" r="10.5"/>'
            f'<text class="number" x="{place:.1f}" y="19.2">{number}</text>'
            + (
                f'<text class="note" x="{place + 16:.1f}" y="19.5">{escape(step.title)}</text>'
                if fits(step, room)
                else ""
            )
            + "</g>"
        )
    return parts


def rooms(places: Sequence[float]) -> list[float]:
    """From each number's place to where the next number begins, or the picture ends."""
    ends = [*[place - LABEL_STEP / 2 for place in places[1:]], WIDTH]
    return [end - place for place, end in zip(places, ends, strict=False)]


def fits(step: Step, room: float) -> bool:
    """Whether a step's title can stand beside its number."""
    return 16 + LETTER_WIDTH * len(step.title) <= room


def _axis(up: Scale, text: Callable[[float], str]) -> str:
    marks = []
    for quarter in range(5):
        value = up.end * quarter / 4
        at = up.at(value)
        label = text(value) if quarter else "0"
        marks.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        marks.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    return "".join(marks)


def _times(across: Scale) -> list[str]:
    step, parts, at = tick_s(across.end), [], 0.0
    while at <= across.end:
        parts.append(
            f'<text class="tick" x="{across.at(at):.1f}" y="{TOP_OF_BYTES + BYTES_HEIGHT + 20}" '
            f'text-anchor="middle">{at:g} s</text>'
        )
        at += step
    return parts


def _area(name: str, line: Sequence[float], bucket_s: float, across: Scale, up: Scale) -> str:
    """One series: a block for each bucket, joined where they touch."""
    blocks, floor = [], up.at(0)
    for bucket, value in enumerate(line):
        if value > 0:
            begin, end = across.at(bucket * bucket_s), across.at(min((bucket + 1) * bucket_s, across.end))
            blocks.append(f"M{begin:.1f} {floor:.1f}V{up.at(value):.1f}H{end:.1f}V{floor:.1f}Z")
    peak = f"{SERIES[name]}: up to {size(max(line))}/s"
    return f'<path class="area {name}" d="{"".join(blocks)}"><title>{peak}</title></path>'


def _held(samples: Sequence[Sample], across: Scale, up: Scale) -> list[str]:
    parts: list[str] = []
    if not samples:
        return parts
    floor = up.at(0)
    ends = []
    for name, label, values in (
        ("put", "local disk", [sample.local_bytes for sample in samples]),
        ("copy", "tier", [sample.tier_bytes for sample in samples]),
    ):
        points = [(across.at(sample.at_s), up.at(value)) for sample, value in zip(samples, values, strict=True)]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path class="under {name}" d="M{points[0][0]:.1f} {floor:.1f}L{line}V{floor:.1f}Z"/>')
        parts.append(
            f'<path class="line {name}" d="M{line}"><title>{label}: {size(max(values))} at most</title></path>'
        )
        ends.append((points[-1][1], name, label, values[-1]))
    ends.sort()
    gap = max(0.0, 30 - (ends[1][0] - ends[0][0])) / 2
    for at, name, label, value in ((ends[0][0] - gap, *ends[0][1:]), (ends[1][0] + gap, *ends[1][1:])):
        at = min(max(at, TOP_OF_BYTES + 8), floor - 16)
        x = WIDTH - RIGHT + 8
        parts.append(f'<text class="end {name}" x="{x}" y="{at:.1f}">{label}</text>')
        parts.append(f'<text class="tick" x="{x}" y="{at + 15:.1f}">{size(value)}</text>')
    return parts


def _eviction(steps: Sequence[Step], samples: Sequence[Sample], across: Scale, up: Scale, evicted: str) -> list[str]:
    step = next((each for each in steps if each.name == "evict"), None)
    if step is None or not evicted or not samples:
        return []
    after = [sample for sample in samples if sample.at_s >= step.begin_s]
    top = max(sample.local_bytes for sample in after) if after else 0
    x, y, middle = across.at(step.end_s), up.at(top), across.at((step.begin_s + step.end_s) / 2)
    return [
        f'<path class="leader" d="M{middle:.1f} {y - 2:.1f}V{y - 12:.1f}H{x + 6:.1f}"/>',
        f'<text class="note" x="{x + 10:.1f}" y="{y - 8:.1f}">{escape(evicted)}</text>',
    ]
