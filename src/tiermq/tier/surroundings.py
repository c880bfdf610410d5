"""Surroundings: what a tiered store reaches for besides its tier: files, its metadata, a lock, threads, chance.

A machine gives the usual ones. A simulation gives its own, so that a whole store repeats itself step by step: a disk in
memory, a pool whose work is done when the simulation says so, chance from its seed.
"""

from __future__ import annotations

import logging
import random
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from tiermq.clock import Clock
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.tier.dispatch.tier_lock import TierLock
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.index.index_store import IndexSettings
from tiermq.tier.known_metadata import damaged_metadata
from tiermq.tier.metadata.metadata_damage import damage_of, discard, is_put_away, note_replaced, put_away, put_back
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.restore import DEFAULT_THREADS

_log = logging.getLogger(__name__)


class HeldLock(Protocol):
    """What is given back when the store closes."""

    def release(self) -> None: ...


class Surroundings:
    """The machine's. Made once for each store that is opened; its methods are called while it opens."""

    restore_threads = DEFAULT_THREADS
    index_query_threads = IndexSettings().query_threads

    def __init__(self) -> None:
        self.access: FileAccess = OsFileAccess()

    def open_metadata(self, path: Path, clock: Clock) -> MetadataStore:
        """What the broker knows of its tier, made when there is nothing. Raises what `MetadataStore` raises."""
        path.parent.mkdir(parents=True, exist_ok=True)
        return MetadataStore(str(path), clock=clock)

    def put_away_damaged_metadata(self, path: Path, root: Path, *, may_replace: bool) -> bool:
        """Look for damage before they are opened; True when they are to be read from the tier again.

        Raises StoreDamaged when they are damaged and somebody else's to replace.
        """
        damage = damage_of(path, root / INDEX_DIRECTORY / RECORD_NAME)
        if damage and not may_replace and path.exists():
            raise damaged_metadata(path, damage)
        if damage:
            _log.error("what the store knows of its tier is damaged: %s: %s", path, damage)
        if damage and may_replace:
            put_away(path)
        return may_replace and is_put_away(path)

    def put_away_metadata(self, path: Path) -> None:
        """They are older than the tier: they are to be read from it again. They are closed."""
        put_away(path)

    def put_back_metadata(self, path: Path) -> None:
        """The start was refused, or failed: they are as they were. What was to replace them is discarded."""
        put_back(path)

    def ask_timeout_s(self, timeout_ms: int) -> float:
        """How long to wait for the tier before the store opens without its answer; 0: on this thread, to the end."""
        return timeout_ms / 1000

    def note_metadata_replaced(self, path: Path) -> None:
        """What was damaged has been read from the tier again."""
        _log.error("%s was made again from what the tier itself tells", path)
        note_replaced(path)

    def discard_metadata(self, path: Path) -> None:
        """Forget it. It is closed."""
        discard(path)

    def lock_tier(self, root: Path, owner: str) -> HeldLock:
        """The right to write what the directory knows of its tier. Raises StoreLocked when another one has it."""
        return TierLock(root, owner)

    def fetch_pool(self, thread_count: int) -> Executor:
        """Who reads ahead."""
        return ThreadPoolExecutor(thread_count, thread_name_prefix="tier-fetch")

    def chance(self) -> float:
        """0 to 1, for waits that should not all end together."""
        return random.random()  # noqa: S311 - spreads waits, keeps no secret
