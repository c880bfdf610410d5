"""The section of docs/clients.md on the broker: its pieces by language, as a reader would copy them."""

from __future__ import annotations

import re
from pathlib import Path

CLIENTS = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
ADDRESS = "127.0.0.1:9876"


def piece(language: str, name_server: str) -> str:
    """The one piece in a language, with a test's name server in place of the usual one."""
    section = CLIENTS.read_text(encoding="utf-8").partition("\n## A broker\n")[2].partition("\n## ")[0]
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert text.count(ADDRESS) == 2, "a producer and a consumer"
    return str(text).replace(ADDRESS, name_server)


def commands() -> list[str]:
    """What is typed in another shell."""
    section = CLIENTS.read_text(encoding="utf-8").partition("from another shell:\n")[2].partition("\n## ")[0]
    return re.findall(r"^tiermq .*$", section.partition("```\n")[2].partition("```")[0], re.MULTILINE)


def quick_start() -> list[str]:
    """The lines of the README's quick start, of both terminals."""
    text = (CLIENTS.parents[1] / "README.md").read_text(encoding="utf-8")
    section = text.partition("\n## Quick start\n")[2].partition("\n## ")[0]
    return [
        line
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if not language
    ]
