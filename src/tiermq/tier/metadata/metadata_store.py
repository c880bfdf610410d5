"""The tier's metadata on the broker's disk: topics, queues and segments in one small database.

It is a cache of what the tier itself says (manifests and listings), kept so that a start needs no request to the tier
and a commit costs a fixed number of statements. When the file is lost, `restore` builds it anew.

    store.record_commit(queue, sizes, entries)     # one sync for all of it, or nothing; shared with other queues
    with store.transaction():                      # the same for whatever else belongs together
        store.add_topic(...)
        store.add_queue(...)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import Self, TypeVar

from tiermq.clock import Clock, SystemClock
from tiermq.tier.metadata.database import Database
from tiermq.tier.metadata.segment_rows import SegmentRows
from tiermq.tier.metadata.topic_rows import TopicRows

Result = TypeVar("Result")


class MetadataStore(TopicRows, SegmentRows):
    """One broker's tier metadata. Every change is durable when the call, or the transaction around it, returns.

    Any thread may call anything; see `Database` for what it sees. Opening raises StoreDamaged (a foreign or newer
    file), ReadOnlyStore or StoreLocked; every write may raise DiskFull, and has then changed nothing.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        clock: Clock | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._database = Database(path, trace=trace)
        self.path = self._database.path

    def transaction(self) -> AbstractContextManager[None]:
        """Changes inside become durable together, or not at all when an error leaves the block."""
        return self._database.transaction()

    def together(self, work: Callable[[], Result]) -> Result:
        """The answer of `work`, which reads and writes this store and nothing else, perhaps more than once.

        Like a transaction, but those of several threads that come at the same time share one sync: for what thousands
        of queues do at once, such as to begin.
        """
        answers: list[Result] = []
        self._database.together(lambda: answers.append(work()))
        return answers[-1]

    def data_version(self) -> int:
        """A number that changes whenever anybody, in any process, has committed something."""
        return self._database.data_version()

    def delete_topic(self, name: str) -> bool:
        """Forget the topic and its queues, and mark its segments for deletion, all at once.

        The objects go afterwards (`segments_being_deleted`, then `delete_segment` for each). False when neither the
        topic nor anything of it was known.
        """
        with self.transaction():
            changed = self._database.write("DELETE FROM topic WHERE name = ?", (name,))
            changed += self._database.write("UPDATE segment SET status = 2 WHERE topic = ? AND status <> 2", (name,))
            for statement in ("DELETE FROM queue", "DELETE FROM gap", "DELETE FROM time_entry"):
                changed += self._database.write(statement + " WHERE topic = ?", (name,))
        return changed > 0

    def is_empty(self) -> bool:
        """Whether there is no topic, no queue and no segment."""
        tables = ("SELECT 1 FROM topic", "SELECT 1 FROM queue", "SELECT 1 FROM segment")
        return all(self._database.read_one(table + " LIMIT 1") is None for table in tables)

    def close(self) -> None:
        """Let go of the file. Calling it again does nothing."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
