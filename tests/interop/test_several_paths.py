"""A commit log spread over several directories is spread the same way by RocketMQ and by `LocalStore`."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop import local_writer, workload
from interop.conftest import StartBroker
from interop.local_writer import TOPICS
from interop.rocketmq import SMALL_FILES, python_names
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore

pytestmark = pytest.mark.interop

FILE_BYTES = 64 * 1024
MESSAGES_PER_TURN = 300


def test_both_spread_the_log_over_the_same_paths(tmp_path: Path, start_broker: StartBroker) -> None:
    store = tmp_path / "store"
    paths = [tmp_path / "disk-b" / "log", tmp_path / "disk-a" / "log"]
    joined = ",".join(map(str, paths))
    broker_settings = {**SMALL_FILES, "mappedFileSizeCommitLog": FILE_BYTES, "storePathCommitLog": joined}
    local_settings = python_names(broker_settings)
    sent = [message for turn in range(3) for message in workload.messages(TOPICS, MESSAGES_PER_TURN, seed=200 + turn)]
    first, second, third = (sent[turn * MESSAGES_PER_TURN :][:MESSAGES_PER_TURN] for turn in range(3))

    with LocalStore.open(store, **local_settings) as local:
        for message in first:
            local_writer.put(local, message)
    cluster = start_broker(store, broker_settings)
    peer = cluster.peer()
    for topic, queues in TOPICS:
        peer.create_topic(topic, queues)
    for message in second:
        peer.send(message)
    cluster.stop()
    with LocalStore.open(store, **local_settings) as local:
        for message in third:
            local_writer.put(local, message)
        local.dispatch_now()
        stored = [
            unique_id for topic, queues in TOPICS for queue in range(queues) for unique_id in ids(local, topic, queue)
        ]

    assert sorted(stored) == sorted(message["unique_id"] for message in sent)
    files = {int(file.name) // FILE_BYTES: path for path in paths for file in path.iterdir()}
    assert len(files) > 8
    assert files == {number: sorted(paths)[number % 2] for number in range(len(files))}


def ids(local: LocalStore, topic: str, queue_id: int) -> list[str]:
    found: list[str] = []
    offset = 0
    while (page := local.get(topic, queue_id=queue_id, offset=offset)).status is GetStatus.FOUND:
        found += [message.properties["UNIQ_KEY"] for message in page.messages]
        offset = page.next_offset
    return found
