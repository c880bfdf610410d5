"""ResentRecord: which dead letters of a group were sent again, a JSON line each in a file of the operator's.

Lines are appended and synced after the letters were stored. A torn last line is what a crash leaves: it is cut off, and
its letters are asked for at the brokers, as without a record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from tiermq.errors import StoreDamaged


class ResentRecord:
    """Used by one process at a time."""

    def __init__(self, path: Path, group: str) -> None:
        """Raises StoreDamaged when the file is something else, OSError when it cannot be read."""
        self._path = path
        self._group = group
        self._known: set[str] = set()
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                of_group, letter = entry["group"], entry["letter"]
            except (ValueError, TypeError, LookupError) as error:
                raise StoreDamaged(
                    f"{path}:{number}: expected a record of dead letters that were sent again, found {line[:60]!r}; "
                    "name another file"
                ) from error
            if of_group == group:
                self._known.add(letter)
        if len(whole) < len(data):
            with path.open("r+b") as file:
                file.truncate(len(whole))

    def __contains__(self, letter: str) -> bool:
        return letter in self._known

    def add(self, letters: Sequence[str]) -> None:
        """Durable when it returns."""
        fresh = [letter for letter in letters if letter not in self._known]
        if not fresh:
            return
        lines = "".join(json.dumps({"group": self._group, "letter": letter}) + "\n" for letter in fresh)
        with self._path.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())
        self._known.update(fresh)
