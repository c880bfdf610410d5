"""The same works at 1, 4 and 16 times a part of their data, and what is left out because there is no room for it.

A part, such as a quarter, so that all of it takes less than an hour and fits a machine that the works themselves fit.

What a point will need is judged by the points before it: files grow with the data; memory of the processes grows as it
did from the last point but one to the last, and doubles where only one is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import harness
from benchmarks.compare import places
from benchmarks.compare.places import Grounds
from benchmarks.compare.results import Point

SCALES = (1, 4, 16)
SPARE = 1.2
"""Room that must be there for each byte that is expected: a guess, and others use the machine too."""


def expected_files_bytes(before: Point, scale: int) -> dict[str, float]:
    """What will lie in `directory` and in `disk`."""
    return {kind: count * scale / before.scale for kind, count in before.files_bytes.items()}


def expected_memory_bytes(before: Sequence[Point], scale: int) -> float:
    """Own memory of all sides' processes together."""
    last = before[-1]
    now = _own_bytes(last)
    if len(before) < 2:
        return now * 2
    slope = max(0.0, (now - _own_bytes(before[-2])) / (last.scale - before[-2].scale))
    return now + slope * (scale - last.scale)


def _own_bytes(point: Point) -> int:
    return sum(memory.peak_own_bytes for memory in point.memory.values())


def why_not(before: Sequence[Point], scale: int, grounds: Grounds) -> str:
    """Why a point at `scale` cannot be measured here, given those at smaller scales; "" when it can."""
    if not before or before[-1].scale != _scale_before(scale):
        return f"there is no measurement at {_scale_before(scale)}×"
    files = expected_files_bytes(before[-1], scale)
    memory = expected_memory_bytes(before, scale)
    needed: dict[str, float] = {"memory": memory * SPARE}
    for kind, parent in (("directory", grounds.mapped), ("disk", grounds.disk)):
        name = "memory" if places.is_memory(parent) else "disk"
        needed[name] = needed.get(name, 0.0) + files.get(kind, 0) * SPARE
    room = {"memory": harness.available_memory(), "disk": places.room_bytes(grounds.disk)}
    for name, count in needed.items():
        if count > room[name]:
            return f"about {count / 1e9:.1f} GB of {name} needed, {room[name] / 1e9:.1f} GB there"
    return ""


def _scale_before(scale: int) -> int:
    return max(each for each in SCALES if each < scale)
