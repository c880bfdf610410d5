"""Figures for people: numbers, sizes, times; and the charts as SVG, in the colours of the style sheet.

A chart is markup: every text in it that is not ours is escaped here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any
from urllib.parse import quote

from tiermq.clock import iso_moment

WIDTH = 1080
LEFT = 76
STRIP, STEP = 20, 30
HEADING = 20
"""The height of a broker's name above its strips, where several brokers have the topic."""
TICKS = 6
LEAST = 2.0
"""The width of the narrowest range, so that it can be seen and clicked."""


def number(value: float | None) -> str:
    """1,234,567; a dash where nothing is known."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) and not value.is_integer() else f"{int(value):,}"


def size(count: float | None) -> str:
    """Bytes in at most eight characters."""
    if count is None:
        return "–"
    value, units = float(count), iter(("B", "kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while value >= 999.95 and unit != "PB":
        value, unit = value / 1000, next(units)
    return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"


def moment(timestamp_ms: int | None) -> str:
    """UTC, to the second; a dash where nothing is known."""
    if timestamp_ms is None or not 0 < timestamp_ms < 253_402_300_800_000:
        return "–"
    return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")


def moment_iso(timestamp_ms: int | None) -> str:
    """UTC as ISO 8601, as every field for a time takes it."""
    return iso_moment(timestamp_ms) if timestamp_ms else ""


def age(timestamp_ms: int | None, now_ms: int) -> str:
    """How long ago, in one unit."""
    if timestamp_ms is None or timestamp_ms <= 0:
        return "–"
    seconds = max(0, now_ms - timestamp_ms) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def money(amount: float | None) -> str:
    """Dollars; small amounts with the digits that show them."""
    if amount is None:
        return "–"
    if amount and abs(amount) < 0.01:
        return f"$ {amount:.6f}"
    return f"$ {amount:,.2f}"


def percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.0%}"


# Charts


def strip_map(topic: str, queues: Sequence[dict[str, Any]], *, by_time: bool = True) -> str:
    """The hot/cold map: a strip for each queue. Ranges without times are drawn at the left, before the first time."""
    known = [ms for queue in queues for span in queue["spans"] for ms in (span["beginMs"], span["endMs"]) if ms]
    is_timed = by_time and len(known) > 1 and max(known) > min(known)
    low, high = (min(known), max(known)) if is_timed else (0, max([queue["maxOffset"] for queue in queues] + [1]))
    room = WIDTH - LEFT - 12
    has_timeless = any(span["beginMs"] is None for queue in queues for span in queue["spans"])
    edge = LEFT + (room * 0.06 if is_timed and has_timeless else 0)
    brokers = list(dict.fromkeys(queue["broker"] for queue in queues))
    heading = HEADING if len(brokers) > 1 else 0
    queues = sorted(queues, key=lambda queue: brokers.index(queue["broker"]))
    height = 14 + STEP * len(queues) + heading * len(brokers) + 26

    def at(value: float) -> float:
        return float(edge + (WIDTH - 12 - edge) * (value - low) / max(1, high - low))

    parts = [
        f'<svg class="map" viewBox="0 0 {WIDTH} {height}" role="group" aria-label="Where {escape(topic)} is stored">',
        *_axis(low, high, height - 26, at, is_timed=is_timed),
    ]
    before = None
    top = 10 - STEP
    for queue in queues:
        top += STEP
        if heading and queue["broker"] != before:
            before = queue["broker"]
            parts.append(f'<text class="tick" x="{LEFT}" y="{top + 13}">{escape(before)}</text>')
            top += heading
        parts.append(
            f'<text class="tick" x="{LEFT - 10}" y="{top + 14}" text-anchor="end">queue {queue["queueId"]}</text>'
        )
        parts.append(f'<rect class="rail" x="{LEFT}" y="{top}" width="{room}" height="{STRIP}" rx="4"/>')
        parts += [_span(topic, queue, span, top, at, edge, is_timed=is_timed) for span in queue["spans"]]
    parts.append("</svg>")
    return "".join(parts)


def _span(
    topic: str,
    queue: dict[str, Any],
    span: dict[str, Any],
    top: int,
    at: Callable[[float], float],
    edge: float,
    *,
    is_timed: bool,
) -> str:
    if is_timed and span["beginMs"] is None:
        begin, end = float(LEFT), edge - 2
    elif is_timed:
        begin, end = at(span["beginMs"]), at(span["endMs"] or span["beginMs"])
    else:
        begin, end = at(span["fromOffset"]), at(span["toOffset"])
    words = f"{span['where']}: queue {queue['queueId']} of {queue['broker']}, {span['messages']:,} messages"
    words += f", offsets {span['fromOffset']:,} to {span['toOffset']:,}"
    if span["beginMs"]:
        words += f", {moment(span['beginMs'])} to {moment(span['endMs'])}"
    if span["detail"]:
        words += f" ({span['detail']})"
    target = (
        f"/topics/{quote(topic, safe='')}/queues/{queue['queueId']}"
        f"?broker={quote(queue['broker'], safe='')}&amp;offset={span['fromOffset']}"
    )
    return (
        f'<a href="{target}"><title>{escape(words)}</title><rect class="where {span["where"]}" x="{begin:.1f}" '
        f'y="{top}" width="{max(end - begin, LEAST):.1f}" height="{STRIP}"/></a>'
    )


def _axis(low: float, high: float, bottom: int, at: Callable[[float], float], *, is_timed: bool) -> list[str]:
    marks = []
    for step in range(TICKS):
        value = low + (high - low) * step / (TICKS - 1)
        anchor = "start" if step == 0 else "end" if step == TICKS - 1 else "middle"
        text = _tick(value, high - low) if is_timed else f"{int(value):,}"
        marks.append(f'<path class="grid" d="M{at(value):.1f} 4V{bottom}"/>')
        marks.append(f'<text class="tick" x="{at(value):.1f}" y="{bottom + 18}" text-anchor="{anchor}">{text}</text>')
    return marks


def _tick(value_ms: float, span_ms: float) -> str:
    text = moment(int(value_ms))
    if span_ms < 120_000:
        return text[11:]
    return text[:10] if span_ms > 20 * 86_400_000 else text[5:16]


def bars(rows: Sequence[tuple[str, float, str]], tone: str = "put") -> str:
    """Horizontal bars: name, value, text. At most a dozen are readable."""
    most = max([value for _, value, _ in rows] + [1e-12])
    height = 28 * len(rows) + 6
    parts = [f'<svg class="bars" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Shares">']
    for row, (name, value, text) in enumerate(rows):
        top = 4 + 28 * row
        length = (WIDTH - 420) * value / most
        parts.append(
            f'<text class="small" x="252" y="{top + 15}" text-anchor="end">{escape(name[:34])}</text>'
            f'<rect class="fill {tone}" x="264" y="{top + 3}" width="{max(length, 1):.1f}" height="16" rx="3"/>'
            f'<text class="small" x="{272 + length:.1f}" y="{top + 15}">{escape(text)}</text>'
        )
    return "".join([*parts, "</svg>"])
