"""CutLife: a scenario on a simulated disk that ends after a number of calls to the disk."""

from __future__ import annotations

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess


class PowerCut(BaseException):
    """Not an Exception, so that nothing handles it."""


class CutLife:
    """`calls` None: the power is never cut. A subclass writes `live`."""

    def __init__(self, calls: int | None, clock: ManualClock | None = None) -> None:
        self.calls_left = calls
        self.calls = 0
        self.clock = clock or ManualClock()
        self.access = SimulatedFileAccess(clock=self.clock, on_call=self.count)

    def count(self, _operation: str, _path: str) -> None:
        self.calls += 1
        if self.calls_left is not None and self.calls > self.calls_left:
            raise PowerCut

    def live(self) -> None:
        raise NotImplementedError

    def live_until_cut(self) -> None:
        """Live; fails when the power was not cut."""
        with pytest.raises(PowerCut):
            self.live()
