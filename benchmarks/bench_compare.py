"""`dev.py bench compare`: TierMQ and the real RocketMQ at the same work, in turns, in one run; a report with pictures.

Unlike the other benchmarks it shows its own result and has an exit code: 1 when a work failed, or when something got
worse than in the run of `--against`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from benchmarks.compare import against, campaign, environment, places, plan, reasons, report_files, results, terminal
from benchmarks.compare.against import Change, Moved
from benchmarks.compare.campaign import Options
from benchmarks.compare.peer_process import distribution
from benchmarks.compare.results import Comparison
from benchmarks.compare.work import Work

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "benchmarks"
LOOKS = ROOT / "build" / "benchmarks"

DESCRIPTION = """\
Run TierMQ and the real Apache RocketMQ side by side: the same work with the same settings, each in a process of its
own, in turns (A B, B A, ...), after RocketMQ's virtual machine is warm. Then the works that grow at 1, 4 and 16 times a
part of their data, with the memory of both. Writes compare.md, compare.json and pictures.

Needs Java 17 with javac, RocketMQ's jars (fetched by Maven once), matplotlib (pip install 'tiermq[bench]'), some GB of
memory, and a machine that does nothing else.
"""
EPILOG = """\
examples:
  dev.py bench compare                                  everything; the report is docs/benchmarks/compare.md
  dev.py bench compare --list                           names, groups and goals
  dev.py bench compare --quick --only put_1_1024_async  a look at one work, written to build/benchmarks
  dev.py bench compare --resume                         go on after an interruption, or measure what is missing
  dev.py bench compare --resume --again --only tier     measure a group again, keep the rest of the report
  dev.py bench compare --resume --growth-only           add the curves of growth (about 40 minutes)
  dev.py bench compare --report-only                    write the report again, such as after an edit of why.md
  dev.py bench compare --out /tmp/now --against docs/benchmarks/compare.json   what got worse?

exit code: 0; 1 when a work failed or --against found something worse; 2 for a wrong command line; 130 when interrupted.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="dev.py bench compare",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "--only",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help="works or groups of works; put_16_* takes many",
    )
    add("--quick", action="store_true", help="little data and 3 rounds: a look, not a verdict")
    add(
        "--rounds",
        type=_positive,
        help="measured rounds (9; quick 3), and the most of growth's 2 to 5; long works may do fewer",
    )
    growing = made.add_mutually_exclusive_group()
    growing.add_argument("--no-growth", action="store_true", help="each work at its own size alone")
    growing.add_argument(
        "--growth-only",
        action="store_true",
        help="only growth: works at 1, 4 and 16 times a part of their size; with --resume added to what lies in --out",
    )
    add("--out", type=Path, help="where the report goes (docs/benchmarks; with --quick or --only build/benchmarks)")
    add("--resume", action="store_true", help="go on with what lies in --out: measure only what is missing or failed")
    add("--again", action="store_true", help="with --resume: also measure again what is there")
    add("--mixed", action="store_true", help="with --resume: also at another commit than the rest of the report")
    add("--report-only", action="store_true", help="measure nothing, write the report of what lies in --out")
    add("--no-pictures", action="store_true", help="a report without pictures, which needs no matplotlib")
    add("--against", type=Path, metavar="FILE", help="a kept compare.json: say what changed by more than its spread")
    add("--dir", type=Path, help="where mapped files live (memory file system, if it has room)")
    add("--disk-dir", type=Path, help="where flushed files live (the temporary directory)")
    add("--list", action="store_true", help="show the works and end")
    add("--json", action="store_true", help="print one JSON object instead of tables")
    return made


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of rounds, 1 or more, found {text!r}")
    return int(text)


@dataclass(slots=True)
class Result:
    """What `run` hands to `print_result`."""

    works: list[Work] | None = None
    """With --list alone."""
    found: Comparison | None = None
    written: list[Path] | None = None
    moved: list[Moved] | None = None
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return 130
        worse = any(each.change is Change.WORSE for each in self.moved or [])
        return 1 if worse or (self.found is not None and self.found.failed()) else 0


def run(argv: list[str]) -> Result:
    """Do what the command line asks; the result is for `print_result`."""
    made = parser()
    arguments = made.parse_args(argv)
    works = plan.all_works()
    try:
        chosen = plan.choose(works, arguments.only)
        kept = results.load(arguments.against) if arguments.against else None
    except (plan.UnknownWork, results.BadResult) as error:
        made.error(str(error))
    if arguments.list:
        return Result(works=chosen)
    for name in ("again", "mixed"):
        if getattr(arguments, name) and not arguments.resume:
            made.error(f"--{name} goes with --resume; without it everything is measured anyway")
    if not arguments.no_pictures and importlib.util.find_spec("matplotlib") is None:
        made.error("pictures need matplotlib: pip install 'tiermq[bench]', or take --no-pictures")
    console = Console(stderr=True, highlight=False)
    out = arguments.out or _default_out(arguments)
    try:
        known = _known(arguments, out, console)
    except results.BadResult as error:
        made.error(str(error))
    campaign.in_order(known, works)
    interrupted = False
    if not arguments.report_only:
        interrupted = _measure(known, chosen, arguments, argv, out, console)
        campaign.in_order(known, works)
    moved = against.compare(kept, known) if kept else None
    if interrupted:
        return Result(found=known, moved=moved, interrupted=True)
    written = report_files.write(known, out, reasons.read(), not arguments.no_pictures)
    (out / report_files.PARTIAL).unlink(missing_ok=True)
    return Result(found=known, written=written, moved=moved)


def _default_out(arguments: argparse.Namespace) -> Path:
    """A look must not replace the kept report."""
    is_look = arguments.quick or (
        not arguments.resume and (arguments.only or arguments.no_growth or arguments.growth_only)
    )
    return LOOKS if is_look else KEPT


def _known(arguments: argparse.Namespace, out: Path, console: Console) -> Comparison:
    """What was measured before and counts: all of it with --resume and --report-only, else nothing."""
    partial, whole = out / report_files.PARTIAL, out / report_files.JSON
    if arguments.resume or arguments.report_only:
        for path in (partial, whole):
            if path.exists():
                return results.load(path)
        if arguments.report_only:
            raise results.BadResult(f"{whole.name}: there is none in {out}, so there is nothing to report")
        return Comparison()
    if aside := report_files.move_partial(out):
        console.print(f"An unfinished run lies in {out} (--resume would go on with it); it is kept as {aside.name}.")
    return Comparison()


def _require_one_commit(known: Comparison, described: dict[str, Any], arguments: argparse.Namespace) -> None:
    """A report is of one commit, unless its reader is to see which row is of which."""
    found, ours = {point.version for point in known.points() if point.is_measured}, described["tiermq"]
    if not arguments.mixed and found - {ours}:
        raise SystemExit(
            f"expected a report of {ours}, found one of {' and '.join(sorted(found))}: figures of different code do "
            "not belong into one report. Start a new one (without --resume, or another --out), or take --mixed"
        )


def _measure(
    known: Comparison, works: list[Work], arguments: argparse.Namespace, argv: list[str], out: Path, console: Console
) -> bool:
    """Add to `known` what is missing; whether it was ended before its end."""
    jars = distribution()
    try:
        grounds = places.choose(arguments.dir, arguments.disk_dir, arguments.quick)
    except NotADirectoryError as error:
        raise SystemExit(str(error)) from error
    if count := places.remove_left_over(grounds):
        console.print(f"Removed {count} directories of runs that were killed.")
    if environment.is_busy():
        console.print("[yellow]Other programs keep the machine busy; the report will say so.[/]")
    options = Options(
        quick=arguments.quick,
        rounds=arguments.rounds,
        base=not arguments.growth_only,
        grow=not arguments.no_growth,
        again=arguments.again,
    )
    described = environment.describe(grounds, jars.version)
    _require_one_commit(known, described, arguments)
    known.environment = described
    known.commands.append(shlex.join(["python3", "dev.py", "bench", "compare", *_without_places(argv)]))
    state = out / report_files.PARTIAL
    try:
        with _ended_in_order():
            campaign.run(known, works, options, grounds, state, terminal.Progress(console))
    except KeyboardInterrupt:
        console.print(f"\nInterrupted. What is measured is kept in {state}; --resume goes on with it.")
        return True
    return False


def _without_places(argv: list[str]) -> list[str]:
    """The words of the command line, without where files were: that is the machine's affair."""
    words, skip = [], False
    for word in argv:
        name = word.split("=", 1)[0]
        if skip or name in ("--out", "--dir", "--disk-dir", "--against", "--json", "--no-pictures"):
            skip = not skip and "=" not in word and name not in ("--json", "--no-pictures")
            continue
        words.append(word)
    return words


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """A request to end is an interruption: sides are closed and their files removed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"signal {number} at {frame.f_lineno if frame else 0}")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def print_result(result: Result, as_json: bool) -> None:
    """Tables or one JSON object. Raises SystemExit where the exit code is not 0."""
    if as_json:
        print(json.dumps(_as_dict(result), default=str))
    else:
        _print_tables(result)
    if result.exit_code:
        raise SystemExit(result.exit_code)


def _as_dict(result: Result) -> dict[str, Any]:
    if result.works is not None:
        return {"works": [_work_dict(work) for work in result.works]}
    assert result.found is not None
    reported = {"name": "compare", "interrupted": result.interrupted, **report_files.with_ratios(result.found)}
    if result.moved is not None:
        reported["against"] = [each.as_dict() for each in result.moved]
    return reported


def _work_dict(work: Work) -> dict[str, Any]:
    goal = dataclasses.asdict(work.goal) if work.goal else None
    return {
        "name": work.name,
        "group": work.group,
        "title": work.title,
        "kind": work.kind.value,
        "goal": goal,
        "limit": work.limit,
        "grows": work.grows,
        "rounds_max": work.rounds_max,
    }


def _print_tables(result: Result) -> None:
    console = Console()
    if result.works is not None:
        console.print(terminal.works_table(result.works))
        return
    assert result.found is not None
    console.print(terminal.results_table(result.found))
    for outcome, point in result.found.failed():
        console.print(f"{outcome.name} at {point.scale}× failed: {point.reason}", style="red", markup=False)
    if result.moved is not None:
        console.print(terminal.moved_table(result.moved))
    if result.written:
        console.print(f"The report is {result.written[0]}", highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Run as a program."""
    print_result(run(sys.argv[1:]), as_json="--json" in sys.argv)


if __name__ == "__main__":
    main()
