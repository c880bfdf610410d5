"""Simulated brokers with any number of queues, in a process of their own: what an offload's driver asks, and pulls.

    python -m benchmarks.simulated_fleet BROKERS TOPICS QUEUES      topics of each broker, queues of each topic

It prints its name server's address, and serves until its input ends. Each line on its input is one more message in
every queue. Messages are made when they are pulled: record n of a queue is the same each time. Brokers report what is
flushed, as TierMQ's do, so that nothing is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from tiermq.message.record import encode_record
from tiermq.remoting.access import ANY_ACCOUNT
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.server import RemotingServer

CLUSTER = "simulated"
BODY = b"x" * 200
STORED_MS = time.time_ns() // 1_000_000
"""Of the first message: not so old that retention would be a danger."""
RUNTIME = {"bootTimestamp": "1", "earliestMessageTimeStamp": str(STORED_MS)}
Answer = Callable[[RemotingCommand], RemotingCommand]


class SimulatedBroker:
    """One broker. Belongs to the loop."""

    def __init__(self, name: str, topics: int, queues: int) -> None:
        self.name = name
        self.messages = 0
        self._topics = [f"topic-{number}" for number in range(topics)]
        self._queues = queues
        table = {topic: {"topicName": topic, "readQueueNums": queues, "perm": 6} for topic in self._topics}
        self._table = json.dumps({"topicConfigTable": table}).encode()
        self.server = RemotingServer()
        answers: dict[RequestCode, Answer] = {
            RequestCode.GET_BROKER_RUNTIME_INFO: lambda asked: _with_body(asked, {"table": RUNTIME}),
            RequestCode.GET_BROKER_CONFIG: lambda asked: _with_body(asked, b"fileReservedTime=72\n"),
            RequestCode.GET_ALL_TOPIC_CONFIG: lambda asked: _with_body(asked, self._table),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda asked: _with_body(asked, {}),
            RequestCode.GET_ALL_CONSUMER_OFFSET: lambda asked: _with_body(asked, {}),
            RequestCode.GET_ALL_DELAY_OFFSET: lambda asked: _with_body(asked, b""),
            RequestCode.GET_TOPIC_STATS_INFO: self._ends,
            RequestCode.PULL_MESSAGE: self._pull,
        }
        _serve(self.server, answers)

    def _ends(self, asked: RemotingCommand) -> RemotingCommand:
        topic = asked.ext["topic"]
        at = {"minOffset": 0, "maxOffset": self.messages, "flushedOffset": self.messages, "lastUpdateTimestamp": 0}
        table = {
            json.dumps({"brokerName": self.name, "queueId": queue_id, "topic": topic}): at
            for queue_id in range(self._queues)
        }
        return _with_body(asked, {"offsetTable": table})

    def _pull(self, asked: RemotingCommand) -> RemotingCommand:
        begin, most = int(asked.ext["queueOffset"]), int(asked.ext["maxMsgNums"])
        end = min(self.messages, begin + most)
        bounds = {"nextBeginOffset": str(max(begin, end)), "minOffset": "0", "maxOffset": str(self.messages)}
        if begin >= end:
            return asked.respond(ResponseCode.PULL_NOT_FOUND, ext=bounds | {"suggestWhichBrokerId": "0"})
        topic, queue_id = asked.ext["topic"], int(asked.ext["queueId"])
        records = b"".join(
            encode_record(
                topic=topic, body=BODY, queue_id=queue_id, queue_offset=offset, store_timestamp_ms=STORED_MS + offset,
                properties={"KEYS": f"{self.name}-{topic}-{queue_id}-{offset}"},
            )
            for offset in range(begin, end)
        )  # fmt: skip
        return asked.respond(ResponseCode.SUCCESS, ext=bounds | {"suggestWhichBrokerId": "0"}, body=records)


def _serve(server: RemotingServer, answers: dict[RequestCode, Answer]) -> None:
    for code, answer in answers.items():
        server.register(code, lambda _connection, asked, answer=answer: answer(asked), ANY_ACCOUNT)  # type: ignore[misc]


def _with_body(asked: RemotingCommand, body: object) -> RemotingCommand:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asked.respond(ResponseCode.SUCCESS, body=raw)


async def serve(brokers: int, topics: int, queues: int) -> None:
    fleet = [SimulatedBroker(f"broker-{number}", topics, queues) for number in range(brokers)]
    for broker in fleet:
        await broker.server.start()
    addresses = {broker.name: f"127.0.0.1:{broker.server.port}" for broker in fleet}
    table = {
        name: {"cluster": CLUSTER, "brokerName": name, "brokerAddrs": {"0": address}}
        for name, address in addresses.items()
    }
    cluster = {"brokerAddrTable": table, "clusterAddrTable": {CLUSTER: sorted(addresses)}}
    names = RemotingServer()
    _serve(names, {RequestCode.GET_BROKER_CLUSTER_INFO: lambda asked: _with_body(asked, cluster)})
    await names.start()
    print(f"127.0.0.1:{names.port}", flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        for broker in fleet:
            broker.messages += 1
        print("more", flush=True)


class SimulatedFleet:
    """The process, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.name_server = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def one_more_in_each_queue(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("more\n")
        self._process.stdin.flush()
        self._line()


@contextlib.contextmanager
def simulated_fleet(brokers: int, topics: int, queues: int) -> Iterator[SimulatedFleet]:
    """The process, until the end of the context."""
    command = [sys.executable, "-m", "benchmarks.simulated_fleet", *map(str, (brokers, topics, queues))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield SimulatedFleet(process)
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:])))
