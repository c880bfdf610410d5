"""A commit log is enough: from one that our codec wrote, RocketMQ rebuilds queues and index and serves all of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from compressed_flag import with_compression
from interop import workload
from interop.conftest import StartBroker
from interop.peer import Described
from interop.rocketmq import SMALL_FILES
from interop.topics_file import write_topics
from tiermq.message import compress, encode_blank, encode_properties, encode_record
from tiermq.message.system_flag import CompressionType

pytestmark = pytest.mark.interop

FILE_BYTES = int(str(SMALL_FILES["mappedFileSizeCommitLog"]))
BLANK_BYTES_MIN = 8
TOPICS = [("orders", 4), ("payments", 1)]
START_MS = 1_700_000_000_000
COMPRESSION_TYPES = {
    "zlib": CompressionType.ZLIB,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}


class CommitLogWriter:
    """The least that makes a commit log: records one after the other, a blank record at each file's end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(parents=True)
        self._file = bytearray()
        self._base = 0
        self._queue_ends: Counter[tuple[str, int]] = Counter()

    def append(self, message: Described, number: int) -> Described:
        """Write the message; returns what a reader must see of it."""
        record = self._encode(message, number, self._base + len(self._file))
        if len(self._file) + len(record) + BLANK_BYTES_MIN > FILE_BYTES:
            self._file += encode_blank(FILE_BYTES - len(self._file))
            self._write_file()
            self._base += FILE_BYTES
            record = self._encode(message, number, self._base)
        expected = {
            "offset": self._queue_ends[message["topic"], message["queue"]],
            "physical_offset": self._base + len(self._file),
            "size": len(record),
            "store_timestamp": START_MS + number,
            "born_host": "10.1.2.3:4567",
            "store_host": "127.0.0.1:10911",
        }
        self._file += record
        self._queue_ends[message["topic"], message["queue"]] += 1
        return {**{name: message[name] for name in ("topic", "queue", "flag", "body")}, **expected}

    def _encode(self, message: Described, number: int, physical_offset: int) -> bytes:
        body, sys_flag = message["body"], 0
        if message["compression"] in COMPRESSION_TYPES:
            kind = COMPRESSION_TYPES[message["compression"]]
            body, sys_flag = compress(body, kind), with_compression(sys_flag, kind)
        properties = {**message["properties"], "UNIQ_KEY": message["unique_id"]}
        properties |= {"KEYS": " ".join(message["keys"])} if message["keys"] else {}
        properties |= {"TAGS": message["tags"]} if message["tags"] else {}
        return encode_record(
            topic=message["topic"],
            body=body,
            queue_id=message["queue"],
            flag=message["flag"],
            queue_offset=self._queue_ends[message["topic"], message["queue"]],
            physical_offset=physical_offset,
            sys_flag=sys_flag,
            born_timestamp_ms=START_MS,
            born_host="10.1.2.3:4567",
            store_timestamp_ms=START_MS + number,
            store_host="127.0.0.1:10911",
            properties=encode_properties(properties),
        )

    def _write_file(self) -> None:
        (self._directory / f"{self._base:020}").write_bytes(self._file.ljust(FILE_BYTES, b"\0"))
        self._file = bytearray()

    def close(self) -> None:
        self._write_file()


@pytest.mark.parametrize("aborted", [False, True], ids=["as after a clean stop", "as after a crash"])
def test_rocketmq_rebuilds_queues_and_index_from_our_records(
    aborted: bool, tmp_path: Path, start_broker: StartBroker
) -> None:
    store = tmp_path / "store"
    writer = CommitLogWriter(store / "commitlog")
    messages = list(workload.messages(TOPICS, 2500, seed=71))
    expected = [writer.append(message, number) for number, message in enumerate(messages)]
    writer.close()
    write_topics(store, TOPICS)
    if aborted:
        (store / "abort").write_text("1")
    assert len(list((store / "commitlog").iterdir())) >= 3

    cluster = start_broker(store)
    peer = cluster.peer()

    served = [message for topic, queues in TOPICS for queue in range(queues) for message in peer.read(topic, queue)]
    served.sort(key=lambda message: int(message["physical_offset"]))
    assert [{name: message[name] for name in expected[0]} for message in served] == expected
    for sent, message in zip(messages, served, strict=True):
        assert message["properties"].items() >= sent["properties"].items()
        assert message["properties"]["UNIQ_KEY"] == sent["unique_id"]
    for number in range(0, len(messages), 100):
        found = peer.query(messages[number]["topic"], messages[number]["unique_id"], unique=True)
        assert [message["physical_offset"] for message in found] == [expected[number]["physical_offset"]]
