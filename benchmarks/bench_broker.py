"""RocketMQ's broker and ours under the load of RocketMQ's official programs: sends, batches, a backlog drained.

Both run all the time and take turns; what one of them does not need, the other and the client may use, as on a machine
of their own. Nothing is pinned. The load ends with an error at the first message that fails.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from typing import Any

from benchmarks import broker_side, harness, official_load, store_side
from benchmarks.broker_side import BACKLOG_TOPIC, BATCH, BATCH_TOPIC, CONSUMER_THREADS, THREADS, TOPIC, Loaded
from benchmarks.harness import GIB, JavaBench, Options, Side
from benchmarks.report import Report, Round, cpu_rate, median_rate

NAME = "broker"
PARTS = ("send", "batch", "consume", "cold", "idle")
BYTES_PER_MESSAGE = 4096  # Of --size: 1 GiB means 262,144 messages in a round.
SIZES = (128, 1024)
IDLE_CONNECTIONS = 10_000
COLD_ALONE_S = 2.0
COLD_FACTOR = 4
"""A new client is compiled while it begins, and has less room for it beside a reader that nothing holds back yet."""
_numbers = itertools.count(1)


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME, PARTS).parse_args(argv))
    wanted = options.only or frozenset(PARTS)
    messages = max(1_000, options.size // BYTES_PER_MESSAGE) // BATCH * BATCH
    made = Report(NAME)
    jars = broker_side.distribution()
    made.environment |= {
        "messages": messages, "threads": THREADS, "queues": broker_side.QUEUES, "rocketmq": jars.version,
        "load": official_load.describe(jars),
    }  # fmt: skip
    with harness.work_directory(options.directory, 8 * GIB) as directory:
        with harness.part_directory(directory) as place, contextlib.ExitStack() as running:
            if wanted & {"send", "batch", "consume", "idle"}:
                sides = [running.enter_context(broker_side.tiermq(jars, place))]
                if options.java and wanted & {"send", "batch", "consume"}:
                    sides.append(running.enter_context(broker_side.rocketmq(jars, place)))
                _measure(made, options, sides, messages, wanted)
        if "cold" in wanted:
            with harness.part_directory(directory) as place:
                _measure_cold(made, options, jars, place, messages)
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


def _measure(made: Report, options: Options, sides: list[Loaded], messages: int, wanted: frozenset[str]) -> None:
    if "send" in wanted:
        for size in SIZES:
            job = {"kind": "send", "topic": TOPIC, "threads": THREADS, "bytes": size, "messages": messages}
            _compare(made, options, f"send_{size}", {side.name: _sender(side, job) for side in sides})
    if "batch" in wanted:
        job = {"kind": "batch", "topic": BATCH_TOPIC, "threads": THREADS, "bytes": 128, "batch": BATCH}
        jobs = {side.name: _sender(side, {**job, "messages": messages * 4}) for side in sides}
        _compare(made, options, "batch", jobs)
    if "consume" in wanted:
        _compare(made, options, "consume", {side.name: _drainer(side, messages) for side in sides})
    if "idle" in wanted:
        held = broker_side.hold_idle(sides[0].port, IDLE_CONNECTIONS)
        made.ratios["idle_connections_vs_10000"] = held / IDLE_CONNECTIONS


def _sender(side: Loaded, job: dict[str, Any]) -> Side:
    return lambda: side.round(**job)


def _drainer(side: Loaded, messages: int) -> Side:
    """Each round is a group of its own that reads a backlog from its beginning; the backlog is made once."""
    side.load(kind="send", topic=BACKLOG_TOPIC, threads=THREADS, bytes=128, messages=messages)
    job = {"kind": "consume", "topic": BACKLOG_TOPIC, "threads": CONSUMER_THREADS, "messages": messages}
    return lambda: side.round(**job, group=f"drainers-{next(_numbers)}")


def _compare(made: Report, options: Options, work: str, sides: dict[str, Side]) -> None:
    measured = harness.alternate(sides, options.rounds, options.warmup)
    made.add({f"{work}_{name}": rounds for name, rounds in measured.items()})
    for name, rounds in measured.items():
        made.rates[f"{work}_{name}_cpu_seconds_per_million"] = round(1e6 / cpu_rate(rounds), 2)
    if "rocketmq" in measured:
        made.compare(f"{work}_vs_rocketmq", measured["tiermq"], measured["rocketmq"])
        ratio = cpu_rate(measured["tiermq"]) / cpu_rate(measured["rocketmq"])
        made.ratios[f"{work}_cpu_vs_rocketmq"] = round(ratio, 4)


def _measure_cold(made: Report, options: Options, jars: Any, place: Any, messages: int) -> None:
    """Producers with a consumer beside them that reads history from the tier, against producers alone."""
    tier = broker_side.make_history(place, messages)
    job = {"kind": "send", "topic": TOPIC, "threads": THREADS, "bytes": 1024, "messages": COLD_FACTOR * messages}
    words = ("--tier", tier, "--metrics-port", "0")
    with broker_side.tiermq(jars, place, *words, tiered_storage_level="FORCE") as side:
        cold_rates: list[float] = []

        def beside_a_cold_consumer() -> Round:
            with broker_side.cold_consumer(side.name_server):
                before, began_s = side.cold_messages(), time.monotonic()
                done = side.round(**job)
                cold_rates.append((side.cold_messages() - before) / (time.monotonic() - began_s))
                return done

        made.rates["cold_alone_messages_per_second"] = round(broker_side.cold_rate(side, COLD_ALONE_S), 1)
        sides: dict[str, Side] = {"hot_alone": _sender(side, job), "hot_with_cold": beside_a_cold_consumer}
        measured = harness.alternate(sides, options.rounds, options.warmup)
        made.add(measured)
        alone, beside = measured["hot_alone"], measured["hot_with_cold"]
        made.ratios["hot_with_cold_vs_alone"] = round(median_rate(beside) / median_rate(alone), 4)
        made.rates["cold_beside_hot_messages_per_second"] = round(statistics.median(cold_rates[options.warmup :]), 1)


if __name__ == "__main__":
    harness.main(run)
