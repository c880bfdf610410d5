"""How much of what is there a micro-batch takes. Pure.

A limit is shared in proportion to what each queue has, so that queues which are equally far behind in time stay so.
A queue that has anything gets at least one message when the limit allows one for each; otherwise the queues take turns.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiermq.tier.names import QueueKey


def rows_within(max_rows: int | None, max_bytes: int | None, rows: int, size_bytes: int) -> int | None:
    """Both limits as a number of messages, given how many there are and how large they are together."""
    limits = [] if max_rows is None else [max_rows]
    if max_bytes is not None and size_bytes > max_bytes:
        # A message that is larger than the limit must still pass.
        limits.append(max(1, rows * max_bytes // size_bytes))
    return min(limits, default=None)


def fair_shares(available: Mapping[QueueKey, int], limit: int, turn: int = 0) -> dict[QueueKey, int]:
    """How many messages of each queue are taken; together `limit`, or all there are. `turn` says who goes first."""
    queues = sorted(key for key, count in available.items() if count > 0)
    total = sum(available[key] for key in queues)
    if total <= limit:
        return {key: available[key] for key in queues}
    if limit <= len(queues):
        first = turn % len(queues)
        return dict.fromkeys((queues[first:] + queues[:first])[:limit], 1)
    # One for each, the rest in proportion, and what rounding leaves to those who lost most by it.
    rest, left = limit - len(queues), total - len(queues)
    shares, remainders = {}, {}
    for key in queues:
        more, remainders[key] = divmod((available[key] - 1) * rest, left)
        shares[key] = 1 + more
    over = limit - sum(shares.values())
    for key in sorted(queues, key=lambda each: -remainders[each])[:over]:
        shares[key] += 1
    return shares
