"""Get: pulls of 32 messages from random queues and offsets, copied into one block of bytes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from benchmarks import harness, store_side, workload
from benchmarks.harness import JavaBench, Side
from benchmarks.report import Report

NAME = "get"
BATCH = 32


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME).parse_args(argv))
    pulls = 20_000 if options.quick else 100_000
    made = Report(NAME)
    sides: dict[str, Side] = {}
    with harness.pinned(options.core), harness.work_directory(options.directory, 3 * options.size) as directory:
        java = JavaBench(options.java)
        with ExitStack() as stack:
            log = directory / "log"
            if options.tiermq:
                store = stack.enter_context(store_side.open_store(directory / "store", options.size))
                waiting = store_side.fill_log(store, options.size, varied=False)
                store_side.dispatch_round(store, waiting)
                sides["get"] = store_side.Gets(store, waiting[0], pulls, BATCH).round
                log = store_side.log_file(directory / "store")  # Both sides read the very same bytes.
            elif java.version is not None:
                workload.write_log(log, options.size, varied=False)
            queues = stack.enter_context(harness.part_directory(directory))
            peer = java.start(stack, "GetLoop", log=log, dir=queues)
            if peer is not None:
                seeds = iter(range(10**9))
                sides["java_get"] = harness.warmed(
                    lambda: peer.run(pulls=pulls, batch=BATCH, seed=next(seeds)), options.java_warmup_seconds
                )
            measured = harness.alternate(sides, options.rounds, options.warmup)
        made.add(measured)
        if len(sides) == 2:
            made.compare("get_vs_java", measured["get"], measured["java_get"])
        return harness.finish(made, options, directory, java, store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
