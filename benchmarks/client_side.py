"""One side of `bench client`, in a process of its own: sends or consumes once, and prints how long it took.

    python client_side.py '{"client": "tiermq", "work": "send", "nameServer": …, "topic": …, "messages": …, …}'

Clients: `tiermq` (for threads), `tiermq-async`, `cpp` (the package `rocketmq`, which wraps the C++ client), `grpc`
(`rocketmq-python-client`); the last two run where only they are installed, so nothing of ours is imported before it is
needed. Each warms up first:
connections, routes and code paths are not what is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Job = dict[str, Any]
WARM_MESSAGES = 2_000


def timed_send(job: Job, send: Any) -> None:
    """`send(count)` returns when so many messages are stored."""
    send(WARM_MESSAGES)
    began, cpu = time.perf_counter(), time.process_time()
    send(job["messages"])
    tell(began, cpu)


def tell(began: float, cpu: float) -> None:
    print(json.dumps({"seconds": time.perf_counter() - began, "cpuSeconds": time.process_time() - cpu}), flush=True)


def tiermq_send(job: Job) -> None:
    import tiermq

    body = bytes(job["bytes"])
    with (
        tiermq.connect(job["nameServer"]) as cluster,
        cluster.producer("bench", max_in_flight=job["inFlight"], compress_above=None) as producer,
    ):

        def send(count: int) -> None:
            later = [producer.send_later(tiermq.Message(job["topic"], body)) for _ in range(count)]
            for each in later:
                each.result()

        timed_send(job, send)


def tiermq_async_send(job: Job) -> None:
    import tiermq

    body = bytes(job["bytes"])

    async def work() -> None:
        async with (
            tiermq.aconnect(job["nameServer"]) as cluster,
            cluster.producer("bench", max_in_flight=job["inFlight"], compress_above=None) as producer,
        ):

            async def send(count: int) -> None:
                for _ in range(count):
                    await producer.send_later(tiermq.Message(job["topic"], body))
                await producer.flush()

            await send(WARM_MESSAGES)
            began, cpu = time.perf_counter(), time.process_time()
            await send(job["messages"])
            tell(began, cpu)

    run_quickly(work())


def tiermq_consume(job: Job) -> None:
    import tiermq

    with (
        tiermq.connect(job["nameServer"]) as cluster,
        cluster.consumer(job["group"], topic=job["topic"], start="first") as consumer,
    ):
        for _ in range(WARM_MESSAGES):
            next(consumer)
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(job["messages"]):
            assert next(consumer).body
        tell(began, cpu)


def tiermq_async_consume(job: Job) -> None:
    import tiermq

    async def work() -> None:
        async with (
            tiermq.aconnect(job["nameServer"]) as cluster,
            cluster.consumer(job["group"], topic=job["topic"], start="first") as consumer,
        ):
            for _ in range(WARM_MESSAGES):
                await anext(consumer)
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(job["messages"]):
                assert (await anext(consumer)).body
            tell(began, cpu)

    run_quickly(work())


def run_quickly(work: Coroutine[Any, Any, None]) -> None:
    """On uvloop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def cpp_send(job: Job) -> None:
    from rocketmq import client as rocketmq
    from rocketmq import exceptions as rocketmq_errors

    body = b"x" * job["bytes"]  # It hands bodies over as C strings.
    producer = rocketmq.Producer("bench", timeout=30_000)
    producer.set_namesrv_addr(job["nameServer"])
    producer.start()
    topic, threads = job["topic"], job["inFlight"]
    with ThreadPoolExecutor(threads) as pool:

        def some(count: int) -> None:
            for _ in range(count):
                message = rocketmq.Message(topic)
                message.set_body(body)
                while True:
                    try:
                        assert producer.send_sync(message).status.name == "OK"
                    except rocketmq_errors.ProducerSendSyncFailed:  # "No route info": it comes and goes under load.
                        time.sleep(0.01)
                        continue
                    break

        some(1)

        def send(count: int) -> None:
            share, rest = divmod(count, threads)
            list(pool.map(some, [share + (number < rest) for number in range(threads)]))

        timed_send(job, send)
    producer.shutdown()


def cpp_consume(job: Job) -> None:
    from rocketmq import client as rocketmq

    consumer = rocketmq.PushConsumer(job["group"])
    consumer.set_namesrv_addr(job["nameServer"])
    consumer.set_thread_count(1)
    warm, done = threading.Event(), threading.Event()
    lock, seen = threading.Lock(), 0

    def take(message: Any) -> None:
        nonlocal seen
        assert message.body
        with lock:
            seen += 1
            if seen == WARM_MESSAGES:
                warm.set()
            elif seen == WARM_MESSAGES + job["messages"]:
                done.set()

    consumer.subscribe(job["topic"], take)
    consumer.start()
    warm.wait()
    began, cpu = time.perf_counter(), time.process_time()
    done.wait()
    tell(began, cpu)


def grpc_send(job: Job) -> None:
    from rocketmq import ClientConfiguration, Credentials, Message, Producer

    producer = Producer(ClientConfiguration(job["endpoints"], Credentials(), request_timeout=30), (job["topic"],))
    producer.startup()
    body, threads = bytes(job["bytes"]), job["inFlight"]
    with ThreadPoolExecutor(threads) as pool:

        def some(count: int) -> None:
            for _ in range(count):
                message = Message()
                message.topic, message.body = job["topic"], body
                producer.send(message)

        def send(count: int) -> None:
            share, rest = divmod(count, threads)
            list(pool.map(some, [share + (number < rest) for number in range(threads)]))

        timed_send(job, send)
    producer.shutdown()


def grpc_consume(job: Job) -> None:
    from rocketmq import (
        ClientConfiguration,
        ConsumeResult,
        Credentials,
        FilterExpression,
        MessageListener,
        PushConsumer,
    )

    warm, done = threading.Event(), threading.Event()
    lock, seen = threading.Lock(), 0

    class Taking(MessageListener):  # type: ignore[misc]
        def consume(self, message: Any) -> Any:
            nonlocal seen
            assert message.body
            with lock:
                seen += 1
                if seen == WARM_MESSAGES:
                    warm.set()
                elif seen == WARM_MESSAGES + job["messages"]:
                    done.set()
            return ConsumeResult.SUCCESS

    config = ClientConfiguration(job["endpoints"], Credentials(), request_timeout=30)
    consumer = PushConsumer(config, job["group"], Taking(), {job["topic"]: FilterExpression()})
    consumer.startup()
    warm.wait()
    began, cpu = time.perf_counter(), time.process_time()
    done.wait()
    tell(began, cpu)


WORKS = {
    ("tiermq", "send"): tiermq_send,
    ("tiermq-async", "send"): tiermq_async_send,
    ("tiermq", "consume"): tiermq_consume,
    ("tiermq-async", "consume"): tiermq_async_consume,
    ("cpp", "send"): cpp_send,
    ("cpp", "consume"): cpp_consume,
    ("grpc", "send"): grpc_send,
    ("grpc", "consume"): grpc_consume,
}


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    WORKS[asked["client"], asked["work"]](asked)
