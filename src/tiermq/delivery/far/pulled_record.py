"""How far timers were pulled from the tier into this store: one small file, replaced as a whole.

    {"place": "<url of the tier>/<directory>", "pulledUntilMs": 1700000000000}

A file about another tier or another broker says nothing: then everything that the tier has not forgotten is pulled, and
some of it for the second time.
"""

from __future__ import annotations

import json
import os

from tiermq.errors import StoreDamaged
from tiermq.files.file_access import FileAccess

FILE = "farTimers.json"


class PulledRecord:
    """Used by one thread."""

    def __init__(self, directory: str, place: str, access: FileAccess) -> None:
        """Raises StoreDamaged when neither the file nor its predecessor can be read."""
        self.path = os.path.join(directory, FILE)
        self._place = place
        self._access = access
        found = access.read_config(self.path, decode_pulled)
        self.until_ms = found[1] if found is not None and found[0] == place else 0

    def write(self, until_ms: int) -> None:
        """Durable when it returns. Raises OSError, StoreError."""
        self._access.make_directories(os.path.dirname(self.path))
        self._access.write_config(self.path, encode_pulled(self._place, until_ms))
        self.until_ms = until_ms


def encode_pulled(place: str, until_ms: int) -> bytes:
    return json.dumps({"place": place, "pulledUntilMs": until_ms}, separators=(",", ":")).encode()


def decode_pulled(data: bytes) -> tuple[str, int]:
    """(place, until). Raises StoreDamaged for anything else."""
    try:
        document = json.loads(data)
        place, until_ms = document["place"], document["pulledUntilMs"]
    except (ValueError, TypeError, LookupError) as error:
        raise StoreDamaged(f"{FILE}: expected a place and a time, found {data[:80]!r} ({error})") from error
    if not isinstance(place, str) or type(until_ms) is not int or until_ms < 0:
        raise StoreDamaged(f"{FILE}: expected a place and a time, found {data[:80]!r}")
    return place, until_ms
