"""SettingsProcessor: GET_BROKER_CONFIG (26) and UPDATE_BROKER_CONFIG (25), as properties text.

    get:      every setting of the broker, its store and its tier, by RocketMQ's names, sorted
    update:   those in CHANGEABLE, which their users read on each use

Invariants: a change is atomic: an unknown name, an invalid value and a setting that cannot change
while the broker runs reject all of it, where RocketMQ ignores them silently. A change is in the file that the
broker was started with when it is answered, its other lines untouched; where there is no such file, or it cannot be
written, the change holds until the process ends, and the answer reports it. Only this class changes a
configuration, which is a value everywhere else: all parts hold the same object, and read single settings of it.

Changed settings of a running broker are written into the file that it was started with.

Lines of other settings, comments and order stay as they are: a changed setting has its line replaced, or gets one. The
text is a RocketMQ `broker.conf` (Java properties) or TOML.

Invariant: the new text has the settings of the old one, apart from the changes; this is checked by parsing it, so a
file that is written in a way that is not understood here is refused and never damaged.
"""

from __future__ import annotations

import enum
import json
import logging
import os
import re
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tiermq.broker.broker_config import CHANGEABLE_OF_BROKER, CHANGEABLE_OF_STORE, BrokerConfig
from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.settings_file import FileSettings, settings_in
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig, RequestRefused, TierMQError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.log_levels import change_log_levels
from tiermq.namesrv.topic_config import NO_VERSION
from tiermq.remoting.access import ADMINISTRATOR, serves
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import encode_body
from tiermq.settings import (
    BLANKS,
    YAML_SUFFIXES,
    Configuration,
    Setting,
    escaped_property,
    read_change,
    read_properties,
    settings_of,
)
from tiermq.tier.tier_config import TierConfig

_LINE_END = re.compile(r"(\r\n|\r|\n)")
_TOML_TABLE = re.compile(r"\s*\[\s*(?P<name>[^\[\]]+?)\s*\]\s*(?:#.*)?$")
_TOML_KEY = re.compile(
    r"""(?P<before>\s*(?P<quote>["']?)(?P<name>\w+)(?P=quote)\s*=\s*)"""
    r"""(?:[^"'#\s]+|"[^"\\]*"|'[^']*')(?P<after>\s*(?:#.*)?)$"""
)

SettingName = tuple[type[Configuration], str]
_log = logging.getLogger(__name__)


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
        new = with_changes(old.decode("utf-8"), changes, suffix=path.suffix).encode()
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


def with_changes(text: str, changes: Sequence[Change], *, suffix: str) -> str:
    """The text with the changes in it. Raises BadConfig when it cannot be changed without damage."""
    change_text = _in_toml if suffix == ".toml" else _in_yaml if suffix in YAML_SUFFIXES else _in_properties
    new = change_text(text, changes)
    expected = _values(settings_in(text, suffix)) | {
        (change.kind, change.setting.name): change.value for change in changes
    }
    try:
        found = _values(settings_in(new, suffix))
    except BadConfig as error:
        raise BadConfig(f"expected lines of the form name = value to change, found others: {error}") from error
    if found != expected:
        names = ", ".join(change.setting.property_name for change in changes)
        raise BadConfig(f"expected lines of the form name = value to change {names} in, found another form")
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
    """Lines with their ends; a continued line is joined with the next."""
    pieces = _LINE_END.split(text)
    made: list[str] = []
    continued = False
    for line, end in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        if continued:
            made[-1] += line + end
        else:
            made.append(line + end)
        is_comment = not continued and line.lstrip(BLANKS)[:1] in ("", "#", "!")
        continued = not is_comment and (len(line) - len(line.rstrip("\\"))) % 2 == 1
    return [line for line in made if line]


def _in_yaml(text: str, changes: Sequence[Change]) -> str:
    lines = text.splitlines()
    for change in changes:
        name = change.setting.property_name
        line = f"{name}: {toml_value(change.setting, change.value)}"  # YAML spells such values as TOML does.
        stands = re.compile(rf"""(["']?){name}\1\s*:""")
        at = next((at for at, each in enumerate(lines) if stands.match(each)), len(lines))
        lines[at : at + 1] = [line]
    return "".join(f"{line}\n" for line in lines)


def _in_toml(text: str, changes: Sequence[Change]) -> str:
    lines = text.splitlines()
    for change in changes:
        _change_toml(lines, change)
    return "".join(f"{line}\n" for line in lines)


def _change_toml(lines: list[str], change: Change) -> None:
    """The setting's line in its table; else at the top level; else it is added to its table."""
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


class SettingsProcessor:
    """See the module. Changes go one at a time, in the server's pool, since they write a file."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._changing = threading.Lock()
        self._version = NO_VERSION.next(parts.clock.now_ms())

    @serves(RequestCode.GET_BROKER_CONFIG, access=ADMINISTRATOR)
    def get(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        lines = {line for config in self._configurations() for line in config.to_properties().splitlines()}
        if self._parts.with_name_server:  # Jobs keep these settings for a restore, where it is gone.
            lines = {line for line in lines if not line.startswith("namesrvAddr=")}
        lines |= {f"{name}={value}" for name, value in self._parts.protection.items()}
        version = encode_body(self._version.to_json()).decode()
        return command.respond(ext={"version": version}, body="".join(f"{line}\n" for line in sorted(lines)).encode())

    def _configurations(self) -> list[Configuration]:
        found: list[Configuration] = [self._parts.config, self._parts.local.config]
        if self._parts.tiered is not None:
            found.append(self._parts.tiered.tier.config)
        return found

    @serves(RequestCode.UPDATE_BROKER_CONFIG, access=ADMINISTRATOR, in_pool=True)
    def update(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        with self._changing:
            try:
                wanted = read_change(bytes(command.body))
                changes = [each for name, text in wanted.items() for each in self._changes(name, text)]
                _check_together(changes)
            except BadConfig as error:
                raise RequestRefused(str(error)) from error
            if not changes:
                return command.respond()
            problem = self._write(changes)
            for config, setting, value in changes:
                _log.info("setting %s: %s", setting.property_name, setting.render(value))
                object.__setattr__(config, setting.name, value)
                if setting.name == "log_levels":
                    change_log_levels(str(value))
                if isinstance(config, StoreConfig) and setting.name == "max_message_size" and isinstance(value, int):
                    self._parts.local.set_max_message_size(value)
            self._version = self._version.next(self._parts.clock.now_ms())
            return command.respond(remark=problem)

    def _write(self, changes: list[tuple[Configuration, Setting, Any]]) -> str | None:
        """Write changes into the broker's file; why they will not outlive the process, or None when they do."""
        path = self._parts.settings_file
        if path is None:
            return "changed until the process ends: the broker was started without a file of settings"
        try:
            change_settings_file(path, [Change(type(config), setting, value) for config, setting, value in changes])
        except (OSError, TierMQError) as error:
            _log.warning("settings are changed, but the file could not be written; a restart reverts them: %s", error)
            return f"changed until the process ends: {error}"
        return None

    def _changes(self, name: str, text: str) -> list[tuple[Configuration, Setting, Any]]:
        """What one line changes, checked. Raises BadConfig."""
        changes: list[tuple[Configuration, Setting, Any]] = []
        is_known = False
        for config in self._configurations():
            setting = next((each for each in settings_of(type(config)).values() if each.property_name == name), None)
            if setting is None:
                continue
            is_known = True
            value = setting.parse(text)
            if value == getattr(config, setting.name):
                continue
            if setting.name not in CHANGEABLE_OF_BROKER | CHANGEABLE_OF_STORE:
                raise BadConfig(f"{name} cannot be changed while the broker runs: change its file and start it again")
            changes.append((config, setting, value))
        if not is_known:
            raise BadConfig(f"there is no setting named {name[:80]}: docs/broker.md lists them")
        return changes


def _check_together(changes: Sequence[tuple[Configuration, Setting, Any]]) -> None:
    """Each configuration with all of its changes must be valid before anything is written. Raises BadConfig."""
    for config in {id(config): config for config, _, _ in changes}.values():
        config.with_settings(**{setting.name: value for each, setting, value in changes if each is config})
