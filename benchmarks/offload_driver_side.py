"""What an offload's driver needs for many queues: its time and its memory, with simulated brokers.

    python -m benchmarks.offload_driver_side 10000        queues in all, 8 of a topic

The driver is a process of its own, in which nothing else runs: tasks run in another one, and brokers in a third. Three
waves: every queue is new; every queue has one more message; nothing is new. The tier is a directory in memory. Each
wave is reported on stderr when it has ended.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.child_runner import child_runner
from benchmarks.simulated_fleet import CLUSTER, simulated_fleet
from tiermq.pipeline.offload import offload
from tiermq.pipeline.offload.wire_fleet import FleetScope

BROKERS, QUEUES_PER_TOPIC = 10, 8
WAVES = ("first", "more", "idle")
TIER_BYTES = 20 << 10
"""Room that a queue's files take, about."""


def measure(queues: int, directory: Path) -> dict[str, Any]:
    """What each wave took, and the most memory, by a driver of its own."""
    topics = queues // (BROKERS * QUEUES_PER_TOPIC)
    with simulated_fleet(BROKERS, topics, QUEUES_PER_TOPIC) as fleet:
        command = [sys.executable, "-m", "benchmarks.offload_driver_side", "--driver", fleet.name_server]
        command.append((directory / f"tier-{queues}").as_uri())
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdin is not None
            assert driver.stdout is not None
            found: dict[str, Any] = {"queues": topics * BROKERS * QUEUES_PER_TOPIC}
            for wave in WAVES:
                if wave != "idle":
                    fleet.one_more_in_each_queue()
                driver.stdin.write("wave\n")
                driver.stdin.flush()
                found[wave] = json.loads(driver.stdout.readline())
                print(f"{found['queues']} queues, {wave}: {found[wave]}", file=sys.stderr, flush=True)
            return found


def drive(name_server: str, tier: str) -> None:
    """A run for each line of the input: a job that starts, reads the bucket, copies and ends."""
    with child_runner(1) as runner:
        for _ in sys.stdin:
            runner.seconds = 0.0
            cpu_s, began_s = time.process_time(), time.perf_counter()
            report = offload([], tier, runner=runner, fleet=FleetScope(name_server, CLUSTER), index="small")
            if report.problems:
                raise RuntimeError(f"{len(report.problems)} problems, such as {report.problems[0]}")
            reported = {
                "messages": int(report.done.get("messages", 0)),
                "seconds": round(time.perf_counter() - began_s, 2),
                "cpu_s": round(time.process_time() - cpu_s, 2),
                "waited_for_tasks_s": round(runner.seconds, 2),
                "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            }
            print(json.dumps(reported), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--driver":
        drive(*sys.argv[2:])
    else:
        for text in sys.argv[1:]:
            with harness.work_directory(None, int(text) * TIER_BYTES) as place:
                print(json.dumps(measure(int(text), place)), flush=True)
