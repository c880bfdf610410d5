"""Settings of a name server, by RocketMQ's names and with RocketMQ's defaults, but for where it listens.

`listenPort` of a properties file is `listen_port` here and in the `[namesrv]` table of a TOML file. Invariants: those
of `tiermq.settings`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import ClassVar

from tiermq.remoting.security_promises import ACL, SECURITY_PROMISES
from tiermq.settings import Promise, ServerConfiguration, is_false, is_true, whole

DEFAULT_PORT = 9876
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
class NameServerConfig(ServerConfiguration):
    """Settings of a name server. Intervals are milliseconds."""

    TABLE: ClassVar[str] = "namesrv"
    DOCUMENT: ClassVar[str] = "docs/wire.md"
    FIXED_WHILE_RUNNING: ClassVar[frozenset[str]] = ServerConfiguration.FIXED_WHILE_RUNNING | {"kv_config_path"}

    listen_port: int = whole(DEFAULT_PORT, high=65_535)
    kv_config_path: str = "~/namesrv/kvConfig.json"
    """Empty: nothing is kept."""
    scan_not_active_broker_interval: int = whole(5_000, low=1)
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    delete_topic_with_broker_registration: bool = False
    support_acting_master: bool = False
    notify_min_broker_id_changed: bool = False
    """Whether brokers whose slaves act for a master that is down are notified when one comes or goes."""

    def __post_init__(self) -> None:
        ServerConfiguration.__post_init__(self)
        object.__setattr__(self, "kv_config_path", os.path.expanduser(self.kv_config_path))
