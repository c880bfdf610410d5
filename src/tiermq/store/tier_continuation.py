"""Whether the numbering of a store directory continues in a tier, and under which names of a broker.

Such a directory must not be written without its tier, nor under other names: the tier would take it for another broker
and upload its messages a second time.

A restored directory has metadata of its tier and no message yet; an older copy of a disk may have fewer than the tier:

    config/tieredStoreMetadata.db    orders-0 ends at 700          local queue ends at 0
                                                                   the next message would be 0, a second time

The metadata are read by their tables alone: the store must not depend on the tier.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import closing

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import BadConfig, StoreDamaged

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
RECORDED_NAMES = "SELECT cluster, broker FROM owner UNION SELECT cluster, broker FROM queue"
"""The names of the broker whose metadata they are; several where a directory was used under several."""
_QUEUE_NAMES = "SELECT DISTINCT cluster, broker FROM queue"  # Of metadata from before there was an owner.

Names = tuple[str, str]
"""Of a broker: its cluster's and its own."""


def recorded_names(root: str | os.PathLike[str]) -> list[Names]:
    """Under which names the store in `root` was used with a tier; nothing when it was not, or cannot be read: opening
    it with its tier reports that.
    """
    path = os.path.join(root, "config", METADATA_DATABASE)
    if not os.path.isfile(path):
        return []
    import sqlite3

    try:
        with closing(sqlite3.connect(path)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "queue" not in tables:
                return []
            found = connection.execute(RECORDED_NAMES if "owner" in tables else _QUEUE_NAMES).fetchall()
    except sqlite3.DatabaseError:
        return []
    return sorted((str(cluster), str(broker)) for cluster, broker in found)


def broker_names(
    root: str | os.PathLike[str],
    recorded: Collection[Names],
    cluster: str,
    broker: str,
    way: str = "brokerClusterName, brokerName or serve --name",
) -> Names:
    """The names under which a store is opened, where an empty one was not given: the recorded ones if there are any.
    `way`: how names are given.

    Raises BadConfig when others are given than those that are recorded, or when several are and none is given.
    """
    fitting = [names for names in recorded if cluster in ("", names[0]) and broker in ("", names[1])]
    if not recorded:
        return cluster, broker
    if len(fitting) == 1:
        return fitting[0]
    was = ", ".join(sorted("/".join(names) for names in recorded))
    if fitting:
        raise BadConfig(
            f"{root}: expected the name of one broker, found history of several in what it knows of its tier ({was}); "
            f"give cluster and broker name ({way})"
        )
    raise BadConfig(
        f"{root}: expected the names under which its history is in the tier ({was}), found {cluster or '*'}/"
        f"{broker or '*'}; under other names that history would be hidden, and what the store has would be copied a "
        f"second time. Give those names ({way}), or none; for another broker give another directory"
    )


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
            f"{path}: expected the store's tier metadata, found a file that cannot be read: {error}. Open the "
            "store with its tier, which reads it from there again, or move the file away"
        ) from error
