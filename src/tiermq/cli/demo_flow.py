"""The demo's picture of the way: producers, broker, tier, Spark, table, with what went from one to the next.

Clients are on the left, behind the wire: producers above, the consumer that reads everything back below.

Plain SVG; colours are classes of the page. Arrows move slowly where the reader's screen wants movement.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from tiermq.cli.demo_account import Account, rate, seconds, size
from tiermq.cli.demo_orders import PRODUCERS, QUEUES

WIDTH, HEIGHT = 1120, 312
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
    """A place where messages are."""

    tone: str
    name: str
    lines: tuple[str, ...]
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """What went from one place to the next: two lines above the arrow, one below."""

    tone: str
    above: tuple[str, str]
    below: str
    absent: bool = False


def flow(account: Account) -> str:
    """The picture."""
    boxes, arrows = boxes_of(account), arrows_of(account)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="The way of the messages">', _MARKERS]
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
    """Messages for eyes, short."""
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
    """Above the broker: that it was killed, and what came of it."""
    x, took = left_of(1) + BOX_WIDTH / 2, seconds(account.fact("recover", "recovery_s"))
    return [
        f'<path class="leader" d="M{x:.1f} {BOX_TOP - 4}V33"/>',
        f'<circle class="fill export" cx="{x:.1f}" cy="33" r="4"/>',
        f'<text class="small" x="{x + 12:.1f}" y="22">kill -9 after {account.acknowledged:,} acknowledged</text>',
        f'<text class="small" x="{x + 12:.1f}" y="40">serving again in {took}: {account.recovered:,} there</text>',
    ]


def _consumed(account: Account) -> list[str]:
    """Below, from the broker back to the left: a client that began at the beginning."""
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
    """Below, from the tier back to the broker: its disk was lost, and came back."""
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
