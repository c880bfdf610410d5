"""What the tests send: messages that touch every field of a record, the same ones for the same seed.

A message here is the dictionary that `Peer.send` takes; `manifest_line` turns it and its result into a line that a
golden directory keeps.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

from interop.peer import Described

WORDS = ("order", "заказ", "注文", "commande", "εντολή", "🚀", "tab\tinside", "quote\"'\\", "a=b;c,d")
TAGS = (None, "paid", "shipped", "TagA", "возврат", "返品")

# Two strings with one Java hash: a query by one finds the index entries of the other.
COLLIDING_KEYS = ("Aa", "BB")

SMALL_BODY_BYTES = (1, 2, 3, 16, 91, 127, 128, 255, 256, 1000, 1024, 4095)
LARGE_BODY_BYTES = (4096, 4097, 6000, 9000)
COMPRESSIONS = ("none", "zlib", "lz4", "zstd")


class UniqueIds:
    """Ids of RocketMQ's shape, 32 hexadecimal digits, that say 127.0.0.1 and never repeat for different seeds."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return f"7F000001{self._seed:08X}{self._count:016X}"


def body(chance: random.Random, size_bytes: int) -> bytes:
    """Text that compresses well in one half and noise that does not in the other."""
    noise = chance.randbytes(size_bytes // 2)
    return noise + (b"TierMQ " * (size_bytes // 7 + 1))[: size_bytes - len(noise)]


def messages(topics: Sequence[tuple[str, int]], count: int, seed: int, large_every: int = 12) -> Iterator[Described]:
    """`count` messages over the queues of `topics` (name, queue count); each `large_every`-th has a large body."""
    chance = random.Random(seed)
    unique_ids = UniqueIds(seed)
    for number in range(count):
        topic, queues = topics[number % len(topics)]
        large = number % large_every == large_every - 1
        size_bytes = chance.choice(LARGE_BODY_BYTES if large else SMALL_BODY_BYTES)
        yield {
            "topic": topic,
            "queue": chance.randrange(queues),
            "body": body(chance, size_bytes),
            "keys": keys(chance, number),
            "tags": chance.choice(TAGS),
            "properties": properties(chance, number),
            "flag": chance.choice((0, 0, 1, -1, 2**31 - 1, -(2**31))),
            "compression": COMPRESSIONS[number // large_every % len(COMPRESSIONS)] if large else "none",
            "unique_id": unique_ids.next(),
        }


def keys(chance: random.Random, number: int) -> list[str]:
    """No key, a key of its own, a key shared by every tenth message, colliding keys, a key outside ASCII."""
    choices: tuple[list[str], ...] = (
        [],
        [f"key-{number}"],
        [f"key-{number}", f"shared-{number % 10}"],
        [f"key-{number}", f"ключ-{number % 3}", "🔑"],
        [chance.choice(COLLIDING_KEYS)],
    )
    return choices[chance.randrange(len(choices))]


def properties(chance: random.Random, number: int) -> dict[str, str]:
    named = {f"property-{index}": chance.choice(WORDS) for index in range(chance.randrange(4))}
    if number % 7 == 0:
        named["имя"] = "значение"
    if number % 11 == 0:
        named["long"] = "x" * 600
    return named


def manifest_line(message: Described) -> Described:
    """Bodies are kept as length and digest: enough to compare, small enough to commit."""
    line = {name: value for name, value in message.items() if name != "body"}
    line["body_bytes"] = len(message["body"])
    line["body_sha256"] = hashlib.sha256(message["body"]).hexdigest()
    return line
