"""The broker that a kill test kills: `python transaction_child.py STORE FLUSH`. It prints its port first."""

from __future__ import annotations

import sys
from typing import Any

from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.namesrv.topic_config import TopicConfig

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 64,
    "max_index_num": 20_000,
}


def main() -> None:
    config = BrokerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        broker_name="b",
        transaction_time_out=50,
        transaction_check_interval=20,
        transaction_check_max=1_000_000,
        flush_consumer_offset_interval=20,
    )
    broker = Broker.open(sys.argv[1], config=config, flush_disk_type=sys.argv[2], **SIZES)
    if broker.parts.topics.get("T") is None:
        broker.parts.topics.put(TopicConfig("T", 2, 2))
    with broker:
        print(broker.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
