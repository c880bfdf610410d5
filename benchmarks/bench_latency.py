"""Latency of brokers under an open loop: sends at intended times, a consumer beside, against RocketMQ's broker.

`async`   ASYNC_FLUSH.
`sync`    SYNC_FLUSH, on the disk.
`tier`    A backlog of `--size` (4 GiB) is uploaded into a POSIX tier on the disk meanwhile; a row reports if it was
          in the tier before its last round ended.
`cold`    A consumer reads history from a tier beside; of TierMQ alone.
`topics`  The messages go to 4,000 topics of 4 queues in turn; nothing consumes them.

At 2,000, 5,000 and 10,000 messages a second of 1 KiB (`--rate`), p50, p99, p99.9 and the greatest, of the send and to
the listener. Ratios are RocketMQ's time over ours, so that above 1 is better. `--table` prints rows of Markdown.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import broker_side, harness, latency_side, store_side
from benchmarks.harness import GIB, JavaBench
from benchmarks.latency_side import QUANTILES, WARMUP_MESSAGES, Amounts, Row
from benchmarks.report import Report

NAME = "latency"
RATES = (2_000, 5_000, 10_000)
SECONDS, SECONDS_QUICK = 10.0, 2.0
ROUNDS = 3
TOPICS = 4_000
QUICK_DIVISOR = 16
CPU_RATE, CPU_US_MAX = 2_000, 100
"""What the broker may use for a message at that rate, with a consumer."""
CONDITIONS: dict[str, Callable[[Any, Path, Sequence[int], Amounts], Iterator[Row]]] = {
    "async": partial(latency_side.plain, condition="async", flush="ASYNC_FLUSH"),
    "sync": partial(latency_side.plain, condition="sync", flush="SYNC_FLUSH"),
    "tier": latency_side.tiering,
    "cold": latency_side.cold,
    "topics": latency_side.many_topics,
}
ON_DISK = frozenset({"sync"})
HEAD = (
    "| condition | a second | broker | send p50 | p99 | p99.9 | max | end to end p50 | p99 | p99.9 | max | processor |"
    " tier |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    parser = harness.parser(NAME, tuple(CONDITIONS))
    parser.add_argument("--rate", type=int, action="append", help="messages a second (default 2000, 5000, 10000)")
    parser.add_argument("--seconds", type=float, help="of a round (default 10, quick 2)")
    parser.add_argument("--table", action="store_true", help="print the table's rows while they are measured")
    arguments = parser.parse_args(argv)
    options = harness.options_of(arguments)
    amounts = Amounts(
        arguments.seconds or (SECONDS_QUICK if options.quick else SECONDS),
        arguments.rounds or (1 if options.quick else ROUNDS),
        WARMUP_MESSAGES // (QUICK_DIVISOR if options.quick else 1),
        arguments.size or 4 * GIB // (QUICK_DIVISOR if options.quick else 1),
        TOPICS // (QUICK_DIVISOR if options.quick else 1),
        Path(),
    )
    wanted = options.only or frozenset(CONDITIONS)
    made, rows = Report(NAME), []
    jars = broker_side.distribution()
    made.environment |= {"rocketmq": jars.version, "seconds": amounts.seconds, "backlog_bytes": amounts.beside_bytes}
    print(HEAD if arguments.table else "", file=sys.stderr, flush=True)
    with (
        harness.work_directory(options.directory, 2 * amounts.beside_bytes) as memory,
        harness.work_directory(options.disk_directory or Path(tempfile.gettempdir()), 0) as disk,
    ):
        loads = [os.getloadavg()[0]]
        for name, condition in CONDITIONS.items():
            if name not in wanted:
                continue
            with harness.part_directory(memory) as place, harness.part_directory(disk) as on_disk:
                stores = on_disk if name in ON_DISK else place
                for row in condition(jars, stores, arguments.rate or RATES, replace(amounts, disk=on_disk)):
                    rows.append(row)
                    loads.append(os.getloadavg()[0])
                    print(line_of(row) if arguments.table else row.name, file=sys.stderr, flush=True)
        add_rows_to(made, rows)
        made.environment["load_average_while_measured"] = [round(min(loads), 1), round(max(loads), 1)]
        return harness.finish(made, options, memory, JavaBench(wanted=False), store_side.kernel())


def add_rows_to(made: Report, rows: Iterable[Row]) -> None:
    """Each time, and RocketMQ's over ours where both have one."""
    found = {row.name: row for row in rows}
    for name, row in found.items():
        for kind, times in (("send", row.send), ("end_to_end", row.end_to_end)):
            made.rates |= {f"{name}_{kind}_{quantile}_ms": round(time, 3) for quantile, time in times.items()}
        made.rates[f"{name}_cpu_us"] = round(row.cpu_us, 1)
        if (row.side, row.condition, row.rate) == ("tiermq", "async", CPU_RATE) and row.cpu_us:
            made.ratios[f"cpu_{CPU_US_MAX}_us_vs_used_{CPU_RATE}"] = round(CPU_US_MAX / row.cpu_us, 4)
        theirs = found.get(f"rocketmq_{row.condition}_{row.rate}")
        if row.side == "tiermq" and theirs is not None:
            for quantile in ("p50", "p99", "max"):
                ratio = f"send_{quantile}_{row.condition}_{row.rate}_rocketmq_vs_tiermq"
                made.ratios[ratio] = round(theirs.send[quantile] / row.send[quantile], 4)


def line_of(row: Row) -> str:
    """One row of the published table, in milliseconds, microseconds and megabytes."""
    kinds = (row.send, row.end_to_end or dict.fromkeys(QUANTILES))
    times = ["" if (time := kind[quantile]) is None else f"{time:.2f}" for kind in kinds for quantile in QUANTILES]
    names = {"tiermq": "TierMQ", "rocketmq": "RocketMQ"}
    beside = f"{row.beside_mb:,.0f} MB{', ended' * row.beside_ended}" if row.beside_mb else ""
    cells = [row.condition, f"{row.rate:,}", names[row.side], *times, f"{row.cpu_us:.0f} µs", beside]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    harness.main(run)
