"""Tiering: uploads to a directory against the disk, puts with and without it, requests by count, memory by sample.

`upload`   What waits in a local store goes into a tier at file:// that knows its queues already; against pwrite +
           fdatasync of the same bytes in the same chunks, one after the other into one file.
`s3`       A backlog of `--size` bytes (200 MB unless it is given) in 8 queues goes to an S3 server of this machine, on
           the disk; against objects of 4 MiB put by 4 threads of the plain client. Left out where there is no server.
`put`      Single puts into a store that dispatches, while its tier is being written, against the same without a tier.
`requests` What is asked of the back end, counted and compared with what is promised: a wrong count ends the program.
           The same again with the start of the 64 queues in the time.
`memory`   The process' own memory while `--size` bytes go to the tier (10 GiB unless it is given), as a curve, against
           what the settings allow: `tier_pending_bytes_max`, and one compacted index file while there is one. Store and
           tier are in `--disk-dir` both.

Nothing is pinned unless `--core` says so: uploading is work for threads of its own, and both sides have all cores.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import harness, request_counts, s3_side, store_side, tiered_side, workload
from benchmarks.harness import JavaBench, Options
from benchmarks.report import Report
from tiermq.tier.tier_config import TierConfig

NAME = "tier"
PARTS = ("upload", "s3", "put", "requests", "memory")
S3_BYTES, S3_BYTES_QUICK = 200 << 20, 16 << 20
S3_ROUNDS_MAX = 5
CURVE_POINTS = 64
MEMORY_BYTES = 10 << 30
MEMORY_BYTES_QUICK = 128 << 20
MB = 1_000_000


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object, which has `requests` and `memory` besides what all benchmarks have."""
    made_parser = harness.parser(NAME, PARTS)
    made_parser.set_defaults(core="none")
    arguments = made_parser.parse_args(argv)
    options = harness.options_of(arguments)
    memory_bytes = arguments.size or (MEMORY_BYTES_QUICK if options.quick else MEMORY_BYTES)
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
            "s3": lambda: _s3(options, arguments.size, disk, made),
            "put": lambda: _put(options, directory, disk, made),
            "memory": lambda: more.update(memory=_memory(memory_bytes, disk, made)),
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
        made.compare("upload_with_start_vs_raw", uploads.with_begin[-options.rounds :], measured["raw"])
        made.environment["upload_chunks"] = len(uploads.chunks)
        made.environment["begin_64_queues_seconds"] = round(uploads.begin_seconds, 3)


def _s3(options: Options, size: int | None, disk: Path, made: Report) -> None:
    with ExitStack() as stack:
        place = stack.enter_context(harness.part_directory(disk))
        server = stack.enter_context(s3_side.s3_server(place / "seaweedfs"))
        if server is None:
            made.environment["s3"] = "no server"
            return
        uploads = s3_side.Uploads(place, server, size or (S3_BYTES_QUICK if options.quick else S3_BYTES))
        rounds = min(options.rounds, S3_ROUNDS_MAX)
        measured = harness.alternate({"upload_s3": uploads.round, "plain_s3": uploads.plain_round}, rounds, 1)
    made.add(measured)
    made.compare("upload_s3_vs_plain", measured["upload_s3"], measured["plain_s3"])
    made.rates["upload_s3_server_cpu_seconds"] = round(statistics.median(uploads.server_seconds), 2)
    own = [each.cpu_seconds for each in measured["upload_s3"]]
    made.rates["upload_s3_cpu_seconds"] = round(statistics.median(own), 2)


def _put(options: Options, directory: Path, disk: Path, made: Report) -> None:
    with harness.part_directory(directory) as local, harness.part_directory(disk) as place:
        count = options.size // workload.RECORD_BYTES
        off = tiered_side.Putting(local / "off", None, count)
        on = tiered_side.Putting(local / "on", place / "tier", count)
        measured = harness.alternate({"put_off": off.round, "put_tiering": on.round}, options.rounds, options.warmup)
        made.add(measured)
        made.compare("put_while_tiering_vs_off", measured["put_tiering"], measured["put_off"])
        made.rates["tiered_share_while_putting"] = round(statistics.median(on.tiered_shares), 4)
        made.rates["tiered_mb_per_second_while_putting"] = round(statistics.median(on.tiered_mb_per_second), 1)


def _memory(size: int, disk: Path, made: Report) -> list[dict[str, int]]:
    with harness.part_directory(disk) as place:
        watching: list[tiered_side.MemorySamples] = []
        uploads = tiered_side.Uploads(place / "store", place / "tier", size // workload.RECORD_BYTES)
        done = uploads.run(lambda driver: watching.append(tiered_side.MemorySamples(driver)))
        watching[0].stop()
        samples = watching[0].samples
        grown = [sample["own_bytes"] - samples[0]["own_bytes"] for sample in samples]
        config = TierConfig()
        made.rates["memory_uploaded_mb"] = round(samples[-1]["uploaded_bytes"] / MB, 1)
        made.rates["memory_upload_mb_per_second"] = round(done.bytes / done.seconds / MB, 1)
        made.rates["memory_grown_mb"] = round(max(grown) / MB, 1)
        made.rates["memory_grown_median_mb"] = round(statistics.median(grown) / MB, 1)
        made.rates["memory_limit_pending_mb"] = round(config.tier_pending_bytes_max / MB, 1)
        made.rates["memory_limit_with_index_mb"] = round(
            (config.tier_pending_bytes_max + config.compacted_index_bytes) / MB, 1
        )
        return _curve(samples)


def _curve(samples: list[dict[str, int]]) -> list[dict[str, int]]:
    """A few points of the curve: of each stretch of it the sample with the most memory, so that no peak is lost."""
    step = max(1, -(-len(samples) // CURVE_POINTS))
    runs = (samples[at : at + step] for at in range(0, len(samples), step))
    points = [max(run, key=lambda sample: sample["own_bytes"]) for run in runs]
    return points if points[-1] is samples[-1] else [*points, samples[-1]]


if __name__ == "__main__":
    harness.main(run)
