"""Settings of a controller, by RocketMQ's names and with RocketMQ's defaults, but for where it listens.

What RocketMQ's controller needs for its quorum (`controllerDLegerPeers`, `controllerStorePath`, …) has no counterpart:
the state is in the bucket, and controllers do not know each other.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tiermq.errors import BadConfig
from tiermq.settings import Configuration, settings_of, whole

DEFAULT_PORT = 9878
FIXED_WHILE_RUNNING = frozenset({"listen_port", "bind_address", "advertised_address"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(Configuration):
    """Settings of a controller. Intervals are milliseconds."""

    TABLE: ClassVar[str] = "controller"
    DOCUMENT: ClassVar[str] = "docs/controller.md"
    AT_TOP: ClassVar[bool] = True

    listen_port: int = whole(DEFAULT_PORT, high=65_535)
    """0 takes a free port."""
    bind_address: str = "127.0.0.1"
    advertised_address: str = ""
    """`host:port` under which brokers reach it; empty: the address to which they connected."""
    scan_not_active_broker_interval: int = whole(5_000, low=1)
    scan_inactive_master_interval: int = whole(5_000, low=1)
    enable_elect_unclean_master: bool = False
    notify_broker_role_changed: bool = True

    def __post_init__(self) -> None:
        self.check_settings()
        if not self.bind_address:
            raise BadConfig("bind_address: expected an address to listen at, found none: 0.0.0.0 is every one")


def changed_while_running(config: ControllerConfig, entries: dict[str, str]) -> ControllerConfig:
    """`config` with properties changed; keys that are no settings are left out, as RocketMQ does. Raises BadConfig."""
    by_property = {setting.property_name: setting.name for setting in settings_of(ControllerConfig).values()}
    wanted = {by_property[key]: value for key, value in entries.items() if key in by_property}
    if fixed := sorted(FIXED_WHILE_RUNNING & wanted.keys()):
        raise BadConfig(f"{', '.join(fixed)}: cannot be changed while the controller runs")
    return config.with_settings(**wanted)
