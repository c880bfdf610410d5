"""Frames over loopback: requests parsed, handed to a handler and answered, against an echo of the same bytes.

The client is another process and runs where it likes; the servers are pinned to one core. `cpu_ratios` compares the
servers' processor time alone.
"""

from __future__ import annotations

from typing import Any

from benchmarks import harness, store_side, wire_side
from benchmarks.harness import JavaBench, Side
from benchmarks.report import Report
from tiermq.remoting.command import HeaderType

NAME = "wire"
BYTES_PER_FRAME = 4096  # Of --size: 1 GiB means 262,144 frames in a round.


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME).parse_args(argv))
    frames = max(wire_side.WINDOW, options.size // BYTES_PER_FRAME)
    kinds = {
        "send": wire_side.send_frame(HeaderType.ROCKETMQ),
        "json_send": wire_side.send_frame(HeaderType.JSON),
        "command": wire_side.command_frame(),
    }
    made = Report(NAME)
    made.environment |= {"frames": frames, "window": wire_side.WINDOW}
    with (
        wire_side.Client() as client,
        harness.pinned(options.core),
        wire_side.tiermq_server() as served,
        wire_side.echo_server() as echoing,
        harness.work_directory(options.directory, 0) as directory,
    ):
        sides: dict[str, Side] = {}
        for kind, frame in kinds.items():
            if options.tiermq:
                sides[kind] = lambda frame=frame: client.round(served, frames, frame)  # type: ignore[misc]
            sides[f"{kind}_echo"] = lambda frame=frame: client.round(echoing, frames, frame)  # type: ignore[misc]
        measured = harness.alternate(sides, options.rounds, options.warmup)
        made.add(measured)
        if options.tiermq:
            for kind in kinds:
                made.compare(f"{kind}_vs_echo", measured[kind], measured[f"{kind}_echo"])
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
