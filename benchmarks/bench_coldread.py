"""Cold read: whole queues in pages of 32, from the local store, from a POSIX tier, from windows in memory, from S3.

`cold_cached_vs_hot` reads windows that are in memory, `cold_posix_vs_hot` fetches them from files that the page cache
has. Both compare with the local store reading the same queues. `cold_s3_vs_ranged_reads` reads from a real S3 server
of this machine, against the plain client getting the same bytes in large concurrent ranges, and is left out where there
is no server. `memory` says what 100 groups at once cost.

This benchmark is not pinned: reading ahead while the reader reads is what a tier is measured by.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import coldread_side, harness, store_side
from benchmarks.harness import JavaBench, Options
from benchmarks.report import Report

NAME = "coldread"
PARTS = ("posix", "s3", "memory")
BATCH = 32
GROUPS = 100
CACHE_BYTES = 64 << 20


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = replace(harness.options_of(harness.parser(NAME, PARTS).parse_args(argv)), core=None)
    made = Report(NAME)
    with harness.work_directory(options.directory, 4 * options.size) as directory:
        with coldread_side.filled_store(directory / "store", options.size) as (store, per_queue):
            for part, measure in (("posix", posix), ("s3", s3), ("memory", memory)):
                if not options.only or part in options.only:
                    with harness.part_directory(directory) as place:
                        measure(made, options, store, per_queue, place)
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


def posix(made: Report, options: Options, store: Any, per_queue: int, place: Path) -> None:
    """The local store against a tier in files, and against windows that were fetched before."""
    queues = len(coldread_side.QUEUES)
    gets = coldread_side.SequentialGets(queues, per_queue, BATCH)
    with ExitStack() as stack:
        driver = coldread_side.posix_driver(place / "tier")
        files = stack.enter_context(coldread_side.tier_of(store, place, driver, per_queue, queues))
        make = stack.enter_context(coldread_side.fetcher_over(files, cache_bytes=2 * options.size))
        keeper = stack.enter_context(coldread_side.keeping_everything(files, 2 * options.size))
        measured = harness.alternate(
            {
                "hot": lambda: gets.round(store.get),
                "cold_posix": lambda: gets.round(make().get),
                "cold_cached": lambda: gets.round(keeper.get),
            },
            options.rounds,
            options.warmup,
        )
    made.add(measured)
    made.compare("cold_posix_vs_hot", measured["cold_posix"], measured["hot"])
    made.compare("cold_cached_vs_hot", measured["cold_cached"], measured["hot"])


def s3(made: Report, options: Options, _store: Any, _per_queue: int, place: Path) -> None:
    """One long queue in a tier on an S3 server, against the plain client."""
    with ExitStack() as stack:
        store, length = stack.enter_context(coldread_side.one_long_queue(place / "store", options.size // 4))
        server = stack.enter_context(coldread_side.s3_driver(place / "seaweedfs"))
        if server is None:
            made.environment["s3"] = "no server"
            return
        driver, client = server
        files = stack.enter_context(coldread_side.tier_of(store, place, driver, length, 1))
        make = stack.enter_context(coldread_side.fetcher_over(files))
        gets = coldread_side.SequentialGets(1, length, BATCH)
        plain = stack.enter_context(coldread_side.ranged_reads(client, files, length))
        measured = harness.alternate(
            {"cold_s3": lambda: gets.round(make().get), "ranged_reads": plain},
            options.rounds,
            options.warmup,
        )
    made.add(measured)
    made.compare("cold_s3_vs_ranged_reads", measured["cold_s3"], measured["ranged_reads"])


def memory(made: Report, options: Options, store: Any, per_queue: int, place: Path) -> None:
    """What 100 groups that read at once cost in memory."""
    queues = len(coldread_side.QUEUES)
    driver = coldread_side.posix_driver(place / "tier")
    with coldread_side.tier_of(store, place, driver, per_queue, queues) as files:
        made.environment["memory_of_100_groups"] = coldread_side.memory_curve(
            files, queues, per_queue, GROUPS, min(CACHE_BYTES, options.size // 2)
        )


if __name__ == "__main__":
    harness.main(run)
