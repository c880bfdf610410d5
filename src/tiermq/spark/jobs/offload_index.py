"""The key index of a broker while an offload writes it: opened, filled with what tasks collected, put into the tier.

The open file takes the keys of wave after wave. While a job runs for ever it goes into the tier when it is full, as a
broker's does. At the end of a job that ends, it goes whatever is in it: whoever has nothing but the tier then finds
keys by the index, and need not read everything. `compact` makes few files of many such.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from tiermq.clock import Clock
from tiermq.errors import TierError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.spark.jobs.offload_values import QueueCommit
from tiermq.tier.dispatch.index_rebuild import queue_tails, rebuild_from
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.index.index_state import IndexState
from tiermq.tier.index.index_store import IndexSettings, IndexStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.tier_config import TierConfig


def open_index(
    config: TierConfig,
    root: str,
    driver: TierDriver,
    metadata: MetadataStore,
    files: FlatFileStore,
    may_write: Callable[[], bool],
    clock: Clock,
) -> IndexStore:
    """The index of the store at `root`, without a thread of its own. Raises StoreDamaged, DiskFull."""
    index = IndexStore(
        OsFileAccess(),
        root,
        driver,
        metadata,
        files.cluster,
        files.broker,
        clock=clock,
        settings=IndexSettings(
            slots=config.tiered_store_index_file_max_hash_slot_num,
            capacity=config.tiered_store_index_file_max_index_num,
        ),
        rebuild=rebuild_from(files),
        is_delete_enabled=lambda: False,  # What expires is for those who know how long each topic is kept.
        may_write=may_write,
    )
    index.start(queue_tails(files), with_thread=False)
    return index


def put_fragments(index: IndexStore, commits: Iterable[QueueCommit]) -> int:
    """Put the keys that tasks collected, of commits that are visible; how many. Raises DiskFull, OSError."""
    count = 0
    for commit in commits:
        fragment = commit.fragment
        if fragment is None:
            continue
        if commit.fragment_path:
            fragment = replace(fragment, keys=Path(commit.fragment_path).read_bytes())
            os.unlink(commit.fragment_path)
        index.put_fragment(fragment)
        count += fragment.count
    return count


def publish_index(index: IndexStore, place: str, may_write: Callable[[], bool]) -> int:
    """Read back what is missing, end the open file and upload all that is local; how many files. May be repeated.

    Raises TierError when something is left: it is not lost, and the next run goes on.
    """
    before = index.counts.uploaded
    _run_until_idle(index, may_write)
    if index.is_caught_up and may_write():
        index.seal()
        _run_until_idle(index, may_write)
    local = [state for _, state in index.states() if state is not IndexState.UPLOAD]
    if local or not index.is_caught_up:
        raise TierError(
            f"{place}: expected its whole key index in the tier, found {len(local)} files of it only here and "
            f"{index.hole_count} ranges of records not indexed; the messages are safe, and the next run goes on"
        )
    return index.counts.uploaded - before


def _run_until_idle(index: IndexStore, may_write: Callable[[], bool]) -> None:
    while may_write() and index.run_once() == 0.0:
        continue
