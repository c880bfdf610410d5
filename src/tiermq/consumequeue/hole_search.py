"""Binary search in an ascending sequence that has holes.

The units of a queue ascend by physical offset and by store time, but some places have no value: pre-blank units, and
units whose record cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Callable

Probe = Callable[[int, int], tuple[int, int] | None]
"""`probe(low, high)`: index and value of the first place in low..high-1 that has a value; None when all are holes."""


def first_not_below(low: int, high: int, target: int, probe: Probe) -> int:
    """The first index in low..high-1 whose value is >= target; `high` when there is none."""
    answer = high
    while low < high:
        middle = (low + high) // 2
        found = probe(middle, high)
        if found is None:
            high = middle
        elif found[1] >= target:
            answer = found[0]
            high = middle
        else:
            low = found[0] + 1
    return answer
