"""Group 4, the network: RocketMQ's official benchmark programs against both brokers.

Both brokers run for the whole of a work, each with a load of its own (one JVM that stays warm), and take turns. They
have the same settings (`broker_side`); nothing is pinned, because client and broker share the machine on both sides.
Seconds are the client's, from the first message to the last. The limit is `echo_limit` with the frames of this very
exchange: a request as the official client makes it, and as many bytes as TierMQ's broker answers to it.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import broker_side, official_load
from benchmarks.broker_side import BACKLOG_TOPIC, BATCH, BATCH_TOPIC, CONSUMER_THREADS, QUEUES, THREADS, TOPIC, Loaded
from benchmarks.compare import peer_process
from benchmarks.compare.echo_limit import Exchange
from benchmarks.compare.peer_process import PeerFailed
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Goal, Place, Sides, Work
from benchmarks.harness import Side
from benchmarks.report import Round
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import encode_frame

GROUP = "network"
MESSAGES = 131_072
"""Of a round at scale 1: some seconds of the official Producer, so that its start does not decide. Batches and backlogs
have more."""
BATCH_FACTOR = CONSUMER_FACTOR = 4
QUICK_DIVISOR = 32
PULL_MESSAGES = 32  # What the official Consumer asks for at once, of each of its queues.
FRAME_LENGTH = struct.Struct(">i")
UNIQUE_KEY = "7F000001000025F655FFD2B274C7E4AC"
PATIENT = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
"""RocketMQ refuses sends when one has waited 200 ms for its threads, or has held the log for a second; on a busy
machine it would refuse whole rounds. These let it take them."""
_groups = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Load:
    """What one round asks of a broker, and one of the requests that it is made of."""

    messages: int
    making: Callable[[Loaded], Side]
    asked: RemotingCommand
    in_flight: int
    messages_per_request: int = 1


# Sides


def open_brokers(place: Place, stack: ExitStack, jars: Any) -> dict[str, Loaded]:
    """Both brokers, each with its load; they end with the stack."""
    return {
        TIERMQ: stack.enter_context(broker_side.tiermq(jars, place.directory)),
        ROCKETMQ: stack.enter_context(broker_side.rocketmq(jars, place.directory, **PATIENT)),
    }


def count_of(place: Place, factor: int = 1) -> int:
    """Messages of one round; whole batches, whole pulls."""
    return place.amount(MESSAGES * factor, QUICK_DIVISOR)


def _open(place: Place, stack: ExitStack, load: Load) -> Sides:
    jars = peer_process.distribution()
    brokers = open_brokers(place, stack, jars)
    errors = place.directory / "official.errors"
    rounds = {name: telling(load.making(side), errors) for name, side in brokers.items()}
    frame = encode_frame(load.asked)
    answer_bytes = answered_bytes(brokers[TIERMQ].port, frame)
    exchange = Exchange(len(frame), answer_bytes, load.messages_per_request, load.in_flight)
    echo = peer_process.start_tiermq(stack, "echo_limit", "Echo")
    echo.prepare(**exchange.parameters())
    rounds[LIMIT] = partial(echo.run, messages=load.messages)
    notes = {
        "load": official_load.describe(jars),
        "messages": load.messages,
        "queues": QUEUES,
        "rocketmq": jars.version,
        "flush": "ASYNC_FLUSH",
        "rocketmq_settings": PATIENT,
        "echo": exchange.parameters(),
        "memory": "TierMQ's process has the name server in it, RocketMQ's is the broker alone",
    }
    return Sides(rounds, {name: side.pid for name, side in brokers.items()}, notes)


def telling(run: Side, errors: Path) -> Side:
    """The same side, whose failure says what the official client wrote last."""

    def told() -> Round:
        try:
            return run()
        except SystemExit as failure:
            lines = errors.read_text(encoding="utf-8").splitlines() if errors.exists() else []
            raise PeerFailed("\n".join([str(failure), *lines[-3:]])) from failure

    return told


def answered_bytes(port: int, frame: bytes) -> int:
    """The length of the whole frame with which the broker at `port` answers this one."""
    with socket.create_connection(("127.0.0.1", port)) as end, end.makefile("rb") as answers:
        end.sendall(frame)
        (length,) = FRAME_LENGTH.unpack(answers.read(FRAME_LENGTH.size))
        if len(answers.read(length)) != length:
            raise SystemExit(f"the broker closed within an answer of {length} bytes")
        return FRAME_LENGTH.size + int(length)


# What the official client sends: fields and their order are its own.


def send_request(
    topic: str, body: bytes, group: str = "benchmark_producer", *, is_batch: bool = False
) -> RemotingCommand:
    """A send of one message, or of a batch."""
    group = "benchmark_batch_producer" if is_batch else "benchmark_producer"
    values = [group, topic, "TBW102", "4", "3", "0", "1700000000000", "0", _properties().decode(), "0"]
    ext = {**dict(zip("abcdefghij", values, strict=True)), "k": "false", "m": str(is_batch).lower(), "n": "b1"}
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    return RemotingCommand(code, opaque=7, ext=ext, body=body, header_type=HeaderType.ROCKETMQ)


def batch_body(count: int, body_bytes: int) -> bytes:
    """What a batch of so many messages is on the wire."""
    return encode_client_batch(BatchElement(0, b"x" * body_bytes, _properties()) for _ in range(count))


def pull_request(topic: str) -> RemotingCommand:
    """A pull of as many messages as the official Consumer asks for at once."""
    ext = {
        "consumerGroup": "drainers-1", "topic": topic, "queueId": "0", "queueOffset": "0",
        "maxMsgNums": str(PULL_MESSAGES), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG", "maxMsgBytes": "262144", "bname": "b1",
    }  # fmt: skip
    return RemotingCommand(RequestCode.PULL_MESSAGE, opaque=7, ext=ext, header_type=HeaderType.ROCKETMQ)


def _properties() -> bytes:
    return f"UNIQ_KEY\x01{UNIQUE_KEY}\x02WAIT\x01true\x02".encode()


# Works


def _producer(body_bytes: int, place: Place, stack: ExitStack) -> Sides:
    messages = count_of(place)
    job = {"kind": "send", "topic": TOPIC, "threads": THREADS, "bytes": body_bytes, "messages": messages}
    request = send_request(TOPIC, b"x" * body_bytes)
    return _open(place, stack, Load(messages, lambda side: partial(side.round, **job), request, THREADS))


def _batch_producer(place: Place, stack: ExitStack) -> Sides:
    messages = count_of(place, BATCH_FACTOR)
    job = {"kind": "batch", "topic": BATCH_TOPIC, "threads": THREADS, "bytes": 128, "batch": BATCH}
    job["messages"] = messages
    request = send_request(BATCH_TOPIC, batch_body(BATCH, 128), is_batch=True)
    return _open(place, stack, Load(messages, lambda side: partial(side.round, **job), request, THREADS, BATCH))


def _consumer(place: Place, stack: ExitStack) -> Sides:
    messages = count_of(place, CONSUMER_FACTOR)
    making = partial(_drainer, messages)
    return _open(place, stack, Load(messages, making, pull_request(BACKLOG_TOPIC), QUEUES, PULL_MESSAGES))


def _drainer(messages: int, side: Loaded) -> Side:
    """Each round is a group of its own that reads a backlog from its beginning; the backlog is made once."""
    side.load(kind="batch", topic=BACKLOG_TOPIC, threads=THREADS, bytes=128, batch=BATCH, messages=messages)
    job = {"kind": "consume", "topic": BACKLOG_TOPIC, "threads": CONSUMER_THREADS, "bytes": 128, "messages": messages}
    return lambda: side.round(**job, group=f"drainers-{next(_groups)}")


_ECHO = "loopback echo of the same frames, one connection, {} in flight, on both ends a Python loop of bare sockets"
_SENT, _PULLED = _ECHO.format("64 requests"), _ECHO.format("8 pulls of 32 messages")
WORKS = [
    Work(
        "producer_128", GROUP, "official Producer, 64 threads, 128 B", partial(_producer, 128),
        goal=Goal(1.2), limit=_SENT, rounds_max=7, warms_alike=True, growth_part=8,
    ),
    Work(
        "producer_1024", GROUP, "official Producer, 64 threads, 1 KiB", partial(_producer, 1024),
        goal=Goal(1.2), limit=_SENT, rounds_max=7, warms_alike=True, growth_part=8,
    ),
    Work(
        "batch_producer", GROUP, "official BatchProducer, 64 threads, 16 messages of 128 B", _batch_producer,
        goal=Goal(1.5), limit=_SENT, rounds_max=7, warms_alike=True, growth_part=8,
    ),
    Work(
        "consumer", GROUP, "official Consumer, 20 threads, a backlog of 128 B messages", _consumer,
        goal=Goal(1.2), limit=_PULLED, rounds_max=7, warms_alike=True, growth_part=8,
    ),
]  # fmt: skip
