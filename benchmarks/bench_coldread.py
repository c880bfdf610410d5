"""Cold read: whole queues in pages of 32, from the local store, from a POSIX tier, from windows in memory, from S3.

`cold_cached_vs_hot` reads windows that are in memory, `cold_posix_vs_hot` fetches them from files that the page cache
has. Both compare with the local store reading the same queues. `cold_s3_vs_ranged_reads` reads from a real S3 server
of this machine, against the plain client getting the same bytes in large concurrent ranges, and is left out where there
is no server. `keys` looks up keys on such a server, one caller and 16, against 1,000 a second; it reports the processor
time of this process and of the server for each. `memory` says what 100 groups at once cost.

This benchmark is not pinned: reading ahead while the reader reads is what a tier is measured by.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import coldread_side, harness, s3_side, store_side
from benchmarks.harness import JavaBench, Options
from benchmarks.report import Report, cpu_rate, median_rate

NAME = "coldread"
PARTS = ("posix", "s3", "keys", "memory")
KEYS, KEYS_QUICK = 200_000, 20_000
CALLERS = (1, 16)
LOOK_UPS, LOOK_UPS_QUICK = 2_000, 200
WANTED_PER_SECOND = 1_000
BATCH = 32
GROUPS = 100
CACHE_BYTES = 64 << 20


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = replace(harness.options_of(harness.parser(NAME, PARTS).parse_args(argv)), core=None)
    made = Report(NAME)
    with harness.work_directory(options.directory, 4 * options.size) as directory:
        wanted = options.only or frozenset(PARTS)
        if wanted - {"keys"}:
            with coldread_side.filled_store(directory / "store", options.size) as (store, per_queue):
                for part, measure in (("posix", posix), ("s3", s3), ("memory", memory)):
                    if part in wanted:
                        with harness.part_directory(directory) as place:
                            measure(made, options, store, per_queue, place)
        if "keys" in wanted:
            with harness.part_directory(directory) as place:
                keys(made, options, place)
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


def keys(made: Report, options: Options, place: Path) -> None:
    """Look-ups of keys of history that is on an S3 server alone, by one caller and by 16."""
    with ExitStack() as stack:
        server = stack.enter_context(s3_side.s3_server(place / "seaweedfs"))
        if server is None:
            made.environment["s3"] = "no server"
            return
        world = s3_side.KeyLookUps(place / "store", server, KEYS_QUICK if options.quick else KEYS)
        stack.callback(world.close)
        count = LOOK_UPS_QUICK if options.quick else LOOK_UPS
        measured = harness.alternate(
            {f"key_look_ups_{callers}": partial(world.round, callers, count) for callers in CALLERS},
            options.rounds,
            options.warmup,
        )
    made.add(measured)
    for callers in CALLERS:
        rounds = measured[f"key_look_ups_{callers}"]
        made.ratios[f"key_look_ups_{callers}_vs_{WANTED_PER_SECOND}_per_second"] = round(
            median_rate(rounds) / WANTED_PER_SECOND, 4
        )
        made.rates[f"key_look_ups_{callers}_cpu_us"] = round(1e6 / cpu_rate(rounds), 1)
        server_s = world.server_seconds[callers] / world.look_ups[callers]
        made.rates[f"key_look_ups_{callers}_server_cpu_us"] = round(1e6 * server_s, 1)


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
