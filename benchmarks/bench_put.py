"""Put: one message, one message through a queue handle, lists of 1,000, group commit, and the embedded store's put."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import harness, limits, report, store_side, workload
from benchmarks.harness import JavaBench, Options, Side
from benchmarks.report import Report, Round
from tiermq import LocalStore

NAME = "put"
PARTS = ("single", "handle", "batch", "group", "embedded", "pure")
BATCH_COUNT = store_side.BATCH_COUNT
SPARE_BYTES = 4 << 20
FLUSHED_LOG_BYTES = 256 << 20


def run(argv: list[str]) -> dict[str, Any]:
    """Measure the wanted parts and return the result object."""
    options = harness.options_of(harness.parser(NAME, PARTS).parse_args(argv))
    if options.pure and store_side.kernel() != "pure":
        return in_pure_child([word for word in argv if word != "--pure"])
    made = Report(NAME)
    with harness.pinned(options.core), harness.work_directory(options.directory, 5 * options.size) as directory:
        java = JavaBench(options.java)
        for part, measure in (("single", single), ("handle", handle), ("batch", batch)):
            if _wanted(options, part):
                with harness.part_directory(directory) as place:
                    measure(made, options, place, java)
        if _wanted(options, "embedded") and options.tiermq:
            with harness.part_directory(directory) as place:
                embedded(made, options, place)
        if _wanted(options, "group"):
            group(made, options)
        result = harness.finish(made, options, directory, java, store_side.kernel())
    if _wanted(options, "pure") and options.tiermq and options.java and store_side.kernel() != "pure":
        _add_pure(result, in_pure_child(_pure_arguments(options)))
    return result


def _wanted(options: Options, part: str) -> bool:
    return not options.only or part in options.only


def in_pure_child(argv: list[str]) -> dict[str, Any]:
    """Run this benchmark in a child whose kernel is the pure one: the choice is made once, at import."""
    environment = os.environ | {"TIERMQ_PURE": "1"}
    command = [sys.executable, "-m", "benchmarks.bench_put", *argv, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the pure-Python child failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _pure_arguments(options: Options) -> list[str]:
    chosen = ["--only", "single", "--rounds", str(min(options.rounds, 5)), "--size", str(options.size)]
    chosen += ["--warmup", str(options.warmup), "--core", "none" if options.core is None else str(options.core)]
    return chosen + (["--dir", str(options.directory)] if options.directory else [])


def _add_pure(result: dict[str, Any], child: dict[str, Any]) -> None:
    target = report.TARGETS["put_pure_vs_java"]
    for kind in ("ratios", "cpu_ratios"):
        result[kind]["put_pure_vs_java"] = child[kind]["put_vs_java"]
    result["rates"]["put_pure_messages_per_second"] = child["rates"]["put_messages_per_second"]
    result["targets"]["put_pure_vs_java"] = {"required": target.required, "aim": target.aim}


def messages_per_round(options: Options) -> int:
    """As many messages as let all rounds of one side fit one log file: rolling is not what is measured."""
    fitting = (options.size - SPARE_BYTES) // workload.RECORD_BYTES // (options.rounds + options.warmup)
    return max(1024, min(500_000, fitting) // 1024 * 1024 - 1024)


def single(made: Report, options: Options, directory: Path, java: JavaBench) -> None:
    """`store.put(message)` against the faithful loop."""
    _against_put_loop(made, options, directory, java, "put", store_side.Puts)


def handle(made: Report, options: Options, directory: Path, java: JavaBench) -> None:
    """`handle.put(body, properties)` against the faithful loop."""
    _against_put_loop(made, options, directory, java, "put_handle", store_side.HandlePuts)


def _against_put_loop(
    made: Report,
    options: Options,
    directory: Path,
    java: JavaBench,
    name: str,
    puts: Callable[[Any, int], store_side.Puts | store_side.HandlePuts],
) -> None:
    count = messages_per_round(options)
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        peer = java.start(stack, "PutLoop", file=directory / "java", size=options.size, pool=store_side.POOL_COUNT)
        if peer is not None:
            sides[f"java_{name}"] = harness.warmed(lambda: peer.run(count=count), options.java_warmup_seconds)
        if options.tiermq:
            store = stack.enter_context(store_side.open_store(directory / "store", options.size))
            sides[name] = puts(store, count).round
        measured = harness.alternate(sides, options.rounds, options.warmup)
    made.add(measured)
    if len(sides) == 2:
        made.compare(f"{name}_vs_java", measured[name], measured[f"java_{name}"])


def embedded(made: Report, options: Options, directory: Path) -> None:
    """What a program's put costs more than the engine's own, which returns a status and raises nothing.

    First both on warm files of full size: the call alone. Then before and after: the engine as it was opened before
    there was an embedded store, with files of full size, and `tiermq.LocalStore.open`, whose files grow as it writes;
    neither is warmed.
    """
    count = messages_per_round(options)

    def pair(ratio: str, before: tuple[str, Any], after: tuple[str, Any]) -> None:
        with ExitStack() as stack:
            sides: dict[str, Side] = {}
            for name, opened in (before, after):
                sides[name] = store_side.Puts(stack.enter_context(opened), count).round
            measured = harness.alternate(sides, options.rounds, options.warmup)
        made.add(measured)
        made.compare(ratio, measured[after[0]], measured[before[0]])

    with harness.part_directory(directory) as place:
        pair(
            "embedded_put_vs_engine",
            ("engine_put", store_side.open_store(place / "engine", options.size)),
            ("embedded_put", LocalStore(store_side.open_store(place / "embedded", options.size))),
        )
    with harness.part_directory(directory) as place:
        pair(
            "embedded_open_put_vs_full_files",
            ("full_files_put", store_side.open_store(place / "full", options.size, warm_maped_file_enable=False)),
            ("embedded_open_put", store_side.open_embedded_store(place / "growing", options.size)),
        )


def batch(made: Report, options: Options, directory: Path, java: JavaBench) -> None:
    """`store.put_many` of 1,000 against the batch loop and against memcpy of the same bytes."""
    count = messages_per_round(options) // BATCH_COUNT * BATCH_COUNT
    block = os.urandom(BATCH_COUNT * workload.RECORD_BYTES)
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        memcpy = stack.enter_context(limits.Memcpy(directory / "memcpy", options.size, block, BATCH_COUNT))
        sides["memcpy"] = lambda: memcpy.round(count // BATCH_COUNT)
        peer = java.start(stack, "BatchPutLoop", file=directory / "java", size=options.size, batch=BATCH_COUNT)
        if peer is not None:
            sides["java_put_many"] = harness.warmed(lambda: peer.run(count=count), options.java_warmup_seconds)
        if options.tiermq:
            store = stack.enter_context(store_side.open_store(directory / "store", options.size))
            sides["put_many"] = store_side.BatchPuts(store, count).round
        measured = harness.alternate(sides, options.rounds, options.warmup)
    made.add(measured)
    if "put_many" in sides:
        made.compare("put_many_vs_memcpy", measured["put_many"], measured["memcpy"])
        if peer is not None:
            made.compare("put_many_vs_java", measured["put_many"], measured["java_put_many"])


def group(made: Report, options: Options) -> None:
    """SYNC_FLUSH: 1,000 messages per flush against one per flush, and against raw pwrite + fdatasync."""
    flushes = 20 if options.quick else 50
    block = os.urandom(BATCH_COUNT * workload.RECORD_BYTES)
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        # This part is about the disk, so never in memory.
        parent = Path(options.disk_directory or os.environ.get("TMPDIR", "/tmp"))
        directory = stack.enter_context(harness.work_directory(parent, 0))
        raw = stack.enter_context(limits.RawFlush(directory / "raw", FLUSHED_LOG_BYTES, block, BATCH_COUNT))
        sides["raw_flush"] = lambda: raw.round(flushes)
        if options.tiermq:
            for name, puts in (("single_flush", store_side.Puts), ("group_commit", store_side.BatchPuts)):
                store = stack.enter_context(store_side.open_flushing_store(directory / name, FLUSHED_LOG_BYTES))
                sides[name] = puts(store, flushes * BATCH_COUNT if name == "group_commit" else flushes).round
        measured = harness.alternate(sides, options.rounds, 1)
        made.environment["flush_file_system"] = report.file_system(directory)
    made.add(measured)
    if options.tiermq:
        _compare_group(made, measured)


def _compare_group(made: Report, measured: dict[str, list[Round]]) -> None:
    made.compare("group_commit_vs_single_flush", measured["group_commit"], measured["single_flush"])
    made.compare("group_commit_vs_raw", measured["group_commit"], measured["raw_flush"])


if __name__ == "__main__":
    harness.main(run)
