"""Dispatch: every record of a full log file to its consume queue and to the key index.

A store makes queue and index files while it dispatches, so on both sides these files are fresh in every round, and the
log is in memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import harness, store_side, workload
from benchmarks.harness import JavaBench, Options
from benchmarks.report import Report, Round

NAME = "dispatch"
FULL_ROUNDS_MAX = 5  # A round of ours writes a whole log before it is timed.


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME).parse_args(argv))
    made = Report(NAME)
    with harness.pinned(options.core), harness.work_directory(options.directory, 5 * options.size) as directory:
        java = JavaBench(options.java)
        with ExitStack() as stack:
            measured = measure(stack, options, directory, java)
        made.add(measured)
        if len(measured) == 2:
            made.compare("dispatch_vs_java", measured["dispatch"], measured["java_dispatch"])
        return harness.finish(made, options, directory, java, store_side.kernel())


def measure(stack: ExitStack, options: Options, directory: Path, java: JavaBench) -> dict[str, list[Round]]:
    """Alternate whole dispatches; both sides dispatch logs of the same records."""
    sides: dict[str, harness.Side] = {}
    log = directory / "log"
    if java.version is not None:
        workload.write_log(log, options.size, varied=True)
        place = stack.enter_context(harness.part_directory(directory))
        peer = java.start(stack, "DispatchLoop", log=log, dir=place)
        assert peer is not None
        sides["java_dispatch"] = harness.warmed(lambda: peer.run(fresh=1), options.java_warmup_seconds)
    if options.tiermq:
        sides["dispatch"] = lambda: one_dispatch(directory, options.size)
    rounds = options.rounds if not options.tiermq else min(options.rounds, FULL_ROUNDS_MAX)
    return harness.alternate(sides, rounds, 1 if options.tiermq else options.warmup)


def one_dispatch(directory: Path, size: int) -> Round:
    """A fresh store, a full log, and then the timed part: one dispatch of everything."""
    with harness.part_directory(directory) as place, store_side.open_store(place, size) as store:
        return store_side.dispatch_round(store, store_side.fill_log(store, size, varied=True))


if __name__ == "__main__":
    harness.main(run)
