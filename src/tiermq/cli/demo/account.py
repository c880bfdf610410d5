"""The demo's measurements: counters and samples over time (`Timeline`), and the totals (`Account`).

    with Timeline(local_bytes, tier_bytes) as timeline:
        with timeline.step("put"):
            timeline.count("put", 64)

A sampler thread records every SAMPLE_S each counter, the bytes of the local directory and the bytes of the
tier. Listing a tier may take long, so it takes at most a tenth of the time. Counters hold
messages. Work that reports only its end (a query, an export) is spread evenly over the time it took.
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
from typing import Any, Self

from tiermq.cli.demo.engine import SqlRow
from tiermq.cli.demo.orders import Tally
from tiermq.errors import TierError

SAMPLE_S = 0.1
TIER_SHARE = 10  # Listing the tier may take one part in TIER_SHARE of the time.
BLOCK_BYTES = 512  # The unit of st_blocks, whatever the file system's own is.

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One sample. `at_s` is seconds since the start."""

    at_s: float
    counters: dict[str, int]
    local_bytes: int
    tier_bytes: int


@dataclasses.dataclass(slots=True)
class Step:
    """One step of the demo: start, end and text. `facts` are numbers for programs."""

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
    """Messages that were processed between two times, assumed at an even rate."""

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
        """A function that counts in one series."""
        return lambda messages: self.count(series, messages)

    @contextmanager
    def step(self, name: str, title: str) -> Iterator[Step]:
        """A step that lasts as long as the block. Both ends are sampled, so that short steps are visible."""
        step = Step(name, title, self.now_s)
        self.steps.append(step)
        self.sample()
        try:
            yield step
        finally:
            step.end_s = self.now_s
            self.sample(with_tier=True)

    def spread(self, series: str, messages: int, begin_s: float) -> None:
        """`messages` were processed since `begin_s`."""
        self.spreads.append(Spread(series, messages, begin_s, self.now_s))

    def sample(self, *, with_tier: bool = False) -> Sample:
        """Take a sample. The tier is listed when due, or on request."""
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
            except TierError as error:  # The step that uses the tier gets the same error, and ends the demo.
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
    """A directory's disk usage; files may be sparse, and may vanish meanwhile."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * BLOCK_BYTES
            except FileNotFoundError:
                continue
    return total


def rates(timeline: Timeline, bucket_s: float, record_bytes: float) -> dict[str, list[float]]:
    """Bytes per second by series, in buckets of `bucket_s` from the start to the last sample.

    Messages count as `record_bytes` each. Besides the counters there is `copy`: the growth of the tier.
    """
    samples = sorted(timeline.samples, key=lambda sample: sample.at_s)
    last_s = max([samples[-1].at_s if samples else 0.0, *(spread.end_s for spread in timeline.spreads)])
    buckets = int(last_s / bucket_s) + 1
    found: dict[str, list[float]] = {}

    def pour(series: str, count: float, begin_s: float, end_s: float) -> None:
        """Distribute bytes over the buckets of their time range."""
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


KIB = 1024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One count of all messages, and its result."""

    by: str
    count: int
    checksum: int
    agrees: bool


@dataclasses.dataclass(slots=True)
class Account:
    """The whole demo in numbers. Sizes are bytes; `steps` have more, each under the name of its step."""

    directory: str
    tier: str
    engine: str
    kernel: str
    without_spark: str | None = None  # Why there was none.
    acknowledged: int = 0  # By the producers that were killed.
    recovered: int = 0  # Of them, and of what they had no time to acknowledge.
    messages: int = 0
    checksum: int = 0
    record_bytes: float = 0.0
    local_bytes_before: int = 0
    local_bytes_after: int = 0
    log_files_evicted: int = 0
    tier_bytes: int = 0
    table_files: int = 0
    table_bytes: int = 0
    took_s: float = 0.0
    by_tag: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    sql: list[SqlRow] = dataclasses.field(default_factory=list)
    checks: list[Check] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)

    def check(self, by: str, found: Tally, expected: Tally) -> bool:
        """Record that `by` counted `found`; returns whether it is as expected."""
        agrees = found.agrees(expected)
        self.checks.append(Check(by, found.count, found.checksum, agrees))
        return agrees

    def fact(self, step: str, name: str) -> float:
        """A number of a step; 0 when the step was left out."""
        return next((each.facts.get(name, 0.0) for each in self.steps if each.name == step), 0.0)

    def has(self, step: str) -> bool:
        return any(each.name == step for each in self.steps)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def size(count: float) -> str:
    """Readable bytes: three digits and a unit."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= KIB
        unit += 1
    if unit == 0 or count >= 99.5:
        return f"{count:.0f} {_UNITS[unit]}"
    return f"{count:.3g} {_UNITS[unit]}"


def seconds(count: float) -> str:
    """Readable seconds."""
    if count >= 10:
        return f"{count:.0f} s"
    return f"{count:.1f} s" if count >= 1 else f"{count * 1000:.0f} ms"


def rate(count: float, took_s: float) -> str:
    """A readable rate per second."""
    each = count / max(took_s, 1e-9)
    return f"{each:,.0f}/s" if each < 99_500 else f"{each / 1000:,.0f}k/s"
