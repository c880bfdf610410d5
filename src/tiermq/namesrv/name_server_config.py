"""Settings of a name server, by RocketMQ's names and with RocketMQ's defaults, but for where it listens.

`listenPort` of a properties file is `listen_port` here and in the `[namesrv]` table of a TOML file. Invariants: those
of `tiermq.settings`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import ClassVar

from tiermq.errors import BadConfig
from tiermq.remoting.security_promises import ACL, SECURITY_PROMISES
from tiermq.settings import Configuration, Promise, is_false, is_true, settings_of, whole

DEFAULT_PORT = 9876
FIXED_WHILE_RUNNING = frozenset({"listen_port", "bind_address", "kv_config_path"})
"""What a running name server does not change: where it listens and where it keeps its file."""
_LISTED = "lists of topics would be given to every client"
PROMISES: Mapping[str, Promise] = {
    **SECURITY_PROMISES,
    "enableControllerInNamesrv": Promise(
        is_true, "a name server here has no controller, so no replica takes over", "run `tiermq controller` beside it"
    ),
    "enableAllTopicList": Promise(is_false, _LISTED, "leave it out, or ask for accounts with --acl", ACL),
    "enableTopicList": Promise(is_false, _LISTED, "leave it out, or ask for accounts with --acl", ACL),
}
"""Settings of RocketMQ's name server whose values ask for safety that is not provided."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(Configuration):
    """Settings of a name server. Intervals are milliseconds."""

    TABLE: ClassVar[str] = "namesrv"
    DOCUMENT: ClassVar[str] = "docs/wire.md"
    AT_TOP: ClassVar[bool] = True

    listen_port: int = whole(DEFAULT_PORT, high=65_535)
    """0 takes a free port."""
    bind_address: str = "127.0.0.1"
    """Only this machine can connect; 0.0.0.0, RocketMQ's default, is every address."""
    kv_config_path: str = "~/namesrv/kvConfig.json"
    """Empty: nothing is kept."""
    scan_not_active_broker_interval: int = whole(5_000, low=1)
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    delete_topic_with_broker_registration: bool = False
    support_acting_master: bool = False

    def __post_init__(self) -> None:
        self.check_settings()
        object.__setattr__(self, "kv_config_path", os.path.expanduser(self.kv_config_path))
        if not self.bind_address:
            raise BadConfig("bind_address: expected an address to listen at, found none: 0.0.0.0 is every one")


def changed_while_running(config: NameServerConfig, entries: dict[str, str]) -> NameServerConfig:
    """`config` with properties changed; keys that are no settings are left out, as RocketMQ does. Raises BadConfig."""
    by_property = {setting.property_name: setting.name for setting in settings_of(NameServerConfig).values()}
    wanted = {by_property[key]: value for key, value in entries.items() if key in by_property}
    return config.with_settings(**wanted)


def fixed_keys(entries: dict[str, str]) -> list[str]:
    """Which of the properties may not be changed while the name server runs."""
    known = settings_of(NameServerConfig)
    return sorted({known[name].property_name for name in FIXED_WHILE_RUNNING} & set(entries))
