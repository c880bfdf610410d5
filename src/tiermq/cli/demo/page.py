"""The demo's page: one self-contained HTML file with two pictures, the steps, the SQL result and the checks."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from html import escape

from tiermq import __version__
from tiermq.cli.demo.account import Account, Timeline, rate, rates, seconds, size
from tiermq.cli.demo.drawing import SERIES, chart, flow
from tiermq.cli.demo.engine import SQL

TONES = {
    "put": ("#2a78d6", "#4b97f0"),
    "copy": ("#12966a", "#2bb98a"),
    "read": ("#d98a00", "#e0a030"),
    "sql": ("#5b4bc4", "#9a8ff0"),
    "export": ("#d6453f", "#ef7a72"),
}
"""The colours of each series, on light and dark screens."""


def _variables(shade: int) -> str:
    return "".join(f"--{name}:{tones[shade]};" for name, tones in TONES.items())


def _tones() -> str:
    return "".join(
        f".dot.{name},.bar.{name}{{background:var(--{name})}}.fill.{name},.area.{name},.under.{name}"
        f"{{fill:var(--{name})}}.line.{name},.way.{name}{{stroke:var(--{name})}}text.end.{name}{{fill:var(--{name})}}"
        for name in TONES
    )


STYLE = (
    ":root{color-scheme:light dark;--page:#f7f7f5;--card:#fff;--ink:#16181d;--soft:#5d636f;--faint:#8b919c;"
    "--line:#e4e4df;--band:#00000006;--band2:#0000000d;" + _variables(0) + "}"
    "@media(prefers-color-scheme:dark){:root{--page:#111317;--card:#191c22;--ink:#eceef2;--soft:#a7adb9;--faint:#7d8490;"
    "--line:#2b2f38;--band:#ffffff05;--band2:#ffffff0c;" + _variables(1) + "}}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 ui-sans-serif,system-ui,-apple-system,"Segoe UI",
Inter,Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-font-smoothing:antialiased}
main{max-width:1180px;margin:0 auto;padding:56px 28px 40px}
.eyebrow{margin:0 0 10px;color:var(--soft);font-size:14px;font-weight:600;letter-spacing:.02em}
h1{margin:0;max-width:22em;font-size:clamp(28px,4vw,44px);line-height:1.12;letter-spacing:-.022em;font-weight:700;
text-wrap:balance}
.lead{max-width:46em;margin:16px 0 0;color:var(--soft);font-size:17px}
h2{margin:56px 0 4px;font-size:20px;letter-spacing:-.01em}
.about{color:var(--soft);font-size:14.5px;min-height:22px}
figure{margin:14px 0 0;padding:22px 24px;background:var(--card);border:1px solid var(--line);border-radius:16px;
overflow-x:auto}
svg{display:block;width:100%;min-width:860px;height:auto;font-family:inherit;overflow:visible}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:1px;margin-top:36px;overflow:hidden;
background:var(--line);border:1px solid var(--line);border-radius:16px}
.tile{padding:16px 18px 17px;background:var(--card);display:grid;grid-template-columns:auto 1fr;align-items:center;
column-gap:8px;align-content:start}
.tile b{font-size:13px;font-weight:600;color:var(--soft)}
.tile strong{grid-column:1/3;margin-top:6px;font-size:25px;line-height:1.2;letter-spacing:-.02em;font-weight:650;
font-variant-numeric:tabular-nums}
.tile span{grid-column:1/3;color:var(--faint);font-size:13px;line-height:1.4;margin-top:2px}
.dot{display:inline-block;width:9px;height:9px;border-radius:3px}
.key{display:inline-flex;align-items:center;gap:7px;margin-right:20px}
text{fill:var(--ink);font-variant-numeric:tabular-nums}
text.name{font-size:16px;font-weight:650;letter-spacing:-.01em}
text.small,text.note{font-size:12.5px;fill:var(--soft)}
text.mid,text.big{text-anchor:middle}
text.big{font-size:14.5px;font-weight:650}
text.tick{font-size:11.5px;fill:var(--faint)}
text.panel{font-size:13px;font-weight:650}
text.end{font-size:12.5px;font-weight:650}
text.number{font-size:11.5px;font-weight:650;text-anchor:middle;fill:var(--soft)}
circle.number{fill:var(--card);stroke:var(--line);stroke-width:1.5}
.card{fill:var(--page);stroke:var(--line);stroke-width:1.5}
.box.absent{opacity:.45}
.way{fill:none;stroke-width:3;stroke-linecap:round}
.way.absent{stroke:var(--line);stroke-dasharray:2 7}
.moving{fill:none;stroke:var(--card);stroke-width:3;stroke-dasharray:3 15;stroke-linecap:butt;opacity:.75}
.band{fill:var(--band)}.band.other{fill:var(--band2)}
.grid{stroke:var(--line);stroke-width:1}
.leader{fill:none;stroke:var(--faint);stroke-width:1;opacity:.7}
.area{opacity:.88}
.under{opacity:.1}
.line{fill:none;stroke-width:2.25;stroke-linejoin:round}
.steps{list-style:none;counter-reset:step;margin:14px 0 0;padding:0;columns:2;column-gap:44px}
.steps li{counter-increment:step;position:relative;padding:0 0 18px 42px;break-inside:avoid}
.steps li:before{content:counter(step);position:absolute;left:0;top:1px;width:25px;height:25px;border-radius:50%;
border:1.5px solid var(--line);background:var(--card);color:var(--soft);font-size:12.5px;font-weight:650;
display:grid;place-items:center}
.steps div{display:flex;justify-content:space-between;gap:12px;border-bottom:1px solid var(--line);padding-bottom:3px}
.steps time{color:var(--faint);font-variant-numeric:tabular-nums;white-space:nowrap}
.steps p{margin:7px 0 0;color:var(--soft);font-size:14.5px;overflow-wrap:anywhere}
.two{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:20px;margin-top:14px;align-items:start}
pre,.scroll{margin:0;background:var(--card);border:1px solid var(--line);border-radius:14px;overflow-x:auto}
section>.scroll{margin-top:14px}
pre{padding:18px 20px;font-size:12px;line-height:1.65;white-space:pre-wrap}
code{font-family:ui-monospace,"SF Mono","Cascadia Mono",Menlo,Consolas,monospace}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:9px 14px;text-align:left;border-bottom:1px solid var(--line);white-space:nowrap}
tbody tr:last-child td{border-bottom:0}
th{font-size:12.5px;font-weight:600;color:var(--faint)}
.n{text-align:right}
td code{font-size:12.5px;color:var(--soft)}
.barcell{width:18%;min-width:48px;padding-left:0}
.bar{display:block;height:8px;border-radius:0 4px 4px 0;min-width:2px}
.ok{color:var(--copy);font-weight:600}.ok:before{content:"✓ "}
.bad{color:var(--export);font-weight:600}.bad:before{content:"✗ "}
footer{margin-top:56px;padding-top:18px;border-top:1px solid var(--line);color:var(--faint);font-size:13px;
overflow-wrap:anywhere}
@media(prefers-reduced-motion:no-preference){.moving{animation:way 1.6s linear infinite}
@keyframes way{to{stroke-dashoffset:-36}}}
.proof tr td:last-child{padding-left:0}
.why{margin:14px 0 0;padding:0 0 0 18px;color:var(--soft);font-size:14.5px}
@media(max-width:820px){.steps{columns:1}.two{grid-template-columns:minmax(0,1fr)}main{padding:32px 16px}}
/* A phone: what was counted folds, so that its result is on the screen; pictures are for wider ones, and scroll. */
@media(max-width:560px){h2{margin-top:40px}.tiles{grid-template-columns:1fr 1fr}.tile{padding:13px 14px}
.tile strong{font-size:20px}figure{padding:14px}
.tile:last-child:nth-child(odd){grid-column:1/3}th,td{padding:8px 6px;font-size:13px}td:first-child,th:first-child
{white-space:normal;padding-left:12px}td code{font-size:11.5px}.barcell{display:none}}
""" + _tones()
)


BUCKETS = 240


def page(account: Account, timeline: Timeline) -> str:
    """The whole page."""
    bucket_s = max(0.1, account.took_s / BUCKETS)
    lines = rates(timeline, bucket_s, account.record_bytes)
    evicted = f"{account.log_files_evicted} files evicted on proof" if account.log_files_evicted else ""
    picture = chart(timeline.steps, lines, bucket_s, timeline.samples, evicted)
    sections = [
        _header(account),
        _tiles(account),
        _figure("The way", "What went from where to where, and how fast.", flow(account)),
        _figure("The time", _legend(lines.keys()), picture),
        _steps(account),
        _sql(account),
        _proof(account),
        _notes(account),
        _footer(account),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>TierMQ demo</title><style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _header(account: Account) -> str:
    spark = account.without_spark is None
    by = "Spark" if spark else "a job"
    ways = ["over the wire by offset", "by time", "by key", *(["by SQL", "from an exported table"] if spark else [])]
    return (
        "<header><p class=eyebrow>TierMQ · the main job, end to end</p>"
        f"<h1>{account.messages:,} messages went the whole way. Every one came back.</h1>"
        f"<p class=lead>In {seconds(account.took_s)} on this machine: sent by several producers to a broker that was "
        f"killed in the middle and recovered, copied to the tier by {by}, evicted locally on "
        f"proof, read {', '.join(ways)}, and once more after the disk was lost.</p></header>"
    )


def _tiles(account: Account) -> str:
    copy_s = account.fact("copy", "copy_s") or 1
    tiles = [
        ("copy", "Compared", _agreement(account), "with what was sent, by count and checksum"),
        ("put", "Sent", rate(account.fact("recover", "messages_per_s"), 1), "messages, answered once on disk"),
        ("export", "Recovered", seconds(account.fact("recover", "recovery_s")), "after kill -9, until it served again"),
        ("copy", "Copied", f"{size(account.fact('copy', 'bytes') / copy_s)}/s", "to the tier"),
        (
            "put",
            "Local disk",
            f"{size(account.local_bytes_after)}",
            f"of {size(account.local_bytes_before)}, after eviction on proof",
        ),
        ("read", "Read", rate(account.fact("read", "reads_per_s"), 1), "messages over the wire, hot and cold"),
    ]
    if account.has("sql"):
        tiles.append(("sql", "SQL", seconds(account.fact("sql", "query_s")), f"over {account.messages:,} messages"))
    else:
        tiles.append(("copy", "Restored", seconds(account.fact("restore", "restore_s")), "from the tier alone"))
    cells = "".join(
        f'<div class=tile><i class="dot {tone}"></i><b>{name}</b><strong>{escape(value)}</strong>'
        f"<span>{escape(about)}</span></div>"
        for tone, name, value, about in tiles
    )
    return f"<section class=tiles>{cells}</section>"


def _figure(title: str, about: str, picture: str) -> str:
    return f"<section><h2>{title}</h2><div class=about>{about}</div><figure>{picture}</figure></section>"


def _legend(shown: Sequence[str] | object) -> str:
    names = [name for name in SERIES if name in shown]  # type: ignore[operator]
    return "".join(f'<span class=key><i class="dot {name}"></i>{SERIES[name]}</span>' for name in names)


def _steps(account: Account) -> str:
    items = "".join(
        f"<li><div><b>{escape(step.title)}</b><time>{seconds(step.took_s)}</time></div>"
        f"<p>{'<br>'.join(escape(line) for line in step.lines)}</p></li>"
        for step in account.steps
    )
    return f"<section><h2>What happened</h2><ol class=steps>{items}</ol></section>"


def _sql(account: Account) -> str:
    if not account.sql:
        return ""
    most = max(row.messages for row in account.sql)
    rows = "".join(
        f"<tr><td>{escape(row.tags)}<td>{escape(row.tier)}<td class=n>{row.messages:,}"
        f'<td class=barcell><i class="bar {"put" if row.tier == "hot" else "copy"}" '
        f'style="width:{100 * row.messages / most:.1f}%"></i><td class=n>{row.cents / 100:,.2f}'
        f"<td class=n><code>{row.checksum:x}</code></tr>"
        for row in account.sql
    )
    return (
        "<section><h2>By SQL, hot and cold as one table</h2><div class=two>"
        f"<pre><code>{escape(SQL)}</code></pre>"
        "<div class=scroll><table><thead><tr><th>tags<th>tier<th class=n>messages<th><th class=n>amount"
        f"<th class=n>checksum</tr></thead><tbody>{rows}</tbody></table></div></div></section>"
    )


def _proof(account: Account) -> str:
    rows = "".join(
        f"<tr><td>{escape(check.by)}<td class=n>{check.count:,}<td class=n><code>{check.checksum:x}</code>"
        f"<td>{'<span class=ok>agrees</span>' if check.agrees else '<span class=bad>differs</span>'}</tr>"
        for check in account.checks
    )
    return (
        "<section><h2>The proof</h2><div class=about>Every body compared with what was sent, counted, and its CRC-32 "
        "added up. A sum does not care who reads in which order.</div><div class=scroll><table class=proof><thead><tr>"
        f"<th>counted<th class=n>messages<th class=n>checksum<th></tr></thead><tbody>{rows}</tbody></table></div>"
        "</section>"
    )


def _agreement(account: Account) -> str:
    agreeing = sum(check.agrees for check in account.checks)
    return f"{agreeing} of {len(account.checks)} agree"


def _notes(account: Account) -> str:
    """Why numbers of the page that look alike are not the same."""
    notes = [
        f"{check.count:,} {check.by}: not all {account.messages:,}, because the others were sent later."
        for check in account.checks
        if check.agrees and check.count != account.messages
    ]
    first, second = account.fact("put", "messages_per_s"), account.fact("recover", "messages_per_s")
    if first and rate(first, 1) != rate(second, 1):
        notes.append(
            f"Sent at {rate(second, 1)} after the restart, at {rate(first, 1)} before the kill: producers, broker and "
            "their caches were cold then."
        )
    sent_bytes = account.messages * account.record_bytes
    if size(account.tier_bytes) != size(sent_bytes):
        notes.append(
            f"{size(sent_bytes)} of records are {size(account.tier_bytes)} in the tier, with their queues and their "
            "key index"
            + (f", and {size(account.table_bytes)} as a table, which is compressed." if account.table_bytes else ".")
        )
    if size(account.local_bytes_before) != size(sent_bytes):
        notes.append(
            f"{size(account.local_bytes_before)} on the local disk, for its files have queues and index, too, and are "
            "reserved before they are full."
        )
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<section><h2>Why some numbers differ</h2><ul class=why>{items}</ul></section>"


def _footer(account: Account) -> str:
    facts = [
        f"TierMQ {__version__}, {account.kernel} kernel",
        account.engine,
        f"Python {platform.python_version()} on {platform.system()}, {os.cpu_count()} cores",
        f"tier {account.tier}",
        time.strftime("%Y-%m-%d %H:%M"),
    ]
    return f"<footer>{' · '.join(escape(fact) for fact in facts)}</footer>"
