"""BrokerIdentity: the id that a controller gave to the broker of a store, in RocketMQ's files.

    <store>/brokerIdentity         cluster#brokerName#id
    <store>/brokerIdentity-temp    cluster#brokerName#id#checkCode     asked for, and not confirmed yet

Invariants: the second file is written before the controller is asked to confirm, and removed after the first one is on
disk: a broker that dies in between asks for the same id with the same check code, and gets it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from tiermq.errors import BadConfig, StoreDamaged
from tiermq.files.config_file import BACKUP_SUFFIX
from tiermq.files.os_file_access import OsFileAccess

IDENTITY_FILE = "brokerIdentity"
TEMPORARY_SUFFIX = "-temp"
_SEPARATOR = "#"


class Claim(NamedTuple):
    """An id that was asked for."""

    id: int
    check_code: str


class BrokerIdentity:
    """The two files of a store. Used by one thread at a time."""

    def __init__(self, root: str, cluster: str, name: str) -> None:
        """Raises BadConfig for names that the files cannot hold."""
        for what, text in (("brokerClusterName", cluster), ("brokerName", name)):
            if not text or _SEPARATOR in text or "\n" in text:
                raise BadConfig(f"{what}: expected a name without {_SEPARATOR!r} in controller mode, found {text!r}")
        self._access = OsFileAccess()
        self._path = os.path.join(root, IDENTITY_FILE)
        self._names = (cluster, name)

    def read(self) -> int | None:
        """The confirmed id; None without one. Raises BadConfig for an id of other names, StoreDamaged."""
        fields = self._read(self._path, 3)
        return None if fields is None else int(fields[2])

    def read_claim(self) -> Claim | None:
        fields = self._read(self._path + TEMPORARY_SUFFIX, 4)
        return None if fields is None else Claim(int(fields[2]), fields[3])

    def _read(self, path: str, count: int) -> list[str] | None:
        def decode(data: bytes) -> list[str]:
            fields = data.decode("utf-8").strip().split(_SEPARATOR)
            if len(fields) != count or not fields[2].isdecimal() or int(fields[2]) < 1:
                raise ValueError(f"expected {count} fields, the third one an id, found {data[:200]!r}")
            return fields

        try:
            fields = self._access.read_config(path, decode)
        except ValueError as error:
            raise StoreDamaged(f"{path}: {error}. Restore it, or remove it to join as a new broker") from error
        if fields is not None and tuple(fields[:2]) != self._names:
            raise BadConfig(
                f"{path}: expected the cluster and broker name {self._names}, as the settings have it, found "
                f"{tuple(fields[:2])}: the id belongs to those; correct the settings"
            )
        return fields

    def claim(self, claim: Claim) -> None:
        """Note what is about to be asked for."""
        self._write(self._path + TEMPORARY_SUFFIX, (*self._names, str(claim.id), claim.check_code))

    def drop_claim(self) -> None:
        """The id belongs to another broker."""
        for path in (self._path + TEMPORARY_SUFFIX + BACKUP_SUFFIX, self._path + TEMPORARY_SUFFIX):
            if self._access.exists(path):
                self._access.remove(path)

    def confirm(self, broker_id: int) -> None:
        """The id is this broker's from now on."""
        self._write(self._path, (*self._names, str(broker_id)))
        self.drop_claim()

    def _write(self, path: str, fields: tuple[str, ...]) -> None:
        self._access.make_directories(os.path.dirname(path))
        self._access.write_config(path, _SEPARATOR.join(fields).encode())
