"""Why a goal is missed, written by hand in `docs/benchmarks/why.md`, taken into the report.

A section is headed by the names of its works, in backticks; its text, profiles among it, ends at the next heading of
that level:

    ## `put_16_1024_async`, `put_16_128_async`
"""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent / "docs" / "benchmarks" / "why.md"


def read(path: Path = SOURCE) -> dict[str, str]:
    """Texts by the name of a work; a text for several works is under each of their names."""
    return parse(path.read_text(encoding="utf-8")) if path.exists() else {}


def parse(text: str) -> dict[str, str]:
    """The sections of the document. Raises ValueError when a work has two."""
    found: dict[str, str] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        for name in re.findall(r"`([^`]+)`", heading):
            if name in found:
                raise ValueError(f"why.md: two sections for {name}")
            found[name] = body.strip()
    return found
