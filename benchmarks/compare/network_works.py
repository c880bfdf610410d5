"""Group 4, the network: RocketMQ's official benchmark programs against both brokers.

Both brokers run for the whole of a work, each with a load of its own (one JVM that stays warm), and take turns. They
have the same settings (`broker_side`); nothing is pinned, because client and broker share the machine on both sides.
Seconds are the client's, from the first message to the last. The limit is `echo_limit` with the frames of this very
exchange: a request as the official client makes it, and as many bytes as TierMQ's broker answers to it.

With SYNC_FLUSH brokers answer what is on disk, so their stores lie there, and the limit is what the disk does at best:
one write and one fdatasync for all messages that the client has in flight. It is lower than the echo's.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import broker_side, limits, official_load, process_tree
from benchmarks.broker_side import BACKLOG_TOPIC, BATCH, BATCH_TOPIC, CONSUMER_THREADS, QUEUES, THREADS, TOPIC, Loaded
from benchmarks.compare import peer_process
from benchmarks.compare.broker_process import HOST, ask, topic_end
from benchmarks.compare.echo_limit import Exchange
from benchmarks.compare.peer_process import PeerFailed
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, TUNED, Goal, Kind, Place, Sides, Work
from benchmarks.harness import Side
from benchmarks.report import Round
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import encode_frame

GROUP = "network"
MESSAGES = 131_072
"""Of a round at scale 1: some seconds of the official Producer, so that its start does not decide. Batches and backlogs
have more."""
BATCH_FACTOR = CONSUMER_FACTOR = 4
SYNC_MESSAGES = 24_576
"""Where each waits for the disk: fewer messages fill the same seconds."""
SYNC_WARMUP = 8
"""Rounds of 64 threads before all others: a virtual machine compiles what was called often, and with so few messages a
second RocketMQ's broker was twice as fast after 200,000 of them as after 50,000."""
DEFERRED_MESSAGES = 131_072
"""Some three seconds of sends: most of them happen while those before are delivered."""
TRANSACTIONS = 65_536
DEFERRED_WARMUP = 204_800
PATIENCE_MS = 60_000
"""Of a send of `Load.java`: with 3 s, a client's own, a stall of a busy machine ends the work."""
DELIVERY_LOOK_S = 0.1
DELIVERY_STALLS_S = 60.0
"""A broker that has delivered nothing more for so long has dropped the rest."""
LAG_MESSAGES = 40_960
LAG_RATE = 5_000
TOPICS, WARM_ROUNDS = 500, 4
QUICK_DIVISOR = 32
RAW_FILE_BYTES = 64 << 20
ASYNC_FLUSH, SYNC_FLUSH = "ASYNC_FLUSH", "SYNC_FLUSH"
PULL_MESSAGES = 32  # What the official Consumer asks for at once, of each of its queues.
FRAME_LENGTH = struct.Struct(">i")
UNIQUE_KEY = "7F000001000025F655FFD2B274C7E4AC"
PATIENT = {"waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000}
"""RocketMQ refuses sends when one has waited 200 ms for its threads, or has held the log for a second; on a busy
machine it would refuse whole rounds. These let it take them."""
FLUSH_CHECK = (
    "messages of one thread, each sent when the one before was answered, under strace: TierMQ's broker made at least "
    "one fdatasync, RocketMQ's at least one msync for every message (tests/benchmarks/test_compare_network.py)"
)
PLACE_CHARACTERS = 16
"""A message id ends with where its record lies, in so many hexadecimal digits."""
_groups = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Load:
    """What one round asks of a broker, and one of the requests that it is made of."""

    messages: int
    making: Callable[[Loaded], Side]
    asked: RemotingCommand
    in_flight: int
    messages_per_request: int = 1
    flush: str = ASYNC_FLUSH

    @property
    def waits_for_disk(self) -> bool:
        return self.flush == SYNC_FLUSH


# Sides


def open_brokers(
    directory: Path, stack: ExitStack, jars: Any, flush: str = ASYNC_FLUSH, *, with_tuned: bool = True
) -> dict[str, Loaded]:
    """The brokers, each with its load and its store in the directory; they end with the stack."""
    theirs = {**PATIENT, "flushDiskType": flush, "timerWheelEnable": True}
    found = {
        TIERMQ: stack.enter_context(broker_side.tiermq(jars, directory, flush_disk_type=flush)),
        ROCKETMQ: stack.enter_context(broker_side.rocketmq(jars, directory, **theirs)),
    }
    if with_tuned:
        found[TUNED] = stack.enter_context(broker_side.rocketmq_tuned(jars, directory, **theirs))
    return found


def count_of(place: Place, factor: int = 1) -> int:
    """Messages of one round; whole batches, whole pulls."""
    return place.amount(MESSAGES * factor, QUICK_DIVISOR)


def _open(place: Place, stack: ExitStack, load: Load) -> Sides:
    jars = peer_process.distribution()
    directory = place.disk if load.waits_for_disk else place.directory
    brokers = open_brokers(directory, stack, jars, load.flush, with_tuned=place.is_whole)
    errors = directory / "official.errors"
    rounds = {name: telling(load.making(side), errors) for name, side in brokers.items()}
    notes = {
        "load": official_load.describe(jars),
        "messages": load.messages,
        "queues": QUEUES,
        "rocketmq": jars.version,
        "flush": load.flush,
        "rocketmq_settings": PATIENT,
        "memory": "TierMQ's process has the name server in it, RocketMQ's is the broker alone",
    }
    port = brokers[TIERMQ].port
    limit = _raw_flush(directory, stack, load, port) if load.waits_for_disk else _echo(stack, load, port)
    rounds[LIMIT], more = limit
    return Sides(rounds, {name: side.pid for name, side in brokers.items()}, {**notes, **more})


def _echo(stack: ExitStack, load: Load, port: int) -> tuple[Side, dict[str, object]]:
    """The limit of what is not waited for, and notes about it."""
    frame = encode_frame(load.asked)
    exchange = Exchange(len(frame), answered_bytes(port, frame), load.messages_per_request, load.in_flight)
    echo = peer_process.start_tiermq(stack, "echo_limit", "Echo")
    echo.prepare(**exchange.parameters())
    return partial(echo.run, messages=load.messages), {"echo": exchange.parameters()}


def _raw_flush(directory: Path, stack: ExitStack, load: Load, port: int) -> tuple[Side, dict[str, object]]:
    """The limit of what waits for the disk, and notes about it."""
    record = stored_bytes(port, load.asked)
    block = bytes(record * load.in_flight)
    raw = stack.enter_context(limits.RawFlush(directory / "limit", RAW_FILE_BYTES, block, load.in_flight))
    notes = {"stores": "on a disk", "record_bytes": record, "flushes were checked": FLUSH_CHECK}
    return partial(raw.round, load.messages // load.in_flight), notes


def telling(run: Side, errors: Path) -> Side:
    """The same side, whose failure says what the official client wrote last."""

    def reported() -> Round:
        try:
            return run()
        except SystemExit as failure:
            lines = errors.read_text(encoding="utf-8").splitlines() if errors.exists() else []
            raise PeerFailed("\n".join([str(failure), *lines[-3:]])) from failure

    return reported


def answered_bytes(port: int, frame: bytes) -> int:
    """The length of the whole frame with which the broker at `port` answers this one."""
    with socket.create_connection(("127.0.0.1", port)) as end, end.makefile("rb") as answers:
        end.sendall(frame)
        (length,) = FRAME_LENGTH.unpack(answers.read(FRAME_LENGTH.size))
        if len(answers.read(length)) != length:
            raise SystemExit(f"the broker closed within an answer of {length} bytes")
        return FRAME_LENGTH.size + int(length)


def stored_bytes(port: int, request: RemotingCommand) -> int:
    """The length of the record that the broker at `port` makes of this send. No other client may send meanwhile."""
    first, second = (ask((HOST, port), request).ext["msgId"][-PLACE_CHARACTERS:] for _ in range(2))
    return int(second, 16) - int(first, 16)


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


def pop_request(topic: str) -> RemotingCommand:
    """A pop of as many messages as the official client asks for at once."""
    ext = {
        "consumerGroup": "poppers-1", "topic": topic, "queueId": "-1", "maxMsgNums": str(PULL_MESSAGES),
        "invisibleTime": "60000", "pollTime": "0", "bornTime": "1700000000000", "initMode": "0", "expType": "TAG",
        "exp": "*", "order": "false", "bname": "b1",
    }  # fmt: skip
    return RemotingCommand(RequestCode.POP_MESSAGE, opaque=7, ext=ext)


def _properties() -> bytes:
    return f"UNIQ_KEY\x01{UNIQUE_KEY}\x02WAIT\x01true\x02".encode()


# Works


def _producer(body_bytes: int, place: Place, stack: ExitStack) -> Sides:
    messages = count_of(place)
    job = {"kind": "send", "topic": TOPIC, "threads": THREADS, "bytes": body_bytes, "messages": messages}
    request = send_request(TOPIC, b"x" * body_bytes)
    return _open(place, stack, Load(messages, lambda side: partial(side.round, **job), request, THREADS))


def _producer_sync(threads: int, place: Place, stack: ExitStack) -> Sides:
    messages = place.amount(SYNC_MESSAGES // threads) * threads
    job: dict[str, Any] = {"kind": "send", "topic": TOPIC, "threads": threads, "bytes": 1024, "messages": messages}
    request = send_request(TOPIC, b"x" * 1024)
    before = SYNC_WARMUP * SYNC_MESSAGES // (QUICK_DIVISOR if place.quick else 1)
    warmup = {**job, "threads": THREADS, "messages": before}
    making = partial(_warmed, warmup=warmup, job=job)
    sides = _open(place, stack, Load(messages, making, request, threads, flush=SYNC_FLUSH))
    sides.notes["messages before all rounds"] = before
    return sides


def _warmed(side: Loaded, warmup: dict[str, Any], job: dict[str, Any]) -> Side:
    side.round(**warmup)
    return partial(side.round, **job)


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


def _pop_consumer(place: Place, stack: ExitStack) -> Sides:
    """A push consumer that pops: each message has an acknowledgement of its own."""
    messages = count_of(place)
    sides = _open(
        place,
        stack,
        Load(messages, partial(_popper, messages, place.quick), pop_request(BACKLOG_TOPIC), QUEUES, PULL_MESSAGES),
    )
    sides.notes |= {"load": "Load.java with RocketMQ's client and JSON headers, a new group each round"}
    return sides


def _popper(messages: int, is_quick: bool, side: Loaded) -> Side:
    """As `_drainer`; both sides get 200,000 messages before."""
    side.load(kind="batch", topic=BACKLOG_TOPIC, threads=THREADS, bytes=128, batch=BATCH, messages=messages)
    job = {"kind": "consume", "topic": BACKLOG_TOPIC, "threads": CONSUMER_THREADS, "bytes": 128, "messages": messages}

    def round_of() -> Round:
        group = f"poppers-{next(_groups)}"
        mode = {"topic": BACKLOG_TOPIC, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
        request = RemotingCommand(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())
        answer = ask((HOST, side.port), request)
        if answer.code != ResponseCode.SUCCESS:
            raise PeerFailed(f"{side.name}: expected the mode of {group} to be set, found {answer.remark}")
        return side.round(**job, group=group, pop=True)

    for _ in range(1 if is_quick else -(-DEFERRED_WARMUP // messages)):
        round_of()
    return round_of


def _deferred(threads: int, own: int, job: dict[str, Any], place: Place, stack: ExitStack) -> Sides:
    """Sends that a broker stores in another topic first, and delivers meanwhile; both sides get 200,000 before.

    A round ends when all of its messages are in their topic: its seconds are those of the sends, its processor time is
    that until then.
    """
    messages = place.amount(own // threads, QUICK_DIVISOR) * threads
    job = {"kind": "send", "topic": TOPIC, "threads": threads, "bytes": 128, "messages": messages, **job}
    job["timeoutMs"] = PATIENCE_MS
    warmup = {**job, "messages": DEFERRED_WARMUP // (QUICK_DIVISOR if place.quick else 1)}
    waited: dict[str, float] = {}

    def making(side: Loaded) -> Side:
        delivered(side, warmup, waited)
        return partial(delivered, side, job, waited)

    sides = _open(place, stack, Load(messages, making, send_request(TOPIC, b"x" * 128), threads))
    sides.notes |= {"load": "Load.java with RocketMQ's client", "messages before all rounds": warmup["messages"]}
    sides.notes["seconds from the last answer to the last delivery, at most"] = waited
    return sides


def delivered(side: Loaded, job: dict[str, Any], waited: dict[str, float]) -> Round:
    """One round with its deliveries; `waited` keeps by side how long the longest took after the sends."""
    address = HOST, side.port
    wanted = topic_end(address, TOPIC, QUEUES) + job["messages"]
    before = process_tree.cpu_seconds(side.pid)
    sent = side.round(**job)
    sent_s = moved_s = time.monotonic()
    found = -1
    while (now := topic_end(address, TOPIC, QUEUES)) < wanted:  # A client may send one again, and have it twice.
        now_s = time.monotonic()
        moved_s = now_s if now > found else moved_s
        if now_s - moved_s > DELIVERY_STALLS_S:
            raise PeerFailed(f"{side.name}: expected {TOPIC} to get {wanted} messages, found {now} and no more")
        found = now
        time.sleep(DELIVERY_LOOK_S)
    waited[side.name] = round(max(waited.get(side.name, 0.0), time.monotonic() - sent_s), 1)
    return replace(sent, cpu_seconds=process_tree.cpu_seconds(side.pid) - before)


def _delay_lag(place: Place, stack: ExitStack) -> Sides:
    messages = place.amount(LAG_MESSAGES, QUICK_DIVISOR)
    job = {"kind": "lag", "topic": TOPIC, "threads": 16, "bytes": 128, "messages": messages, "rate": LAG_RATE}

    def making(side: Loaded) -> Side:
        rounds = itertools.count(1)
        side.round(**job, group=f"lag-{side.name}-0")
        return lambda: side.round(**job, group=f"lag-{side.name}-{next(rounds)}")

    jars = peer_process.distribution()
    brokers = open_brokers(place.directory, stack, jars, with_tuned=place.is_whole)
    errors = place.directory / "client.errors"
    rounds = {name: telling(making(side), errors) for name, side in brokers.items()}
    notes = {
        "load": f"Load.java with RocketMQ's client, {LAG_RATE} sends a second of delay level 1, a consumer beside",
        "messages": messages,
        "rocketmq": jars.version,
    }
    return Sides(rounds, {name: side.pid for name, side in brokers.items()}, notes)


def _topic_creation(place: Place, stack: ExitStack) -> Sides:
    """Topics of four queues, one request after the other, as an administrator's program makes them. Both brokers have
    as many in each pair of rounds.
    """
    topics = place.amount(TOPICS)
    jars = peer_process.distribution()
    brokers = open_brokers(place.directory, stack, jars, with_tuned=place.is_whole)
    rounds = {name: _creator(side, topics, stack) for name, side in brokers.items()}
    notes = {
        "messages": topics,
        "topics before all rounds": WARM_ROUNDS * topics,
        "load": "one BlockingClient of ours, one request open",
        "rocketmq": jars.version,
    }
    return Sides(rounds, {name: side.pid for name, side in brokers.items()}, notes)


def _creator(side: Loaded, topics: int, stack: ExitStack) -> Side:
    client = stack.enter_context(BlockingClient(HOST, side.port, timeout_s=60.0))
    numbers = itertools.count()

    def create() -> tuple[int, int]:
        for number in itertools.islice(numbers, topics):
            answer = client.request(topic_request(f"Created-{number}"))
            if answer.code != ResponseCode.SUCCESS:
                raise PeerFailed(f"{side.name}: expected a new topic, found {answer.code}: {answer.remark}")
        return topics, 0

    for _ in range(WARM_ROUNDS):
        create()

    def round_of() -> Round:
        before, began_s = process_tree.cpu_seconds(side.pid), time.perf_counter()
        made, size = create()
        return Round(made, size, time.perf_counter() - began_s, process_tree.cpu_seconds(side.pid) - before)

    return round_of


def topic_request(topic: str, queues: int = 4) -> RemotingCommand:
    """The creation of a topic, as mqadmin asks for it."""
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)


_ECHO = "loopback echo of the same frames, one connection, {} in flight, on both ends a Python loop of bare sockets"
_FLUSHED = "pwrite and fdatasync of one record per thread of the Producer"
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
    *(
        Work(
            f"producer_sync_{threads}", GROUP, f"official Producer, {threads} threads, 1 KiB, SYNC_FLUSH",
            partial(_producer_sync, threads), goal=Goal(1.2), limit=_FLUSHED, rounds_max=9, warms_alike=True,
            growth_part=8,
        )
        for threads in (16, 64)
    ),
    Work(
        "batch_producer", GROUP, "official BatchProducer, 64 threads, 16 messages of 128 B", _batch_producer,
        goal=Goal(1.5), limit=_SENT, rounds_max=7, warms_alike=True, growth_part=8,
    ),
    Work(
        "consumer", GROUP, "official Consumer, 20 threads, a backlog of 128 B messages", _consumer,
        goal=Goal(1.2), limit=_PULLED, rounds_max=7, warms_alike=True, growth_part=8,
    ),
    Work(
        "pop_consumer", GROUP, "POP consumer, 20 threads, a backlog of 128 B messages", _pop_consumer,
        goal=Goal(1.2), limit=_PULLED, rounds_max=7, warms_alike=True, growth_part=8,
    ),
    Work(
        "producer_delay", GROUP, "64 threads, 128 B, delay level 1 (1 s), all delivered",
        partial(_deferred, THREADS, DEFERRED_MESSAGES, {"delayLevel": 1}), goal=Goal(1.2), limit=_SENT, rounds_max=7,
        warms_alike=True, growth_part=8,
    ),
    Work(
        "producer_timer", GROUP, "64 threads, 128 B, delivery time in 2 s, all delivered",
        partial(_deferred, THREADS, DEFERRED_MESSAGES, {"delaySeconds": 2}), goal=Goal(1.2), limit=_SENT, rounds_max=7,
        warms_alike=True, growth_part=8,
    ),
    Work(
        "transactions", GROUP, "32 threads, 128 B, half message and commit, all delivered",
        partial(_deferred, 32, TRANSACTIONS, {"kind": "transaction"}), goal=Goal(1.2), limit=_SENT, rounds_max=7,
        warms_alike=True, growth_part=8,
    ),
    Work(
        "topic_creation", GROUP, "topics of 4 queues, 500 more in each round behind 2,000, one request at a time",
        _topic_creation, goal=Goal(1.0), rounds_max=9, needs_warmup=False, grows=False,
    ),
    Work(
        "delay_lag", GROUP, "p99 of arrival after the due time, delay level 1, 5,000 sends a second", _delay_lag,
        kind=Kind.SECONDS, goal=Goal(1.0, at_most=True), rounds_max=5, warms_alike=True, grows=False,
    ),
]  # fmt: skip
