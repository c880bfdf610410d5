"""The record of a replay: its parameters, and the new offset of each message. A stopped replay resumes from it.

    <record>/replay.json   the request, the ranges at the start, and where queues of the store ended
    <record>/offsets.csv   one line per message: broker, topic, queue, offset where it was; topic, queue, offset now
    <record>/problems.txt  damaged or lost messages, one line each
    <record>/staging/      files of tasks, deleted when their messages are put

Lines are written after their messages are durable. A replay that dies in between has put messages
without a line: they are found in the store, after the known ends, by the mark of each message.

Messages of a queue are put in their order, so everything before the last message with a line is done.
"""

from __future__ import annotations

import csv
import io
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiermq.errors import ForeignCheckpoint, StoreError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.properties import get_property
from tiermq.message.topic_name import QueueName
from tiermq.pipeline.replay.message import MARK, SourcePosition
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore
from tiermq.tables.commit_journal import ExportedRanges
from tiermq.tier.names import QueueKey

HEADER = ("sourceBroker", "sourceTopic", "sourceQueueId", "sourceOffset", "topic", "queueId", "queueOffset")
PAGE = 256
_BLOCK_BITS = 16


@dataclass(frozen=True, slots=True)
class Replayed:
    """One line: where a message was, and where it is now."""

    source: SourcePosition
    topic: str
    queue_id: int
    queue_offset: int


class ReplayRecord:
    """One directory. Belongs to one thread of the replay's process."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.name = str(document["name"])
        self.ranges = ExportedRanges.of_json(document["ranges"])
        self.files: list[str] = document["files"]
        self.is_finished: bool = document["finished"]
        self.problems: list[str] = []
        self._document = document
        self._ends: dict[QueueName, int] = {(topic, int(queue)): end for topic, queue, end in document["ends"]}
        self._done: dict[tuple[str, str, int], OffsetSet] = {}
        self._next: dict[tuple[str, str, int], int] = {}
        self.count = 0
        self._lines = self._read_lines()
        self._problems_file = self.path / "problems.txt"
        if self._problems_file.exists():
            self.problems = self._problems_file.read_text(encoding="utf-8").splitlines()

    @classmethod
    def find(cls, path: Path, asked: dict[str, Any]) -> ReplayRecord | None:
        """The record that is there, if there is one. Raises ForeignCheckpoint when it is of another replay."""
        file = path / "replay.json"
        if not file.exists():
            return None
        try:
            document = json.loads(file.read_bytes())
            is_whole = document.keys() >= {"name", "asked", "ranges", "files", "ends", "finished"}
        except (ValueError, AttributeError):
            is_whole = False
        if not is_whole:
            raise ForeignCheckpoint(f"{file}: expected the record of a replay, found something else; give another")
        if changes := differences(document["asked"], asked):
            raise ForeignCheckpoint(
                f"{path}: the record of another replay: {changes}. Ask for the same again to go on, or "
                "give a record of its own"
            )
        return cls(path, document)

    @classmethod
    def begin(
        cls,
        path: Path,
        asked: dict[str, Any],
        ranges: ExportedRanges,
        ends: dict[QueueName, int],
        files: Iterable[str] = (),
    ) -> ReplayRecord:
        """A new record, of ranges of a history or of files of a table. Durable on return."""
        document = {
            "name": uuid.uuid4().hex[:16],
            "asked": asked,
            "ranges": ranges.as_json(),
            "files": list(files),
            "ends": [[topic, queue, end] for (topic, queue), end in sorted(ends.items())],
            "finished": False,
        }
        path.mkdir(parents=True, exist_ok=True)
        _write(path, document)
        return cls(path, document)

    def finish(self) -> None:
        """Record that nothing is left. Durable on return."""
        self.is_finished = self._document["finished"] = True
        _write(self.path, self._document)

    def tell(self, problems: Iterable[str]) -> None:
        """Record what was damaged or lost: a resumed replay does not read it again."""
        new = [text for text in dict.fromkeys(problems) if text not in self.problems]
        if new:
            with open(self._problems_file, "a", encoding="utf-8") as file:
                file.writelines(f"{' '.join(text.splitlines())}\n" for text in new)
                file.flush()
                os.fsync(file.fileno())
            self.problems += new

    def next_offset(self, queue: QueueKey) -> int:
        """The first offset of a queue that is not dealt with for certain; 0 when nothing is known of it."""
        return self._next.get((queue.broker, queue.topic, queue.queue_id), 0)

    @property
    def staging(self) -> Path:
        return self.path / "staging"

    def add(self, lines: Iterable[Replayed]) -> None:
        """Write lines, durably. Their messages must be durable before."""
        some = list(lines)
        if not some:
            return
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        is_new = not self._lines.exists()
        if is_new:
            writer.writerow(HEADER)
        for line in some:
            source = line.source
            writer.writerow(
                (
                    source.broker,
                    source.topic,
                    source.queue_id,
                    source.queue_offset,
                    line.topic,
                    line.queue_id,
                    line.queue_offset,
                )
            )
            self._note(line)
        with open(self._lines, "ab") as file:
            file.write(text.getvalue().encode())
            file.flush()
            os.fsync(file.fileno())

    def is_done(self, source: SourcePosition) -> bool:
        found = self._done.get((source.broker, source.topic, source.queue_id))
        return found is not None and source.queue_offset in found

    def recover(self, store: LocalStore) -> int:
        """Write the missing lines of messages that were put; returns their number. Raises StoreError."""
        queues = {(topic, queue) for topic, queue in store.simple_queues()}
        found = [
            line
            for topic, queue in sorted(queues)
            for line in self._marked(
                store, topic, queue, self._ends.get((topic, queue), store.min_offset(topic, queue))
            )
            if not self.is_done(line.source)
        ]
        self.add(found)
        return len(found)

    def _marked(self, store: LocalStore, topic: str, queue_id: int, offset: int) -> Iterator[Replayed]:
        prefix = f"{self.name}:"
        while offset < store.max_offset(topic, queue_id):
            page = store.get(topic, queue_id, offset, PAGE)
            for message in page.messages:
                mark = (get_property(message.encoded_properties, MARK.encode()) or b"").decode(errors="replace")
                if mark.startswith(prefix):
                    source = SourcePosition.of(mark.removeprefix(prefix))
                    yield Replayed(source, topic, queue_id, message.queue_offset)
            if page.next_offset <= offset or page.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
                raise StoreError(
                    f"{topic}, queue {queue_id}: expected to read on at {offset}, found {page.status.name}; what the "
                    "replay has put there cannot be determined: check the store"
                )
            offset = page.next_offset

    def _note(self, line: Replayed) -> None:
        source = line.source
        queue = (source.broker, source.topic, source.queue_id)
        self._done.setdefault(queue, OffsetSet()).add(source.queue_offset)
        self._next[queue] = max(self._next.get(queue, 0), source.queue_offset + 1)
        target = (line.topic, line.queue_id)
        self._ends[target] = max(self._ends.get(target, 0), line.queue_offset + 1)
        self.count += 1

    def _read_lines(self) -> Path:
        """Load what was written, and cut off a torn line."""
        path = self.path / "offsets.csv"
        if not path.exists():
            return path
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with open(path, "r+b") as file:
                file.truncate(len(whole))
        if not whole:
            path.unlink()
            return path
        for row in list(csv.reader(io.StringIO(whole.decode())))[1:]:
            source = SourcePosition(row[0], row[1], int(row[2]), int(row[3]))
            self._note(Replayed(source, row[4], int(row[5]), int(row[6])))
        return path


class OffsetSet:
    """Offsets, one bit each, in blocks that are made when they are needed."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, bytearray] = {}

    def add(self, offset: int) -> None:
        block = self._blocks.setdefault(offset >> _BLOCK_BITS, bytearray(1 << (_BLOCK_BITS - 3)))
        at = offset & ((1 << _BLOCK_BITS) - 1)
        block[at >> 3] |= 1 << (at & 7)

    def __contains__(self, offset: int) -> bool:
        block = self._blocks.get(offset >> _BLOCK_BITS)
        at = offset & ((1 << _BLOCK_BITS) - 1)
        return block is not None and bool(block[at >> 3] & (1 << (at & 7)))


OPTIONS = {
    "topic": "--to-topic",
    "queue_count": "--queues",
    "properties": "--property",
    "function": "--map",
    "starting_offsets": "--offsets",
    "ending_offsets": "--offsets",
}
"""The options of `tiermq pipeline replay` whose names differ from what a record remembers; below `mapping`, too."""


def differences(before: dict[str, Any], asked: dict[str, Any]) -> str:
    """How a request differs from the recorded one, in words of the command's options; empty when it does not."""
    changes = []
    for name, value in json.loads(json.dumps(asked)).items():
        was = before.get(name)
        if isinstance(value, dict) and isinstance(was, dict):
            pairs = [(OPTIONS.get(key, f"--{key}"), was.get(key), value[key]) for key in value]
        else:
            shown = name if name == "topic" else OPTIONS.get(name, name)
            pairs = [(f"--{shown.removeprefix('--').replace('_', '-')}", was, value)]
        changes += [f"{option} was {_shown(old)} and is {_shown(new)}" for option, old, new in pairs if old != new]
    return "; ".join(changes)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join("=".join(map(str, each)) if isinstance(each, list) else str(each) for each in value) or "none"
    return "none" if value in (None, "") else str(value)


def _write(path: Path, document: dict[str, Any]) -> None:
    OsFileAccess().write_bytes(str(path / "replay.json"), json.dumps(document, indent=1).encode())
