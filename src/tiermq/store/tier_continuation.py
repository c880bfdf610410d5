"""Whether the numbering of a store directory goes on in a tier: then it must not be written without that tier.

A restored directory has metadata of its tier and no message yet; an older copy of a disk may have fewer than the tier:

    config/tieredStoreMetadata.db    orders-0 ends at 700          local queue ends at 0
                                                                   the next message would be 0, a second time

The metadata are read by their two tables alone: the store must not depend on the tier.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreDamaged

METADATA_DATABASE = "tieredStoreMetadata.db"
"""The name of our metadata in a store's `config` directory, beside the JSON file of RocketMQ's."""
NAMED_MAX = 5  # Queues that the error names.
_CONSUME_QUEUE, _DELETED, _DELETING = 1, 2, 1  # As the metadata store types and statuses.
_ENDS = f"""
    SELECT topic, queue_id, MAX(last) FROM (
        SELECT topic, queue_id, (base + size) / {UNIT_BYTES} AS last FROM segment
            WHERE type = {_CONSUME_QUEUE} AND status <> {_DELETED}
        UNION ALL SELECT topic, queue_id, max_offset AS last FROM queue)
    WHERE topic NOT IN (SELECT name FROM topic WHERE status = {_DELETING})
    GROUP BY topic, queue_id ORDER BY topic, queue_id
"""  # noqa: S608 - numbers of this file


def require_own_numbers(root: str, local_end: Callable[[str, int], int]) -> None:
    """Raises StoreDamaged when the tier's metadata in `root` know messages behind the end of a local queue."""
    path = os.path.join(root, "config", METADATA_DATABASE)
    if not os.path.isfile(path):
        return
    behind = [
        f"{topic}-{queue_id} (tier {end}, local {local_end(topic, queue_id)})"
        for topic, queue_id, end in _tier_ends(path)
        if end > local_end(topic, queue_id)
    ]
    if behind:
        named = ", ".join(behind[:NAMED_MAX]) + f" and {len(behind) - NAMED_MAX} more" * (len(behind) > NAMED_MAX)
        raise StoreDamaged(
            f"{root}: expected to be opened with its tier, found none given, and its numbering continues there in "
            f"{len(behind)} queue(s): {named}. New messages would get numbers that others have in the tier. Give the "
            f"tier (tiermq serve --tier URL, tierUrl, TieredStore.open), or, to begin another history, move {path} away"
        )


def _tier_ends(path: str) -> list[tuple[str, int, int]]:
    import sqlite3  # A store without a tier does not load it.

    try:
        with closing(sqlite3.connect(path)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'segment'").fetchall():
                return []  # Made, and never filled.
            return connection.execute(_ENDS).fetchall()
    except sqlite3.DatabaseError as error:
        raise StoreDamaged(
            f"{path}: expected what the store knows of its tier, found a file that cannot be read: {error}. Open the "
            "store with its tier, which reads it from there again, or move the file away"
        ) from error
