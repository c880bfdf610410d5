"""The load of a broker: RocketMQ's official benchmark programs, in one JVM that stays warm.

    send     Producer        so many threads that share a client and wait for their answers
    batch    BatchProducer   the same, several messages in a send
    consume  Consumer        a group of its own, from the beginning of the topic

Where they cannot be fetched, `tests/interop/java/Load.java` does the same with the same client. It also does what they
do not: sends with a delay level or a delivery time, transactions that are all committed, the lag of deliveries, open
loops. Both tell {"messages", "failed", "seconds"}; seconds are from the first message to the last one.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interop.java_client import JavaClient
from interop.official import PROGRAMS_VERSION, Official

Load = Callable[..., dict[str, Any]]
OWN = frozenset({"delayLevel", "delaySeconds", "transaction", "lag", "open", "pop", "topics"})
"""Kinds and fields of jobs that no official program does."""


def describe(jars: Any) -> str:
    """What loads the brokers, for the report."""
    if jars.more:
        return f"official programs of {PROGRAMS_VERSION}, client of {jars.version}"
    return f"Load.java, client of {jars.version}"


@contextlib.contextmanager
def loading(jars: Any, name_server: str, port: int, queues: int, directory: Path) -> Iterator[Load]:
    """Jobs for the broker at `port`, one after the other."""
    with contextlib.ExitStack() as stack:
        own: dict[bool, Load] = {}

        def run_own(kind: str, **job: Any) -> dict[str, Any]:
            """A client that pops is a program of its own: RocketMQ's broker knows POP by JSON headers only."""
            if kind == "consume":
                begin_at_the_beginning(port, job["group"], job["topic"], queues)
            pops = bool(job.get("pop"))
            if pops not in own:
                own[pops] = stack.enter_context(JavaClient(jars, name_server, directory).loading())
            return own[pops](kind=kind, **job)

        if not jars.more:
            yield run_own
            return
        official = stack.enter_context(Official(jars, name_server, directory))

        def run(kind: str, topic: str, threads: int, messages: int, **more: Any) -> dict[str, Any]:
            if OWN & more.keys() or kind in OWN:
                return run_own(kind, topic=topic, threads=threads, messages=messages, **more)
            options: list[object] = ["-t", topic, "-w", threads]
            batch = 1
            if kind == "consume":
                begin_at_the_beginning(port, more["group"], topic, queues)
                program, options = "Consumer", [*options, "-g", more["group"]]
            elif kind == "batch":
                batch = more["batch"]
                program, options = "BatchProducer", [*options, "-s", more["bytes"], "-b", batch]
            else:
                program, options = "Producer", [*options, "-s", more["bytes"]]
            reported = official.run(program, *options, messages=messages, batch=batch)
            if (
                reported.failed
            ):  # The client tries again by itself; the program counts a failure only if that fails, too.
                print(f"{program}: {reported.failed} messages were tried again", file=sys.stderr)
            return {"messages": reported.messages, "failed": messages - reported.messages, "seconds": reported.seconds}

        yield run


def begin_at_the_beginning(port: int, group: str, topic: str, queues: int) -> None:
    """The program starts a new group at the end of a topic, unless the group has been somewhere already."""
    from tiermq.remoting.client import BlockingClient
    from tiermq.remoting.codes import RequestCode, ResponseCode
    from tiermq.remoting.command import RemotingCommand

    made = json.dumps({"groupName": group}).encode()
    asked = [RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=made)]
    for queue in range(queues):
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": "0"}
        asked.append(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields))
    with BlockingClient("127.0.0.1", port, timeout_s=30.0) as client:
        for command in asked:
            answer = client.request(command)
            if answer.code != ResponseCode.SUCCESS:
                raise SystemExit(f"the broker refused an offset of group {group}: {answer.remark}")
