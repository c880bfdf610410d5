"""The little of YAML that RocketMQ's `plain_acl.yml` is written in: maps, lists of values, lists of maps, comments.

Anything else (anchors, flow collections, several documents, tabs) is refused, never guessed at.
"""

from __future__ import annotations

import re
from typing import Any

_LINE = re.compile(r"(?P<indent> *)(?P<dash>- +)?(?:(?P<key>[A-Za-z_][\w.-]*):(?: +(?P<value>.*))?|(?P<item>.+))")
_REFUSED = ("&", "*", "!", "|", ">", "{", "[", "%", "@", "`", "---")


def decode_plain_yaml(text: str) -> dict[str, Any]:
    """The document. Raises ValueError, naming the line, for what it cannot read."""
    lines = [(number, line) for number, raw in enumerate(text.splitlines(), 1) if (line := _without_comment(raw))]
    value, rest = _block(lines, 0)
    if rest:
        raise ValueError(f"line {rest[0][0]}: expected the same indentation as before, found another")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("line 1: expected names and values, found a list")  # noqa: TRY004 - it is the text's fault
    return value


_Lines = list[tuple[int, str]]


def _block(lines: _Lines, least: int) -> tuple[Any, _Lines]:
    """The map or list at the indentation of the first line, and the lines behind it."""
    if not lines or _indent(lines[0][1]) < least:
        return None, lines
    indent = _indent(lines[0][1])
    return (_list if lines[0][1].lstrip().startswith("- ") else _map)(lines, indent)


def _map(lines: _Lines, indent: int) -> tuple[dict[str, Any], _Lines]:
    found: dict[str, Any] = {}
    while lines and _indent(lines[0][1]) == indent and not lines[0][1].lstrip().startswith("- "):
        number, line = lines[0]
        match = _LINE.fullmatch(line)
        if match is None or match["key"] is None:
            raise ValueError(f"line {number}: expected a name and a colon, found {line.strip()!r}")
        if match["value"]:
            found[match["key"]], lines = _scalar(number, match["value"]), lines[1:]
        else:
            # A list may stand at the indentation of its name.
            is_list = len(lines) > 1 and lines[1][1].lstrip().startswith("- ")
            found[match["key"]], lines = _block(lines[1:], indent if is_list else indent + 1)
    return found, lines


def _list(lines: _Lines, indent: int) -> tuple[list[Any], _Lines]:
    found: list[Any] = []
    while lines and _indent(lines[0][1]) == indent and lines[0][1].lstrip().startswith("- "):
        number, line = lines[0]
        match = _LINE.fullmatch(line)
        assert match is not None
        if match["key"] is None:
            found.append(_scalar(number, match["item"]))
            lines = lines[1:]
        else:
            inner = indent + len(match["dash"])
            value, lines = _map([(number, " " * inner + line[inner:]), *lines[1:]], inner)
            found.append(value)
    return found, lines


def _scalar(number: int, text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.startswith(_REFUSED) and not re.fullmatch(r"[*.\d,-]+", text):
        raise ValueError(f"line {number}: expected a plain value, found {text!r}: put it into quotes")
    return text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _without_comment(line: str) -> str:
    if "\t" in line:
        raise ValueError(f"expected spaces, found a tab in {line.strip()!r}")
    return re.sub(r"(^|\s)#.*$", "", line).rstrip()
