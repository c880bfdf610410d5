"""EvictionProof: which part of the local log is in the tier, so that its files may go.

A commit-log file may be deleted only when every record of a tiered topic in it is committed in the tier. What is
committed is known per queue; the first message of a queue that is not, lies at some physical offset; the smallest of
these, over all queues, is where the proof ends:

    0                              proven_to                         end of the log
    |  every tiered record is cold  |  something here is not           |

A queue that has not been compared with the tier since the start proves nothing: its metadata may say more than the
bucket holds. Records that have no unit yet prove nothing either. Filtered topics and batch topics do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.tier.dispatch.local_source import LocalSource
from tiermq.tier.dispatch.topic_filter import TopicFilter
from tiermq.tier.flat.flat_file_store import FlatFileStore


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the tier is behind: where the proof ends, how many bytes of log lie behind it, whose queue it is."""

    proven_to: int
    bytes: int
    topic: str = ""
    queue_id: int = -1


class EvictionProof:
    """Give `must_stay` to `LocalStore.add_eviction_veto`. Any thread may call anything."""

    def __init__(self, source: LocalSource, files: FlatFileStore, topic_filter: TopicFilter) -> None:
        self._source = source
        self._files = files
        self._filter = topic_filter
        self.held_topics: frozenset[str] = frozenset()  # Being deleted: what the tier has of them is of another life.

    def must_stay(self, first_offset: int, end_offset: int) -> bool:
        """Whether a local log file [first_offset, end_offset) holds a record that is not in the tier."""
        return first_offset < end_offset and end_offset > self.lag().proven_to

    def lag(self) -> Lag:
        begin, end = self._source.log_bounds()
        found = Lag(end, 0)
        for topic, queue_id in self._source.queues():
            if self._filter.is_filtered(topic):
                continue
            file = self._files.find(topic, queue_id)
            is_proven = file is not None and file.compared and topic not in self.held_topics
            committed = file.commit_offset if file is not None and is_proven else -1
            physical = self._source.first_physical(topic, queue_id, max(0, committed))
            if physical is not None and physical < found.proven_to:
                proven = max(begin, physical)
                found = Lag(proven, end - proven, topic, queue_id)
        return found
