"""Credentials and permissions: signatures of requests, accounts with their secrets, rights to topics and groups.

    content   = values of all ext fields but Signature, in the order of their names, as UTF-8; then the body
    Signature = base64(HMAC-SHA1(secret, content))

Accounts:

    globalWhiteRemoteAddresses = ["10.0.0.*"]          # peers that need no signature

    [[accounts]]
    accessKey = "producer"
    secretKey = "a long secret"
    whiteRemoteAddress = "192.168.1.1-20"              # optional: no signature from there; permissions count as ever
    admin = false
    defaultTopicPerm = "DENY"                          # DENY, PUB, SUB, PUB|SUB
    defaultGroupPerm = "SUB"
    topicPerms = ["orders=PUB|SUB", "secret=DENY"]
    groupPerms = ["billing=SUB"]

TOML as above, or RocketMQ's own `plain_acl.yml` with the same names. Settings that could permit too much are
refused: unknown keys, text instead of a list, a name or an account that comes twice, an empty key or secret.

A request is checked in this order: global white addresses, account, signature (unless it comes from the account's own
white address); then what its handler declares (`access`): an administrator, or permissions for each topic and group
that the request names or reaches. What requests there are, and what they need, is not known here.

    retry topic %RETRY%G     the group's: SUB of G; named neither as topic nor as group, also what POP may have put
                             there: no group or topic that its name can be split into may be denied
    dead letters %DLQ%G      its own permission, or the default and, to read it, SUB of G
    topics of a broker       the default does not count: they hold messages of every topic
    %LMQ%$TOPIC$lite         the default, and the same permission of TOPIC, whose messages the light queue names
"""

from __future__ import annotations

import base64
import enum
import functools
import hashlib
import hmac
import logging
import operator
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, RequestRefused
from tiermq.message.topic_name import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    group_problem,
    is_broker_topic,
    lite_parent,
    topic_problem,
)
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.settings import YAML_SUFFIXES, did_you_mean, read_yaml

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE = "Signature"
SIGNED_FIELDS = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
"""What a signature adds to a request."""
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_VERSION_BEFORE_UNIQUE_KEY = 399


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client signs with."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def sign(self, command: RemotingCommand) -> None:
        """Add the key and the signature. The last thing that happens to a request before it is sent."""
        command.ext.pop(SIGNATURE, None)
        command.ext[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            command.ext[SECURITY_TOKEN] = self.security_token
        command.ext[SIGNATURE] = signature_of(command, self.secret_key)


def signature_of(command: RemotingCommand, secret_key: str) -> str:
    """The signature that the request should have, as the receiver computes it."""
    skipped = {SIGNATURE}
    if command.version <= _VERSION_BEFORE_UNIQUE_KEY:
        skipped.add(UNIQUE_KEY_QUERY)  # Clients that old added it behind the signature.
    values = (command.ext[name] for name in sorted(command.ext) if name not in skipped)
    content = "".join(values).encode("utf-8", "replace")
    made = hmac.new(secret_key.encode(), content, hashlib.sha1)
    made.update(command.body)
    return base64.b64encode(made.digest()).decode()


_log = logging.getLogger(__name__)
RELOAD_S = 5.0
WHITE_ADDRESSES = "globalWhiteRemoteAddresses"
TABLE_KEYS = (WHITE_ADDRESSES, "accounts", "dataVersion")
"""RocketMQ counts its own edits in dataVersion, which is ignored."""
ACCOUNT_KEYS = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
    "groupPerms",
)  # fmt: skip


class Permission(enum.Flag):
    """What may be done to a topic; groups know SUB only."""

    DENY = 0
    PUB = 1
    SUB = 2


EITHER = Permission.PUB | Permission.SUB
"""Of a request that needs one of the two."""


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

    def may_use_topic(self, topic: str, wanted: Permission) -> bool:
        """Whether one of the wanted permissions is granted for a topic."""
        if self.admin:
            return True
        granted = self.topics.get(topic)
        if granted is not None:
            return bool(granted & wanted)
        if topic.startswith(RETRY_PREFIX):
            return self._may_use_retry_topic(topic.removeprefix(RETRY_PREFIX), wanted)
        if is_broker_topic(topic):
            return False
        if topic.startswith(DEAD_LETTER_PREFIX):
            return bool(self.default_topic & wanted) and self.may_use_group(topic.removeprefix(DEAD_LETTER_PREFIX))
        parent = lite_parent(topic)
        if parent is not None and not self.may_use_topic(parent, wanted):
            return False
        return bool(self.default_topic & wanted)

    def may_use_group(self, group: str) -> bool:
        return self.admin or Permission.SUB in self.groups.get(group, self.default_group)

    def _may_use_retry_topic(self, name: str, wanted: Permission) -> bool:
        """A group's own retry topic needs SUB of the group. POP's copies are named group_topic or group+topic, which
        may be split in several ways: they are read with SUB of a group and of its topic, unless another split is
        denied, and only brokers write them. A name with a denied split may be such a copy, so no account writes it
        either, unless it has SUB of a group of that whole name.
        """
        if name in self.groups:
            return Permission.SUB in self.groups[name]
        splits = [(name[:at], name[at + 1 :]) for at, letter in enumerate(name) if letter in "_+"]
        granted = [self.groups[group] for group, _ in splits if group in self.groups]
        granted += [self.topics[topic] for _, topic in splits if topic in self.topics]
        if not wanted & Permission.SUB:
            return Permission.SUB in self.default_group and all(granted)
        return all(Permission.SUB in each for each in granted) and (
            Permission.SUB in self.default_group
            or any(self.may_use_group(group) and self.may_use_topic(topic, Permission.SUB) for group, topic in splits)
        )

    def require_topic(self, topic: str, wanted: Permission) -> None:
        """Raises RequestRefused with NO_PERMISSION."""
        if not self.may_use_topic(topic, wanted):
            raise no_permission(f"{self.access_key!r} may not {wanted.name} the topic {topic[:300]!r}")

    def require_group(self, group: str) -> None:
        """Raises RequestRefused with NO_PERMISSION."""
        if not self.may_use_group(group):
            raise no_permission(f"{self.access_key!r} may not SUB the group {group[:300]!r}")

    def require_some_permission(self, code: int) -> None:
        """Raises RequestRefused with NO_PERMISSION for an account that may do nothing to any topic or group."""
        defaults = self.default_topic | self.default_group
        if not (self.admin or defaults or any(self.topics.values()) or any(self.groups.values())):
            raise no_permission(f"request {int(code)} needs some permission, and {self.access_key!r} has none")

    def require_admin(self, code: int) -> None:
        """Raises RequestRefused with NO_PERMISSION."""
        if not self.admin:
            name = next((each.name for each in RequestCode if each == code), "unknown")
            raise no_permission(f"request {int(code)} ({name}) is for administrators, and {self.access_key!r} is none")


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
            return cls(*_table_in(read_yaml(text) if path.suffix in YAML_SUFFIXES else tomllib.loads(text)))
        except BadConfig as error:
            raise BadConfig(f"{path}: {error}") from error
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadConfig(f"{path}: expected accounts and their permissions, found: {error}") from error

    def administrator(self) -> Credentials | None:
        """The credentials of the first administrator; None without one."""
        found = next((each for each in self.accounts.values() if each.admin), None)
        return None if found is None else Credentials(found.access_key, found.secret_key)

    def signer_of(self, command: RemotingCommand, peer_host: str) -> Account | None:
        """Whose request it is; None: a global white address, which may do everything. Raises RequestRefused with 16."""
        signature = command.ext.get(SIGNATURE, "")
        return self.signer_by(
            command.ext.get(ACCESS_KEY, ""), signature, peer_host, lambda secret: signature_of(command, secret)
        )

    def signer_by(self, key: str, signature: str, peer_host: str, sign: Callable[[str], str]) -> Account | None:
        """The same of any protocol: `sign` makes the signature that a secret key would make."""
        if any(address_matches(pattern, peer_host) for pattern in self.white_addresses):
            return None
        account = self.accounts.get(key)
        if account is None:
            raise no_permission(f"expected the access key of an account, found {key[:80]!r}")
        if account.white_address and address_matches(account.white_address, peer_host):
            return account
        if not hmac.compare_digest(sign(account.secret_key).encode(), signature.encode()):
            raise no_permission(
                f"expected a signature made with the secret of {key!r}, found another: check the secret key"
            )
        return account


class AccessFile:
    """The table of a file, read again when the file has changed; a broken file leaves the last good table in force."""

    def __init__(self, path: Path, clock: Clock | None = None, *, also: Account | None = None) -> None:
        """`also` is an account that the file does not have, and whose name no account of the file can take."""
        self.path = path
        self._also = also
        self.table = self._load()
        self._clock = clock or SystemClock()
        self._stamp = self._stamp_now()
        self._looked_s = self._clock.monotonic()

    def signer_of(self, command: RemotingCommand, peer_host: str) -> Account | None:
        """See `AccessTable.signer_of`."""
        self._look_sometimes()
        return self.table.signer_of(command, peer_host)

    def signer_by(self, key: str, signature: str, peer_host: str, sign: Callable[[str], str]) -> Account | None:
        """See `AccessTable.signer_by`."""
        self._look_sometimes()
        return self.table.signer_by(key, signature, peer_host, sign)

    def _look_sometimes(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._looked_s >= RELOAD_S:
            self._looked_s = now_s
            self.look()

    def look(self) -> None:
        """Read the file if it is another one than before. Any thread may call, every RELOAD_S."""
        if self._stamp_now() != self._stamp:
            self.reload()

    def reload(self) -> bool:
        """Read the file. False when it is bad, which is logged. Any thread may call."""
        self._stamp = self._stamp_now()
        try:
            self.table = self._load()
        except BadConfig as error:
            _log.error("%s; the table read before stays in force", error)
            return False
        return True

    def _load(self) -> AccessTable:
        table = AccessTable.load(self.path)
        if self._also is not None:
            table.accounts[self._also.access_key] = self._also
        return table

    def _stamp_now(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


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


def _table_in(values: dict[str, Any]) -> tuple[list[Account], list[str]]:
    _check_keys("the file", values, TABLE_KEYS)
    white = [_text(WHITE_ADDRESSES, each) for each in _list(WHITE_ADDRESSES, values, 'write ["10.0.0.*"]')]
    accounts: dict[str, Account] = {}
    for number, each in enumerate(_list("accounts", values, "write one table for each account"), 1):
        if not isinstance(each, dict):
            raise BadConfig(f"accounts: expected keys and values in number {number}, found {_kind(each)}")
        try:
            made = _account(each)
        except BadConfig as error:
            raise BadConfig(f"account {number}: {error}") from error
        if made.access_key in accounts:
            raise BadConfig(f"account {number}: expected a unique accessKey, found {made.access_key!r} again")
        accounts[made.access_key] = made
    return list(accounts.values()), white


def _account(values: dict[str, Any]) -> Account:
    _check_keys("an account", values, ACCOUNT_KEYS)
    for key in ("accessKey", "secretKey"):
        if not _text(key, values.get(key, "")).strip():
            raise BadConfig(f"{key}: expected text, found none")
    admin = values.get("admin", False)
    is_admin = "true" if admin is True else "false" if admin is False else _text("admin", admin).lower()
    if is_admin not in ("", "true", "false"):
        raise BadConfig(f"admin: expected true or false, found {is_admin[:80]!r}")
    return Account(
        access_key=_text("accessKey", values["accessKey"]),
        secret_key=_text("secretKey", values["secretKey"]),
        white_address=_text("whiteRemoteAddress", values.get("whiteRemoteAddress", "")),
        admin=is_admin == "true",
        default_topic=_permission("defaultTopicPerm", values.get("defaultTopicPerm", "")),
        default_group=_permission("defaultGroupPerm", values.get("defaultGroupPerm", "")),
        topics=_permissions("topicPerms", values, topic_problem),
        groups=_permissions("groupPerms", values, group_problem),
    )


def _check_keys(where: str, values: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in values:
        if key not in known:
            expected = did_you_mean(str(key), known) or f"expected one of {', '.join(known)}"
            raise BadConfig(f"{where}: unknown key {str(key)[:80]!r}: {expected}")


def _list(key: str, values: dict[str, Any], example: str) -> list[Any]:
    """The list of a key; left out, or without a value as in RocketMQ's own file, it is empty."""
    found = values.get(key)
    if found in (None, ""):
        return []
    if not isinstance(found, list):
        raise BadConfig(f"{key}: expected a list, found {_kind(found)}: {example}")
    return found


def _text(key: str, value: object) -> str:
    """Never a list or a map: what aliases of YAML make of a few lines may be too large to print."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise BadConfig(f"{key}: expected text, found {_kind(value)}: write one value in quotes")
    return str(value)


def _kind(value: object) -> str:
    """What a value is, in words; never the value, which may be a secret."""
    kinds: dict[type, str] = {str: "text", bool: "true or false", list: "a list", dict: "keys and values"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "something else")


def _permissions(key: str, values: dict[str, Any], problem_of: Callable[[str], str | None]) -> dict[str, Permission]:
    made: dict[str, Permission] = {}
    for each in _list(key, values, 'write ["name=PUB|SUB"]'):
        name, equals, permission = (part.strip() for part in _text(key, each).partition("="))
        if not equals:
            raise BadConfig(f"{key}: expected name=permission, found {name[:80]!r}")
        if (problem := problem_of(name.replace("+", "_"))) is not None:  # POP's retry topics may have a plus sign.
            raise BadConfig(f"{key}: {problem[:300]}")
        if name in made:
            raise BadConfig(f"{key}: expected each name once, found {name!r} again")
        made[name] = _permission(key, permission)
    return made


def _permission(key: str, value: object) -> Permission:
    """DENY if missing."""
    words = {word.strip() for word in _text(key, value).split("|")}
    if words in ({""}, {"DENY"}):
        return Permission.DENY
    if words == {"ANY"}:
        return EITHER
    if not words <= {"PUB", "SUB"}:
        raise BadConfig(f"{key}: expected DENY, PUB, SUB, PUB|SUB or ANY, found {' | '.join(sorted(words))[:80]!r}")
    return functools.reduce(operator.or_, (Permission[word] for word in words))


def no_permission(reason: str) -> RequestRefused:
    return RequestRefused(reason, ResponseCode.NO_PERMISSION)
