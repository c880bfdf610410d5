"""Names of the report's pictures, apart from drawing them, which needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

RATIOS = "ratios.png"


def slug(group: str) -> str:
    """A group as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", group.lower()).strip("-")


def names_of(kind: str, group: str, drawn: Iterable[str]) -> list[str]:
    """The pictures of a group among those that were drawn."""
    return [name for name in drawn if re.fullmatch(rf"{kind}-{re.escape(slug(group))}(-\d+)?\.png", name)]


def drawn_before(out: Path) -> set[Path]:
    """Pictures that a run before left in `out`."""
    return {path for pattern in (RATIOS, "time-*.png", "growth-*.png") for path in out.glob(pattern)}
