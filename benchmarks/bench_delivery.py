"""Delivery: what it costs to hand messages over later, against plain puts of the same messages.

`timers`       From the moment at which all timers of the wheel are due until they lie in their topics; and before that,
               taking them from the timer topic into the wheel.
`levels`       The same of a delay level.
`transactions` Half message, commit and op of each, one after the other.
`memory`       A process whose wheel fills with a million timers: its own memory at 1, 4 and 16 times a sixteenth of
               that, and the most while all of them are delivered.
`far`          Timers of a year that live in a tier: objects and bytes put, counted over their whole life, beside how
               often the wheel alone would have written them again.

A delivered message is read, checked and put once more by interpreted code; a put is a call of the compiled kernel. So
the ratios are far below 1, and say how many plain puts one delivery costs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import delivery_far_side, delivery_memory_side, delivery_side, harness, store_side
from benchmarks.delivery_side import Delivering, PlainPuts
from benchmarks.harness import JavaBench, Options
from benchmarks.report import Report

NAME = "delivery"
PARTS = ("timers", "levels", "transactions", "memory", "far")
COUNT_MAX = 50_000
COUNT_MAX_QUICK = 10_000
MEMORY_BASE = 62_500
MEMORY_BASE_QUICK = 16_000
FAR_COUNTS = (50_000, 500)
FAR_COUNTS_QUICK = (2_000, 100)
"""Timers, and in how many flushes they come."""


def run(argv: list[str]) -> dict[str, Any]:
    """Measure the wanted parts and return the result object."""
    made_parser = harness.parser(NAME, PARTS)
    made_parser.add_argument(
        "--timers", type=int, help="timers that wait while memory is looked at (default 1,000,000, quick 256,000)"
    )
    arguments = made_parser.parse_args(argv)
    options = harness.options_of(arguments)
    base = MEMORY_BASE_QUICK if options.quick else MEMORY_BASE
    if arguments.timers is not None:
        base = max(1, arguments.timers // delivery_memory_side.SCALES[-1])
    made = Report(NAME)
    parts: dict[str, Callable[[Path], None]] = {
        "timers": lambda place: timers(made, options, place),
        "levels": lambda place: _against_put(made, options, place, "delay_levels", delivery_side.DelayedMessages),
        "transactions": lambda place: _against_put(made, options, place, "transactions", delivery_side.Transactions),
        "memory": lambda place: delivery_memory_side.measure(made, place, base),
        "far": lambda place: delivery_far_side.measure(
            made, place, *(FAR_COUNTS_QUICK if options.quick else FAR_COUNTS)
        ),
    }
    with harness.pinned(options.core), harness.work_directory(options.directory, 3 * options.size) as directory:
        for name, part in parts.items():
            if not options.only or name in options.only:
                with harness.part_directory(directory) as place:
                    part(place)
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


def messages_per_round(options: Options) -> int:
    """As many as let all rounds of one side fit one log file, each as it waits and as it is delivered."""
    fitting = options.size // delivery_side.DELIVERED_RECORD_BYTES // (options.rounds + options.warmup)
    return max(100, min(COUNT_MAX_QUICK if options.quick else COUNT_MAX, fitting))


def timers(made: Report, options: Options, directory: Path) -> None:
    """Deliveries of the wheel, and taking in, against puts."""
    count = messages_per_round(options)
    with ExitStack() as stack:
        puts = PlainPuts(stack, directory / "put", options.size, count)
        waiting = delivery_side.Timers(stack, directory / "timers", options.size, count)
        sides = {"timer_put": puts.round, "timer_delivery": waiting.round}
        measured = harness.alternate(sides, options.rounds, options.warmup)
    measured["timer_take_in"] = waiting.taken_in[-options.rounds :]
    made.add(measured)
    made.compare("timer_delivery_vs_put", measured["timer_delivery"], measured["timer_put"])
    made.compare("timer_take_in_vs_put", measured["timer_take_in"], measured["timer_put"])


def _against_put(made: Report, options: Options, directory: Path, name: str, side: type[Delivering]) -> None:
    count = messages_per_round(options)
    with ExitStack() as stack:
        puts = PlainPuts(stack, directory / "put", options.size, count)
        other = side(stack, directory / name, options.size, count)
        sides = {f"{name}_put": puts.round, name: other.round}
        measured = harness.alternate(sides, options.rounds, options.warmup)
    made.add(measured)
    made.compare(f"{name}_vs_put", measured[name], measured[f"{name}_put"])


if __name__ == "__main__":
    harness.main(run)
