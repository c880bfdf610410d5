"""Store directories that a job is given: whose they are, how they were made, recovery, opening them to write."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiermq.errors import BadConfig, BadTierName, StoreDamaged, StoreLocked
from tiermq.files.store_lock import StoreLock
from tiermq.history.scan_values import DEFAULT_CLUSTER, StorePlace
from tiermq.pipeline.scan.scan_spec import named_store
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.directory import FileKind, StoreFile, StoreState, list_store, store_state
from tiermq.store.readonly.index import IndexView
from tiermq.store.readonly.mapped_run import ReadOnlyMap
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.store.tier_continuation import broker_names, recorded_names
from tiermq.tier.names import QueueKey
from tiermq.tier.tier_identity import require_sound_metadata

WAIT_S = 10.0
"""Another job that commits into the same store is done sooner than this; a broker is not."""

LOOK_S = 2.0
"""The same before any task runs, where only a broker matters."""

_POLL_S = 0.05


def parse_place(text: str) -> tuple[str, str | None, str | None]:
    """`DIR` or `DIR=cluster/broker`: the directory, and the names if there are any. Raises BadConfig."""
    path, cluster, broker = named_store(text)
    is_plain = not broker and ("=" not in text or os.path.isdir(os.path.expanduser(text)))
    if not path or not (is_plain or (cluster and broker)):
        raise BadConfig(f"--store is DIR or DIR=cluster/broker, found {text!r}")
    return path, cluster or None, broker or None


def place_of(text: str) -> StorePlace:
    """Parses a store argument. A directory that was used with a tier has its broker's name; otherwise it must be given.

    Raises BadConfig when the names are others than those under which the directory was tiered, or when nothing records
    them; StoreDamaged when what the directory knows of its tier is damaged.
    """
    path, cluster, broker = parse_place(text)
    known = recorded_names(require_sound_metadata(path).parent.parent)
    names = broker_names(path, known, cluster or "", broker or "", "--store DIR=cluster/broker")
    if not all(names):
        ReadOnlyStore.open(path).close()  # Where there is no store, that is what is wrong.
        raise BadConfig(
            f"{path}: expected the names of its broker, which it does not know before it was used with a tier. Give "
            f"those that the broker runs with: --store {path}={DEFAULT_CLUSTER}/BROKERNAME. Under other names its "
            "messages would be copied a second time later"
        )
    try:
        QueueKey(*names, "topic", 0)
    except BadTierName as error:
        raise BadConfig(f"{text}: {error}") from error
    return StorePlace(path, *names)


def recover_store(path: str) -> bool:
    """Run crash recovery: open and close a store whose process died. False if it needs none."""
    root = Path(path).expanduser()
    if store_state(root) is not StoreState.CRASHED:
        return False
    LocalStore.open(root, background=False, with_tier=True, **store_settings(root)).close()
    return True


def store_settings(root: Path) -> dict[str, Any]:
    """The settings that are part of a directory's format, detected from its files."""
    settings: dict[str, Any] = {}
    if not root.is_dir():
        return settings
    names = {
        FileKind.COMMIT_LOG: "mapped_file_size_commit_log",
        FileKind.CONSUME_QUEUE: "mapped_file_size_consume_queue",
        FileKind.CONSUME_QUEUE_EXT: "mapped_file_size_consume_queue_ext",
        FileKind.BATCH_CONSUME_QUEUE: "mapper_file_size_batch_consume_queue",
    }
    for file in list_store(root):
        try:
            size = file.path.stat().st_size
        except FileNotFoundError:
            continue  # The process that has the store open removes files meanwhile.
        if file.kind in names and size:
            settings.setdefault(names[file.kind], size)
        elif file.kind is FileKind.INDEX and size and "max_hash_slot_num" not in settings:
            settings |= _index_settings(file)
    settings["enable_consume_queue_ext"] = "mapped_file_size_consume_queue_ext" in settings
    return settings


def _index_settings(file: StoreFile) -> dict[str, Any]:
    with ReadOnlyMap(file.path) as opened:
        try:
            view = IndexView(opened.view)
        except StoreDamaged:
            return {}  # Of an index file that a crash left the start of the store makes what can be made.
        return {"max_hash_slot_num": view.slot_count_max, "max_index_num": view.entry_count_max}


def open_store(path: str, settings: Mapping[str, Any] | None = None, wait_s: float = WAIT_S) -> LocalStore:
    """The store to put into, locked, with its own format settings and without threads: so nothing is ever deleted.

    Raises StoreLocked when another process keeps it for longer than `wait_s`.
    """
    given = {**store_settings(Path(path)), **(settings or {})}
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return LocalStore.open(path, background=False, **given)
        except StoreLocked as error:
            if time.monotonic() >= deadline:
                raise _refusal(path) from error
            time.sleep(_POLL_S)


def require_unlocked(store: str, wait_s: float = LOOK_S) -> None:
    """Raises StoreLocked when another process has the store open and keeps it."""
    path = os.path.join(store, "lock")
    deadline = time.monotonic() + wait_s
    while os.path.exists(path):
        try:
            StoreLock(path).release()
            return
        except StoreLocked as error:
            if time.monotonic() >= deadline:
                raise _refusal(store) from error
            time.sleep(_POLL_S)


def _refusal(store: str) -> StoreLocked:
    return StoreLocked(
        f"{store}: expected a store that no process has open, found its lock held by a broker or another process. A "
        "store directory has one writer: stop that process, send to the running broker instead, or write to another "
        "store"
    )
