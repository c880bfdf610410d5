"""How many messages match a filter, without looking at all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def estimate_matches(
    tags_codes: Iterable[int], message_count: int, matches: Callable[[int], bool], max_scan: int, threshold: int
) -> int:
    """Matches among `message_count` messages: exact when all could be looked at, otherwise in proportion.

    Looking stops after `max_scan` messages, or once more than `threshold` have matched.
    """
    matched = 0
    for scanned, tags_code in enumerate(tags_codes):
        if scanned >= max_scan or matched > threshold:
            return matched * message_count // scanned if scanned else 0
        matched += bool(matches(tags_code))
    return matched
