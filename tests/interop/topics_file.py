"""`config/topics.json`: how a broker knows the topics of a store directory that it did not write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

READ_AND_WRITE = 6


def write_topics(store: Path, topics: Sequence[tuple[str, int]], batch_topics: Sequence[tuple[str, int]] = ()) -> None:
    """Name and queue count of each topic; those of `batch_topics` have queues of inner batches."""
    table = {
        name: {
            "attributes": {"queue.type": "BatchCQ"} if (name, queues) in batch_topics else {},
            "order": False,
            "perm": READ_AND_WRITE,
            "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": queues,
        }
        for name, queues in [*topics, *batch_topics]
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 0}
    path = store / "config" / "topics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"dataVersion": version, "topicConfigTable": table}))
