"""Runs the sides of a benchmark in alternating rounds, pinned to one core, in a directory of their own.

Alternation is what makes a ratio of a noisy machine worth reading: a slow minute hits both sides. Warm-up rounds come
first and are dropped. Every side is a function that does one round and returns it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import java_peer, report
from benchmarks.report import Report, Round

Side = Callable[[], Round]

MIB = 1 << 20
GIB = 1 << 30
MEMORY_DIRECTORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line chose."""

    rounds: int
    warmup: int
    size: int
    quick: bool
    core: int | None
    directory: Path | None
    disk_directory: Path | None
    java: bool
    java_warmup_seconds: float
    tiermq: bool
    pure: bool
    only: frozenset[str]
    json: bool


def parser(name: str, parts: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """The command line that every benchmark understands."""
    made = argparse.ArgumentParser(
        prog=f"python3 dev.py bench {name}", description=f"Measure {name} against Java and the machine."
    )
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--quick", action="store_true", help="fewer and smaller rounds: a look, not a verdict")
    made.add_argument("--rounds", type=int, help="measured rounds of each side (default 9, quick 3)")
    made.add_argument("--warmup", type=int, help="dropped rounds of each side before (default 3, quick 2)")
    made.add_argument("--size", type=parse_size, help="bytes of the log, such as 256M or 1G (default 1G, quick 256M)")
    made.add_argument("--core", default="last", help="core that both sides are pinned to: a number, last, or none")
    made.add_argument("--dir", type=Path, help="where mapped files live (default: memory file system, if it has room)")
    made.add_argument("--disk-dir", type=Path, help="where flushed files live (default: the temporary directory)")
    made.add_argument(
        "--java-warmup", type=float, default=3.0, metavar="SECONDS", help="least warm-up of Java (default 3)"
    )
    made.add_argument("--no-java", action="store_true", help="leave the Java reference loops out")
    made.add_argument("--no-tiermq", action="store_true", help="run only the Java reference loops and the limits")
    made.add_argument("--pure", action="store_true", help="measure the pure-Python kernel (TIERMQ_PURE=1 in a child)")
    if parts:
        made.add_argument("--only", action="append", choices=parts, help="measure only this part (may be repeated)")
    return made


def parse_size(text: str) -> int:
    """Bytes from 4096, 64K, 256M or 1G."""
    factor = {"K": 1 << 10, "M": MIB, "G": GIB}.get(text[-1:].upper(), 1)
    try:
        value = int(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a size such as 256M or 1G, found {text!r}") from None
    if value < MIB:
        raise argparse.ArgumentTypeError(f"expected at least 1M, found {text!r}")
    return value


def options_of(arguments: argparse.Namespace) -> Options:
    """Fill in what the command line left open."""
    quick = arguments.quick
    return Options(
        rounds=_at_least_one(arguments.rounds, 3 if quick else 9),
        warmup=_at_least_one(arguments.warmup, 2 if quick else 3),
        size=arguments.size or (256 * MIB if quick else GIB),
        quick=quick,
        core=choose_core(arguments.core),
        directory=arguments.dir,
        disk_directory=arguments.disk_dir,
        java=not arguments.no_java,
        java_warmup_seconds=arguments.java_warmup,
        tiermq=not arguments.no_tiermq,
        pure=arguments.pure,
        only=frozenset(getattr(arguments, "only", None) or ()),
        json=arguments.json,
    )


def _at_least_one(given: int | None, default: int) -> int:
    return default if given is None else max(1, given)


def choose_core(text: str) -> int | None:
    """The core to pin to; None leaves the scheduler free, also where the system cannot pin."""
    if text == "none" or not hasattr(os, "sched_getaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    if text == "last":
        return allowed[-1]
    if not text.isdigit() or int(text) not in allowed:
        raise SystemExit(f"--core: expected none, last or one of {allowed}, found {text!r}")
    return int(text)


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Pin the calling thread; threads and processes that it starts inherit the pin."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def part_directory(parent: Path) -> Iterator[Path]:
    """A directory for one part of a benchmark, so that the next part finds the memory free again."""
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as path:
        yield Path(path)


@contextlib.contextmanager
def work_directory(wanted: Path | None, bytes_needed: int) -> Iterator[Path]:
    """A fresh directory, removed afterwards.

    A memory file system is preferred: pages of a disk file that were written back fault again on the next write, on
    either side and at random moments, and that is noise here.
    """
    parent = wanted
    if parent is None and os.access(MEMORY_DIRECTORY, os.W_OK):
        room = min(shutil.disk_usage(MEMORY_DIRECTORY).free, available_memory())
        parent = MEMORY_DIRECTORY if room > bytes_needed * 5 // 4 else None
    with tempfile.TemporaryDirectory(prefix="tiermq-bench-", dir=parent, ignore_cleanup_errors=True) as path:
        yield Path(path)


def available_memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def alternate(sides: Mapping[str, Side], rounds: int, warmup: int) -> dict[str, list[Round]]:
    """Rounds of every side in turn, after `warmup` turns that are dropped."""
    for _ in range(warmup):
        for side in sides.values():
            side()
    measured: dict[str, list[Round]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            measured[name].append(side())
    return measured


def warmed(side: Side, least_seconds: float, most_seconds: float = 30.0) -> Side:
    """The same side after rounds enough for a just-in-time compiler: some seconds, and no more getting faster.

    Without this a short benchmark would compare TierMQ with half-interpreted Java.
    """
    best_before, spent = 0.0, 0.0
    while spent < most_seconds:
        turn = [side() for _ in range(3)]
        spent += sum(each.seconds for each in turn)
        best = max(each.rate for each in turn)
        if spent >= least_seconds and best < best_before * 1.03:
            break
        best_before = max(best, best_before)
    return side


def timed(work: Callable[[], tuple[int, int]]) -> Round:
    """Time one call that returns messages and bytes."""
    cpu_before, before = time.process_time(), time.perf_counter()
    messages, size = work()
    seconds, cpu_seconds = time.perf_counter() - before, time.process_time() - cpu_before
    return Round(messages, size, seconds, cpu_seconds)


def settle(quiet_seconds: float = 0.05, most_seconds: float = 30.0) -> None:
    """Wait until this process' own background threads (file warming, first flush) use no processor time."""
    deadline = time.monotonic() + most_seconds
    while time.monotonic() < deadline:
        before = time.process_time()
        time.sleep(quiet_seconds)
        if time.process_time() - before < quiet_seconds * 0.1:
            return


class JavaBench:
    """Finds and compiles the reference loops once, starts them where they are wanted; with --no-java, starts none.

    Without a JDK the program ends with one line that says what is missing.
    """

    def __init__(self, wanted: bool) -> None:
        self.version: str | None = None
        if wanted:
            try:
                self._java, javac, self.version = java_peer.find_jdk()
            except java_peer.JdkMissing as missing:
                raise SystemExit(str(missing)) from missing
            self._classes = java_peer.compile_loops(javac)

    def start(self, stack: contextlib.ExitStack, work: str, **parameters: object) -> java_peer.JavaPeer | None:
        """A prepared loop that ends with `stack`, or None when Java was left out."""
        if self.version is None:
            return None
        peer = stack.enter_context(java_peer.JavaPeer(work, self._java, self._classes))
        peer.prepare(**parameters)
        return peer


def finish(made: Report, options: Options, directory: Path, java: JavaBench, kernel: str) -> dict[str, Any]:
    """Add the environment and return the object to print."""
    made.environment |= report.describe_machine(directory)
    made.environment |= {
        "java": java.version,
        "core": options.core,
        "rounds": options.rounds,
        "warmup": options.warmup,
        "size_bytes": options.size,
        "kernel": kernel if options.tiermq else None,
    }
    return made.as_dict()


def main(run: Callable[[list[str]], dict[str, Any]]) -> None:
    """Run as a program and print the result."""
    argv = sys.argv[1:]
    report.print_result(run(argv), as_json="--json" in argv)
