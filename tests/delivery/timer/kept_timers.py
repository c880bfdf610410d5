"""Tiered timers in memory: a keeper that can be out of reach, and forgets what it has not flushed when it dies."""

from __future__ import annotations

from collections.abc import Iterator

from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.errors import TierUnavailable


class KeptFar:
    """See `TieredTimers`."""

    def __init__(self, horizon_ms: int) -> None:
        self.horizon_ms = horizon_ms
        self.is_down = False
        self.kept: list[TieredTimer] = []
        self.forgotten_ms = 0
        self.pull_count = 0
        self._added: list[TieredTimer] = []
        self._given: list[TieredTimer] = []
        self._confirmed: list[TieredTimer] = []

    def _reach(self) -> None:
        if self.is_down:
            raise TierUnavailable("the tier is out of reach")

    def add(self, timer: TieredTimer) -> None:
        self._added.append(timer)

    def flush(self) -> None:
        self._reach()
        self.kept += self._added
        self._added = []

    def pull(self, until_ms: int) -> Iterator[TieredTimer]:
        self._reach()
        self.pull_count += 1
        for timer in [each for each in self.kept if each.deliver_ms < until_ms]:
            if timer not in self._confirmed:
                self._reach()
                self._given.append(timer)
                yield timer

    def pulled(self) -> None:
        self._reach()
        self._confirmed += self._given
        self._given = []

    def forget(self, before_ms: int) -> None:
        self._reach()
        assert before_ms > self.forgotten_ms
        self.forgotten_ms = before_ms
        self.kept = [timer for timer in self.kept if timer.deliver_ms >= before_ms]

    def restarted(self) -> None:
        """Its process died: what was not flushed, and what was pulled and not confirmed, is as if it had not been."""
        self._added = []
        self._given = []
