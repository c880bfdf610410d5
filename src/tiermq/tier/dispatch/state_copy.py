"""StateCopy: copies a broker's own tables into the tier, with the rhythm of manifests.

    config/*.json of the store, or responses of a broker ─┐
    settings, where the broker runs in this process ──────┴─► BrokerStateWriter, under the broker's lease

A broker writes its files some seconds after a change, so their copy lags by these seconds and `tierManifestInterval`.
A store that no broker was started on has no such files: then there is nothing to copy, and no request.
Threads: `run` is called by one at a time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial

from tiermq.clock import Clock
from tiermq.errors import TierMQError
from tiermq.files.file_access import FileAccess
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.metadata.broker_state import SETTINGS, BrokerStateWriter, encode_settings, read_config_files

_log = logging.getLogger(__name__)


ReadTables = Callable[[], dict[str, bytes]]
"""Reads a broker's tables, as `BrokerState`. Raises OSError, TierMQError."""


def tables_in(access: FileAccess, root: str | os.PathLike[str]) -> ReadTables:
    """From the files of a store directory."""
    return partial(read_config_files, access, os.fspath(root))


class StateCopy:
    """See the module."""

    def __init__(
        self,
        read: ReadTables,
        writer: QueueWriter,
        tables: BrokerStateWriter,
        clock: Clock,
        *,
        rest_ms: int,
    ) -> None:
        """`rest_ms`: after a failure."""
        self.settings: Callable[[], Mapping[str, str]] | None = None
        """The settings of the broker that runs on the store, by RocketMQ's names."""
        self._read = read
        self._writer = writer
        self._tables = tables
        self._clock = clock
        self._rest_ms = rest_ms
        self._next_ms = 0

    def run(self, *, is_last: bool = False) -> list[str]:
        """Write what changed; the names of the tables that were written. A failure is logged, and tried again later."""
        now_ms = self._clock.now_ms()
        if not self._writer.may_write() or (now_ms < self._next_ms and not is_last):
            return []
        try:
            state = self._read()
            if self.settings is not None:
                state[SETTINGS.name] = encode_settings(self.settings())
            return self._writer.write_state(self._tables, state, is_last=is_last)
        except (TierMQError, OSError, UnicodeError) as error:  # A name of a table may be no Unicode text.
            self._next_ms = now_ms + self._rest_ms
            _log.warning("topics, groups and offsets are copied into the tier later: %s", error)
        return []
