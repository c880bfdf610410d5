"""Drives the PyPI package `rocketmq`, which wraps RocketMQ's C++ client. Runs outside of our environment.

One JSON object is the job: nameServer, topic, group, and either
    send      bodies; optional tag, key, batch, orderly, delay  →  {"sent": {...}} for each
    receive   how many; optional tag, orderly, pull, failures   →  {"received": {...}} for each
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

from rocketmq import client as rocketmq


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def message_of(job: dict[str, Any], body: str) -> Any:
    message = rocketmq.Message(job["topic"])
    message.set_body(body)
    if "tag" in job:
        message.set_tags(job["tag"])
    if "key" in job:
        message.set_keys(job["key"])
    if "delay" in job:
        message.set_delay_time_level(job["delay"])
    return message


def send(job: dict[str, Any]) -> None:
    producer = rocketmq.Producer(job["group"], timeout=30_000)
    producer.set_namesrv_addr(job["nameServer"])
    producer.start()
    if job.get("batch"):
        result = producer.send_batch([message_of(job, body) for body in job["bodies"]])
        tell(sent={"status": result.status.name, "id": result.msg_id, "offset": result.offset})
    else:
        for body in job["bodies"]:
            message = message_of(job, body)
            result = producer.send_orderly(message, 1) if job.get("orderly") else producer.send_sync(message)
            tell(sent={"status": result.status.name, "id": result.msg_id, "offset": result.offset})
    producer.shutdown()


def described(message: Any) -> dict[str, Any]:
    return {
        "body": message.body.decode(),
        "tag": (message.tags or b"").decode(),
        "key": (message.keys or b"").decode(),
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "times": message.reconsume_times,
    }


def receive(job: dict[str, Any]) -> None:
    if job.get("pull"):
        pull(job)
        return
    consumer = rocketmq.PushConsumer(job["group"], orderly=job.get("orderly", False))
    consumer.set_namesrv_addr(job["nameServer"])
    consumer.set_thread_count(1)
    arrived: queue.Queue[dict[str, Any]] = queue.Queue()
    consumer.subscribe(job["topic"], lambda message: arrived.put(described(message)), job.get("tag", "*"))
    consumer.start()
    for _ in range(job["receive"]):
        tell(received=arrived.get())
    consumer.shutdown()


def pull(job: dict[str, Any]) -> None:
    consumer = rocketmq.PullConsumer(job["group"])
    consumer.set_namesrv_addr(job["nameServer"])
    consumer.start()
    for message in consumer.pull(job["topic"], job.get("tag", "*")):
        tell(received=described(message))
    consumer.shutdown()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    (send if "bodies" in asked else receive)(asked)
    tell(done=True)
