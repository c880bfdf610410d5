"""What happened when: counters that any thread may add to, and samples of them and of the bytes on both sides.

    with Timeline(local_bytes, tier_bytes) as timeline:
        with timeline.step("put"):
            timeline.count("put", 64)

A sampler thread notes every SAMPLE_S how far each counter is, how many bytes the local directory takes and how many the
tier holds. Listing a tier may take long, so it is done no more often than a tenth of the time allows. Counters hold
messages. Work that tells only its end (a query, an export) is spread evenly over the time that it took.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tiermq.errors import TierError

SAMPLE_S = 0.1
TIER_SHARE = 10  # Listing the tier may take one part in so many of the time.
BLOCK_BYTES = 512  # The unit of st_blocks, whatever the file system's own is.

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One look. `at_s` is since the beginning."""

    at_s: float
    counters: dict[str, int]
    local_bytes: int
    tier_bytes: int


@dataclasses.dataclass(slots=True)
class Step:
    """One step of the demo: its place in time and what is told about it. `facts` are numbers for programs."""

    name: str
    title: str
    begin_s: float
    end_s: float = 0.0
    lines: list[str] = dataclasses.field(default_factory=list)
    facts: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def took_s(self) -> float:
        return max(self.end_s - self.begin_s, 1e-9)


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """Messages that were worked on evenly between two times, as far as anybody knows."""

    series: str
    count: int
    begin_s: float
    end_s: float


class Timeline:
    """See the module. `on_sample` is called on the sampler's thread."""

    def __init__(
        self,
        local_bytes: Callable[[], int],
        tier_bytes: Callable[[], int],
        on_sample: Callable[[Timeline, Sample], None] = lambda _timeline, _sample: None,
    ) -> None:
        self.samples: list[Sample] = []
        self.steps: list[Step] = []
        self.spreads: list[Spread] = []
        self._local_bytes = local_bytes
        self._tier_bytes = tier_bytes
        self._on_sample = on_sample
        self._counters: dict[str, int] = {}
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._last_tier_bytes = 0
        self._next_tier_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-timeline", daemon=True)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began

    def count(self, series: str, messages: int) -> None:
        with self._lock:
            self._counters[series] = self._counters.get(series, 0) + messages

    def counter(self, series: str) -> Callable[[int], None]:
        """The function that counts in one series."""
        return lambda messages: self.count(series, messages)

    @contextmanager
    def step(self, name: str, title: str) -> Iterator[Step]:
        """A step that lasts as long as the block. Both ends are sampled, so that none is too short to be seen."""
        step = Step(name, title, self.now_s)
        self.steps.append(step)
        self.sample()
        try:
            yield step
        finally:
            step.end_s = self.now_s
            self.sample(with_tier=True)

    def spread(self, series: str, messages: int, begin_s: float) -> None:
        """`messages` were worked on since `begin_s`."""
        self.spreads.append(Spread(series, messages, begin_s, self.now_s))

    def sample(self, *, with_tier: bool = False) -> Sample:
        """Look now. The tier is listed when that is due, or when asked for."""
        local = self._local_bytes()
        tier = self._look_at_tier(at_once=with_tier)
        with self._lock:
            sample = Sample(self.now_s, dict(self._counters), local, tier)
            self.samples.append(sample)
        return sample

    def _look_at_tier(self, *, at_once: bool) -> int:
        started = time.monotonic()
        if at_once or started >= self._next_tier_at:
            try:
                self._last_tier_bytes = self._tier_bytes()
            except TierError as error:  # Whoever works with the tier meets the same error, and ends the demo.
                _log.warning("the tier could not be listed for the picture: %s", error)
            self._next_tier_at = time.monotonic() + TIER_SHARE * (time.monotonic() - started)
        return self._last_tier_bytes

    def _run(self) -> None:
        while not self._stopping.wait(SAMPLE_S):
            self._on_sample(self, self.sample())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()


def bytes_on_disk(directory: Path) -> int:
    """What a directory takes of the disk; files may have holes, and may go while they are looked at."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * BLOCK_BYTES
            except FileNotFoundError:
                continue
    return total


def rates(timeline: Timeline, bucket_s: float, record_bytes: float) -> dict[str, list[float]]:
    """Bytes a second by series, in buckets of `bucket_s` from the beginning to the last sample.

    Messages count as `record_bytes` each. Besides the counters there is `copy`: by how much the tier grew.
    """
    samples = sorted(timeline.samples, key=lambda sample: sample.at_s)
    last_s = max([samples[-1].at_s if samples else 0.0, *(spread.end_s for spread in timeline.spreads)])
    buckets = int(last_s / bucket_s) + 1
    found: dict[str, list[float]] = {}

    def pour(series: str, count: float, begin_s: float, end_s: float) -> None:
        """Share bytes out to the buckets that their time touches."""
        if count <= 0 or end_s <= begin_s:
            return
        line = found.setdefault(series, [0.0] * buckets)
        for bucket in range(int(begin_s / bucket_s), min(int(end_s / bucket_s), buckets - 1) + 1):
            inside = min(end_s, (bucket + 1) * bucket_s) - max(begin_s, bucket * bucket_s)
            line[bucket] += count * (max(inside, 0.0) / (end_s - begin_s)) / bucket_s

    for before, after in itertools.pairwise(samples):
        for series, count in after.counters.items():
            more = count - before.counters.get(series, 0)
            pour(series, more * record_bytes, before.at_s, after.at_s)
        pour("copy", after.tier_bytes - before.tier_bytes, before.at_s, after.at_s)
    for spread in timeline.spreads:
        pour(spread.series, spread.count * record_bytes, spread.begin_s, spread.end_s)
    return found
