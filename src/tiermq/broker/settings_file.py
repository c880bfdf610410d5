"""A settings file of a broker: a RocketMQ `broker.conf`, or TOML.

One file speaks to the broker, its store, its tier and its name server. A key of a `broker.conf` goes to everyone who
knows it; keys that nobody knows are told, since RocketMQ has many that mean nothing here. In TOML a key stands at the
top or in the table of its part (`[broker]`, `[store]`, `[tier]`, `[namesrv]`), and one that nobody knows is an error:
the file is ours to get right.

Invariants: what is read has been checked; only what the file says is in it, so that options can be put on top.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiermq.broker.broker_config import BrokerConfig
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.settings import Configuration, read_properties, read_toml, settings_of
from tiermq.tier.tier_config import TierConfig

Values = dict[str, Any]
_AT_TOP: tuple[type[Configuration], ...] = (BrokerConfig, StoreConfig, TierConfig)
"""Who takes keys of a `broker.conf`. A name server has a port of its own, and a file of its own in RocketMQ."""


@dataclass(frozen=True, slots=True)
class FileSettings:
    """What a file says, by snake_case name."""

    broker: Values = field(default_factory=dict)
    store: Values = field(default_factory=dict)
    tier: Values = field(default_factory=dict)
    namesrv: Values = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Keys that mean nothing here, in file order."""


def read_settings_file(path: Path) -> FileSettings:
    """Raises BadConfig, naming the file and the key, and OSError."""
    try:
        text = path.read_text(encoding="utf-8")
        found = settings_in_toml(text) if path.suffix == ".toml" else settings_in_properties(text)
        BrokerConfig(**found.broker)
        StoreConfig(**found.store)
        TierConfig(**found.tier)
        NameServerConfig(**found.namesrv)
    except (BadConfig, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}") from error
    return found


def settings_in_properties(text: str) -> FileSettings:
    """What a `broker.conf` says. Values are not checked yet."""
    found: dict[type[Configuration], Values] = {kind: {} for kind in _AT_TOP}
    ignored = []
    for key, value in read_properties(text).items():
        if not _give(found, key, value, plain_too=False):
            ignored.append(key)
    return FileSettings(found[BrokerConfig], found[StoreConfig], found[TierConfig], {}, tuple(ignored))


def settings_in_toml(text: str) -> FileSettings:
    """What a TOML document says. Values are not checked yet. Raises BadConfig for a key that nobody knows."""
    document = read_toml(text)
    found: dict[type[Configuration], Values] = {kind: {} for kind in (*_AT_TOP, NameServerConfig)}
    top = {key: value for key, value in document.items() if not isinstance(value, Mapping)}
    for key, value in top.items():
        if not _give({kind: found[kind] for kind in _AT_TOP}, key, value, plain_too=True):
            raise _unknown(key, _AT_TOP)
    for kind, values in found.items():
        table = document.get(kind.TABLE, {})
        for key, value in table.items() if isinstance(table, Mapping) else ():
            if not _give({kind: values}, key, value, plain_too=True):
                raise _unknown(f"{kind.TABLE}.{key}", (kind,))
    return FileSettings(found[BrokerConfig], found[StoreConfig], found[TierConfig], found[NameServerConfig])


def _give(found: Mapping[type[Configuration], Values], key: str, value: object, *, plain_too: bool) -> bool:
    """Give a key to every kind that knows it, by RocketMQ's name or also by ours; whether anybody did."""
    known = False
    for kind, values in found.items():
        for setting in settings_of(kind).values():
            if key == setting.property_name or (plain_too and key == setting.name):
                values[setting.name] = value
                known = True
    return known


def _unknown(key: str, kinds: tuple[type[Configuration], ...]) -> BadConfig:
    names = [setting.name for kind in kinds for setting in settings_of(kind).values()]
    nearest = difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "docs/operations.md lists the settings"
    return BadConfig(f"there is no setting named {key}: {hint}")
