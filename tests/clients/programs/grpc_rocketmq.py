"""Drives the PyPI package `rocketmq-python-client`, which speaks gRPC to a proxy. Runs outside of our environment.

One JSON object is the job: endpoints, topic, group, and either
    send      bodies; optional messageGroup                       →  {"sent": {...}} for each
    receive   until so many are acknowledged; the first of each of `again` is given more or less time instead
                                                                   →  {"received": {...}} for each
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer
from rocketmq.v5.exception.client_exception import InternalErrorException

INVISIBLE_S = 60
AGAIN_S = 10  # The least that a proxy lets a client ask for.


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def send(config: ClientConfiguration, job: dict[str, Any]) -> None:
    producer = Producer(config, (job["topic"],))
    producer.startup()
    for body in job["bodies"]:
        message = Message()
        message.topic = job["topic"]
        message.body = body.encode()
        message.tag = "paid"
        message.keys = f"key-{body}"
        if "messageGroup" in job:
            message.message_group = job["messageGroup"]
        tell(sent={"id": producer.send(message).message_id})
    producer.shutdown()


def received(consumer: SimpleConsumer) -> list[Any]:
    """What there is. A proxy that has not got this client's settings yet answers with an error of its own."""
    try:
        return list(consumer.receive(32, INVISIBLE_S) or ())
    except InternalErrorException as error:
        print(error, file=sys.stderr)
        return []


def receive(config: ClientConfiguration, job: dict[str, Any]) -> None:
    consumer = SimpleConsumer(config, job["group"], {job["topic"]: FilterExpression()})
    consumer.startup()
    acknowledged = 0
    again = set(job.get("again", ()))
    while acknowledged < job["receive"]:
        for message in received(consumer):
            body = message.body.decode()
            tell(received={"body": body, "attempt": message.delivery_attempt, "tag": message.tag})
            if body in again:
                again.discard(body)
                consumer.change_invisible_duration(message, AGAIN_S)
            else:
                consumer.ack(message)
                acknowledged += 1
    consumer.shutdown()


def main() -> None:
    job = json.loads(sys.argv[1])
    config = ClientConfiguration(job["endpoints"], Credentials(), request_timeout=30)
    (send if "bodies" in job else receive)(config, job)
    tell(done=True)


if __name__ == "__main__":
    main()
