"""An offload of running brokers into a tier, each part against the same work without the wire, or with fewer.

`wire`       All of a store by pulls from a TierMQ broker, and from RocketMQ's, against its own directory; one task at a
             time.
`executors`  The same from a TierMQ broker by two processes that run tasks, against one.
`producer`   Sends of RocketMQ's client to its broker while that is copied (`--rate 2M`), against alone: rate, and p99
             the other way round, so that below 1 is worse.
`freshness`  What is allowed from a message's acknowledgement to its row in SQL (10 s and the settle time, `--trigger
             5s`), against the p99. From the end of the first query on: the start of job and Spark is not in it.
`driver`     Processor time of the driver for each queue, at 10,000 and 100,000 queues against 1,000, 1 is linear; and
             1 GB against its memory. Brokers are simulated. `--queues 100000`: only these numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import harness, offload_driver_side, offload_live_side, offload_wire_side, store_side
from benchmarks.harness import JavaBench
from benchmarks.report import Report

NAME = "offload"
MIB = 1 << 20
SIZE, SIZE_QUICK = 512 * MIB, 64 * MIB
QUEUES, QUEUES_QUICK = (1_000, 10_000, 100_000), (160, 800)
MEMORY_MB = 1_000


@dataclass(slots=True)
class Work:
    """What a part needs to know."""

    made: Report
    size: int
    rounds: int
    warmup: int
    queues: tuple[int, ...]


def wire(work: Work, place: Path) -> None:
    measured = offload_wire_side.measure_wire(place, work.size, rounds=work.rounds, warmup=work.warmup)
    offload_wire_side.add_wire_to(work.made, measured)


def executors(work: Work, place: Path) -> None:
    measured = offload_wire_side.measure_executors(place, work.size, rounds=work.rounds, warmup=work.warmup)
    offload_wire_side.add_executors_to(work.made, measured)


def driver(work: Work, place: Path) -> None:
    found = [offload_driver_side.measure(queues, place) for queues in work.queues]
    costs = []
    for each in found:
        for wave in offload_driver_side.WAVES:
            work.made.rates[f"driver_{each['queues']}_queues_{wave}_cpu_s"] = each[wave]["cpu_s"]
        work.made.rates[f"driver_{each['queues']}_queues_memory_mb"] = each["idle"]["memory_mb"]
        costs.append(each["more"]["cpu_s"] / each["queues"])
    for each, cost in list(zip(found, costs, strict=True))[1:]:
        ratio = f"driver_cost_of_a_queue_{found[0]['queues']}_vs_{each['queues']}"
        work.made.ratios[ratio] = round(costs[0] / cost, 4)
    work.made.ratios["driver_memory_1_gb_vs_used"] = round(MEMORY_MB / found[-1]["idle"]["memory_mb"], 4)


def producer(work: Work, place: Path) -> None:
    measured = offload_live_side.measure_producer(place, rounds=work.rounds, warmup=work.warmup)
    offload_live_side.add_producer_to(work.made, measured)


def freshness(work: Work, place: Path) -> None:
    offload_live_side.add_freshness_to(work.made, offload_live_side.measure_freshness(place))


PARTS: dict[str, Callable[[Work, Path], None]] = {
    "wire": wire,
    "executors": executors,
    "producer": producer,
    "freshness": freshness,
    "driver": driver,
}


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    parser = harness.parser(NAME, tuple(PARTS))
    parser.add_argument("--queues", type=int, action="append", help="of the part driver; may be given several times")
    arguments = parser.parse_args(argv)
    options = harness.options_of(arguments)
    size = arguments.size or (SIZE_QUICK if options.quick else SIZE)
    queues = tuple(arguments.queues or (QUEUES_QUICK if options.quick else QUEUES))
    work = Work(Report(NAME), size, options.rounds, options.warmup, queues)
    wanted = options.only or frozenset(PARTS)
    room = max(offload_wire_side.COPIES * size, max(queues) * offload_driver_side.TIER_BYTES)
    with harness.work_directory(options.directory, room) as directory:
        failed = {}
        for name, part in PARTS.items():
            if name not in wanted:
                continue
            with harness.part_directory(directory) as place:
                try:
                    part(work, place)
                except (RuntimeError, AssertionError) as error:  # Other parts have taken their minutes, too.
                    failed[name] = str(error)
                    print(f"{name} was not measured: {error}", file=sys.stderr, flush=True)
        chosen = replace(options, size=size)
        result = harness.finish(work.made, chosen, directory, JavaBench(wanted=False), store_side.kernel())
        return result | {"not_measured": failed}


if __name__ == "__main__":
    harness.main(run)
