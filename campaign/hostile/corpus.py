"""Kept inputs: small files, named by what they hold, one directory for each target.

An input is kept when its outcome is one that no kept input has, and it is not too long; one that broke something is
kept in any case, so that every later run tries it first. Reading never depends on the order of the directory.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

KEPT_BYTES_MAX = 2048
KEPT_COUNT_MAX = 120
FOUND_PREFIX = "found-"
HERE = Path(__file__).parent / "corpora"


class Corpus:
    """The inputs of one target below `root`."""

    def __init__(self, root: Path, target: str) -> None:
        self.directory = root / target

    def inputs(self) -> list[tuple[str, bytes]]:
        """(name, bytes) of all, by name."""
        if not self.directory.is_dir():
            return []
        return [(path.name, path.read_bytes()) for path in sorted(self.directory.iterdir()) if path.is_file()]

    def keep(self, data: bytes, *, found: bool = False) -> Path | None:
        """Keep an input; None when it is too long or there are enough. What broke something is always kept."""
        if not found and (len(data) > KEPT_BYTES_MAX or len(self.inputs()) >= KEPT_COUNT_MAX):
            return None
        self.directory.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(data).hexdigest()[:16]
        path = self.directory / (f"{FOUND_PREFIX}{name}" if found else name)
        if not path.exists():
            path.write_bytes(data)
        return path
