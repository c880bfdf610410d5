"""A settings file of a broker: a RocketMQ `broker.conf`, the same keys in YAML, or TOML.

One file configures the broker, its store, its tier and its name server. A key of a `broker.conf` goes to every part
that has it; keys of RocketMQ without effect here are listed, and so are unknown ones, with the nearest known name. In
TOML a key is at the top level or in the table of its part (`[broker]`, `[store]`, `[tier]`, `[namesrv]`), and an
unknown key is an error. Settings that ask for guarantees that TierMQ does not give are found by `FileSettings.unkept`,
once the options are known; so are misspelled settings of TierMQ's own, and keys that look like security or a promise.

Invariants: what is read has been checked; it holds only the file's settings, so that options can override them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.rocketmq_settings import ALIASES, GUARANTEES, NAMES, PROMISES, metrics_settings
from tiermq.config import WITHOUT_EFFECT as STORE_WITHOUT_EFFECT
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import parse_name_servers
from tiermq.settings import (
    Configuration,
    did_you_mean,
    misspelled_promise,
    named_as,
    promise_value_problems,
    read_entries,
    read_settings_text,
    read_toml,
    settings_of,
    table_problems,
    unkept_promises,
)
from tiermq.tier.tier_config import WITHOUT_EFFECT as TIER_WITHOUT_EFFECT
from tiermq.tier.tier_config import TierConfig

Values = dict[str, Any]
_OWN_KEY = re.compile("tier(?!ed)", re.IGNORECASE)
PARTS: tuple[type[Configuration], ...] = (BrokerConfig, StoreConfig, TierConfig)
"""The parts that take keys of a `broker.conf`. A name server has its own port, and in RocketMQ its own file."""


@dataclass(frozen=True, slots=True)
class FileSettings:
    """A file's settings, by snake_case name."""

    broker: Values = field(default_factory=dict)
    store: Values = field(default_factory=dict)
    tier: Values = field(default_factory=dict)
    namesrv: Values = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    """Every value of the file by RocketMQ's name, as text."""
    ignored: tuple[str, ...] = ()
    """Keys of RocketMQ without effect here, in file order."""
    unknown: tuple[str, ...] = ()
    """Keys that RocketMQ does not have either, each with the nearest known one, in file order."""
    misspelled: tuple[str, ...] = ()
    """As text: keys that only TierMQ could have, and has not (RocketMQ has none that begin with `tier`), and unknown
    ones that may be a promise, or are about security.
    """
    written: Mapping[str, str] = field(default_factory=dict)
    """How the file spells settings, by their names in snake_case."""

    def unkept(self, kept: Collection[str] = ()) -> list[str]:
        """Guarantees of the file that neither the broker nor the options in `kept` give, as text."""
        return [*unkept_promises(self.entries, PROMISES, kept), *self.misspelled]


def read_settings_file(path: Path) -> FileSettings:
    """Raises BadConfig, naming the file and all problems of it, one in a line, and OSError."""
    problems: list[str] = []
    try:
        text = read_settings_text(path)
        if path.suffix == ".toml":
            found = settings_in_toml(text, problems)
        else:
            found = settings_in_properties(text, path.suffix)
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from error
    problems += value_problems(found)
    if problems:
        raise BadConfig("\n".join(f"{path}: {each}" for each in dict.fromkeys(problems)))
    return found


def value_problems(found: FileSettings) -> list[str]:
    """What is wrong with values: of each by itself, or, where those are valid, of some together."""
    problems: list[str] = []

    def attempt(check: Callable[[], object]) -> None:
        try:
            with named_as(found.written):
                check()
        except BadConfig as error:
            problems.append(str(error))

    groups = (found.broker, found.store, found.tier, found.namesrv)
    for kind, values in zip((*PARTS, NameServerConfig), groups, strict=True):
        before = len(problems)
        for name, value in values.items():
            attempt(partial(settings_of(kind)[name].parse, value))
        if len(problems) == before:
            attempt(partial(kind, **values))
    problems += promise_value_problems(found.entries, PROMISES)
    attempt(lambda: _check_name_servers(str(found.broker.get("namesrv_addr", ""))))
    return problems


def _check_name_servers(text: str) -> None:
    try:
        parse_name_servers(text)
    except BadConfig as error:
        raise BadConfig(f"namesrv_addr: {error}") from error


def settings_in(text: str, suffix: str) -> FileSettings:
    """The settings in a file with this suffix. Values are not checked yet. Raises BadConfig."""
    return settings_in_toml(text) if suffix == ".toml" else settings_in_properties(text, suffix)


def settings_in_properties(text: str, suffix: str = ".conf") -> FileSettings:
    """The settings in a `broker.conf`, or in YAML with its keys. Values are not checked yet."""
    found: dict[type[Configuration], Values] = {kind: {} for kind in PARTS}
    entries: dict[str, str] = {}
    ignored: list[str] = []
    unknown: list[str] = []
    misspelled: list[str] = []
    spelled = {setting.name: setting.property_name for kind in PARTS for setting in settings_of(kind).values()}
    for written, value in read_entries(text, suffix).items():
        key = ALIASES.get(written, written)
        entries[key] = value
        names = _give(found, spelled, (key, written), value, plain_too=False)
        if (names and names <= _WITHOUT_EFFECT) or (not names and _has_no_effect(key)):
            ignored.append(written)
        elif not names and key not in NAMES | PROMISES.keys():
            hint = did_you_mean(written, [*_property_names(PARTS), *NAMES])
            if near := misspelled_promise(written, value, PROMISES, GUARANTEES):
                misspelled.append(near)
            elif _OWN_KEY.match(written):
                misspelled.append(f"{written}={value}: there is no such setting; {hint or 'docs/tier.md lists them'}")
            else:
                unknown.append(f"{written} ({hint})" if hint else written)
    found[BrokerConfig] = metrics_settings(entries) | found[BrokerConfig]
    broker, store, tier = (found[kind] for kind in PARTS)
    return FileSettings(broker, store, tier, {}, entries, tuple(ignored), tuple(unknown), tuple(misspelled), spelled)


def _has_no_effect(key: str) -> bool:
    return key in NAMES - PROMISES.keys() - {"metricsExporterType", "metricsPromExporterPort"}


def settings_in_toml(text: str, problems: list[str] | None = None) -> FileSettings:
    """The settings of a TOML document. Values are not checked yet.

    Unknown keys and tables are put into `problems`, or raise BadConfig.
    """
    document = read_toml(text)
    for problem in table_problems(document):
        if problems is None:
            raise BadConfig(problem)
        problems.append(problem)
    found: dict[type[Configuration], Values] = {kind: {} for kind in (*PARTS, NameServerConfig)}
    entries: dict[str, str] = {}
    spelled: dict[str, str] = {}
    top = {key: value for key, value in document.items() if not isinstance(value, Mapping)}
    for key, value in top.items():
        _take(entries, spelled, {kind: found[kind] for kind in PARTS}, key, value, problems)
    for kind, values in found.items():
        table = document.get(kind.TABLE, {})
        for key, value in table.items() if isinstance(table, Mapping) else ():
            _take(entries, spelled, {kind: values}, key, value, problems, f"{kind.TABLE}.")
    found[BrokerConfig] = metrics_settings(entries) | found[BrokerConfig]
    broker, store, tier = (found[kind] for kind in PARTS)
    return FileSettings(broker, store, tier, found[NameServerConfig], entries, written=spelled)


def _take(
    entries: dict[str, str],
    written: dict[str, str],
    found: Mapping[type[Configuration], Values],
    key: str,
    value: object,
    problems: list[str] | None,
    table: str = "",
) -> None:
    """Give a key of a TOML document to its part. An unknown one is put into `problems`, or raises BadConfig."""
    spelled = ALIASES.get(key, key)
    names = _give(found, written, (spelled, key), value, plain_too=True)
    if not names and spelled not in PROMISES and spelled != "metricsPromExporterPort":
        known = [setting.name for kind in found for setting in settings_of(kind).values()]
        documents = " and ".join(sorted({kind.DOCUMENT for kind in found}))
        hint = did_you_mean(key, known) or f"settings are listed in {documents}"
        problem = f"there is no setting named {table}{key}: {hint}"
        if problems is None:
            raise BadConfig(problem)
        problems.append(problem)
        return
    for name in names or {spelled}:
        if NameServerConfig not in found:
            entries[name] = str(value).lower() if isinstance(value, bool) else str(value)


def _give(
    found: Mapping[type[Configuration], Values],
    written: dict[str, str],
    names: tuple[str, str],
    value: object,
    *,
    plain_too: bool,
) -> set[str]:
    """Give a key to every kind that has it, by RocketMQ's name or also by ours; RocketMQ's name, if any has it.

    `names`: the key, and how the file spells it, which is noted in `written`.
    """
    key, spelled = names
    known = set()
    for kind, values in found.items():
        for setting in settings_of(kind).values():
            if key == setting.property_name or (plain_too and key == setting.name):
                values[setting.name] = value
                written[setting.name] = spelled
                known.add(setting.property_name)
    return known


def _property_names(kinds: tuple[type[Configuration], ...]) -> list[str]:
    return [setting.property_name for kind in kinds for setting in settings_of(kind).values()]


_WITHOUT_EFFECT = {settings_of(StoreConfig)[name].property_name for name in STORE_WITHOUT_EFFECT} | {
    settings_of(TierConfig)[name].property_name for name in TIER_WITHOUT_EFFECT
}
_WITHOUT_EFFECT -= PROMISES.keys()
