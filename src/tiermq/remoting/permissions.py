"""Who may do what: accounts with their secrets, and what each may do to which topic and group.

    globalWhiteRemoteAddresses = ["10.0.0.*"]          # peers that need no signature

    [[accounts]]
    accessKey = "producer"
    secretKey = "a long secret"
    whiteRemoteAddress = "192.168.1.1-20"              # optional: this account needs no signature from there
    admin = false
    defaultTopicPerm = "DENY"                          # DENY, PUB, SUB, PUB|SUB
    defaultGroupPerm = "SUB"
    topicPerms = ["orders=PUB|SUB", "secret=DENY"]
    groupPerms = ["billing=SUB"]

TOML as above, or RocketMQ's own `plain_acl.yml` with the same names. A request is checked in this order: white
addresses, account, signature, admin, then each topic and group it touches. Requests of commands that are not in the
table below need a signature only, as in RocketMQ.
"""

from __future__ import annotations

import enum
import hmac
import logging
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, RequestRefused
from tiermq.remoting.acl import ACCESS_KEY, SIGNATURE, signature_of
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.remoting.plain_yaml import decode_plain_yaml

_log = logging.getLogger(__name__)
RETRY_PREFIX = "%RETRY%"
RELOAD_S = 5.0


class Permission(enum.Flag):
    """What may be done to a topic; groups know SUB only."""

    DENY = 0
    PUB = 1
    SUB = 2


_SENDS = {10: "topic", 310: "b", 320: "b", 324: "topic", 325: "b", 370: "topic", 37: "topic"}
_READS = frozenset(
    (
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
    )
)
_ADMIN = frozenset(
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        # Whoever may register a broker may take over any topic's route.
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    )
)


@dataclass(frozen=True, slots=True)
class Account:
    """One signer."""

    access_key: str
    secret_key: str = field(repr=False)
    white_address: str = ""
    admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    topics: dict[str, Permission] = field(default_factory=dict)
    groups: dict[str, Permission] = field(default_factory=dict)

    def may(self, kind: str, name: str, wanted: Permission) -> bool:
        known, default = (self.topics, self.default_topic) if kind == "topic" else (self.groups, self.default_group)
        return wanted in known.get(name, default)


class AccessTable:
    """See the module. Immutable."""

    def __init__(self, accounts: list[Account], white_addresses: list[str]) -> None:
        self.accounts = {account.access_key: account for account in accounts}
        self.white_addresses = white_addresses

    @classmethod
    def load(cls, path: Path) -> AccessTable:
        """Raises BadConfig, naming the file and the entry, for what it cannot mean."""
        try:
            text = path.read_text(encoding="utf-8")
            values = decode_plain_yaml(text) if path.suffix in (".yml", ".yaml") else tomllib.loads(text)
            return cls(
                [_account(each) for each in values.get("accounts") or []],
                [str(each) for each in values.get("globalWhiteRemoteAddresses") or []],
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadConfig(f"{path}: expected accounts and their permissions, found: {error!r}") from error

    def check(self, command: RemotingCommand, peer_host: str) -> None:
        """Raises RequestRefused with NO_PERMISSION."""
        if any(address_matches(pattern, peer_host) for pattern in self.white_addresses):
            return
        key = command.ext.get(ACCESS_KEY, "")
        account = self.accounts.get(key)
        if account is None:
            raise _no(f"expected the access key of an account, found {key!r}")
        if account.white_address and address_matches(account.white_address, peer_host):
            return
        if not hmac.compare_digest(
            signature_of(command, account.secret_key).encode(), command.ext.get(SIGNATURE, "").encode()
        ):
            raise _no(f"expected a signature made with the secret of {key!r}, found another: check the secret key")
        if account.admin:
            return
        if command.code in _ADMIN:
            raise _no(f"request {int(command.code)} is for administrators, and {key!r} is none")
        for kind, name, wanted in touched_by(command):
            if not account.may(kind, name, wanted):
                raise _no(f"{key!r} may not {wanted.name} the {kind} {name!r}")


class AccessFile:
    """The table of a file, read again when the file has changed; a broken file leaves the last good table in force."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self.table = AccessTable.load(path)
        self._clock = clock or SystemClock()
        self._stamp = self._stamp_now()
        self._looked_s = self._clock.monotonic()

    def check(self, command: RemotingCommand, peer_host: str) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= RELOAD_S:
            self._looked_s = now_s
            self.reload()
        self.table.check(command, peer_host)

    def reload(self) -> None:
        """Read the file if it is another one than before."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.table = AccessTable.load(self.path)
        except BadConfig as error:
            _log.error("%s; the table read before stays in force", error)

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def touched_by(command: RemotingCommand) -> Iterator[tuple[str, str, Permission]]:
    """(topic or group, its name, what is done to it) of a request."""
    code, ext = command.code, command.ext
    if (name := _SENDS.get(code)) is not None:
        if topic := ext.get(name):
            yield _topic(topic, Permission.PUB)
    elif code in _READS:
        if topic := ext.get("topic"):
            yield _topic(topic, Permission.SUB)
        if group := ext.get("consumerGroup"):
            yield "group", group, Permission.SUB
    elif code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG):  # Both may make it.
        yield "group", ext.get("group", ""), Permission.SUB
    elif code == RequestCode.HEART_BEAT:
        for consumer in _objects_in(decode_object(command.body), "consumerDataSet"):
            yield "group", str(consumer.get("groupName")), Permission.SUB
            for subscription in _objects_in(consumer, "subscriptionDataSet"):
                yield _topic(str(subscription.get("topic")), Permission.SUB)
    elif code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        body = decode_object(command.body)
        yield "group", str(body.get("consumerGroup")), Permission.SUB
        for queue in _objects_in(body, "mqSet"):
            yield _topic(str(queue.get("topic")), Permission.SUB)
    elif code == RequestCode.BATCH_ACK_MESSAGE:
        for ack in _objects_in(decode_object(command.body), "acks"):
            yield "group", str(ack.get("c")), Permission.SUB
            yield _topic(str(ack.get("t")), Permission.SUB)


def _objects_in(table: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of a list in a body, none where it is absent. Raises RequestRefused for anything else."""
    found = table.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise RequestRefused(f"expected a list of objects in {name}, found {str(found)[:40]!r}")
    return found


def address_matches(pattern: str, host: str) -> bool:
    """Whether a host is one of `*`, `10.0.0.*`, `10.0.0.1-20`, or a list of such, separated by commas."""
    return any(_one_matches(each.strip(), host) for each in pattern.split(",") if each.strip())


def _one_matches(pattern: str, host: str) -> bool:
    if pattern in ("*", "*.*.*.*", host):
        return True
    wanted, found = pattern.split("."), host.split(".")
    return len(wanted) == len(found) == 4 and all(map(_part_matches, wanted, found))


def _part_matches(wanted: str, found: str) -> bool:
    low, dash, high = wanted.partition("-")
    if dash and low.isdigit() and high.isdigit() and found.isdigit():
        return int(low) <= int(found) <= int(high)
    return wanted in ("*", found)


def _topic(name: str, wanted: Permission) -> tuple[str, str, Permission]:
    """A retry topic is its group's: whoever may read for the group may use it."""
    if name.startswith(RETRY_PREFIX):
        return "group", name.removeprefix(RETRY_PREFIX), Permission.SUB
    return "topic", name, wanted


def _account(values: dict[str, Any]) -> Account:
    return Account(
        access_key=str(values["accessKey"]),
        secret_key=str(values["secretKey"]),
        white_address=str(values.get("whiteRemoteAddress") or ""),
        admin=str(values.get("admin", False)).lower() == "true",
        default_topic=_permission(values.get("defaultTopicPerm") or "DENY"),
        default_group=_permission(values.get("defaultGroupPerm") or "DENY"),
        topics=dict(map(_named_permission, values.get("topicPerms") or [])),
        groups=dict(map(_named_permission, values.get("groupPerms") or [])),
    )


def _named_permission(text: str) -> tuple[str, Permission]:
    name, equals, permission = text.partition("=")
    if not equals:
        raise ValueError(f"expected name=permission, found {text!r}")
    return name.strip(), _permission(permission)


def _permission(text: str) -> Permission:
    made = Permission.DENY
    for part in text.split("|"):
        if part.strip() == "ANY":
            return Permission.PUB | Permission.SUB
        made |= Permission[part.strip()]
    return made


def _no(reason: str) -> RequestRefused:
    return RequestRefused(reason, ResponseCode.NO_PERMISSION)
