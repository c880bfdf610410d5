"""Drives the PyPI package `rocketmq-python-client`, which speaks gRPC. Runs outside of our environment.

One JSON object is the job: endpoints, topic, group, optional accessKey and secretKey, tls, lite topics (the first is
sent to), and either
    send      bodies; optional messageGroup, delayS, priority, tag, properties, recall, transaction: commit, rollback,
              or lost, which is committed when it is asked about       →  {"sent": {...}} for each, {"checked": body}
    receive   until so many are acknowledged; the first of each of `again` is given more or less time instead, or fails
              in a push consumer, which fails for each of `fail` always, and never ends with one of `hold`; optional
              push, tag, sql                                                       →  {"received": {...}} for each
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception.client_exception import InternalErrorException, LiteSubscriptionQuotaExceededException

INVISIBLE_S = 60
AGAIN_S = 10  # The least that a proxy lets a client ask for.


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


class Committing(TransactionChecker):  # type: ignore[misc]
    """Commits whatever is asked about."""

    def __init__(self) -> None:
        self.asked: queue.Queue[str] = queue.Queue()

    def check(self, message: Any) -> Any:
        self.asked.put(message.body.decode())
        return TransactionResolution.COMMIT


def message_of(job: dict[str, Any], body: str) -> Any:
    message = Message()
    message.topic = job["topic"]
    message.body = body.encode()
    message.tag = job.get("tag", "paid")
    message.keys = f"key-{body[:40]}"
    if "messageGroup" in job:
        message.message_group = job["messageGroup"]
    if "lite" in job:
        message.lite_topic = job["lite"][0]
    if "priority" in job:
        message.priority = job["priority"]
    if "delayS" in job:
        message.delivery_timestamp = int(time.time()) + job["delayS"]
    for name, value in job.get("properties", {}).items():
        message.add_property(name, value)
    return message


def send(config: ClientConfiguration, job: dict[str, Any]) -> None:
    checker = Committing() if "transaction" in job else None
    producer = Producer(config, (job["topic"],), checker, tls_enable=job.get("tls", False))
    producer.startup()
    for body in job["bodies"]:
        message = message_of(job, body)
        if checker is None:
            receipt = producer.send(message)
            tell(sent={"id": receipt.message_id, "offset": receipt.offset})
            if job.get("recall"):
                tell(recalled=producer.recall_message(job["topic"], receipt.recall_handle))
            continue
        transaction = producer.begin_transaction()
        tell(sent={"id": producer.send(message, transaction).message_id})
        if job["transaction"] == "lost":
            tell(checked=checker.asked.get())
            time.sleep(1)  # Its answer leaves behind the check.
        else:
            (transaction.commit if job["transaction"] == "commit" else transaction.rollback)()
    producer.shutdown()


def received(consumer: SimpleConsumer) -> list[Any]:
    """What there is. A proxy that has not got this client's settings yet answers with an error of its own."""
    try:
        return list(consumer.receive(32, INVISIBLE_S) or ())
    except InternalErrorException as error:
        print(error, file=sys.stderr)
        return []


def reported(message: Any) -> str:
    body: str = message.body.decode()
    tell(received={"body": body, "attempt": message.delivery_attempt, "tag": message.tag, "id": message.message_id})
    return body


def filter_of(job: dict[str, Any]) -> FilterExpression:
    if "sql" in job:
        return FilterExpression(job["sql"], FilterType.SQL)
    return FilterExpression(job.get("only", "*"))


class Telling(MessageListener):  # type: ignore[misc]
    """Tells what came, and fails for the first of each of `again`."""

    def __init__(self, job: dict[str, Any], left: int) -> None:
        self._again = set(job.get("again", ()))
        self._fail, self._hold = set(job.get("fail", ())), set(job.get("hold", ()))
        self._left = left
        self.done: queue.Queue[bool] = queue.Queue()

    def consume(self, message: Any) -> Any:
        body = reported(message)
        if body in self._hold:
            threading.Event().wait()
        if body in self._again or body in self._fail:
            self._again.discard(body)
            return ConsumeResult.FAILURE
        self._left -= 1
        if self._left == 0:
            self.done.put(True)
        return ConsumeResult.SUCCESS


def subscribe(consumer: LitePushConsumer | LiteSimpleConsumer, names: list[str]) -> None:
    """A simple consumer does not wait for its settings, and knows of no quota before."""
    for name in names:
        while True:
            try:
                consumer.subscribe_lite(name)
            except LiteSubscriptionQuotaExceededException:
                time.sleep(0.05)
            else:
                break


def push(config: ClientConfiguration, job: dict[str, Any]) -> None:
    listener = Telling(job, job["receive"])
    chosen = {job["topic"]: filter_of(job)}
    if "lite" in job:
        consumer = LitePushConsumer(config, job["group"], job["topic"], listener, consumption_thread_count=1)
    else:
        consumer = PushConsumer(config, job["group"], listener, chosen, consumption_thread_count=1)
    consumer.startup()
    subscribe(consumer, job.get("lite", ()))
    listener.done.get()
    time.sleep(1)  # The last acknowledgement leaves behind the listener.
    consumer.shutdown()


def receive(config: ClientConfiguration, job: dict[str, Any]) -> None:
    chosen = {job["topic"]: filter_of(job)}
    if "lite" in job:
        consumer = LiteSimpleConsumer(job["topic"], config, job["group"])
    else:
        consumer = SimpleConsumer(config, job["group"], chosen, tls_enable=job.get("tls", False))
    consumer.startup()
    subscribe(consumer, job.get("lite", ()))
    acknowledged = 0
    again = set(job.get("again", ()))
    while acknowledged < job["receive"]:
        for message in received(consumer):
            body = reported(message)
            if body in again:
                again.discard(body)
                consumer.change_invisible_duration(message, AGAIN_S)
            else:
                consumer.ack(message)
                acknowledged += 1
    consumer.shutdown()


def main() -> None:
    job = json.loads(sys.argv[1])
    account = Credentials(job.get("accessKey", ""), job.get("secretKey", ""))
    config = ClientConfiguration(job["endpoints"], account, request_timeout=30)
    work = send if "bodies" in job else push if job.get("push") else receive
    try:
        work(config, job)
    except Exception as error:  # Told, since some jobs must be refused.
        tell(failed=f"{type(error).__name__}: {error}")
        raise
    tell(done=True)


if __name__ == "__main__":
    main()
