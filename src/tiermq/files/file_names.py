"""Names of mapped files: the absolute offset of the first byte, as twenty decimal ASCII digits.

Java formats them with the JVM's locale; we write and accept plain ASCII digits only.
"""

from __future__ import annotations

import os

from tiermq.errors import StoreDamaged

NAME_DIGITS = 20
OFFSET_MAX = 2**63 - 1  # Offsets are i64 on disk and on the wire.


def name_of_offset(offset: int) -> str:
    """The name of the file whose first byte is `offset`."""
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError(f"expected an offset between 0 and {OFFSET_MAX}, found {offset}")
    return f"{offset:0{NAME_DIGITS}d}"


def offset_of_path(path: str) -> int:
    """The first offset of the file at `path`. Raises StoreDamaged for a name that no mapped file has."""
    name = os.path.basename(path)
    if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() and int(name) <= OFFSET_MAX:
        return int(name)
    raise StoreDamaged(
        f"{path}: expected a file name of {NAME_DIGITS} digits (the offset of its first byte), found {name!r}. "
        "Move the foreign file out of the store directory."
    )
