"""TierFollower: a store that leaves its tier to a job sees what the job has committed.

    job ── commits rows ──► metadata (a file in the store's directory) ◄── refresh ── this store

What the metadata says was durable in the tier when it was said. Before any of it proves that a local file may go, the
tier is asked once for each queue whether it has that much: the metadata may be of another time than the bucket.
Threads: `refresh` may be called by any thread, one at a time does the work.
"""

from __future__ import annotations

import logging
import threading

from tiermq.errors import TierError
from tiermq.store.local_store import LocalStore
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.index.index_follower import IndexFollower
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET, Queue
from tiermq.tier.names import INDEX_TOPIC

_log = logging.getLogger(__name__)


class TierFollower:
    """See the module."""

    def __init__(
        self, files: FlatFileStore, metadata: MetadataStore, local: LocalStore, index: IndexFollower | None
    ) -> None:
        self._files = files
        self._metadata = metadata
        self._local = local
        self._index = index
        self._lock = threading.Lock()
        self._version = -1
        self._known: dict[tuple[str, int], Queue] = {}

    def refresh(self) -> bool:
        """Learn what was committed since the last time; whether it was anything. Asks the tier only of new queues."""
        with self._lock:
            version = self._metadata.data_version()
            changed = version != self._version and self._take_rows()
            self._version = version
            if self._index is not None:
                self._index.refresh()
            for file in self._files:
                self._compare(file)
            return changed

    def _take_rows(self) -> bool:
        changed = False
        for queue in self._metadata.queues():
            key = queue.key
            name = (key.topic, key.queue_id)
            if (key.cluster, key.broker) != (self._files.cluster, self._files.broker) or key.topic == INDEX_TOPIC:
                continue
            before = self._known.get(name)
            if before == queue:
                continue
            self._known[name] = queue
            self._files.find_or_create(*name).take_rows()
            old = (UNKNOWN_OFFSET, UNKNOWN_OFFSET) if before is None else (before.min_offset, before.max_offset)
            changed |= old != (queue.min_offset, queue.max_offset)
            # The tier may know messages that the local store lost: their numbers are taken.
            self._local.advance_queue(*name, max(0, queue.max_offset))
        return changed

    def _compare(self, file: FlatMessageFile) -> None:
        try:
            if not file.compare() and file.initialised:
                _log.error("%s: the tier has less than its metadata says; verify it", file.queue.logical_path)
        except TierError as error:
            _log.warning("%s is not compared with the tier yet: %s", file.queue.logical_path, error)
