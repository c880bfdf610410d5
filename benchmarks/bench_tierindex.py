"""Tier index: rearranging one full file of random keys for its upload, against a Java walk along the chains.

Both sides read the same mapped file. Java writes into a mapped file as RocketMQ does, emptied before each round;
`rearrange_vs_java_warm` lets it write over the same pages again. TierMQ's side gives new memory every time.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import harness, store_side, upload_side
from benchmarks.harness import JavaBench, Side
from benchmarks.report import Report

NAME = "tierindex"
ITEMS = 20_000_000
QUICK_ITEMS = 2_000_000


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    made_parser = harness.parser(NAME)
    made_parser.add_argument("--items", type=int, help=f"items of the file (default {ITEMS:,}, quick {QUICK_ITEMS:,})")
    arguments = made_parser.parse_args(argv)
    options = harness.options_of(arguments)
    capacity = arguments.items or (QUICK_ITEMS if options.quick else ITEMS)
    slots = max(1, capacity // 4)  # As RocketMQ's 5,000,000 slots for 20,000,000 items.
    made = Report(NAME)
    made.environment |= {"items": capacity - 1, "slots": slots}
    sides: dict[str, Side] = {}
    with harness.pinned(options.core), harness.work_directory(options.directory, 110 * capacity) as directory:
        java = JavaBench(options.java)
        with ExitStack() as stack:
            place = stack.enter_context(harness.part_directory(directory))
            path = upload_side.fill_index_file(place, slots, capacity)
            out = place / "compacted"
            peer = java.start(
                stack, "TierIndexWalk", source=path, out=out, slots=slots, capacity=capacity, items=capacity - 1
            )
            if peer is not None:
                sides["java_walk"] = harness.warmed(lambda: peer.run(fresh=1), options.java_warmup_seconds)
                sides["java_walk_warm"] = lambda: peer.run(fresh=0)
            if options.tiermq:
                rearranging = stack.enter_context(upload_side.Rearranging(path, slots, capacity))
                sides["rearrange"] = rearranging.round
            measured = harness.alternate(sides, options.rounds, options.warmup)
            if peer is not None and options.tiermq:
                _expect_same(out, rearranging.digest)
        made.add(measured)
        if len(sides) == 3:
            made.compare("rearrange_vs_java", measured["rearrange"], measured["java_walk"])
            made.compare("rearrange_vs_java_warm", measured["rearrange"], measured["java_walk_warm"])
        return harness.finish(made, options, directory, java, store_side.kernel())


def _expect_same(java_file: Path, ours: str) -> None:
    """Both sides did the same work, to the byte."""
    digest = hashlib.sha256()
    with java_file.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    if digest.hexdigest() != ours:
        raise RuntimeError(f"expected the bytes of Java's walk ({os.stat(java_file).st_size} of them), found others")


if __name__ == "__main__":
    harness.main(run)
