"""Memory of a process whose timer wheel fills: at 1, 4 and 16 times a number of timers, and while all are delivered.

Run it alone for a look:  python -m benchmarks.delivery_memory_side DIRECTORY 62500
The timers lie all over the roll window (two days of seconds) in no order. A process of its own fills the wheel as a
broker does: messages into the timer topic, rounds of the service, a checkpoint each second. What counts is the memory
of its own at each mark (pages of mapped files are the kernel's), and the most of it at any moment, which a thread looks
at every 50 ms. Then two days pass at once.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import delivery_side, harness, process_tree, store_side
from benchmarks.report import Report
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.testing.local_broker import MovableClock

RATIO = "timer_memory_1x_vs_16x"
SCALES = (1, 4, 16)
WINDOW_S = 2 * 24 * 3_600
BATCH = 10_000
LOG_FILE_BYTES = 256 << 20
SAMPLE_SECONDS = 0.05
MB = 1_000_000


class Peak:
    """The most memory of its own that this process has, as a thread sees it until the exit."""

    def __init__(self) -> None:
        self.own_bytes = 0
        self._ended = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[Peak]:
        thread = threading.Thread(target=self._sample, name="memory-samples", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _sample(self) -> None:
        while True:
            self.own_bytes = max(self.own_bytes, own_bytes())
            if self._ended.wait(SAMPLE_SECONDS):
                return


def own_bytes() -> int:
    return process_tree.own_bytes(os.getpid())


def fill_and_deliver(directory: Path, base: int) -> dict[str, Any]:
    """Fill a wheel with 16 times `base` timers and deliver them: memory at the marks, peaks, seconds."""
    clock = MovableClock()
    with ExitStack() as stack:
        store = stack.enter_context(store_side.open_store(directory / "store", LOG_FILE_BYTES, clock=clock))
        timers = TimerService(store, directory / "store", clock)
        stack.callback(timers.close)
        filling = _Filling(timers, clock)
        with Peak().watched() as peak:
            for scale in SCALES:
                filling.up_to(store, base * scale)
        total = base * SCALES[-1]
        clock.advance(WINDOW_S + 60)
        gc.collect()
        with Peak().watched() as delivering:
            done = harness.timed(lambda: _deliver(timers, total))
        store.dispatch_now()
        delivered = delivery_side.stored_count(store)
    if delivered != total:
        raise RuntimeError(f"expected {total} delivered timers, found {delivered}")
    return {
        "timers": total,
        "own_bytes": filling.own_bytes,
        "own_bytes_peak_filling": peak.own_bytes,
        "own_bytes_peak_delivering": delivering.own_bytes,
        "taken_in_per_second": total / filling.seconds,
        "delivered_per_second": done.rate,
    }


class _Filling:
    def __init__(self, timers: TimerService, clock: MovableClock) -> None:
        self.own_bytes: list[int] = []
        self.seconds = 0.0
        self._timers = timers
        self._clock = clock
        self._chance = random.Random(6)
        self._pool = store_side.message_pool()

    def up_to(self, store: Any, count: int) -> None:
        timers, chance = self._timers, self._chance
        while timers.waiting_count < count:
            missing = min(BATCH, count - timers.waiting_count)
            for number in range(missing):
                due_ms = self._clock.now_ms() + chance.randrange(3_600, WINDOW_S - 3_600) * 1_000
                message = delivery_side.timer_message(timers, self._pool[number % len(self._pool)], due_ms)
                if not store.put(message).ok:
                    raise RuntimeError("expected PUT_OK: the benchmark's store refused a timer")
            store.dispatch_now()
            self.seconds += harness.timed(self._take_in).seconds
        gc.collect()
        self.own_bytes.append(own_bytes())

    def _take_in(self) -> tuple[int, int]:
        while self._timers.behind_count:
            self._timers.run_once()
        return 1, 0


def _deliver(timers: TimerService, count: int) -> tuple[int, int]:
    while timers.waiting_count:
        timers.run_once()
    return count, 0


def measure(made: Report, directory: Path, base: int) -> None:
    """Run it in a child and state what it found."""
    command = [sys.executable, "-m", "benchmarks.delivery_memory_side", str(directory), str(base)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the child with the timers failed:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    smallest, *_, largest = found["own_bytes"]
    made.ratios[RATIO] = round(smallest / largest, 4)
    made.environment["waiting_timers"] = found["timers"]
    for scale, size in zip(SCALES, found["own_bytes"], strict=True):
        made.rates[f"timer_memory_{scale}x_mb"] = round(size / MB, 1)
    made.rates["timer_memory_peak_filling_mb"] = round(found["own_bytes_peak_filling"] / MB, 1)
    made.rates["timer_memory_peak_delivering_mb"] = round(found["own_bytes_peak_delivering"] / MB, 1)
    made.rates["waiting_timers_taken_in_per_second"] = round(found["taken_in_per_second"], 1)
    made.rates["waiting_timers_delivered_per_second"] = round(found["delivered_per_second"], 1)


if __name__ == "__main__":
    print(json.dumps(fill_and_deliver(Path(sys.argv[1]), int(sys.argv[2]))))
