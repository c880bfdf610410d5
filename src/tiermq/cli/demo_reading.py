"""How the demo reads back over the wire: by offset, by time and by key, comparing each message with what was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from tiermq.cli.demo_orders import QUEUES, DemoFailed, Tally, body_of, key_of, number_of

KEYS_TRIED = 200
TIMES_TRIED = 5  # In each queue.

Told = Callable[[int], None]


class Found(Protocol):
    """Of a message, what is compared."""

    @property
    def queue_offset(self) -> int: ...

    @property
    def body(self) -> bytes: ...

    @property
    def store_timestamp_ms(self) -> int: ...


class Orders(Protocol):
    """The topic, as far as it is read here; over the wire it is `OrdersClient`."""

    async def pull(self, queue_id: int, offset: int, most: int = 32) -> Sequence[Found]: ...

    async def find(self, key: str) -> Sequence[Found]: ...

    async def offset_at(self, queue_id: int, moment_ms: int) -> int: ...


async def read_back(orders: Orders, told: Told) -> tuple[list[int], Tally]:
    """Read all queues at once from their starts: how many messages each holds, and all counted. Raises DemoFailed."""
    tally = Tally()

    async def read(queue_id: int) -> int:
        offset = 0
        while messages := await orders.pull(queue_id, offset):
            for expected_offset, message in enumerate(messages, offset):
                body = message.body
                if message.queue_offset != expected_offset or body != body_of(number_of(queue_id, expected_offset)):
                    raise DemoFailed(
                        f"queue {queue_id}: message {expected_offset} is not what was sent, found {message}"
                    )
                tally.add(body)
            told(len(messages))
            offset += len(messages)
        return offset

    held = await asyncio.gather(*(read(queue_id) for queue_id in range(QUEUES)))
    return list(held), tally


def require_acknowledged(held: Sequence[int], acknowledged: Sequence[int]) -> None:
    """Raises DemoFailed when a queue ends before what was acknowledged."""
    for queue_id, (found, promised) in enumerate(zip(held, acknowledged, strict=True)):
        if found < promised:
            raise DemoFailed(
                f"queue {queue_id}: {promised:,} messages were acknowledged and only {found:,} are there; "
                f"{key_of(number_of(queue_id, found))} is gone"
            )


async def look_up_keys(orders: Orders, held: Sequence[int]) -> int:
    """Find messages by their keys, evenly over the whole history; how many. Raises DemoFailed."""
    tried = 0
    each = max(1, KEYS_TRIED // QUEUES)
    for queue_id, count in enumerate(held):
        for offset in range(0, count, max(1, count // each)):
            number = number_of(queue_id, offset)
            found = await orders.find(key_of(number))
            if [message.body for message in found] != [body_of(number)]:
                raise DemoFailed(f"key {key_of(number)} was sent once, found {len(found)} messages with it")
            tried += 1
    return tried


async def look_up_times(orders: Orders, held: Sequence[int]) -> int:
    """Find the first message at or after a time, in each queue; how many times. Raises DemoFailed."""

    async def stored_ms(queue_id: int, offset: int) -> int:
        if offset < 0:
            return -1
        [message] = await orders.pull(queue_id, offset, 1)
        return message.store_timestamp_ms

    tried = 0
    for queue_id, count in enumerate(held):
        for share in range(1, TIMES_TRIED + 1) if count else ():
            moment_ms = await stored_ms(queue_id, (count - 1) * share // (TIMES_TRIED + 1))
            found = await orders.offset_at(queue_id, moment_ms)
            here, before = await stored_ms(queue_id, found), await stored_ms(queue_id, found - 1)
            if not before < moment_ms <= here:
                raise DemoFailed(
                    f"queue {queue_id}: expected the first message at or after {moment_ms}, found {found}, stored at "
                    f"{here} and the one before it at {before}"
                )
            tried += 1
    return tried
