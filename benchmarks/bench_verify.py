"""Verification: every record, unit, checksum and manifest of a tier in files, against a plain read with a CRC-32.

Both sides read the same files, which the page cache has, on one core. The plain side reads into memory that it uses
again and sums up what it read; verification does that too, and checks each record's body, place, number, topic and tag
against its unit on the way. Records have 373 bytes; larger ones cost less per byte. `long` is one queue, as history is;
`many` are 64 queues of the same size together, and shows what each manifest costs.
"""

from __future__ import annotations

from typing import Any

from benchmarks import harness, store_side, verify_side
from benchmarks.harness import JavaBench
from benchmarks.report import Report

NAME = "verify"
PARTS = ("long", "many")


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME, PARTS).parse_args(argv))
    made = Report(NAME)
    with harness.work_directory(options.directory, 3 * options.size) as directory:
        for part, ratio, opened in (
            ("long", "verify_vs_plain_read", verify_side.one_queue),
            ("many", "verify_many_queues_vs_plain_read", verify_side.many_queues),
        ):
            if options.only and part not in options.only:
                continue
            with (
                harness.part_directory(directory) as place,
                opened(place, options.size) as tier,
                harness.pinned(options.core),
            ):
                sides = {f"verify_{part}": tier.verified, f"plain_read_{part}": tier.read_plainly}
                measured = harness.alternate(sides, options.rounds, options.warmup)
            made.add(measured)
            made.compare(ratio, measured[f"verify_{part}"], measured[f"plain_read_{part}"])
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
