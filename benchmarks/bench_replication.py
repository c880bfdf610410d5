"""Replication beside RocketMQ's own, and how long a broker is without a master.

`sync`      Sends of RocketMQ's Producer, 64 threads, to a master that acknowledges what its slave has, against
            RocketMQ's pair.
`async`     The same to a master with one asynchronous slave, against one without; also RocketMQ's. All processes share
            the machine; and once more with the slave on a processor of its own (`own_core`), as on another machine.
`lag`       From a message's acknowledgement to the slave's queue, 1 KiB, at half of the rate that the slower of both
            masters takes: RocketMQ's p99 against ours.
`failover`  What is allowed without a master (lease and 2 s; 2 s by command) against the longest time measured, between
            two acknowledgements of one producer. `--rounds` is how often.
`takeover`  5 s, against the time from the promotion of an empty machine to its first acknowledged send, after a master
            with `--size` of messages in its log and in the tier was lost. On the disk.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import broker_side, failover_side, harness, official_load, replication_side, store_side
from benchmarks.broker_side import THREADS, TOPIC, Loaded
from benchmarks.harness import GIB, JavaBench, Options, Side
from benchmarks.replication_side import BODY_BYTES, Pair
from benchmarks.report import Report, Round, cpu_rate, median_rate

NAME = "replication"
SIZES = (128, BODY_BYTES)
LAG_S = 8.0
BYTES_PER_MESSAGE = 16_384
"""Of --size: 1 GiB means 65,536 messages in a round."""


@dataclass(slots=True)
class Work:
    """What a part needs to know."""

    made: Report
    options: Options
    jars: Any
    messages: int


def _sender(side: Loaded, messages: int, size: int = BODY_BYTES) -> Side:
    job = {"kind": "send", "topic": TOPIC, "threads": THREADS, "bytes": size, "messages": messages}
    return lambda: side.round(**job)


def _measure(work: Work, sides: dict[str, Side]) -> dict[str, list[Round]]:
    measured = harness.alternate(sides, work.options.rounds, work.options.warmup)
    work.made.add(measured)
    return measured


def sync(work: Work, place: Path) -> None:
    with ExitStack() as running:
        pairs: dict[str, Pair] = {
            name: running.enter_context(pair(work.jars, place, **replication_side.SYNC))
            for name, pair in replication_side.PAIRS.items()
        }
        for size in SIZES:
            sides = {f"sync_{size}_{name}": _sender(pair.master, work.messages, size) for name, pair in pairs.items()}
            measured = _measure(work, sides)
            ours, theirs = (measured[f"sync_{size}_{name}"] for name in ("tiermq", "rocketmq"))
            work.made.compare(f"sync_{size}_vs_rocketmq", ours, theirs)


def asynchronous(work: Work, place: Path) -> None:
    for name, pair_of in replication_side.PAIRS.items():
        with ExitStack() as running:
            (place / "alone").mkdir(exist_ok=True)
            alone = running.enter_context(replication_side.ALONE[name](work.jars, place / "alone"))
            pair = running.enter_context(pair_of(work.jars, place))
            for suffix, own_core in (("", False), ("_own_core", True)):
                sides = {
                    f"async_{name}_alone{suffix}": _sender(alone, work.messages),
                    f"async_{name}_with_slave{suffix}": _sender(pair.master, work.messages),
                }
                with replication_side.slave_apart(pair) if own_core else nullcontext():
                    without, with_slave = _measure(work, sides).values()
                ratio = f"send_with_slave_vs_alone_{name}{suffix}"
                work.made.ratios[ratio] = round(median_rate(with_slave) / median_rate(without), 4)
                work.made.cpu_ratios[ratio] = round(cpu_rate(with_slave) / cpu_rate(without), 4)


def lag(work: Work, place: Path) -> None:
    with ExitStack() as running:
        pairs = {name: running.enter_context(of(work.jars, place)) for name, of in replication_side.PAIRS.items()}
        sides = {f"lag_send_{name}": _sender(pair.master, work.messages) for name, pair in pairs.items()}
        measured = _measure(work, sides)
        rate = min(map(median_rate, measured.values())) / 2
        found: dict[str, list[replication_side.Lag]] = {name: [] for name in pairs}
        for number in range(work.options.warmup + work.options.rounds):
            for name, pair in pairs.items():
                seen = replication_side.measure_lag(pair, rate, LAG_S)
                if number >= work.options.warmup:
                    found[name].append(seen)
    p99 = {name: statistics.median(each.quantile(0.99) for each in lags) for name, lags in found.items()}
    for name, lags in found.items():
        for reported, share in (("p50", 0.5), ("p99", 0.99), ("most", 1.0)):
            work.made.rates[f"lag_{name}_{reported}_ms"] = round(statistics.median(e.quantile(share) for e in lags), 3)
        work.made.rates[f"lag_{name}_sends_a_second"] = round(statistics.median(each.rate for each in lags))
    work.made.ratios["lag_p99_rocketmq_vs_tiermq"] = round(p99["rocketmq"] / p99["tiermq"], 4)


def failover(work: Work, place: Path) -> None:
    measured = failover_side.measure_failover(place, work.options.rounds)
    failover_side.add_failover_to(work.made, measured)


def takeover(work: Work, place: Path) -> None:
    measured = failover_side.measure_takeover(place, work.options.size, work.options.rounds)
    failover_side.add_takeover_to(work.made, measured)


PARTS: dict[str, Callable[[Work, Path], None]] = {
    "sync": sync,
    "async": asynchronous,
    "lag": lag,
    "failover": failover,
    "takeover": takeover,
}
MEASURED_WITH_JAVA = frozenset({"sync", "async", "lag"})


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME, tuple(PARTS)).parse_args(argv))
    wanted = options.only or frozenset(PARTS)
    made = Report(NAME)
    jars = None
    if wanted & MEASURED_WITH_JAVA:
        jars = broker_side.distribution()
        made.environment |= {"rocketmq": jars.version, "load": official_load.describe(jars)}
    work = Work(made, options, jars, max(1_000, options.size // BYTES_PER_MESSAGE))
    failed = {}
    with harness.work_directory(options.directory, 8 * GIB) as directory:
        for name, part in PARTS.items():
            if name not in wanted:
                continue
            with harness.part_directory(directory) as place:
                try:
                    part(work, place)
                except (RuntimeError, AssertionError) as error:  # Other parts have taken their minutes, too.
                    failed[name] = str(error)
                    print(f"{name} was not measured: {error}", file=sys.stderr, flush=True)
        result = harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())
        return result | {"not_measured": failed}


if __name__ == "__main__":
    harness.main(run)
