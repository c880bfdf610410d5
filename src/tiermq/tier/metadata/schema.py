"""The tables of the metadata database, one migration per version of the schema.

`PRAGMA user_version` counts the migrations that a file has had; `PRAGMA application_id` says that it is ours.
A released migration never changes: a change of the schema is one more entry at the end of MIGRATIONS.

    counter      name -> value            `topic_serial_number`: the last topic id that was handed out
    topic        name -> id, attributes
    queue        cluster, broker, topic, queue_id -> offsets, epoch
    gap          queue, from_offset -> to_offset, reason, at_ms
    time_entry   queue, queue_offset -> store_ms, log_offset
    segment      queue, type, base -> size, times, offsets, checksum, checksums of its blocks

The primary keys begin with the topic, because a topic is what users delete, limit and sum up. Every table but `topic`
is clustered by its key, so that a commit changes a fixed number of pages, however many rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence

APPLICATION_ID = 0x54724D51  # "TrMQ"

_QUEUE_COLUMNS = "topic TEXT NOT NULL, queue_id INTEGER NOT NULL, broker TEXT NOT NULL, cluster TEXT NOT NULL"
_QUEUE = "topic, queue_id, broker, cluster"

_FIRST: tuple[str, ...] = (
    "CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO counter VALUES ('topic_serial_number', -1)",
    """CREATE TABLE topic (
        name TEXT PRIMARY KEY,
        topic_id INTEGER NOT NULL UNIQUE,
        status INTEGER NOT NULL,
        reserve_time_hours INTEGER NOT NULL,
        max_bytes INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL)""",
    f"""CREATE TABLE queue (
        {_QUEUE_COLUMNS},
        min_offset INTEGER NOT NULL,
        max_offset INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        PRIMARY KEY ({_QUEUE})) WITHOUT ROWID""",
    f"""CREATE TABLE gap (
        {_QUEUE_COLUMNS},
        from_offset INTEGER NOT NULL,
        to_offset INTEGER NOT NULL,
        reason TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        PRIMARY KEY ({_QUEUE}, from_offset)) WITHOUT ROWID""",
    f"""CREATE TABLE time_entry (
        {_QUEUE_COLUMNS},
        queue_offset INTEGER NOT NULL,
        store_ms INTEGER NOT NULL,
        log_offset INTEGER NOT NULL,
        PRIMARY KEY ({_QUEUE}, queue_offset)) WITHOUT ROWID""",
    f"""CREATE TABLE segment (
        {_QUEUE_COLUMNS},
        type INTEGER NOT NULL,
        base INTEGER NOT NULL,
        size INTEGER NOT NULL,
        status INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        begin_ms INTEGER NOT NULL,
        end_ms INTEGER NOT NULL,
        sealed_ms INTEGER NOT NULL,
        crc32 INTEGER,
        begin_offset INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        PRIMARY KEY ({_QUEUE}, type, base)) WITHOUT ROWID""",
    # Deletions that a crash interrupted are looked up at each start, among very many segments that are fine.
    "CREATE INDEX segment_being_deleted ON segment (status) WHERE status = 2",
)

_SECOND: tuple[str, ...] = ("ALTER TABLE segment ADD COLUMN block_sums BLOB",)

MIGRATIONS: Sequence[Sequence[str]] = (_FIRST, _SECOND)
"""Entry n takes a database from version n to n + 1."""
