"""What is compared: a work with two sides and, where there is one, the machine's own limit.

A work opens its sides at its own size, or for its growth at 1, 4 or 16 times a part of it, each in a process of its
own, so that their memory can be distinguished; the runner lets them take turns. Ratios are TierMQ : RocketMQ
and TierMQ : limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from benchmarks.harness import Side
from benchmarks.report import Round

TIERMQ, ROCKETMQ, TUNED, LIMIT = "tiermq", "rocketmq", "rocketmq_tuned", "limit"
"""TUNED: RocketMQ's broker with a fixed heap and epoll, a second column where the network is measured."""


class Kind(Enum):
    """Which figure of a round is compared, and which way is better."""

    RATE = "messages per second"
    SECONDS = "seconds"
    BYTES = "bytes of memory"
    DISK = "bytes of disk per queue"
    """Queues are the messages of such a round."""
    PERCENT = "percent of a processor"
    CPU = "processor seconds per message"

    def of(self, done: Round) -> float:
        """The figure of one round."""
        figures = {
            Kind.RATE: lambda: done.rate,
            Kind.SECONDS: lambda: done.seconds,
            Kind.BYTES: lambda: float(done.bytes),
            Kind.DISK: lambda: done.bytes / done.messages,
            Kind.PERCENT: lambda: 100 * done.cpu_seconds / done.seconds,
            Kind.CPU: lambda: done.cpu_seconds / done.messages,
        }
        return figures[self]()


@dataclass(frozen=True, slots=True)
class Goal:
    """What TierMQ : RocketMQ must reach: at least so much of a rate, at most so much of a time or of memory.

    Or, with `own`, what TierMQ's own figure must not exceed, whatever RocketMQ's is.
    """

    ratio: float = 0.0
    at_most: bool = False
    own: float = 0.0

    def __post_init__(self) -> None:
        if (self.ratio > 0) == (self.own > 0):
            raise ValueError(f"expected a goal of a ratio or of an own figure, found {self.ratio} and {self.own}")

    @property
    def is_upper(self) -> bool:
        return self.at_most or self.own > 0

    def excess(self, ratio: float, own: float) -> float:
        """How far the goal is missed, as a share of it; 0 or less where it is met."""
        found, wanted = (own, self.own) if self.own else (ratio, self.ratio)
        return (found - wanted if self.is_upper else wanted - found) / wanted

    def is_met(self, ratio: float, own: float) -> bool:
        """`own`: TierMQ's figure."""
        return self.excess(ratio, own) <= 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how large a work is to be done."""

    directory: Path
    """For mapped files: a memory file system if it has room. Empty, the work's own, removed afterwards."""
    disk: Path
    """For what is flushed: a directory on a disk, likewise."""
    scale: int = 1
    """How many times the data that growth begins with: 1, 4 or 16."""
    quick: bool = False
    """A look, not a verdict: a tenth of the data will do."""
    part: int = 1
    """Growth begins with this part of the work's own amount of data: 4 is a quarter."""

    @property
    def is_whole(self) -> bool:
        """The work's own size, not one of its growth."""
        return self.scale == 1 and self.part == 1

    def amount(self, own: int, quick_part: int = 10) -> int:
        """How much of something there is to be here, of which the work's own size has `own`."""
        return own * self.scale // self.part // (quick_part if self.quick else 1)


@dataclass(slots=True)
class Sides:
    """A work that is ready: a function per side that does one round, and the process whose memory counts."""

    rounds: dict[str, Side]
    """By TIERMQ, ROCKETMQ, TUNED and LIMIT; rounds of all sides do the same number of messages of the same bytes."""
    pids: dict[str, int] = field(default_factory=dict)
    notes: dict[str, object] = field(default_factory=dict)
    """What a reader should know: settings, sizes, counts."""


Opener = Callable[[Place, ExitStack], Sides]


@dataclass(frozen=True, slots=True)
class Work:
    """One row of the report."""

    name: str
    """Such as put_16_1024_async: unique, a file name."""
    group: str
    title: str
    opener: Opener
    """Builds the sides; what it starts ends with the stack."""
    kind: Kind = Kind.RATE
    goal: Goal | None = None
    limit: str = ""
    """What the physical limit is, in words; "" when the work has none."""
    grows: bool = True
    """Whether it is measured at 1, 4 and 16 times a part of the data, too."""
    growth_part: int = 4
    """Which part: growth begins with a quarter of the work's data, or less where a round takes seconds."""
    rounds_max: int = 9
    """Works that take long get fewer rounds."""
    needs_warmup: bool = True
    """Whether rounds before the measured ones are worth anything: not for starts and recoveries."""
    warms_alike: bool = False
    """Whether TierMQ's side is warmed as RocketMQ's is: where the load of both is a virtual machine."""


def by_name(works: Mapping[str, Work] | list[Work]) -> dict[str, Work]:
    """Works by their names. Raises ValueError when two have the same."""
    found: dict[str, Work] = {}
    for work in works.values() if isinstance(works, Mapping) else works:
        if work.name in found:
            raise ValueError(f"two works are called {work.name}")
        found[work.name] = work
    return found
