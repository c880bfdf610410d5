"""A query of cold messages as typed: `tiermq sql`, against `tiermq pipeline sql --master local[2]`.

A group-by over every message of a topic in a tier (a directory; 1,000,000 messages, quick 100,000). A round is one
process, its start included: the interpreter's, and for Spark the JVM's. Both print the same rows, or it is an error.
Nothing is pinned: both have all cores. `cpu_ratios` say nothing here: the JVM's processor time is not in them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import harness, store_side
from benchmarks.harness import JavaBench, Side
from benchmarks.report import Report, Round
from benchmarks.spark_scan_side import Bodies
from tiermq import Message
from tiermq.pipeline.offload.job import offload
from tiermq.store.local_store import LocalStore

NAME = "sql"
MESSAGES, MESSAGES_QUICK = 1_000_000, 100_000
BATCH = 10_000
QUEUES = 8
QUERY = "select queueId, count(*) as n, max(queueOffset) as newest from orders group by queueId order by queueId"
BROKER = "DefaultCluster/broker-a"
COMMANDS = {"tiermq_sql": ["sql"], "spark_sql": ["pipeline", "sql", "--master", "local[2]"]}


def fill(directory: Path, messages: int) -> str:
    """The URL of a tier that has them."""
    bodies = Bodies()
    with LocalStore.open(directory / "store") as store:
        for first in range(0, messages, BATCH):
            store.put_many(
                Message("orders", bodies.make(number), number % QUEUES, keys=[f"order-{number}"])
                for number in range(first, min(first + BATCH, messages))
            )
        store.dispatch_now()
    tier = (directory / "tier").as_uri()
    offload([f"{directory / 'store'}={BROKER}"], tier, index="later")
    return tier


class Query:
    """One command, and what it must print."""

    def __init__(self, words: list[str], tier: str, messages: int) -> None:
        self._command = [sys.executable, "-m", "tiermq.cli", *words, QUERY, "--tier", tier, "--json"]
        self._messages = messages

    def round(self) -> Round:
        cpu, began = _cpu_of_children(), time.perf_counter()
        done = subprocess.run(self._command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"{' '.join(self._command)} failed:\n{done.stderr[-4000:]}")
        rows = json.loads(done.stdout.splitlines()[-1])["details"]["rows"]
        each = self._messages // QUEUES
        if rows != [[queue, each, each - 1] for queue in range(QUEUES)]:
            raise RuntimeError(f"expected {QUEUES} queues of {each} messages, found {rows}")
        return Round(self._messages, 0, seconds, _cpu_of_children() - cpu)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    parser = harness.parser(NAME)
    parser.add_argument("--messages", type=int, help="in the tier (default 1,000,000, quick 100,000)")
    arguments = parser.parse_args(argv)
    options = harness.options_of(arguments)
    messages = (arguments.messages or (MESSAGES_QUICK if options.quick else MESSAGES)) // QUEUES * QUEUES
    made = Report(NAME)
    with harness.work_directory(options.directory, 2 * 1024 * messages) as directory:
        tier = fill(directory, messages)
        sides: dict[str, Side] = {name: Query(words, tier, messages).round for name, words in COMMANDS.items()}
        measured = harness.alternate(sides, options.rounds, options.warmup)
        made.add(measured)
        made.compare("sql_vs_spark", measured["tiermq_sql"], measured["spark_sql"])
        for name, rounds in measured.items():
            made.rates[f"{name}_median_seconds"] = round(sorted(each.seconds for each in rounds)[len(rounds) // 2], 2)
        made.environment |= {"messages": messages, "query": QUERY}
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
