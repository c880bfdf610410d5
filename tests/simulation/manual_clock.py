"""ManualClock: time that tests, simulations and the campaign move by hand."""

from __future__ import annotations


class ManualClock:
    """A clock that stands still until it is moved."""

    __slots__ = ("_ms",)

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._ms = now_ms

    def now_ms(self) -> int:
        return self._ms

    def monotonic(self) -> float:
        return self._ms / 1000.0

    def advance_ms(self, delta_ms: int) -> None:
        self._ms += delta_ms

    def set_ms(self, now_ms: int) -> None:
        self._ms = now_ms
