"""IndexFollower: the key index of a broker's tier, read while another process writes it.

A job that copies a store keeps the index's files in the store's directory, as the embedded dispatcher does. Whoever
has the store open meanwhile asks the same files, without changing a byte:

    coverage.tiermq.json   which local files there are, and what of each queue was indexed at the last sync
    local files            mapped read-only; an item is whole before its slot points to it
    metadata rows          the files that are in the tier

A query may miss what was put since the last `refresh` into a file that is new since then. The local store finds those:
its own files go only once the tier has proof of them, which is later.
Threads: any may query; one refreshes.
"""

from __future__ import annotations

import logging
import os

from tiermq.errors import StoreClosed, StoreDamaged
from tiermq.files.file_access import FileAccess
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.compacted_index import CompactedIndex
from tiermq.tier.index.index_coverage import Coverage, open_sealed
from tiermq.tier.index.index_query import FetchKeys, IndexSearch, QueryAnswer, QueryPool, Question
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.index.index_rows import IndexRows
from tiermq.tier.index.index_state import IndexEntry, IndexState
from tiermq.tier.index.index_upkeep import live_segments
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.names import index_queue

_log = logging.getLogger(__name__)


class IndexFollower:
    """See the module."""

    def __init__(
        self,
        access: FileAccess,
        root: str,
        driver: TierDriver,
        rows: IndexRows,
        cluster: str,
        broker: str,
        *,
        fetch_keys: FetchKeys | None = None,
        query_threads: int = 8,
    ) -> None:
        self._access = access
        self._directory = os.path.join(root, INDEX_DIRECTORY)
        self._driver = driver
        self._rows = rows
        self._queue = index_queue(cluster, broker)
        self._fetch_keys = fetch_keys
        self._pool = QueryPool(query_threads)
        self._coverage = Coverage(is_base_known=False)
        self._local: dict[int, IndexEntry] = {}
        self._uploaded: dict[int, IndexEntry] = {}
        self._entries: tuple[IndexEntry, ...] = ()
        self._is_open = True

    def refresh(self) -> None:
        """See what was synced since. Raises StoreDamaged for a record that nobody of us wrote."""
        path = os.path.join(self._directory, RECORD_NAME)
        try:
            record = open_sealed(self._access.read_bytes(path), path)
        except FileNotFoundError:
            record = None  # Nothing was indexed yet.
        uploaded = {}
        for segment in live_segments(self._rows, self._queue):
            known = self._uploaded.get(segment.key.base)
            uploaded[segment.key.base] = known or IndexEntry(
                segment.begin_ms, IndexState.UPLOAD, remote=CompactedIndex(self._driver, segment)
            )
        in_tier = {entry.begin_ms for entry in uploaded.values()}
        local = {}
        for facts in record.files if record is not None else ():
            if facts.item_count and facts.begin_ms not in in_tier:
                entry = self._local.get(facts.begin_ms) or self._open(facts)
                if entry is not None:
                    local[facts.begin_ms] = entry
        gone = [entry for begin_ms, entry in self._local.items() if begin_ms not in local]
        self._local, self._uploaded = local, uploaded
        self._entries = tuple(sorted([*uploaded.values(), *local.values()], key=lambda entry: entry.begin_ms))
        self._coverage = Coverage() if record is None else record.coverage()
        for entry in gone:
            if entry.local is not None:
                entry.local.close()

    def _open(self, facts: FileFacts) -> IndexEntry | None:
        try:
            return IndexEntry(
                facts.begin_ms, IndexState.UNSEALED, local=IndexWriteFile.view(self._access, self._directory, facts)
            )
        except StoreDamaged as error:  # Uploaded and removed between two looks; the rows tell next time.
            _log.info("index file %d is passed over: %s", facts.begin_ms, error)
            return None

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, topic_id: int | None = None
    ) -> QueryAnswer:
        """As `IndexStore.query`."""
        if not self._is_open:
            raise StoreClosed("expected an open index, found it closed; start the store first")
        question = Question(topic, key, max_count, begin_ms, end_ms, topic_id)
        return IndexSearch(question, self._fetch_keys, self._pool).run(self._entries)

    def is_complete_for(self, topic: str) -> bool:
        """Whether every record of the topic was indexed at the last sync."""
        return self._coverage.is_complete(topic)

    def close(self) -> None:
        self._is_open = False
        self._entries = ()
        for entry in self._local.values():
            if entry.local is not None:
                entry.local.close()
        self._pool.close()
