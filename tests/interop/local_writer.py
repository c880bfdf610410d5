"""A process that puts messages into a `LocalStore` and says which ones were acknowledged; made to be killed.

    python local_writer.py STORE SETTINGS_JSON COUNT SEED

One line of JSON per acknowledged message, in order: `unique_id`, `topic`, `queue`, `offset`, `offset_id`. When all are
put it waits for the end of its input before it closes the store, so that a test decides how it ends. Its files grow, as
those of embedded stores.
"""

from __future__ import annotations

import json
import sys

from compressed_flag import with_compression
from interop import workload
from interop.peer import Described
from tiermq import Message
from tiermq.message import compress
from tiermq.message.system_flag import CompressionType
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

TOPICS = [("orders", 4), ("payments", 1)]
COMPRESSION_TYPES = {"zlib": CompressionType.ZLIB, "lz4": CompressionType.LZ4, "zstd": CompressionType.ZSTD}


def to_message(described: Described) -> Message:
    """What RocketMQ's producer makes of the same description: id as a property, large bodies compressed."""
    body, sys_flag = described["body"], 0
    kind = COMPRESSION_TYPES.get(described["compression"])
    if kind is not None:
        body, sys_flag = compress(body, kind), with_compression(sys_flag, kind)
    return Message(
        topic=described["topic"],
        queue_id=described["queue"],
        body=body,
        keys=described["keys"],
        tags=described["tags"] or "",
        properties={**described["properties"], "UNIQ_KEY": described["unique_id"]},
        flag=described["flag"],
        sys_flag=sys_flag,
    )


def put(local: LocalStore, described: Described) -> Described:
    """Put one message; the answer has the shape of `Peer.send`'s."""
    result = local.put(to_message(described))
    assert result.status is PutStatus.PUT_OK, (result.status, described)
    return {
        "unique_id": described["unique_id"],
        "topic": described["topic"],
        "queue": described["queue"],
        "offset": result.queue_offset,
        "offset_id": result.message_id,
    }


def main(store: str, settings: str, count: str, seed: str) -> None:
    with LocalStore.open(store, grows=True, **json.loads(settings)) as local:
        for described in workload.messages(TOPICS, int(count), int(seed)):
            print(json.dumps(put(local, described)), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
