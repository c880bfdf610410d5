"""ReadyQueue: who is next. A line of queues, each in it at most once, none worked on by two threads at a time.

    push ──► line ──take──► busy ──done──► (gone, or at the end of the line again)

A queue that is pushed while it is busy is appended again when its step is over: so a queue that always has more to do
gets one step while every other ready queue gets one too.

Pace: throttles the engine's threads so that they do not slow down puts.

All threads share one interpreter, and a put waits while another thread has it. At a low put rate the
engine works as fast as it can. At a high rate (`is_paced`):

* steps run one at a time, with rests between them, so that they use no more than a share of one processor;
* a step takes `batch_factor` times as many messages. A step acquires the interpreter some forty times, however large it
  is; copying, writing and indexing in between run without it. So a larger step uploads more messages for the same
  number of waits of a put.

Messages that are not uploaded yet are safe in the local log.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from tiermq.tier.metadata.manifest import ManifestCause
from tiermq.tier.names import QueueName

REST_MAX_S = 0.05
BUSY_REST_S = 0.5  # While another thread works: polling takes the interpreter too, from it and from puts.


@dataclass(frozen=True, slots=True)
class PaceSettings:
    """When to hold back, and how. `put_rate` 0: never."""

    put_rate: int = 200_000  # Puts a second.
    cpu_percent: int = 50  # Of one processor.
    batch_factor: int = 4
    sample_ms: int = 20


class Pace:
    """Any thread may call anything."""

    def __init__(
        self,
        put_count: Callable[[], int],
        settings: PaceSettings | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`put_count` returns the number of puts so far."""
        self._put_count = put_count
        self._settings = settings or PaceSettings()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sampled_at_s = monotonic()
        self._sampled_count = put_count()
        self._free_at_s = 0.0
        self._busy = False
        self._is_paced = False

    @property
    def is_paced(self) -> bool:
        """Whether steps are throttled now."""
        with self._lock:
            self._sample(self._monotonic())
            return self._is_paced

    @property
    def batch_factor(self) -> int:
        """How many times larger than usual a batch may be, by the last sample of the put rate."""
        return self._settings.batch_factor if self._is_paced else 1

    def begin(self) -> float:
        """0: a step may begin, and `end` must be called after it. Otherwise the seconds to rest first."""
        with self._lock:
            now_s = self._monotonic()
            self._sample(now_s)
            if self._is_paced and (self._busy or now_s < self._free_at_s):
                return BUSY_REST_S if self._busy else min(REST_MAX_S, self._free_at_s - now_s)
            self._busy = True
            return 0.0

    def end(self, processor_s: float) -> None:
        """A step ended; `processor_s` is the CPU time that it used."""
        with self._lock:
            self._busy = False
            self._free_at_s = self._monotonic() + processor_s * (100 / self._settings.cpu_percent - 1)

    def _sample(self, now_s: float) -> None:
        settings = self._settings
        passed_s = now_s - self._sampled_at_s
        if not settings.put_rate or passed_s * 1000 < settings.sample_ms:
            return
        count = self._put_count()
        self._is_paced = count - self._sampled_count > settings.put_rate * passed_s
        self._sampled_at_s, self._sampled_count = now_s, count


class ReadyQueue:
    """Any thread may call anything."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._left = threading.Condition(lock)
        self._line: deque[QueueName] = deque()
        self._waiting: set[QueueName] = set()
        self._busy: set[QueueName] = set()
        self._again: set[QueueName] = set()
        self._version = 0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def busy(self) -> int:
        return len(self._busy)

    def is_empty(self) -> bool:
        """Whether no queue is ready and none is busy, both at the same moment."""
        with self._changed:
            return not self._line and not self._busy

    @property
    def version(self) -> int:
        """Changes whenever a queue became ready; for `wait`."""
        return self._version

    def push(self, names: Iterable[QueueName]) -> None:
        with self._changed:
            for name in names:
                if name in self._busy:
                    self._again.add(name)
                elif name not in self._waiting:
                    self._waiting.add(name)
                    self._line.append(name)
            self._version += 1
            self._changed.notify_all()

    def take(self) -> QueueName | None:
        """The first ready queue, which is busy until `done`; None when there is none."""
        with self._changed:
            if not self._line:
                return None
            name = self._line.popleft()
            self._waiting.discard(name)
            self._busy.add(name)
            return name

    def done(self, name: QueueName, again: bool) -> None:
        with self._changed:
            self._busy.discard(name)
            again = again or name in self._again
            self._again.discard(name)
            if again:
                self._waiting.add(name)
                self._line.append(name)
                self._version += 1
            else:
                self._left.notify_all()
            self._changed.notify_all()

    def wait(self, version: int, timeout_s: float) -> None:
        """Wait until a queue became ready after `version` was read, or for the time-out."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout_s)

    def wait_left(self, timeout_s: float) -> None:
        """Wait until a queue has ended a step and is not ready again, or for the time-out.

        For callers that wait for queues to be done: waking them for every step would take time from the workers.
        """
        with self._left:
            if self._line or self._busy:
                self._left.wait(timeout_s)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no queue is busy; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout_s)

    def wait_free(self, topics: Collection[str], timeout_s: float) -> bool:
        """Until no queue of those topics is busy; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(name[0] in topics for name in self._busy), timeout_s)

    def nudge(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()


# QueueDispatchState: what the engine remembers of one queue; BackOff and MemoryBudget, shared by many of them.
#
# Nothing of it survives the process, and nothing of it needs to.


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long a queue rests after failures in a row: doubling, with a limit, drawn between half and all of it."""

    first_ms: int = 1_000
    max_ms: int = 60_000

    def rest_ms(self, failures: int, chance: float) -> int:
        """`chance` is drawn from 0..1. Pure."""
        longest = min(self.max_ms, self.first_ms * 2 ** min(failures - 1, 30))
        return int(longest * (0.5 + chance / 2))


@dataclass(slots=True)
class QueueDispatchState:
    """One queue. Changed by the thread that runs its step; `woken` also by the thread that reports arrivals."""

    name: QueueName
    epoch: int = 0
    commit_offset: int = -1
    due_ms: int = 0  # When it is checked again; 0: not scheduled.
    woken: bool = False
    failures: int = 0
    retry_at_ms: int = 0
    fenced: str = ""  # Why this writer may never write the queue again.
    forked_at: int = -1  # From that offset on the tier has other messages under the queue's numbers.
    trouble: str = ""  # What went wrong last; empty when nothing is wrong.
    refused: bool = False  # Whether that was no outage: waiting alone will not help.
    force_to: int = -1  # Hold nothing back below this offset.
    average_bytes: float = 0.0
    is_packed: bool = False  # What it has pending goes into the next bundle.
    is_bundled: bool = False  # Its last commit is, or will be, in a bundle.
    bundled_bytes: int = 0  # Written in bundles since its manifest was.
    causes: set[ManifestCause] = field(default_factory=set)
    manifest_written_ms: int | None = None

    def worked(self) -> None:
        self.failures, self.retry_at_ms, self.trouble, self.refused = 0, 0, "", False


class MemoryBudget:
    """How many bytes of batches may be in memory at once, over all queues. Any thread may call anything.

    One batch is always admitted, however large: a message that is larger than the whole budget must pass too.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: dict[QueueName, int] = {}
        self._used = 0
        self._refused: set[QueueName] = set()

    @property
    def used_bytes(self) -> int:
        return self._used

    def take(self, name: QueueName, size: int) -> bool:
        """Reserve memory; a refused queue is returned by the next `settle` that releases some."""
        with self._lock:
            others = self._used - self._held.get(name, 0)
            if others > 0 and others + size > self.limit_bytes:
                self._refused.add(name)
                return False
            self._held[name] = size
            self._used = others + size
            return True

    def settle(self, name: QueueName, size: int) -> set[QueueName]:
        """Set what the queue holds now; returns the refused queues, if memory was released."""
        with self._lock:
            before = self._held.pop(name, 0)
            if size:
                self._held[name] = size
            self._used += size - before
            if size >= before or not self._refused:
                return set()
            freed, self._refused = self._refused, set()
            return freed
