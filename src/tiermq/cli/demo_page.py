"""The demo's page: one HTML file that needs nothing else. Two pictures, what happened, what SQL said, and the proof."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from html import escape

from tiermq import __version__
from tiermq.cli.demo_account import Account, rate, seconds, size
from tiermq.cli.demo_chart import SERIES, chart
from tiermq.cli.demo_engine import SQL
from tiermq.cli.demo_flow import flow
from tiermq.cli.demo_page_style import STYLE
from tiermq.cli.demo_timeline import Timeline, rates

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
        "added up. A sum does not care who reads in which order.</div><div class=scroll><table><thead><tr>"
        f"<th>counted<th class=n>messages<th class=n>checksum<th></tr></thead><tbody>{rows}</tbody></table></div>"
        "</section>"
    )


def _footer(account: Account) -> str:
    facts = [
        f"TierMQ {__version__}, {account.kernel} kernel",
        account.engine,
        f"Python {platform.python_version()} on {platform.system()}, {os.cpu_count()} cores",
        f"tier {account.tier}",
        time.strftime("%Y-%m-%d %H:%M"),
    ]
    return f"<footer>{' · '.join(escape(fact) for fact in facts)}</footer>"
