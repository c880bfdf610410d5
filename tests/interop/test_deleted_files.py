"""Old log files that `LocalStore` deleted are missed by nobody: the broker serves the rest from the same offsets on."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop import local_writer, workload
from interop.conftest import StartBroker
from interop.local_writer import TOPICS
from interop.rocketmq import SMALL_FILES, python_names
from interop.topics_file import write_topics
from tiermq.store.local_store import LocalStore

pytestmark = pytest.mark.interop

FILE_BYTES = 64 * 1024
BROKER_SETTINGS = {**SMALL_FILES, "mappedFileSizeCommitLog": FILE_BYTES, "mappedFileSizeConsumeQueue": 20 * 16}
LOCAL_SETTINGS = python_names(BROKER_SETTINGS)


def test_a_broker_serves_what_our_cleaning_left_from_the_same_offsets_on(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    store = tmp_path / "store"
    with LocalStore.open(store, **LOCAL_SETTINGS, file_reserved_time=0, delete_commit_log_files_interval=0) as local:
        results = [local_writer.put(local, message) for message in workload.messages(TOPICS, 600, seed=301)]
        local.dispatch_now()
        local.clean_now()
        first_left = local.min_physical_offset
        bounds = {
            (topic, queue): (local.min_offset(topic, queue), local.max_offset(topic, queue))
            for topic, queues in TOPICS
            for queue in range(queues)
        }
    assert first_left > 0
    assert any(minimum > 0 for minimum, _ in bounds.values())
    write_topics(store, TOPICS)

    cluster = start_broker(store, BROKER_SETTINGS)
    peer = cluster.peer()

    assert {place: peer.bounds(*place) for place in bounds} == bounds
    served = sorted(message["offset_id"] for place in bounds for message in peer.read(*place))
    left = [result["offset_id"] for result in results if int(result["offset_id"][-16:], 16) >= first_left]
    assert served == sorted(left)
    for message in workload.messages(TOPICS, 100, seed=302):
        peer.send(message)
    cluster.stop()

    with LocalStore.open(store, **LOCAL_SETTINGS) as local:
        minimums = {place: local.min_offset(*place) for place in bounds}
        assert minimums == {place: minimum for place, (minimum, _) in bounds.items()}
        counts = [local.max_offset(*place) - minimums[place] for place in bounds]
        assert sum(counts) == len(left) + 100
