"""KvConfig: small settings by namespace and key, kept in one JSON file as RocketMQ keeps them.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}

Invariants: what `put` and `delete` have returned from is on disk, in the file or (after a crash in between) in its
backup; a change that cannot be written has no effect. Names, values and all together are bounded: what would grow them
beyond that is refused. Without a path everything is in memory only. Any thread may call; changes go one
at a time.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping

from tiermq.errors import RequestRefused
from tiermq.files.os_file_access import OsFileAccess
from tiermq.remoting.json_dialect import decode_object, object_in, text_map_in

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
NAME_BYTES_MAX = 255
VALUE_BYTES_MAX = 64 * 1024
NAMESPACES_MAX = 256
KEYS_MAX = 10_000
TABLE_BYTES_MAX = 4 * 1024 * 1024
"""Of all names and values: each change writes all of them."""
Table = dict[str, dict[str, str]]


class KvConfig:
    """See the module."""

    def __init__(self, path: str = "") -> None:
        """Reads the file if there is one. Raises StoreDamaged when neither it nor its backup can be read."""
        self.path = path
        self._lock = threading.Lock()
        self._access = OsFileAccess()
        self._table: Table = {}
        if path:
            self._table = self._access.read_config(path, _decode) or {}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All of a namespace, or None if it does not exist. The map is never changed afterwards."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Durable when it returns. Raises RequestRefused for what is beyond the bounds, OSError and StoreError."""
        for name, text, most in (("namespace", namespace, NAME_BYTES_MAX), ("key", key, NAME_BYTES_MAX),
                                 ("value", value, VALUE_BYTES_MAX)):  # fmt: skip
            if (found := _size(text)) > most:
                raise RequestRefused(f"expected a {name} of at most {most} bytes, found {found} bytes: shorten it")
        with self._lock:
            table = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
            self._require_bounded(table)
            self._replace(table)

    def _require_bounded(self, table: Table) -> None:
        """Raises RequestRefused for a table that is too large, and larger than the current one."""
        for what, count, most in (
            ("namespaces", len, NAMESPACES_MAX),
            ("keys", _keys, KEYS_MAX),
            ("bytes", _bytes, TABLE_BYTES_MAX),
        ):
            if most < count(table) > count(self._table):
                raise RequestRefused(
                    f"expected at most {most} {what} of key-value settings, found {count(table)} with this one: "
                    "delete others first"
                )

    def delete(self, namespace: str, key: str) -> bool:
        """The same; False when there was nothing. A namespace without keys is gone."""
        with self._lock:
            found = self._table.get(namespace)
            if found is None or key not in found:
                return False
            left = {name: each for name, each in found.items() if name != key}
            others = {name: each for name, each in self._table.items() if name != namespace}
            self._replace({**others, namespace: left} if left else others)
            return True

    def _replace(self, table: Table) -> None:
        """Readers see the old table or the new one: a table that is in use is never changed."""
        if self.path:
            self._access.make_directories(os.path.dirname(os.path.abspath(self.path)))
            self._access.write_config(self.path, _encode(table))
        self._table = table


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _keys(table: Table) -> int:
    return sum(map(len, table.values()))


def _bytes(table: Table) -> int:
    return sum(
        _size(name) + sum(_size(key) + _size(value) for key, value in each.items()) for name, each in table.items()
    )


def _encode(table: Table) -> bytes:
    return json.dumps({"configTable": table}, sort_keys=True, indent=1).encode()


def _decode(data: bytes) -> Table:
    table = decode_object(data).get("configTable")
    if table is None:
        raise RequestRefused("expected a configTable, found none")
    found = {name: text_map_in(each, name) for name, each in object_in(table, "configTable").items()}
    return {name: each for name, each in found.items() if each}  # RocketMQ keeps empty ones.
