"""Tiering: uploads to a directory against the disk, puts with and without it, requests by count, memory by sample.

`upload`   What waits in a local store goes into a tier at file:// that knows its queues already; against pwrite +
           fdatasync of the same bytes in the same chunks, one after the other into one file.
`put`      Single puts into a store that dispatches, while its tier is being written, against the same without a tier.
`requests` What is asked of the back end, counted and compared with what is promised: a wrong count ends the program.
`memory`   The process' own memory while `--size` bytes go to the tier, as a curve.

Nothing is pinned unless `--core` says so: uploading is work for threads of its own, and both sides have all cores.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness, request_counts, store_side, tiered_side, workload
from benchmarks.harness import JavaBench, Options
from benchmarks.report import Report

NAME = "tier"
PARTS = ("upload", "put", "requests", "memory")
CURVE_POINTS = 64


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object, which has `requests` and `memory` besides what all benchmarks have."""
    made_parser = harness.parser(NAME, PARTS)
    made_parser.set_defaults(core="none")
    options = harness.options_of(made_parser.parse_args(argv))
    wanted = options.only or frozenset(PARTS)
    made, more = Report(NAME), dict[str, Any]()
    need = 5 * options.size
    with (
        harness.pinned(options.core),
        harness.work_directory(options.directory, need) as directory,
        harness.work_directory(options.disk_directory or Path(tempfile.gettempdir()), 0) as disk,
    ):
        parts: dict[str, Callable[[], None]] = {
            "requests": lambda: more.update(requests=request_counts.count_requests(directory)),
            "upload": lambda: _upload(options, directory, disk, made),
            "put": lambda: _put(options, directory, disk, made),
            "memory": lambda: more.update(memory=_memory(options, directory, disk, made)),
        }
        for name, part in parts.items():
            if name in wanted:
                part()
        result = harness.finish(made, options, directory, JavaBench(wanted=False), store_side.kernel())
        return result | more


def _upload(options: Options, directory: Path, disk: Path, made: Report) -> None:
    with harness.part_directory(directory) as local, harness.part_directory(disk) as place:
        count = options.size // workload.RECORD_BYTES
        uploads = tiered_side.Uploads(local / "store", place / "tier", count)
        uploads.round()  # Which chunks there are is known afterwards.
        raw = tiered_side.RawUploads(place / "raw", uploads.chunks, count)
        measured = harness.alternate({"upload": uploads.round, "raw": raw.round}, options.rounds, options.warmup - 1)
        made.add(measured)
        made.compare("upload_vs_raw", measured["upload"], measured["raw"])
        made.environment["upload_chunks"] = len(uploads.chunks)
        made.environment["begin_64_queues_seconds"] = round(uploads.begin_seconds, 3)


def _put(options: Options, directory: Path, disk: Path, made: Report) -> None:
    with harness.part_directory(directory) as local, harness.part_directory(disk) as place:
        count = options.size // workload.RECORD_BYTES
        off = tiered_side.Putting(local / "off", None, count)
        on = tiered_side.Putting(local / "on", place / "tier", count)
        measured = harness.alternate({"put_off": off.round, "put_tiering": on.round}, options.rounds, options.warmup)
        made.add(measured)
        made.compare("put_while_tiering_vs_off", measured["put_tiering"], measured["put_off"])
        made.rates["tiered_share_while_putting"] = round(statistics.median(on.tiered_shares), 4)


def _memory(options: Options, directory: Path, disk: Path, made: Report) -> list[dict[str, int]]:
    with harness.part_directory(directory) as local, harness.part_directory(disk) as place:
        watching: list[tiered_side.MemorySamples] = []
        uploads = tiered_side.Uploads(local / "store", place / "tier", options.size // workload.RECORD_BYTES)
        uploads.run(lambda driver: watching.append(tiered_side.MemorySamples(driver)))
        watching[0].stop()
        samples = watching[0].samples
        step = max(1, len(samples) // CURVE_POINTS)
        grown = max(sample["own_bytes"] for sample in samples) - samples[0]["own_bytes"]
        made.rates["memory_grown_mb"] = round(grown / 1e6, 1)
        return [*samples[:-1:step], samples[-1]]


if __name__ == "__main__":
    harness.main(run)
