"""How the demo reads back: by offset, by time and by key, from any store, comparing each message with what was put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tiermq.cli.demo_orders import QUEUES, TOPIC, Tally, body_of, key_of, number_of
from tiermq.cli.demo_producers import DemoFailed

READ_MESSAGES = 32
KEYS_TRIED = 200
TIMES_TRIED = 5  # In each queue.

Told = Callable[[int], None]


def read_back(store: Any, told: Told) -> tuple[list[int], Tally]:
    """Read every queue from its start, by offset: how many messages each holds, and all counted. Raises DemoFailed."""
    held, tally = [], Tally()
    for queue_id in range(QUEUES):
        offset = 0
        while True:
            page = store.get(TOPIC, queue_id=queue_id, offset=offset, max_messages=READ_MESSAGES)
            messages = page.messages
            if not messages:
                break
            for expected_offset, message in enumerate(messages, offset):
                body = message.body
                if message.queue_offset != expected_offset or body != body_of(number_of(queue_id, expected_offset)):
                    raise DemoFailed(
                        f"queue {queue_id}: message {expected_offset} is not what was put, found {message}"
                    )
                tally.add(body)
            told(len(messages))
            offset = page.next_offset
        held.append(offset)
    return held, tally


def require_acknowledged(held: Sequence[int], acknowledged: Sequence[int]) -> None:
    """Raises DemoFailed when a queue ends before what was acknowledged."""
    for queue_id, (found, promised) in enumerate(zip(held, acknowledged, strict=True)):
        if found < promised:
            raise DemoFailed(
                f"queue {queue_id}: {promised:,} messages were acknowledged and only {found:,} are there; "
                f"{key_of(number_of(queue_id, found))} is gone"
            )


def look_up_keys(store: Any, held: Sequence[int]) -> int:
    """Find messages by their keys, evenly over the whole history; how many. Raises DemoFailed."""
    tried = 0
    each = max(1, KEYS_TRIED // QUEUES)
    for queue_id, count in enumerate(held):
        for offset in range(0, count, max(1, count // each)):
            number = number_of(queue_id, offset)
            hits = store.query(TOPIC, key=key_of(number), begin_ms=0, end_ms=2**63 - 1, max_messages=8)
            if [message.body for message in hits.messages] != [body_of(number)]:
                raise DemoFailed(f"key {key_of(number)} was put once, found {len(hits.messages)} messages with it")
            tried += 1
    return tried


def look_up_times(store: Any, held: Sequence[int]) -> int:
    """Find the first message at or after a time, in each queue; how many times. Raises DemoFailed."""
    tried = 0
    for queue_id, count in enumerate(held):
        for share in range(1, TIMES_TRIED + 1) if count else ():
            time_ms = store.store_time_of(TOPIC, queue_id, (count - 1) * share // (TIMES_TRIED + 1))
            found = store.offset_at(TOPIC, queue_id, time_ms, "lower")
            here = store.store_time_of(TOPIC, queue_id, found)
            before = store.store_time_of(TOPIC, queue_id, found - 1) if found else -1
            if not before < time_ms <= here:
                raise DemoFailed(
                    f"queue {queue_id}: expected the first message at or after {time_ms}, found {found}, stored at "
                    f"{here} and the one before it at {before}"
                )
            tried += 1
    return tried
