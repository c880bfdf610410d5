"""SettingsProcessor: GET_BROKER_CONFIG (26) and UPDATE_BROKER_CONFIG (25), as properties text.

    told:     every setting of the broker, its store and its tier, by RocketMQ's names, sorted
    changed:  those in CHANGEABLE, which whoever uses them reads anew each time

Invariants: a change is whole or not at all: an unknown name, a value that is none and a setting that cannot change
while the broker runs refuse all of it, where RocketMQ passes over them in silence. A change is in the file that the
broker was started with when it is answered, its other lines untouched; where there is no such file, or it cannot be
written, the change holds until the process ends, and the answer says so. This is the one place that changes a
configuration, which is a value everywhere else: all parts hold the same object, and read single settings of it.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from tiermq.broker.parts import BrokerParts
from tiermq.broker.settings_edit import Change, change_settings_file
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig, RequestRefused, TierMQError
from tiermq.namesrv.topic_config import NO_VERSION
from tiermq.remoting.access import ADMINISTRATOR, serves
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import encode_body
from tiermq.settings import Configuration, Setting, read_properties, settings_of

_log = logging.getLogger(__name__)

CHANGEABLE_OF_BROKER = frozenset(
    {
        "auto_create_subscription_group",
        "auto_create_topic_enable",
        "broker_permission",
        "channel_expired_timeout",
        "cold_pace_bytes_min",
        "enable_property_filter",
        "long_polling_enable",
        "notify_consumer_ids_changed_enable",
        "reject_transaction_message",
        "short_polling_time_mills",
        "store_reply_message_enable",
        "transaction_check_interval",
        "transaction_check_max",
        "transaction_time_out",
        "wait_time_mills_in_pull_queue",
    }
)
CHANGEABLE_OF_STORE = frozenset(
    {
        "clean_file_forcibly_enable",
        "delete_file_batch_max",
        "delete_when",
        "disk_max_used_space_ratio",
        "file_reserved_time",
        "max_message_size",
    }
)


class SettingsProcessor:
    """See the module. Changes go one at a time, in the server's pool, since they write a file."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._changing = threading.Lock()
        self._version = NO_VERSION.next(parts.clock.now_ms())

    @serves(RequestCode.GET_BROKER_CONFIG, access=ADMINISTRATOR)
    def get(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        lines = {line for config in self._configurations() for line in config.to_properties().splitlines()}
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
                wanted = read_properties(bytes(command.body).decode("utf-8"))
                changes = [each for name, text in wanted.items() for each in self._changes(name, text)]
            except (BadConfig, UnicodeDecodeError) as error:
                raise RequestRefused(str(error)) from error
            if not changes:
                return command.respond()
            problem = self._write(changes)
            for config, setting, value in changes:
                _log.info("setting %s: %s", setting.property_name, setting.render(value))
                object.__setattr__(config, setting.name, value)
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
            _log.warning("settings are changed, but only until the process ends: %s", error)
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
            config.with_settings(**{setting.name: value})  # Together with the others it must make sense, too.
            changes.append((config, setting, value))
        if not is_known:
            raise BadConfig(f"there is no setting named {name[:80]}: docs/broker.md lists them")
        return changes
