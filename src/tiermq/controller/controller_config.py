"""Settings of a controller, by RocketMQ's names and with RocketMQ's defaults, but for where it listens.

What RocketMQ's controller needs for its quorum (`controllerDLegerPeers`, `controllerStorePath`, …) has no counterpart:
the state is in the bucket, and controllers do not know each other.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tiermq.settings import ServerConfiguration, whole

DEFAULT_PORT = 9878


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(ServerConfiguration):
    """Settings of a controller. Intervals are milliseconds."""

    TABLE: ClassVar[str] = "controller"
    DOCUMENT: ClassVar[str] = "docs/controller.md"
    FIXED_WHILE_RUNNING: ClassVar[frozenset[str]] = ServerConfiguration.FIXED_WHILE_RUNNING | {"advertised_address"}

    listen_port: int = whole(DEFAULT_PORT, high=65_535)
    advertised_address: str = ""
    """`host:port` under which brokers reach it; empty: the address to which they connected."""
    scan_not_active_broker_interval: int = whole(5_000, low=1)
    scan_inactive_master_interval: int = whole(5_000, low=1)
    enable_elect_unclean_master: bool = False
    notify_broker_role_changed: bool = True
