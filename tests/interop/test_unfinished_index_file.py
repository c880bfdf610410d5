"""A broker must not take an index file that we were still making for its newest one.

It would: a file with an empty header looks to it as if nothing were indexed yet, and it indexes again every record that
its recovery walks over, so that queries find messages twice. A name that is no number makes it pass the file over.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interop import local_writer, workload
from interop.conftest import StartBroker
from interop.local_writer import TOPICS
from interop.rocketmq import SMALL_FILES, python_names
from interop.topics_file import write_topics
from tiermq.index.index_file import UNFINISHED_SUFFIX
from tiermq.store.local_store import LocalStore

pytestmark = pytest.mark.interop


def test_a_broker_passes_over_an_index_file_that_we_had_not_finished(tmp_path: Path, start_broker: StartBroker) -> None:
    store = tmp_path / "store"
    messages = list(workload.messages(TOPICS, 300, seed=401))
    with LocalStore.open(store, **python_names(SMALL_FILES)) as local:
        results = [local_writer.put(local, message) for message in messages]
    write_topics(store, TOPICS)
    (first,) = (store / "index").iterdir()
    (store / "index" / f"29991231235959999{UNFINISHED_SUFFIX}").write_bytes(bytes(first.stat().st_size))
    (store / "abort").write_text("1")

    peer = start_broker(store).peer()

    for message, result in list(zip(messages, results, strict=True))[::30]:
        found = peer.query(message["topic"], message["unique_id"], unique=True)
        assert [hit["offset_id"] for hit in found] == [result["offset_id"]]
