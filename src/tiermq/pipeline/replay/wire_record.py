"""The record of a replay to brokers: small objects in a bucket or a directory that the driver and executors share.

    replay.tiermq.json                     the request, the ranges and target queues at the start, and progress
    sent/<queue>/<offset>.tiermq.json      a window of the source queue <cluster>/<broker>/<topic>/<id>: a line for each
                                           message that brokers acknowledged, named by the first source offset
    claims/<number>.tiermq.json            which attempt of the wave's task with this number sends

Of two copies of a task (speculation, an executor that lost its driver) one has the claim and sends, the other waits
until it is released, or was not renewed for TAKE_OVER_S. A window is written by the task that sent it, after the last
acknowledgement, and never replaced: an attempt that stood still and was overtaken raises SendOvertaken, at the
latest when it writes its window, and sends nothing more. Windows of a queue follow each other in
the order of its offsets, so everything before the last line is done. The driver adds up windows once per wave.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tiermq.errors import ForeignCheckpoint, ManifestConflict, SendOvertaken
from tiermq.pipeline.replay.record import differences
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tables.commit_journal import ExportedRanges, queue_of, queue_text
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.names import OBJECT_SUFFIX, QueueKey

NAME = f"replay{OBJECT_SUFFIX}"
COLUMNS = ("sourceOffset", "topic", "broker", "queueId", "queueOffset")
_KEYS = frozenset({"name", "asked", "ranges", "targets", "next", "count", "problems", "finished"})
_MALFORMED = (ValueError, TypeError, LookupError)
TAKE_OVER_S = 20.0
"""A claim that was not renewed for so long is a dead attempt's."""
RENEW_S = 4.0
TargetQueue = tuple[str, int]
"""Broker name and queue id."""


@dataclass(frozen=True, slots=True)
class SentLine:
    """Where a message of a source queue is now."""

    source_offset: int
    topic: str
    broker: str
    queue_id: int
    queue_offset: int


class SentWindows:
    """The acknowledged windows of one source queue. `writer` names this attempt of a task."""

    def __init__(self, driver: TierDriver, queue: QueueKey, writer: str = "") -> None:
        self._driver = driver
        self._queue = queue
        self._writer = writer
        self._prefix = f"sent/{queue_text(queue)}/"

    def since(self, offset: int) -> list[SentLine]:
        """The lines of windows that begin at this source offset or later, in their order. Raises ForeignCheckpoint for
        a damaged one: which messages were sent is not known then.
        """
        lines: list[SentLine] = []
        for name in self._driver.list_objects(self._prefix):
            try:
                first = int(name.removeprefix(self._prefix).removesuffix(OBJECT_SUFFIX))
                found = self._driver.get_object(name) if first >= offset else None
                if found is not None:
                    lines += map(_sent_line, json.loads(found.data)["lines"])
            except _MALFORMED as error:
                raise ForeignCheckpoint(
                    f"{self._driver.url}/{name}: expected a window of a replay, found another object ({error!r:.100}): "
                    "put it back as it was, or remove it: what it had is asked for then, or sent again"
                ) from error
        return lines

    def add(self, lines: Sequence[SentLine]) -> None:
        """Record a window, durably. Raises SendOvertaken when another attempt has recorded it."""
        document = {
            "source": queue_text(self._queue),
            "writer": self._writer,
            "columns": COLUMNS,
            "lines": [
                (line.source_offset, line.topic, line.broker, line.queue_id, line.queue_offset) for line in lines
            ],
        }
        name = f"{self._prefix}{lines[0].source_offset:020d}{OBJECT_SUFFIX}"
        try:
            self._driver.put_object(name, json.dumps(document).encode(), expected=None)
        except ManifestConflict as error:
            raise SendOvertaken(
                f"{queue_text(self._queue)}: expected to be the only one that replays it, found its messages from "
                f"{lines[0].source_offset} on recorded by another; these {len(lines)} were sent twice"
            ) from error


def _sent_line(fields: Any) -> SentLine:
    """Raises TypeError, ValueError."""
    line = SentLine(*fields)
    numbers = (line.source_offset, line.queue_id, line.queue_offset)
    if any(type(number) is not int for number in numbers):
        raise ValueError(f"{fields!r:.80}")
    return line


class TaskClaim:
    """The claim of one attempt of a task, `writer`. Used by one thread at a time."""

    def __init__(self, driver: TierDriver, name: str, writer: str) -> None:
        self._driver = driver
        self._name = f"claims/{name}{OBJECT_SUFFIX}"
        self._writer = writer
        self._version: str | None = None
        self._count = 0
        self._seen: tuple[str, float] | None = None  # Another's claim, and since when it has not changed.

    def take(self, now_s: float) -> bool:
        """Whether this attempt may send now. `now_s` is a monotonic time of this process."""
        found = self._driver.get_object(self._name)
        if found is not None and _is_claimed(found.data):
            if self._seen is None or self._seen[0] != found.version:
                self._seen = (found.version, now_s)
            if now_s - self._seen[1] < TAKE_OVER_S:
                return False
        self._version = None if found is None else found.version
        try:
            self._put(self._writer)
        except SendOvertaken:
            return False
        return True

    def renew(self) -> None:
        """Raises SendOvertaken when another attempt has the claim."""
        self._put(self._writer)

    def release(self) -> None:
        """Let the next attempt send at once. Nothing happens when another has the claim."""
        with suppress(SendOvertaken):
            self._put("")

    def _put(self, writer: str) -> None:
        self._count += 1
        document = {"writer": writer, "by": self._writer, "count": self._count}
        try:
            self._version = self._driver.put_object(self._name, json.dumps(document).encode(), expected=self._version)
        except ManifestConflict as error:
            raise SendOvertaken(f"{self._driver.url}: another attempt of this task sends") from error


def _is_claimed(data: bytes) -> bool:
    """A damaged claim may be an attempt's: it ends like one that is not renewed."""
    try:
        return bool(json.loads(data)["writer"])
    except _MALFORMED:
        return True


class WireRecord:
    """Belongs to one thread of the driver. A second driver that saves it makes `save` of the first one fail."""

    def __init__(self, driver: TierDriver, document: dict[str, Any], version: str | None) -> None:
        self._driver = driver
        self._document = document
        self._version = version
        self.name = str(document["name"])
        self.ranges = ExportedRanges.of_json(document["ranges"])
        self.targets: dict[str, tuple[TargetQueue, ...]] = {
            topic: tuple((str(broker), int(queue)) for broker, queue in queues)
            for topic, queues in document["targets"].items()
        }
        self.problems: list[str] = document["problems"]
        self._next = {queue_of(text): int(offset) for text, offset in document["next"].items()}

    @classmethod
    def find(cls, url: str, asked: dict[str, Any]) -> WireRecord | None:
        """The record that is there, if there is one. Raises ForeignCheckpoint when it is of another replay."""
        driver = driver_of(url)
        found = driver.get_object(NAME)
        if found is None:
            return None
        try:
            document = json.loads(found.data)
            changed = differences(document["asked"], asked)
            record = cls(driver, document, found.version) if document.keys() >= _KEYS else None
        except (*_MALFORMED, AttributeError):
            record = None
        if record is None:
            raise ForeignCheckpoint(f"{driver.url}: expected the record of a replay to brokers, found another object")
        if changed:
            raise ForeignCheckpoint(
                f"{driver.url}: the record of another replay: {changed}. Ask for the same again to go on, or give a "
                "record of its own"
            )
        return record

    @classmethod
    def begin(
        cls,
        url: str,
        asked: dict[str, Any],
        ranges: ExportedRanges,
        targets: dict[str, tuple[TargetQueue, ...]],
    ) -> WireRecord:
        """A new record. Durable on return. Raises ForeignCheckpoint when another process began one meanwhile."""
        document = {
            "name": uuid.uuid4().hex[:16],
            "asked": asked,
            "ranges": ranges.as_json(),
            "targets": targets,
            "next": {},
            "count": 0,
            "problems": [],
            "finished": False,
        }
        record = cls(driver_of(url), document, None)
        record.save()
        return record

    @property
    def url(self) -> str:
        return self._driver.url

    @property
    def count(self) -> int:
        """How many messages are recorded as sent."""
        return int(self._document["count"])

    @property
    def is_finished(self) -> bool:
        return bool(self._document["finished"])

    def next_offset(self, queue: QueueKey) -> int:
        """The first offset of a queue that is not dealt with for certain; 0 when nothing is known of it."""
        return self._next.get(queue, 0)

    def catch_up(self) -> int:
        """Add what tasks recorded after the driver's last wave; how many messages."""
        begun = {name.removeprefix("sent/").rpartition("/")[0] for name in self._driver.list_objects("sent/")}
        found = 0
        for queue in map(queue_of, sorted(begun)):
            lines = SentWindows(self._driver, queue).since(self.next_offset(queue))
            if lines:
                self.advance(queue, lines[-1].source_offset + 1, len(lines))
                found += len(lines)
        return found

    def advance(self, queue: QueueKey, next_offset: int, count: int) -> None:
        """Everything before `next_offset` is done, with `count` messages more. `save` makes it durable."""
        self._next[queue] = max(self.next_offset(queue), next_offset)
        self._document["count"] += count

    def tell(self, problems: Iterable[str]) -> list[str]:
        """Remember damaged and lost messages; those that were not known."""
        new = [text for text in dict.fromkeys(problems) if text not in self.problems]
        self.problems += new
        return new

    def finish(self) -> None:
        """Record that nothing is left. Durable on return."""
        self._document["finished"] = True
        self.save()

    def save(self) -> None:
        """Durable on return. Raises ForeignCheckpoint when another process has saved it since."""
        self._document["next"] = {queue_text(queue): offset for queue, offset in sorted(self._next.items())}
        self._document["run"] = uuid.uuid4().hex  # The content names its writer.
        try:
            self._version = self._driver.put_object(NAME, json.dumps(self._document).encode(), expected=self._version)
        except ManifestConflict as error:
            raise ForeignCheckpoint(
                f"{self.url}: expected to be the only one at this replay, found another at work; run it again when "
                "that one has ended"
            ) from error


def record_url(text: str | os.PathLike[str]) -> str:
    """A URL, or a directory's."""
    path = os.fspath(text)
    return path if "://" in path else f"file://{os.path.abspath(os.path.expanduser(path))}"
