"""A member of a consumer group in Python, as a process that can be killed: `python -m interop.python_member`.

Prints one JSON line for each event: {"started": true}, {"received": {"body": …, "queue": …, "offset": …, "times": …}}.
A message is printed while it is handled; it ends, and leaves its group, when its input ends.
"""

from __future__ import annotations

import json
import sys
import threading

import tiermq
from tiermq.client import ReceivedMessage


def main() -> None:
    name_server, topic, group = sys.argv[1:]
    lock = threading.Lock()

    def tell(kind: str, value: object) -> None:
        with lock:
            print(json.dumps({kind: value}), flush=True)

    def handle(message: ReceivedMessage) -> None:
        times = message.attempt - 1
        reported = {"body": message.body.decode(), "queue": message.queue_id, "offset": message.offset, "times": times}
        tell("received", reported)

    with (
        tiermq.connect(name_server) as cluster,
        cluster.consumer(group, topic=topic, start="first", on_message=handle, workers=4),
    ):
        tell("started", True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
