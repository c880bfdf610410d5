"""KvConfig: small settings by namespace and key, kept in one JSON file as RocketMQ keeps them.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}

Invariants: what `put` and `delete` have returned from is on disk, in the file or (after a crash in between) in its
backup; a change that cannot be written is not made. Without a path everything is in memory only. Any thread may call;
changes go one at a time.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping

from tiermq.errors import RequestRefused
from tiermq.files.os_file_access import OsFileAccess
from tiermq.namesrv.topic_config import object_in, text_map_in
from tiermq.remoting.json_dialect import decode_object
from tiermq.remoting.limits import KV_ENTRIES_MAX, KV_VALUE_CHARACTERS_MAX, check_count

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
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
        """All of a namespace, or None when there is none. The map is never changed afterwards."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Durable when it returns. Raises OSError and StoreError, RequestRefused when there are too many already."""
        check_count("characters of a value", len(value), KV_VALUE_CHARACTERS_MAX)
        with self._lock:
            check_count("key-value settings", sum(map(len, self._table.values())) + 1, KV_ENTRIES_MAX)
            self._replace({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})

    def delete(self, namespace: str, key: str) -> bool:
        """The same; False when there was nothing."""
        with self._lock:
            found = self._table.get(namespace)
            if found is None or key not in found:
                return False
            self._replace({**self._table, namespace: {name: each for name, each in found.items() if name != key}})
            return True

    def _replace(self, table: Table) -> None:
        """Readers see the old table or the new one: a table that is in use is never changed."""
        if self.path:
            self._access.make_directories(os.path.dirname(os.path.abspath(self.path)))
            self._access.write_config(self.path, _encode(table))
        self._table = table


def _encode(table: Table) -> bytes:
    return json.dumps({"configTable": table}, sort_keys=True, indent=1).encode()


def _decode(data: bytes) -> Table:
    table = decode_object(data).get("configTable")
    if table is None:
        raise RequestRefused("expected a configTable, found none")
    return {name: text_map_in(each, name) for name, each in object_in(table, "configTable").items()}
