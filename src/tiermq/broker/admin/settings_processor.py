"""Settings that a running broker was told to change, written into the text of the file that it was started with.

Lines of other settings, comments and order stay as they are: a changed setting has its line replaced, or gets one. The
text is a RocketMQ `broker.conf` (Java properties) or TOML.

Invariant: the new text says what the old one said, apart from the changes; this is checked by reading it, so a file
that is written in a way that is not understood here is refused and never damaged.
"""

from __future__ import annotations

import enum
import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.settings_file import FileSettings, settings_in_properties, settings_in_toml
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig
from tiermq.files.os_file_access import OsFileAccess
from tiermq.settings import Configuration, Setting, escaped_property, read_properties, settings_of
from tiermq.tier.tier_config import TierConfig

_LINE_END = re.compile(r"(\r\n|\r|\n)")
_TOML_TABLE = re.compile(r"\s*\[\s*(?P<name>[^\[\]]+?)\s*\]\s*(?:#.*)?$")
_TOML_KEY = re.compile(
    r"""(?P<before>\s*(?P<quote>["']?)(?P<name>\w+)(?P=quote)\s*=\s*)"""
    r"""(?:[^"'#\s]+|"[^"\\]*"|'[^']*')(?P<after>\s*(?:#.*)?)$"""
)
_BLANKS = " \t\f"

SettingName = tuple[type[Configuration], str]


class Change(NamedTuple):
    """A setting of one part of the broker, and its new value, which is of the setting's own type."""

    kind: type[Configuration]
    setting: Setting
    value: object


def change_settings_file(path: Path, changes: Sequence[Change]) -> None:
    """Replace a file by one with the changes; what it was before is beside it as `*.bak`.

    A link stays one: its target is replaced. Raises BadConfig, naming the file, and OSError; then it is as before.
    """
    path = path.resolve()
    try:
        old = path.read_bytes()
        new = with_changes(old.decode("utf-8"), changes, is_toml=path.suffix == ".toml").encode()
    except (BadConfig, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}") from error
    mode = stat.S_IMODE(path.stat().st_mode)
    for target, data in ((path.with_name(f"{path.name}.bak"), old), (path, new)):
        _replace(target, data, mode)


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, also when the power fails."""
    temporary = path.with_name(f"{path.name}.part")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    OsFileAccess().sync_directory(str(path.parent))


def with_changes(text: str, changes: Sequence[Change], *, is_toml: bool) -> str:
    """The text with the changes in it. Raises BadConfig when it cannot be changed without damage."""
    new = _in_toml(text, changes) if is_toml else _in_properties(text, changes)
    read = settings_in_toml if is_toml else settings_in_properties
    expected = _values(read(text)) | {(change.kind, change.setting.name): change.value for change in changes}
    try:
        found = _values(read(new))
    except BadConfig as error:
        raise BadConfig(f"expected lines of the form name = value to change, found others: {error}") from error
    if found != expected:
        names = ", ".join(change.setting.property_name for change in changes)
        raise BadConfig(f"expected lines of the form name = value to change {names} in, found it written otherwise")
    return new


def _values(found: FileSettings) -> dict[SettingName, object]:
    parts = ((BrokerConfig, found.broker), (StoreConfig, found.store), (TierConfig, found.tier))
    return {
        (kind, name): settings_of(kind)[name].parse(value) for kind, values in parts for name, value in values.items()
    }


def _in_properties(text: str, changes: Sequence[Change]) -> str:
    left = {change.setting.property_name: change.setting.render(change.value) for change in changes}
    wanted = dict(left)
    made = []
    for lines in _logical_lines(text):
        [key] = read_properties(lines) or [""]
        if key not in wanted:
            made.append(lines)
        elif key in left:  # A repeated key keeps its last value, so one line is enough.
            made.append(f"{key}={escaped_property(left.pop(key))}\n")
    if left and made and not made[-1].endswith(("\n", "\r")):
        made.append("\n")
    return "".join([*made, *(f"{key}={escaped_property(value)}\n" for key, value in left.items())])


def _logical_lines(text: str) -> list[str]:
    """Lines with their ends; one that goes on in the next is one with it."""
    pieces = _LINE_END.split(text)
    made: list[str] = []
    continued = False
    for line, end in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        if continued:
            made[-1] += line + end
        else:
            made.append(line + end)
        is_comment = not continued and line.lstrip(_BLANKS)[:1] in ("", "#", "!")
        continued = not is_comment and (len(line) - len(line.rstrip("\\"))) % 2 == 1
    return [line for line in made if line]


def _in_toml(text: str, changes: Sequence[Change]) -> str:
    lines = text.splitlines()
    for change in changes:
        _change_toml(lines, change)
    return "".join(f"{line}\n" for line in lines)


def _change_toml(lines: list[str], change: Change) -> None:
    """Where a setting stands in its table, that counts; else where it stands at the top; else its table gets it."""
    names = {change.setting.name, change.setting.property_name}
    value = toml_value(change.setting, change.value)
    table, header = "", None
    found: dict[str, tuple[int, re.Match[str]]] = {}
    for at, line in enumerate(lines):
        if begins := _TOML_TABLE.match(line):
            table = begins["name"].strip("\"'")
            header = at if table == change.kind.TABLE else header
        elif (stands := _TOML_KEY.match(line)) and stands["name"] in names:
            found[table] = at, stands
    place = found.get(change.kind.TABLE) or found.get("")
    if place is not None:
        at, stands = place
        lines[at] = f"{stands['before']}{value}{stands['after']}"
    elif header is not None:
        lines.insert(header + 1, f"{change.setting.name} = {value}")
    else:
        lines += ["", f"[{change.kind.TABLE}]", f"{change.setting.name} = {value}"]


def toml_value(setting: Setting, value: object) -> str:
    """A value as TOML spells it."""
    if isinstance(value, enum.Enum | str):
        return json.dumps(setting.render(value), ensure_ascii=False)
    return setting.render(value)
