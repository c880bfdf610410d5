"""The demo's pictures as SVG: `chart` shows throughput over time, `flow` the path of messages.

    chart   throughput above, bytes on both sides below, the steps as bands behind
    flow    producers, broker, tier, Spark, table, with what went from one to the next; clients on the left

Colours are classes, defined by the page's style sheet, for light and dark screens. What
is stored locally has the colour of sends, what is in the tier has the colour of copying.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from tiermq.cli.demo.account import Account, Sample, Step, rate, seconds, size
from tiermq.cli.demo.orders import PRODUCERS, QUEUES

SERIES = {
    "put": "sent",
    "copy": "copied to the tier",
    "read": "read",
    "sql": "SQL",
    "export": "exported",
}
"""Class and name of each series, in drawing order."""

WIDTH, CHART_HEIGHT = 1120, 502
LEFT, RIGHT = 64, 76
TOP_OF_RATES, RATES_HEIGHT = 56, 190
TOP_OF_BYTES, BYTES_HEIGHT = 298, 176
LABEL_STEP = 24  # Between two numbers of steps.
LETTER_WIDTH = 7.2  # Of a step's title, at most on average; titles are left out where they would touch.
TICKS_MAX = 9


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to coordinates: 0 at `origin`, `end` at `origin + length` (which is negative when it goes up)."""

    origin: float
    length: float
    end: float

    def at(self, value: float) -> float:
        return self.origin + self.length * value / self.end


def chart(
    steps: Sequence[Step], rates: dict[str, list[float]], bucket_s: float, samples: Sequence[Sample], evicted: str
) -> str:
    """The picture. `rates` are bytes a second in buckets; `evicted` labels where the local bytes fall."""
    samples = sorted(samples, key=lambda sample: sample.at_s)
    end_s = max([step.end_s for step in steps] + [sample.at_s for sample in samples[-1:]] + [0.1])
    across = Scale(LEFT, WIDTH - LEFT - RIGHT, end_s)
    rate_max = max([value for line in rates.values() for value in line] + [1.0])
    byte_max = max([max(sample.local_bytes, sample.tier_bytes) for sample in samples] + [1])
    up_rates = Scale(TOP_OF_RATES + RATES_HEIGHT, -RATES_HEIGHT, ceiling(rate_max))
    up_bytes = Scale(TOP_OF_BYTES + BYTES_HEIGHT, -BYTES_HEIGHT, ceiling(byte_max))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {CHART_HEIGHT}" role="img" aria-label="Throughput and bytes over time">',
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
    """Positions near the centres, in order and at least a label apart; from `low` to `high` if they fit."""
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
    """From each number's position to the next number, or the end of the picture."""
    ends = [*[place - LABEL_STEP / 2 for place in places[1:]], WIDTH]
    return [end - place for place, end in zip(places, ends, strict=False)]


def fits(step: Step, room: float) -> bool:
    """Whether a step's title fits beside its number."""
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


FLOW_HEIGHT = 312
BOX_WIDTH, BOX_HEIGHT, BOX_TOP = 146, 96, 70
BOXES = 5
GAP = (WIDTH - 2 - BOXES * BOX_WIDTH) / (BOXES - 1)
MIDDLE = BOX_TOP + BOX_HEIGHT / 2
BELOW = BOX_TOP + BOX_HEIGHT
CONSUMER_TOP = BELOW + 34
CONSUMER_MIDDLE = CONSUMER_TOP + BOX_HEIGHT / 2
CORNER = 14
INSET = 36  # From a box's side to where a line from below meets it.


@dataclass(frozen=True, slots=True)
class Box:
    """A store of messages."""

    tone: str
    name: str
    lines: tuple[str, ...]
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """What moved from one box to the next: two lines above the arrow, one below."""

    tone: str
    above: tuple[str, str]
    below: str
    absent: bool = False


def flow(account: Account) -> str:
    """The picture."""
    boxes, arrows = boxes_of(account), arrows_of(account)
    parts = [f'<svg viewBox="0 0 {WIDTH} {FLOW_HEIGHT}" role="img" aria-label="Message flow">', _MARKERS]
    for number, arrow in enumerate(arrows):
        parts.append(_arrow(arrow, left_of(number) + BOX_WIDTH, left_of(number + 1)))
    parts += [_box(box, left_of(number)) for number, box in enumerate(boxes)]
    parts += _killed(account)
    parts += _consumed(account)
    parts += _restored(account)
    parts.append("</svg>")
    return "\n".join(parts)


def left_of(number: int) -> float:
    return 1 + number * (BOX_WIDTH + GAP)


def boxes_of(account: Account) -> list[Box]:
    kept = from_to(size(account.local_bytes_before), size(account.local_bytes_after))
    freed = f"{account.log_files_evicted} files evicted" if account.log_files_evicted else "nothing evicted"
    where = account.tier.partition("://")[0]
    table = f"{account.table_files} Parquet file{'' if account.table_files == 1 else 's'}"
    no_spark = account.without_spark is not None
    return [
        Box("put", "Producers", (f"{PRODUCERS} clients", "over the wire")),
        Box("put", "Broker", (kept, freed)),
        Box("copy", "Tier", (size(account.tier_bytes), f"{where} · {QUEUES} queues")),
        Box("sql", "Spark", ("not on this machine",) if no_spark else ("hot and cold", "as one table"), no_spark),
        Box("export", "Table", ("needs Spark",) if no_spark else (table, size(account.table_bytes)), no_spark),
    ]


def arrows_of(account: Account) -> list[Arrow]:
    put_bytes = account.messages * account.record_bytes
    copied = account.fact("copy", "copied") + account.fact("rest", "copied")
    copied_bytes = account.fact("copy", "bytes") + account.fact("rest", "bytes")
    copy_s = account.fact("copy", "copy_s")
    sql_rows, sql_s = account.fact("sql", "rows"), account.fact("sql", "query_s")
    rows, export_s = account.fact("export", "rows"), account.fact("export", "export_s")
    no_spark = account.without_spark is not None
    return [
        Arrow("put", (count(account.messages), size(put_bytes)), rate(account.fact("recover", "messages_per_s"), 1)),
        Arrow("copy", (count(copied), size(copied_bytes)), f"{size(account.fact('copy', 'bytes') / (copy_s or 1))}/s"),
        Arrow("sql", (count(sql_rows), "by SQL"), f"in {seconds(sql_s)}", no_spark),
        Arrow("export", (count(rows), size(account.table_bytes)), f"in {seconds(export_s)}", no_spark),
    ]


def from_to(before: str, after: str) -> str:
    """Two sizes, and their unit once if it is the same."""
    number, _, unit = before.partition(" ")
    return f"{number} → {after}" if after.endswith(f" {unit}") else f"{before} → {after}"


def count(messages: float) -> str:
    """Readable message count, short."""
    return f"{messages:,.0f}"


def _box(box: Box, left: float, top: float = BOX_TOP) -> str:
    lines = "".join(
        f'<text class="small" x="{left + 16:.1f}" y="{top + 58 + 18 * number}">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    )
    away = " absent" if box.absent else ""
    return (
        f'<g class="box{away}"><rect class="card" x="{left:.1f}" y="{top}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="12"/><rect class="fill {box.tone}" x="{left + 16:.1f}" y="{top + 16}" '
        f'width="22" height="4" rx="2"/><text class="name" x="{left + 16:.1f}" y="{top + 39}">{box.name}</text>'
        f"{lines}</g>"
    )


def _arrow(arrow: Arrow, begin: float, end: float) -> str:
    centre = (begin + end) / 2
    away = " absent" if arrow.absent else ""
    path = f"M{begin + 7:.1f} {MIDDLE}H{end - 13:.1f}"
    before_its_head = f"M{begin + 7:.1f} {MIDDLE}H{end - 17:.1f}"
    if arrow.absent:
        return f'<path class="way absent" d="{path}"/>'
    return (
        f'<g class="arrow{away}"><path class="way {arrow.tone}" d="{path}" marker-end="url(#head-{arrow.tone})"/>'
        f'<path class="moving" d="{before_its_head}"/>'
        f'<text class="big" x="{centre:.1f}" y="{MIDDLE - 30}">{escape(arrow.above[0])}</text>'
        f'<text class="small mid" x="{centre:.1f}" y="{MIDDLE - 13}">{escape(arrow.above[1])}</text>'
        f'<text class="small mid" x="{centre:.1f}" y="{MIDDLE + 22}">{escape(arrow.below)}</text></g>'
    )


def _killed(account: Account) -> list[str]:
    """Above the broker: the kill and its result."""
    x, took = left_of(1) + BOX_WIDTH / 2, seconds(account.fact("recover", "recovery_s"))
    return [
        f'<path class="leader" d="M{x:.1f} {BOX_TOP - 4}V33"/>',
        f'<circle class="fill export" cx="{x:.1f}" cy="33" r="4"/>',
        f'<text class="small" x="{x + 12:.1f}" y="22">kill -9 after {account.acknowledged:,} acknowledged</text>',
        f'<text class="small" x="{x + 12:.1f}" y="40">serving again in {took}: {account.recovered:,} there</text>',
    ]


def _consumed(account: Account) -> list[str]:
    """Below, from the broker to the left: a client that reads from the first offset."""
    begin, end = left_of(1) + INSET, left_of(0) + BOX_WIDTH
    path = (
        f"M{begin:.1f} {BELOW + 6}V{CONSUMER_MIDDLE - CORNER}"
        f"Q{begin:.1f} {CONSUMER_MIDDLE} {begin - CORNER:.1f} {CONSUMER_MIDDLE}H{end + 13:.1f}"
    )
    centre = (begin + end) / 2
    how_fast = rate(account.fact("read", "reads_per_s"), 1)
    return [
        _box(Box("read", "Consumer", ("from far behind", "over the wire")), left_of(0), CONSUMER_TOP),
        f'<path class="way read" d="{path}" marker-end="url(#head-read)"/><path class="moving" d="{path}"/>',
        f'<text class="big" x="{centre:.1f}" y="{CONSUMER_MIDDLE - 30}">{count(account.fact("read", "read"))}</text>',
        f'<text class="small mid" x="{centre:.1f}" y="{CONSUMER_MIDDLE - 13}">hot and cold</text>',
        f'<text class="small mid" x="{centre:.1f}" y="{CONSUMER_MIDDLE + 22}">{how_fast}</text>',
    ]


def _restored(account: Account) -> list[str]:
    """Below, from the tier back to the broker: its disk was lost and restored."""
    if not account.has("restore"):
        return []
    begin, end = left_of(2) + BOX_WIDTH / 2, left_of(2) - GAP - INSET
    bottom, radius = BELOW + 44, CORNER
    path = (
        f"M{begin:.1f} {BELOW + 6}V{bottom - radius}Q{begin:.1f} {bottom} {begin - radius:.1f} {bottom}"
        f"H{end + radius:.1f}Q{end:.1f} {bottom} {end:.1f} {bottom - radius}V{BELOW + 14}"
    )
    centre = (begin + end) / 2
    lost = f"directory deleted, serving from the tier in {seconds(account.fact('restore', 'restore_s'))}"
    back = (
        f"{account.fact('restore', 'read'):,.0f} read from it alone, {rate(account.fact('restore', 'reads_per_s'), 1)}"
    )
    return [
        f'<path class="way copy" d="{path}" marker-end="url(#head-copy)"/><path class="moving" d="{path}"/>',
        f'<text class="small mid" x="{centre:.1f}" y="{bottom + 22}">{lost}</text>',
        f'<text class="small mid" x="{centre:.1f}" y="{bottom + 40}">{back}</text>',
    ]


_MARKERS = (
    "<defs>"
    + "".join(
        f'<marker id="head-{tone}" viewBox="0 0 10 10" refX="3" refY="5" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="fill {tone}" d="M0 0L10 5L0 10Z"/></marker>'
        for tone in ("put", "copy", "read", "sql", "export")
    )
    + "</defs>"
)
