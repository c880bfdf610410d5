"""The store that a sink puts into: opened for one commit, as it was made, and without threads.

A store directory has one writer at a time. While a broker has it, a sink cannot commit, and says so before any task
runs. Without threads nothing is cleaned: writing a batch never deletes history.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tiermq.errors import BadOption, StoreLocked
from tiermq.files.store_lock import StoreLock
from tiermq.spark.options import SinkOptions
from tiermq.store.local_store import LocalStore

WAIT_S = 10.0
"""Another sink that commits into the same store is done sooner than this; a broker is not."""

LOOK_S = 2.0
"""The same before any task runs, where only a broker matters."""

_POLL_S = 0.05
_SIZES = {
    "mapped_file_size_commit_log": "commitlog/*",
    "mapped_file_size_consume_queue": "consumequeue/*/*/*",
    "mapped_file_size_consume_queue_ext": "consumequeue_ext/*/*/*",
    "mapper_file_size_batch_consume_queue": "batchconsumequeue/*/*/*",
}
"""Which files tell which setting: every file of a kind has the size that its store was made with."""


def open_sink_store(options: SinkOptions, wait_s: float = WAIT_S) -> LocalStore:
    """The store, locked for us. Raises StoreLocked when somebody else keeps it for longer than `wait_s`."""
    settings = {**sizes_of(options.store), **given_settings(options)}
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return LocalStore.open(options.store, background=False, **settings)
        except StoreLocked as error:
            if time.monotonic() >= deadline:
                raise _refusal(options.store) from error
            time.sleep(_POLL_S)


def require_free(store: str, wait_s: float = LOOK_S) -> None:
    """Raises StoreLocked when somebody has the store open and keeps it."""
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


def sizes_of(store: str) -> dict[str, int]:
    """The file sizes that a store was made with, as far as it has files."""
    found = {}
    for setting, pattern in _SIZES.items():
        file = next(
            (path for path in sorted(Path(store).glob(pattern)) if path.name.isdigit() and path.is_file()), None
        )
        if file is not None:
            found[setting] = file.stat().st_size
    return found


def given_settings(options: SinkOptions) -> dict[str, Any]:
    """The option `storeSettings`. Raises BadOption."""
    if options.store_settings is None:
        return {}
    try:
        settings = json.loads(options.store_settings)
    except json.JSONDecodeError as error:
        raise BadOption(f"option storeSettings: expected JSON ({error}), found {options.store_settings!r}") from None
    if not isinstance(settings, dict):
        raise BadOption(f"option storeSettings: expected a JSON object, found {options.store_settings!r}")
    return settings


def _refusal(store: str) -> StoreLocked:
    return StoreLocked(
        f"{store}: expected a store that nobody has open, found its lock held by a broker or another process. A store "
        "directory has one writer: stop that process, send to the running broker instead, or write to another store"
    )
