"""Configuration files with one generation of backup, as RocketMQ's ConfigManager keeps them.

`<name>` is the newest state, `<name>.bak` the one before it. We write the new state to `<name>.tmp` and sync it before
the old one is renamed away, so that a power cut leaves a whole main file or a whole backup, never only a torn one.

A file that went bad, as its seal tells (`file_seal`), counts as undecodable. An undecodable main file is told of in the
log, and like an empty one deleted once the backup proved readable, so that the next write does not move the damaged
file over the good backup.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from tiermq.errors import StoreDamaged, TierMQError

_log = logging.getLogger(__name__)

Decoded = TypeVar("Decoded")

BACKUP_SUFFIX = ".bak"
TEMPORARY_SUFFIX = ".tmp"

_UNDECODABLE = (TierMQError, ValueError, LookupError, TypeError, AttributeError)  # What decoders raise on bad bytes.


class ConfigDirectory(Protocol):
    """The part of FileAccess that configuration files need."""

    def exists(self, path: str) -> bool: ...
    def read_bytes(self, path: str) -> bytes: ...
    def write_bytes(self, path: str, data: bytes) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...


def write_config(access: ConfigDirectory, path: str, data: bytes) -> None:
    """Durably replace `path` by `data`; what `path` held before is in `<path>.bak` on return."""
    temporary = path + TEMPORARY_SUFFIX
    access.write_bytes(temporary, data)
    if access.exists(path):
        access.rename(path, path + BACKUP_SUFFIX)
    access.rename(temporary, path)
    access.sync_directory(os.path.dirname(path) or ".")


def read_config(
    access: ConfigDirectory,
    path: str,
    decode: Callable[[bytes], Decoded],
    is_broken: Callable[[str, bytes], bool] = lambda _path, _data: False,
) -> Decoded | None:
    """What the main file or else its backup decodes to; None when there is no state at all.

    `is_broken(path, data)` says that bytes are not those that were written, `decode` says "undecodable" by ValueError,
    a TierMQError, LookupError, TypeError or AttributeError. Raises StoreDamaged when there are bytes and neither file
    decodes; both are then left for a human to look at.
    """
    main, main_problem = _try(access, path, decode, is_broken)
    if main is not None:
        return main
    backup, backup_problem = _try(access, path + BACKUP_SUFFIX, decode, is_broken)
    if backup is None and (main_problem or backup_problem):
        raise StoreDamaged(
            f"{path}: expected a readable configuration file or a readable {BACKUP_SUFFIX} beside it, found "
            f"{main_problem or 'no bytes'} and {backup_problem or 'no bytes'}. "
            "Restore one of the two, or remove both to start from nothing."
        )
    if main_problem:
        _log.error("%s holds %s: the state before it is used, of %s beside it", path, main_problem, BACKUP_SUFFIX)
    if access.exists(path):
        access.remove(path)
        access.sync_directory(os.path.dirname(path) or ".")
    return backup


def _try(
    access: ConfigDirectory, path: str, decode: Callable[[bytes], Decoded], is_broken: Callable[[str, bytes], bool]
) -> tuple[Decoded | None, str]:
    """The decoded file, or None and what is wrong with it ("" when there are simply no bytes)."""
    try:
        data = access.read_bytes(path)
        if is_broken(path, data):
            return None, "other bytes than were written, though nobody wrote to it since: the disk went bad"
        return (decode(data), "") if data else (None, "")
    except FileNotFoundError:
        return None, ""
    except _UNDECODABLE as error:
        return None, f"undecodable bytes ({type(error).__name__}: {error})"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None, f"an unreadable file ({error})"
