"""Which end is meant when several messages of a queue, or none, have the time that was asked for."""

from __future__ import annotations

import enum


class Boundary(enum.Enum):
    """RocketMQ's BoundaryType."""

    LOWER = "lower"
    """The first message stored at the time or later."""

    UPPER = "upper"
    """The last message stored at the time or earlier."""
