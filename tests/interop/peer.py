"""RocketMQ's own Java client as a Python object: one command per line to a process, one answer per line back.

Bodies travel as base64 and are bytes on this side. What a message looks like is written in `java/Described.java`;
here it is a plain dictionary, because the tests compare it field by field with other dictionaries.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Described = dict[str, Any]


class PeerError(Exception):
    """RocketMQ's client refused a command; the text is the Java exception's."""


class Peer:
    def __init__(self, command: list[str], error_log: Path) -> None:
        self._error_log = error_log
        self._errors = error_log.open("ab")
        self._process = subprocess.Popen(
            command,
            cwd=error_log.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )

    def create_topic(self, topic: str, queues: int, attributes: Mapping[str, str] | None = None) -> None:
        """Returns when the route of the topic is known, so that a send cannot come too early."""
        self._ask({"op": "create_topic", "topic": topic, "queues": queues, "attributes": dict(attributes or {})})

    def send(self, message: Described) -> Described:
        """`topic`, `queue`, `body`; optional `keys`, `tags`, `properties`, `flag`, `delay_level`, `compression`,
        `unique_id`. Answers with `status`, `unique_id`, `offset_id`, `queue`, `offset`."""
        result: Described = self._ask({"op": "send", **_with_text_body(message)})
        return result

    def send_batch(self, messages: Sequence[Described], queue: int, unique_id: str | None = None) -> Described:
        asked = [_with_text_body(message) for message in messages]
        result: Described = self._ask({"op": "send_batch", "messages": asked, "queue": queue, "unique_id": unique_id})
        return result

    def send_transaction(self, message: Described, decision: str) -> Described:
        """`decision` is commit, rollback or unknown. The producer chooses the queue."""
        result: Described = self._ask({"op": "send_transaction", "decision": decision, **_with_text_body(message)})
        return result

    def read(
        self, topic: str, queue: int, start: int = 0, expression: str = "*", *, end: int | None = None
    ) -> list[Described]:
        """Every message of a queue from `start`, or from the queue's minimum, to `end`, or what the broker calls so."""
        asked = {"topic": topic, "queue": queue, "from": start, "to": end, "expression": expression}
        answer = self._ask({"op": "read", **asked})
        return [_with_bytes_body(message) for message in answer]

    def send_back(self, topic: str, queue: int, offset: int, group: str, delay_level: int) -> None:
        """Give one message back as `group`'s failure: the broker stores it under `%RETRY%<group>` after the delay."""
        place = {"topic": topic, "queue": queue, "offset": offset}
        self._ask({"op": "send_back", **place, "group": group, "delay_level": delay_level})

    def query(self, topic: str, key: str, *, unique: bool = False) -> list[Described]:
        """By one of the keys that a user gave, or with `unique` by the id that the producer gave. At most 64."""
        answer = self._ask({"op": "query", "topic": topic, "key": key, "unique": unique, "max": 64})
        return [_with_bytes_body(message) for message in answer]

    def view(self, topic: str, offset_id: str) -> Described:
        return _with_bytes_body(self._ask({"op": "view", "topic": topic, "offset_id": offset_id}))

    def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> int:
        answer = self._ask({"op": "offset_at", "topic": topic, "queue": queue, "timestamp": timestamp_ms})
        return int(answer)

    def bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """Minimum and maximum offset of a queue."""
        minimum, maximum = self._ask({"op": "bounds", "topic": topic, "queue": queue})
        return int(minimum), int(maximum)

    def delete_expired(self) -> None:
        """Tell the broker to delete expired log files when its cleaner runs next."""
        self._ask({"op": "delete_expired"})

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._release()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._release()

    def _release(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _ask(self, command: Mapping[str, object]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"the client ended at {command['op']}: {self._error_log.read_text()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{command['op']}: {answer['error']}")
        return answer["result"]


def _with_text_body(message: Described) -> Described:
    return {**message, "body": base64.b64encode(message["body"]).decode("ascii")}


def _with_bytes_body(message: Described) -> Described:
    return {**message, "body": base64.b64decode(message["body"])}
