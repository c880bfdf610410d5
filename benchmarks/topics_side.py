"""Brokers with many topics, in processes of their own that end as if they were killed.

    python -m benchmarks.topics_side create DIRECTORY COUNT    a send to each of COUNT new topics, 16 at once
    python -m benchmarks.topics_side start DIRECTORY           from the opening of that store until the broker serves

Each prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from concurrent.futures import Future

from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand

OPEN_MAX = 16
PARTS = 5
"""The last fifth of the topics is timed apart: there the table is as large as it gets."""
PATIENCE_S = 60.0


def opened(directory: str, name_server: str = "") -> Broker:
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="b", namesrv_addr=name_server)
    return Broker.open(directory, config=config, mapped_file_size_commit_log=64 << 20)


def send_to(client: BlockingClient, number: int) -> Future[RemotingCommand]:
    names = "abcdefghijkm"
    values = ("P", f"topic-{number}", "TBW102", "4", str(number % 4), "0", "0", "0", "", "0", "false", "false")
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext=dict(zip(names, values, strict=True)), body=b"x")
    return client.request_later(command, timeout_s=PATIENCE_S)


def create(directory: str, count: int) -> dict[str, float]:
    name_server = NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0))
    name_server.start()
    broker = opened(directory, f"127.0.0.1:{name_server.port}")
    broker.start()
    assert broker.registration is not None
    assert broker.registration.wait_registered(PATIENCE_S)
    waiting: deque[Future[RemotingCommand]] = deque()
    began_s = last_s = time.perf_counter()
    with BlockingClient("127.0.0.1", broker.port, timeout_s=PATIENCE_S) as client:
        for number in range(count):
            if number == count - count // PARTS:
                last_s = time.perf_counter()
            waiting.append(send_to(client, number))
            if len(waiting) >= OPEN_MAX:
                assert waiting.popleft().result().code == 0
        while waiting:
            assert waiting.popleft().result().code == 0
    ended_s = time.perf_counter()
    return {"per_s": count / (ended_s - began_s), "last_fifth_per_s": count // PARTS / (ended_s - last_s)}


def start(directory: str) -> dict[str, float]:
    began_s = time.perf_counter()
    broker = opened(directory)
    broker.start()
    return {"start_s": time.perf_counter() - began_s, "topics": len(broker.parts.topics)}


if __name__ == "__main__":
    what, place, *rest = sys.argv[1:]
    print(json.dumps(create(place, int(rest[0])) if what == "create" else start(place)), flush=True)
    os._exit(0)  # As a kill would: what was answered must be there.
