"""What damage is done to: files by kind, what they hold, and what can still be read of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tiermq.errors import TierMQError
from tiermq.message.crc import CRC_PROPERTY_BYTES
from tiermq.message.stored_message import StoredMessage

Place = tuple[str, int, int]
"""Topic, queue, offset."""


@dataclass(slots=True)
class Verdict:
    """What a damaged ground gave."""

    wrong: list[str] = field(default_factory=list)
    """Served, and not what was put."""
    lost: list[str] = field(default_factory=list)
    """Put, and not to be had."""
    reported: list[str] = field(default_factory=list)
    """Errors and problems that were reported."""

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """An error of ours, or of the operating system, is reported; anything else is a finding of the runner."""
        try:
            yield
        except (TierMQError, OSError) as error:
            self.reported.append(f"{what}: {type(error).__name__}: {error}")

    def compare(self, expected: Mapping[Any, Any], found: Mapping[Any, Any]) -> None:
        for place, value in found.items():
            if place not in expected:
                self.wrong.append(f"{place}: never put: {value!r}"[:500])
            elif expected[place] != value:
                self.wrong.append(f"{place}: expected {expected[place]!r}, found {value!r}"[:900])
        self.lost += [str(place) for place in expected if place not in found]


class Ground(Protocol):
    """Stateless. `build` makes files below a directory, `judge` looks at a damaged copy of that directory."""

    @property
    def name(self) -> str: ...

    @property
    def repaired(self) -> frozenset[str]:
        """Kinds whose damage costs nothing, because all of it is known from elsewhere."""
        ...

    @property
    def unsummed(self) -> frozenset[str]:
        """Kinds without a checksum, as docs/guarantees.md says: what is lost by a bad bit may be lost untold."""
        ...

    def build(self, root: Path, seed: int) -> Any:
        """Make everything, closed; what `judge` needs to know of it."""
        ...

    def kind_of(self, path: Path) -> str:
        """The kind of a file, given relative to the root; "" for one that holds nothing."""
        ...

    def judge(self, root: Path, expected: Any) -> Verdict: ...


def identity(message: StoredMessage) -> tuple[Any, ...]:
    """Everything that a message says, but the checksum over the rest."""
    properties = message.encoded_properties
    # The name of the checksum may have gone bad itself; then nothing else has.
    if properties[-20:-12] == b"__CRC32#" or (properties[-12:-11] == b"\x01" and properties[-11:-1].isdigit()):
        properties = properties[:-CRC_PROPERTY_BYTES]
    return (
        message.body,
        properties,
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        message.born_host,
        message.store_timestamp_ms,
        message.reconsume_times,
    )


def read_queue(
    store: Any, topic: str, queue_id: int, verdict: Verdict, identity: Callable[[StoredMessage], Any] = identity
) -> dict[Place, Any]:
    """What a consumer gets of a queue; one that meets damage gets an error, and goes on behind it."""
    found: dict[Place, Any] = {}
    offset = max(0, store.min_offset(topic, queue_id))
    while offset < store.max_offset(topic, queue_id):
        try:
            page = store.get(topic, queue_id, offset)
            messages = page.messages
        except (TierMQError, OSError) as error:
            verdict.reported.append(f"{topic}/{queue_id} offset {offset}: {error}")
            offset += 1
            continue
        for message in messages:
            place = (message.topic, message.queue_id, message.queue_offset)
            if place in found or place[:2] != (topic, queue_id) or not offset <= place[2] < page.next_offset:
                verdict.wrong.append(f"asked for {topic}/{queue_id} from {offset} on, found {place}")
            found[place] = identity(message)
        offset = max(page.next_offset, offset + 1)
    return found


def check_keys(query: Callable[[str, str], Any], keys: Mapping[str, tuple[str, bytes]], verdict: Verdict) -> None:
    """Each key leads to its message (by topic and body) or to an error, and never to another."""
    for key, (topic, body) in keys.items():
        try:
            found = [hit.body for hit in query(topic, key).messages]
        except (TierMQError, OSError) as error:
            verdict.reported.append(f"key {key}: {error}")
            continue
        if any(each != body for each in found):
            verdict.wrong.append(f"key {key}: expected {body!r}, found {found}"[:900])
        elif not found:
            verdict.lost.append(f"key {key}")
