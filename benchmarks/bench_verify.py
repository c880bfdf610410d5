"""Verification: every record, unit, checksum and manifest of a tier in files, against a plain read with a CRC-32.

Both sides read the same files, which the page cache has, on one core. The plain side reads into memory that it uses
again and sums up what it read; verification does that too, and checks each record's body, place, number, topic and tag
against its unit on the way.
"""

from __future__ import annotations

from typing import Any

from benchmarks import harness, store_side, verify_side
from benchmarks.harness import JavaBench
from benchmarks.report import Report

NAME = "verify"


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME).parse_args(argv))
    made = Report(NAME)
    with harness.work_directory(options.directory, 3 * options.size) as directory:
        with verify_side.tier_to_verify(directory, options.size) as tier, harness.pinned(options.core):
            measured = harness.alternate(
                {"verify": tier.verified, "plain_read": tier.read_plainly}, options.rounds, options.warmup
            )
        made.add(measured)
        made.compare("verify_vs_plain_read", measured["verify"], measured["plain_read"])
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
