"""Topics at scale: what one more topic costs a broker that has many, against one that has few.

`create`   A send to each of so many new topics, 16 open at once, with a name server beside; of the largest run the last
           fifth, where the table is as large as it gets. 1 is flat.
`start`    A broker that was killed with so many topics, each with one message, until it serves. The first start after
           the kill recovers and is dropped. 1 is linear.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import harness, store_side
from benchmarks.harness import JavaBench
from benchmarks.report import Report

NAME = "topics"
COUNTS = (1_000, 5_000, 10_000, 50_000)
COUNTS_QUICK = (200, 1_000)


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME).parse_args(argv))
    counts = COUNTS_QUICK if options.quick else COUNTS
    made = Report(NAME)
    with harness.work_directory(options.disk_directory or options.directory, options.size) as directory:
        created = {count: _side("create", directory / str(count), count) for count in counts}
        started = {count: _started(directory / str(count)) for count in counts}
        few = counts[0]
        for count in counts:
            made.rates[f"topics_{count}_created_per_second"] = round(created[count]["per_s"], 1)
            made.rates[f"topics_{count}_started_per_second"] = round(count / started[count], 1)
        for count in counts[1:]:
            last = created[count]["last_fifth_per_s"]
            made.ratios[f"topic_creation_{count}_vs_{few}"] = round(last / created[few]["per_s"], 4)
            made.ratios[f"topic_start_{count}_vs_{few}"] = round(count / started[count] / (few / started[few]), 4)
        return harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())


def _started(directory: Path) -> float:
    _side("start", directory)
    return _side("start", directory)["start_s"]


def _side(what: str, directory: Path, *more: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.topics_side", what, str(directory), *map(str, more)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


if __name__ == "__main__":
    harness.main(run)
