"""Which classes a call has passed, for tests that count the layers of a path."""

from __future__ import annotations

from types import FrameType


def classes_on_the_stack(frame: FrameType | None) -> list[str]:
    """Classes of the package whose methods are being called, outermost first."""
    found: list[str] = []
    while frame is not None:
        kind = type(frame.f_locals.get("self"))
        if kind.__module__.startswith("tiermq."):
            found.append(kind.__name__)
        frame = frame.f_back
    return list(dict.fromkeys(reversed(found)))
