"""Configuration files with one generation of backup, as RocketMQ's ConfigManager keeps them.

`<name>` is the newest state, `<name>.bak` the previous one. The new state is written to `<name>.tmp` and synced before
the old one is renamed, so that a power cut leaves a whole main file or a whole backup, never only a torn one.

An empty file without a backup counts as no file, as for RocketMQ, and is logged.

A file that does not match its seal (`seal_file`) counts as undecodable. An undecodable main file is logged, and like an
empty one deleted once the backup proved readable, so that the next write does not move the damaged file over the good
backup.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

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

    `is_broken(path, data)` returns whether the bytes changed since they were written; `decode` raises ValueError, a
    TierMQError, LookupError, TypeError or AttributeError for invalid bytes. Raises StoreDamaged when there are bytes
    and neither file decodes; both are then left for an operator.
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
        _log.error("%s has %s: the previous version, %s, is used", path, main_problem, BACKUP_SUFFIX)
    if access.exists(path):
        if backup is None:
            _log.warning(
                "%s is empty, and there is no %s beside it: it counts as no file, what it held is lost",
                path, BACKUP_SUFFIX,
            )  # fmt: skip
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
            return None, "other bytes than were written, and no later change: the disk is damaged"
        return (decode(data), "") if data else (None, "")
    except FileNotFoundError:
        return None, ""
    except IsADirectoryError as error:
        raise StoreDamaged(f"{path}: expected a configuration file, found a directory: move it away") from error
    except _UNDECODABLE as error:
        return None, f"undecodable bytes ({type(error).__name__}: {error})"
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None, f"an unreadable file ({error})"


# A string is matched first and kept unchanged, so that text inside it which looks like a key stays text. An
# unterminated string reaches to the end of the text, or every quote in it would be tried as the beginning of another.
_STRING_OR_KEY = re.compile(r'"(?:[^"\\]|(?s:\\.))*(?:"|\\?\Z)|(?P<before>[{,]\s*)(?P<key>-?[0-9]+)(?=\s*:)')


def decode_lenient_json(data: bytes, name: str) -> Any:
    """JSON as RocketMQ's brokers write it: the keys of a map may be integers without quotes. Raises StoreDamaged.

        {"offsetTable":{"orders@group":{0:7,1:9}}}

    `consumerOffset.json` and `delayOffset.json` look like that. Quoted and unquoted keys read the same; everything else
    is strict JSON, so a torn or foreign file is refused as a whole.
    """

    def quoted(match: re.Match[str]) -> str:
        return match[0] if match["key"] is None else f'{match["before"]}"{match["key"]}"'

    try:
        return json.loads(_STRING_OR_KEY.sub(quoted, data.decode("utf-8")))
    except (ValueError, RecursionError) as error:  # Also what a wrong encoding raises.
        raise StoreDamaged(
            f"{name}: expected JSON, found {len(data)} bytes that are none ({error}); its .bak has the version before"
        ) from error
