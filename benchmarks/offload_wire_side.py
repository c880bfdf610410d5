"""The sides of an offload over the wire: against one from the store's directory, and two executors against one.

Run it alone for a look:  python -m benchmarks.offload_wire_side 64M

All copy the same store: 64 queues, records of about 380 bytes, each with a key. One copy of it is read as a directory,
one is served by `tiermq serve`, one by RocketMQ's broker, with RocketMQ's own limits (32 messages in a pull). Tasks run
in this process (`--master here`), one at a time, as on one executor core; `executors` runs them in one other process,
or in two: as they are, and each limited to a share of a processor, so that the broker always has one to spare, as with
executors on machines of their own. Brokers are separate processes: their processor time is not the job's, but on a
small machine it is the same processors' time, so the ratio by processor time says more there. Nothing is waited for
until it settles.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.child_runner import can_limit, child_runner
from benchmarks.report import Report, Round
from benchmarks.spark_offload_side import LOG_FILE_BYTES, QUEUES_PER_TOPIC, TOPICS, fill_store
from interop.rocketmq import Cluster, fetch
from servers.serving import Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig
from tiermq.pipeline.offload import offload
from tiermq.pipeline.offload.wire_fleet import FleetScope
from tiermq.pipeline.task_runner import TaskRunner

LOCAL, TIERMQ, ROCKETMQ = "offload_from_directory", "offload_wire_tiermq", "offload_wire_rocketmq"
ONE, TWO = "offload_wire_one_executor", "offload_wire_two_executors"
RATIOS = {"wire_offload_tiermq_vs_directory": TIERMQ, "wire_offload_rocketmq_vs_directory": ROCKETMQ}
EXECUTORS_RATIO = "wire_offload_two_executors_vs_one"
SHARE = 0.35
LIMITED = "_of_a_share"
COPIES = 7
"""Of the store's bytes: stores, and a tier of each side."""


def copies_of_store(directory: Path, log_bytes: int, names: list[str]) -> int:
    """The same store several times, with its topics as brokers know them; how many messages."""
    first = directory / "filled"
    count = fill_store(first, log_bytes)
    table = {
        name: TopicConfig(name, QUEUES_PER_TOPIC, QUEUES_PER_TOPIC)
        for name in (f"topic-{number}" for number in range(TOPICS))
    }
    (first / "config").mkdir(exist_ok=True)
    (first / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))
    for name in names:
        subprocess.run(["cp", "-r", "--sparse=always", str(first), str(directory / name)], check=True)
    shutil.rmtree(first)
    return count


@contextlib.contextmanager
def tiermq_broker(store: Path) -> Iterator[str]:
    """Its name server."""
    with Serving(store, mapped_file_size_commit_log=LOG_FILE_BYTES, mapped_file_size_consume_queue=6_000_000,
                 max_hash_slot_num=5_000_000, max_index_num=20_000_000) as served:  # fmt: skip
        yield served.name_server


@contextlib.contextmanager
def rocketmq_broker(store: Path, scratch: Path) -> Iterator[str]:
    with Cluster(fetch(), store, scratch, {"mappedFileSizeCommitLog": LOG_FILE_BYTES}) as cluster:
        cluster.await_registered()
        yield cluster.name_server


class Copying:
    """Copies all of one source into a new tier, again and again. `runner`: where its tasks run, or here."""

    def __init__(self, source: str, directory: Path, messages: int, runner: TaskRunner | None = None) -> None:
        """`source`: wire:NAME_SERVER, or the store's directory."""
        directory.mkdir()
        self._source, self._directory, self._messages, self._runner = source, directory, messages, runner

    def round(self) -> Round:
        if not self._source.startswith("wire:"):
            for name in ("config", "tiered_index_file"):
                shutil.rmtree(Path(self._source) / name, ignore_errors=True)
        tier = self._directory / f"tier-{time.time_ns()}"
        done = harness.timed(lambda: self._copy(tier.as_uri()))
        shutil.rmtree(tier)
        return done

    def _copy(self, tier: str) -> tuple[int, int]:
        options: dict[str, Any] = {"runner": self._runner, "index": "small"}
        if self._source.startswith("wire:"):
            options["fleet"] = FleetScope(self._source.removeprefix("wire:"), settle_s=0.0)
        report = offload([] if "fleet" in options else [f"{self._source}=c/b"], tier, **options)
        if report.problems or report.done["messages"] != self._messages:
            raise RuntimeError(f"expected {self._messages} messages in the tier, found {report}")
        return int(report.done["messages"]), int(report.done["bytes"])


def measure_wire(directory: Path, log_bytes: int, *, rounds: int, warmup: int) -> dict[str, list[Round]]:
    """Rounds from a directory, from a TierMQ broker and from RocketMQ's, one task at a time, in turn."""
    messages = copies_of_store(directory, log_bytes, ["local", "ours", "theirs"])
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        sources = {
            LOCAL: str(directory / "local"),
            TIERMQ: f"wire:{enter(tiermq_broker(directory / 'ours'))}",
            ROCKETMQ: f"wire:{enter(rocketmq_broker(directory / 'theirs', directory / 'home'))}",
        }
        sides = {name: Copying(source, directory / name, messages).round for name, source in sources.items()}
        return harness.alternate(sides, rounds, warmup)


def measure_executors(directory: Path, log_bytes: int, *, rounds: int, warmup: int) -> dict[str, list[Round]]:
    """Rounds from a TierMQ broker by one process that runs tasks, and by two; limited ones, too, where possible."""
    messages = copies_of_store(directory, log_bytes, ["ours"])
    limits = {"": None, LIMITED: SHARE} if can_limit() else {"": None}
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        source = f"wire:{enter(tiermq_broker(directory / 'ours'))}"
        sides = {
            name + suffix: Copying(
                source, directory / (name + suffix), messages, enter(child_runner(count, share))
            ).round
            for suffix, share in limits.items()
            for name, count in ((ONE, 1), (TWO, 2))
        }
        return harness.alternate(sides, rounds, warmup)


def add_wire_to(made: Report, measured: dict[str, list[Round]]) -> None:
    """Put what `measure_wire` found and its ratios into a report."""
    made.add(measured)
    for ratio, side in RATIOS.items():
        made.compare(ratio, measured[side], measured[LOCAL])


def add_executors_to(made: Report, measured: dict[str, list[Round]]) -> None:
    """The same of `measure_executors`."""
    made.add(measured)
    for suffix in ("", LIMITED):
        if TWO + suffix in measured:
            made.compare(EXECUTORS_RATIO + suffix, measured[TWO + suffix], measured[ONE + suffix])


def _show(rounds: dict[str, list[Round]]) -> None:
    for name, found in rounds.items():
        reported = [
            f"{each.bytes / each.seconds / 1e6:.0f} ({each.bytes / each.cpu_seconds / 1e6:.0f})" for each in found
        ]
        print(name, "MB/s (by processor time):", ", ".join(reported))


if __name__ == "__main__":
    size = harness.parse_size(sys.argv[1])
    with harness.work_directory(None, COPIES * size) as place:
        for measure in (measure_wire, measure_executors):
            with harness.part_directory(place) as directory:
                _show(measure(directory, size, rounds=3, warmup=1))
