"""How full a disk is, by RocketMQ's arithmetic.

ratio = ceil(100 * used / (used + usable)) / 100, where usable excludes what the file system keeps for root.
A ratio of -1 means that nobody knows.
"""

from __future__ import annotations

UNKNOWN_RATIO = -1.0


def usage_ratio(total_bytes: int, free_bytes: int, usable_bytes: int) -> float:
    """The used share, rounded up to whole hundredths; -1.0 for a file system without a size."""
    used_bytes = total_bytes - free_bytes
    entire_bytes = used_bytes + usable_bytes
    if total_bytes <= 0 or entire_bytes <= 0:
        return UNKNOWN_RATIO
    return -(-100 * used_bytes // entire_bytes) / 100
