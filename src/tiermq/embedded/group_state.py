"""GroupState: what consumer groups have consumed of an embedded store, in the files where a broker keeps it.

    config/consumerOffset.json   offsets of groups (`ConsumerOffsets`)
    config/delayOffset.json      how far each delay level is delivered (`DelayLevels`), for retries that wait

So a broker that is started on the directory later continues with the same offsets and retries.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from tiermq.broker.group.consumer_offsets import ConsumerOffsets
from tiermq.clock import Clock
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.errors import StoreError
from tiermq.store.local_store import LocalStore

OFFSETS_FLUSH_S = 5.0
"""RocketMQ's flushConsumerOffsetInterval."""


class GroupState:
    """See the module. Any thread may call."""

    def __init__(self, local: LocalStore, clock: Clock) -> None:
        self._directory = os.path.join(local.config.root_path, "config")
        self._local = local
        self._clock = clock
        self._lock = threading.Lock()
        self._delays: DelayLevels | None = None
        self._active: set[tuple[str, str]] = set()
        self._flushed_s = clock.monotonic()
        self.offsets = ConsumerOffsets(self._directory, clock)
        # What a consumer has put to be tried again is durable before the offset behind the message is.
        self.offsets.before_write.append(local.flush)

    def begin(self, group: str, topic: str) -> None:
        """A consumer starts. Raises StoreError when there is one."""
        with self._lock:
            if (group, topic) in self._active:
                raise StoreError(
                    f"group {group} has a consumer of {topic} in this store already: close that one first, or take "
                    "another group"
                )
            self._active.add((group, topic))
            if self._delays is None:
                self._delays = DelayLevels(self._local, self._directory, self._clock)
                self._delays.start()

    def end(self, group: str, topic: str) -> None:
        """The consumer has closed."""
        with self._lock:
            self._active.discard((group, topic))

    def flush(self) -> None:
        """Make the offsets durable. Raises OSError, StoreError."""
        self._flushed_s = self._clock.monotonic()
        self.offsets.flush()

    def flush_in_time(self) -> None:
        """The same, if the last time is long enough ago."""
        if self._clock.monotonic() - self._flushed_s >= OFFSETS_FLUSH_S:
            self.flush()

    def forget(self, topics: Iterable[str]) -> None:
        """Topics were deleted: their next messages have offsets from 0 on again."""
        if sum(self.offsets.remove_topic(topic) for topic in topics):
            self.flush()

    def close(self) -> None:
        """Flush, and end the thread."""
        with self._lock:
            delays, self._delays = self._delays, None
        if delays is not None:
            delays.stop()
        self.flush()
