"""Group 3: the tier. Both sides are embedded, over the same local store, with a tier in a directory of a disk.

Both flush what they upload: TierMQ by fdatasync after each write of records and of units, RocketMQ's PosixFileSegment
by a file that is opened for synchronous writes and by `force` besides. What a batch changes in the metadata TierMQ
commits to a small database, RocketMQ rewrites its whole JSON file, twice, flushed. Neither flushes the key index that
still grows.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import limits, upload_side
from benchmarks.compare import tier_data, tier_limits
from benchmarks.compare.peer_process import Peer, start_rocketmq, start_tiermq
from benchmarks.compare.tier_data import Amount
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Goal, Place, Sides, Work
from benchmarks.harness import MIB, Side

GROUP = "tier"
LOG_BYTES = 128 * MIB
INDEX_ITEMS = 1_250_000  # Sixteen times of it is RocketMQ's default index file.
PAGE = 32
RANDOM_PAGES = 500
KEYS = 2_000
COPY_BYTES = 64 * 1024


def amount_of(place: Place) -> Amount:
    return Amount.of(place.amount(LOG_BYTES))


def _notes(amount: Amount) -> dict[str, object]:
    return {"messages": amount.messages, "record_bytes": tier_data.RECORD_BYTES, "queues": tier_data.QUEUE_COUNT}


def open_upload(place: Place, stack: ExitStack) -> Sides:
    """Each round begins with no tier at all, and ends when everything is in it and its keys are indexed."""
    amount = amount_of(place)
    # The local stores are on the disk, too: what each side flushes of its metadata lies there, as in a broker.
    ours, theirs = _prepared(place, place.disk, stack, amount, "Uploads", "TierUpload")
    limit = tier_limits.SequentialWrites(place.disk / "written", amount)
    return Sides(
        {TIERMQ: ours.run, ROCKETMQ: theirs.run, LIMIT: limit.round},
        {TIERMQ: ours.pid, ROCKETMQ: theirs.pid},
        _notes(amount) | {"chunks": len(list(amount.chunks()))},
    )


def _prepared(
    place: Place, stores: Path, stack: ExitStack, amount: Amount, our_class: str, java_class: str
) -> tuple[Peer, Peer]:
    our_store, their_store = tier_data.two_stores(stores, amount)
    ours = start_tiermq(stack, "tier_peer", our_class)
    theirs = start_rocketmq(stack, java_class, place.directory / "java")
    ours.prepare(**amount.parameters(our_store, place.disk / "tiermq-tier"))
    theirs.prepare(**amount.parameters(their_store, place.disk / "rocketmq-tier"))
    return ours, theirs


LimitOf = Callable[[Path, Amount, ExitStack], Side]


def _asked(peer: Peer, job: dict[str, object]) -> Side:
    """Rounds of one job, each with a seed of its own: no cache is to have what the round before asked for."""
    seeds = itertools.count(1)
    return lambda: peer.run(**job, seed=next(seeds))


def _open_reads(place: Place, stack: ExitStack, limit_of: LimitOf, **job: object) -> Sides:
    """Both sides upload everything once, keys included, and forget before each round what they read."""
    amount = amount_of(place)
    ours, theirs = _prepared(place, place.directory, stack, amount, "Reads", "TierRead")
    return Sides(
        {
            TIERMQ: _asked(ours, job),
            ROCKETMQ: _asked(theirs, job),
            LIMIT: limit_of(place.disk / "tiermq-tier", amount, stack),
        },
        {TIERMQ: ours.pid, ROCKETMQ: theirs.pid},
        _notes(amount) | job,
    )


def open_sequential(place: Place, stack: ExitStack) -> Sides:
    """Whole queues, one after the other, in pages."""

    def plain(tier: Path, amount: Amount, stack: ExitStack) -> Side:
        return tier_limits.PlainReads(tier_limits.open_logs(stack, tier), amount).round

    return _open_reads(place, stack, plain, how="sequential", page=PAGE)


def open_random(place: Place, stack: ExitStack) -> Sides:
    """Pages at places of chance; in the n-th round of each side they are the same."""

    def plain(tier: Path, amount: Amount, stack: ExitStack) -> Side:
        return tier_limits.PageReads(tier_limits.open_logs(stack, tier), amount, PAGE, RANDOM_PAGES).round

    return _open_reads(place, stack, plain, how="random", page=PAGE, count=RANDOM_PAGES)


def open_keys(place: Place, stack: ExitStack) -> Sides:
    """One message for each key, by an index file that is compacted and in the tier."""

    def plain(tier: Path, amount: Amount, stack: ExitStack) -> Side:
        (path,) = (path for path in tier.rglob("INDEX/*") if path.suffix == "")
        index = os.open(path, os.O_RDONLY)
        stack.callback(os.close, index)
        return tier_limits.KeyReads(index, tier_limits.open_logs(stack, tier), amount, KEYS).round

    return _open_reads(place, stack, plain, how="keys", count=KEYS)


def open_rearrange(place: Place, stack: ExitStack) -> Sides:
    """One full index file of random keys, into a new file that an upload can read.

    RocketMQ follows the chains and writes into a mapped file; TierMQ sorts in memory and writes the file at once.
    """
    capacity = place.amount(INDEX_ITEMS)
    slots = capacity // tier_data.ITEMS_PER_SLOT
    our_directory, their_directory = place.directory / "tiermq", place.directory / "rocketmq"
    (our_directory / "tiered_index_file").mkdir(parents=True)
    path = upload_side.fill_index_file(our_directory / "tiered_index_file", slots, capacity)
    shutil.copytree(our_directory, their_directory)
    shape = {"begin": path.name, "slots": slots, "capacity": capacity}
    ours = start_tiermq(stack, "tier_peer", "Rearrangement")
    theirs = start_rocketmq(stack, "TierRearrange", place.directory / "java")
    ours.prepare(store=our_directory, **shape)
    theirs.prepare(store=their_directory, **shape)
    compacted_bytes = 28 + 8 * slots + 28 * (capacity - 1)
    items_per_block = COPY_BYTES * (capacity - 1) // compacted_bytes
    copy = limits.Memcpy(place.directory / "copied", compacted_bytes, bytes(COPY_BYTES), items_per_block)
    stack.callback(copy.close)
    return Sides(
        {TIERMQ: ours.run, ROCKETMQ: theirs.run, LIMIT: lambda: copy.round(compacted_bytes // COPY_BYTES)},
        {TIERMQ: ours.pid, ROCKETMQ: theirs.pid},
        {"items": capacity - 1, "slots": slots, "compacted_bytes": compacted_bytes},
    )


WORKS = [
    Work(
        "tier_upload",
        GROUP,
        "upload of what waits to a POSIX tier",
        open_upload,
        goal=Goal(1.5),
        limit="pwrite + fdatasync of the same chunks into one file",
    ),
    Work(
        "cold_sequential",
        GROUP,
        "whole queues from a POSIX tier, pages of 32",
        open_sequential,
        goal=Goal(1.5),
        limit="a plain read of the same files",
    ),
    Work(
        "cold_random",
        GROUP,
        "pages of 32 at random places of a POSIX tier",
        open_random,
        limit="one pread for each page",
    ),
    Work(
        "cold_key_query",
        GROUP,
        "messages by key through a compacted index in the tier",
        open_keys,
        limit="three preads for each key",
    ),
    Work(
        "index_rearrange",
        GROUP,
        "a full index file, compacted",
        open_rearrange,
        goal=Goal(5.0),
        limit="memcpy of the compacted bytes",
    ),
]
