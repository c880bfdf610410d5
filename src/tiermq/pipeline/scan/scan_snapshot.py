"""Snapshot: where queues ended when a frame first looked at them, for all plans that are made of the frame.

    {"topics": ["rare"], "ends": [["c", "b", "rare", 0, 1000]]}      one line for each look that found something new
    {"topics": null, "ends": [["c", "b", "often", 0, 90000]]}        null: at all topics

Invariants: lines are only added, under the lock of the file. A queue has one end. A queue of a topic that was looked at
and that is not listed came later: it is not in the snapshot.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tiermq.history.catalog import QueueHistory
from tiermq.history.scan_values import OffsetBounds, ScanRequest
from tiermq.tier.names import QueueKey


@dataclass(slots=True)
class _Seen:
    ends: dict[QueueKey, int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    everything: bool = False

    def has(self, queue: QueueKey) -> bool:
        return self.everything or queue.topic in self.topics or queue in self.ends

    def add(self, topics: Iterable[str] | None, ends: Iterable[tuple[QueueKey, int]]) -> None:
        self.ends |= ends
        self.everything |= topics is None
        self.topics |= set(topics or ())


def within_snapshot(
    path: str, request: ScanRequest, queues: Iterable[QueueHistory], topics: frozenset[str] | None
) -> ScanRequest:
    """The request up to where the snapshot ends. What it has not seen yet becomes part of it as it is now.

    `queues` are all of these topics; None: all of all topics.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        seen = _Seen()
        for line in file:
            look = json.loads(line)
            seen.add(look["topics"], [(QueueKey(*key), end) for *key, end in look["ends"]])
        queues = list(queues)
        new = [(queue.key, queue.max_offset) for queue in queues if not seen.has(queue.key)]
        if new or not (seen.everything or (topics is not None and topics <= seen.topics)):
            ends = [[key.cluster, key.broker, key.topic, key.queue_id, end] for key, end in new]
            file.write(json.dumps({"topics": topics and sorted(topics), "ends": ends}) + "\n")
            seen.add(topics, new)
    bounds = dict(request.bounds)
    for queue in queues:
        before, end = bounds.get(queue.key, OffsetBounds()), seen.ends.get(queue.key, 0)
        if queue.max_offset > end and (before.to_offset is None or before.to_offset > end):
            begin = before.from_offset or 0
            bounds[queue.key] = replace(before, to_offset=end) if begin < end else OffsetBounds(0, 0)
    return replace(request, bounds=bounds)
