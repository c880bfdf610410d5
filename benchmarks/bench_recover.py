"""Recovery: walk a whole log file and check the CRC of every body, against the lean Java loop."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from benchmarks import harness, store_side, workload
from benchmarks.harness import JavaBench, Side
from benchmarks.report import Report

NAME = "recover"


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME).parse_args(argv))
    made = Report(NAME)
    sides: dict[str, Side] = {}
    with harness.pinned(options.core), harness.work_directory(options.directory, 2 * options.size) as directory:
        java = JavaBench(options.java)
        with ExitStack() as stack:
            log = store_side.log_file(directory)
            log.parent.mkdir()
            count = workload.write_log(log, options.size, varied=True)
            peer = java.start(stack, "RecoverLoop", log=log)
            if peer is not None:
                sides["java_recover"] = harness.warmed(peer.run, options.java_warmup_seconds)
            if options.tiermq:
                sides["recover"] = stack.enter_context(store_side.recovery_walk(log, options.size, count))
            measured = harness.alternate(sides, options.rounds, options.warmup)
        made.add(measured)
        if len(sides) == 2:
            made.compare("recover_vs_java", measured["recover"], measured["java_recover"])
        return harness.finish(made, options, directory, java, store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
