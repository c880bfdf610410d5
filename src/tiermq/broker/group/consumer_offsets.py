"""ConsumerOffsets: the consumed offset of each group and queue, kept in RocketMQ's `consumerOffset.json`.

    {"dataVersion":{"counter":3,"stateVersion":0,"timestamp":…},"groupTopicMap":{"CG":["orders"]},
     "offsetTable":{"orders@CG":{0:12,1:7}},"popLogEnds":[3,0],"popOpen":{"orders@CG":{"0":9}}}

Keys of queues are bare numbers in the offset table, as RocketMQ writes them. Two keys are TierMQ's own. RocketMQ skips
and drops them, and 5.5.0 can only skip standard JSON: a bare number in a field that it does not know makes it refuse
the whole file and load the `.bak`. `popLogEnds`: where POP's log ended when the offsets were taken, so that what was
popped later is known by that. `popOpen`: from where on messages were popped and not acknowledged. Only a restore from
the tier reads it, which has no log of POP.
Besides the committed offsets there are two tables that live in memory only: pull offsets (how far a group has been
given messages), and resets (offsets that an operator set, which the group's next pull of that queue is sent to).

Invariants: a commit is in memory when it returns and on disk when a later `flush` has; so after a crash a group may
consume again what it consumed since the last flush, never skip anything. While a reset waits, commits of that queue
are refused, since they were made in ignorance of it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterable

from tiermq.clock import Clock
from tiermq.files.os_file_access import OsFileAccess
from tiermq.namesrv.topic_config import NO_VERSION, DataVersion
from tiermq.remoting.json_dialect import as_int, decode_object, encode_body, object_in

_log = logging.getLogger(__name__)

FILE = "consumerOffset.json"
SEPARATOR = "@"
LOG_ENDS = "popLogEnds"
POP_OPEN = "popOpen"
NONE = -1
Offsets = dict[str, dict[int, int]]


class ConsumerOffsets:
    """See the module. Any thread may call; commits never wait for the disk, `flush` does."""

    def __init__(self, directory: str, clock: Clock) -> None:
        """Reads the file in `directory` if there is one. Raises StoreDamaged when it cannot be read."""
        self.path = os.path.join(directory, FILE)
        self.clock = clock
        self._access = OsFileAccess()
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._table: Offsets = {}
        self._pulled: Offsets = {}
        self._resets: Offsets = {}
        self._changed = False
        self.on_reset: list[Callable[[str, str, int], None]] = []
        """Called with (group, topic, queue id) of each reset, in its thread."""
        self.before_write: list[Callable[[], None]] = []
        """Called by a flush before it writes: consumed work must be on disk before the offsets."""
        self.take_log_ends: Callable[[], list[int]] | None = None
        """Where POP's log ends, asked by a flush before it takes the offsets."""
        self.take_open: Callable[[], Offsets] | None = None
        """The first messages that were popped and not acknowledged, asked after the offsets were taken: a pop enters
        there before it moves its group's offset.
        """
        self.log_ends: list[int] | None = None
        """The stored offset; None: none."""
        self.data_version = NO_VERSION
        if (found := self._access.read_config(self.path, decode_offsets)) is not None:
            self._table, self.data_version, self.log_ends = found

    # Committed offsets.

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """The group has consumed everything below `offset`. False: a reset waits there, nothing was changed."""
        key = f"{topic}@{group}"
        if self._resets and queue_id in self._resets.get(key, ()):
            return False
        queues = self._table.get(key)
        if queues is None:
            with self._lock:
                queues = self._table.setdefault(key, {})
        queues[queue_id] = offset
        self._changed = True
        return True

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, or -1. A reset that waits counts as committed, as the group will start there."""
        key = f"{topic}@{group}"
        if self._resets:
            reset = self._resets.get(key, {}).get(queue_id)
            if reset is not None:
                return reset
        queues = self._table.get(key)
        return NONE if queues is None else queues.get(queue_id, NONE)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Queue id → committed offset."""
        return dict(self._table.get(f"{topic}@{group}", {}))

    # Offsets of delivered messages.

    def pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group was given everything below `offset`."""
        key = f"{topic}@{group}"
        queues = self._pulled.get(key)
        if queues is None:
            with self._lock:
                queues = self._pulled.setdefault(key, {})
        queues[queue_id] = offset

    def query_pulled(self, group: str, topic: str, queue_id: int) -> int:
        queues = self._pulled.get(f"{topic}@{group}")
        return NONE if queues is None else queues.get(queue_id, NONE)

    # Resets.

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset the group to `offset`: commits it now, and redirects the next pull of that queue."""
        key = f"{topic}@{group}"
        with self._lock:
            self._table.setdefault(key, {})[queue_id] = offset
            self._resets = {**self._resets, key: {**self._resets.get(key, {}), queue_id: offset}}
            self._changed = True
        for listener in self.on_reset:
            listener(group, topic, queue_id)

    @property
    def has_resets(self) -> bool:
        return bool(self._resets)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset of a pending reset, once; None without a reset."""
        key = f"{topic}@{group}"
        with self._lock:
            queues = dict(self._resets.get(key, {}))
            found = queues.pop(queue_id, None)
            if found is not None:
                resets = {**self._resets, key: queues}
                if not queues:
                    del resets[key]
                self._resets = resets
        return found

    # Groups and topics.

    def topics_of(self, group: str) -> list[str]:
        """The topics that the group has offsets of."""
        return sorted(topic for topic, each in self._names() if each == group)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets of the topic."""
        return sorted(group for each, group in self._names() if each == topic)

    def _names(self) -> Iterable[tuple[str, str]]:
        for key in tuple(self._table):
            topic, separator, group = key.partition(SEPARATOR)
            if separator:
                yield topic, group

    def clone(self, source_group: str, target_group: str, topic: str) -> bool:
        """Let a group begin where another one is. False: that one has no offsets of the topic."""
        with self._lock:
            queues = self._table.get(f"{topic}@{source_group}")
            if queues is None:
                return False
            self._table[f"{topic}@{target_group}"] = dict(queues)
            self._changed = True
        return True

    def remove_group(self, group: str) -> int:
        """Forget all offsets of a group; how many topics there were."""
        return self._remove(lambda topic, each: each == group)  # noqa: ARG005

    def remove_topic(self, topic: str) -> int:
        """Forget all offsets of a topic; how many groups there were."""
        return self._remove(lambda each, group: each == topic)  # noqa: ARG005

    def remove(self, group: str, topic: str) -> bool:
        return self._remove(lambda each, name: each == topic and name == group) > 0

    def _remove(self, is_gone: Callable[[str, str], bool]) -> int:
        count = 0
        with self._lock:
            for table in (self._table, self._pulled):
                gone = [key for key in table if is_gone(*_parts(key))]
                for key in gone:
                    del table[key]
                count = max(count, len(gone))
            self._resets = {key: queues for key, queues in self._resets.items() if not is_gone(*_parts(key))}
            self._changed = self._changed or count > 0
        return count

    def snapshot(self) -> Offsets:
        """All committed offsets, copied."""
        with self._lock:
            return {key: dict(queues) for key, queues in self._table.items()}

    # The disk.

    @property
    def changed(self) -> bool:
        """Whether there is anything to flush."""
        return self._changed

    def flush(self) -> bool:
        """Make every commit that returned before this call durable; whether there was anything to write.

        Waits for the disk. Raises OSError and StoreError; then the next flush writes again.
        """
        with self._flush_lock:
            if not self._changed:
                return False
            self._changed = False
            try:
                ends = None if self.take_log_ends is None else self.take_log_ends()
                version, table = self.data_version.next(self.clock.now_ms()), self.snapshot()
                for call in self.before_write:
                    call()
                self._access.make_directories(os.path.dirname(self.path))
                opened = {} if self.take_open is None else self.take_open()
                self._access.write_config(self.path, encode_offsets(table, version, ends, opened))
                self.data_version = version
            except BaseException:
                self._changed = True
                raise
        return True


def _parts(key: str) -> tuple[str, str]:
    topic, _, group = key.partition(SEPARATOR)
    return topic, group


def encode_offsets(
    table: Offsets, version: DataVersion, log_ends: list[int] | None = None, pop_open: Offsets | None = None
) -> bytes:
    topics_of: dict[str, list[str]] = {}
    for key in sorted(table):
        topic, _, group = key.partition(SEPARATOR)
        topics_of.setdefault(group, []).append(topic)
    told, grouped = encode_body(version.to_json()), encode_body(topics_of)
    own = b"" if log_ends is None else b',"%b":%b' % (LOG_ENDS.encode(), encode_body(log_ends))
    if pop_open:
        own += b',"%b":%b' % (POP_OPEN.encode(), encode_body(pop_open))
    return b'{"dataVersion":%b,"groupTopicMap":%b,"offsetTable":%b%b}' % (told, grouped, _offset_table(table), own)


def _offset_table(table: Offsets) -> bytes:
    parts = []
    for key in sorted(table):
        queues = ",".join(f"{queue_id}:{offset}" for queue_id, offset in sorted(table[key].items()))
        parts.append(f"{json.dumps(key, ensure_ascii=False)}:{{{queues}}}")
    return f"{{{','.join(parts)}}}".encode()


def decode_offsets(data: bytes) -> tuple[Offsets, DataVersion, list[int] | None]:
    """Raises RequestRefused for what is no offset table."""
    document = decode_object(data)
    table = object_in(document.get("offsetTable"), "offsetTable")
    version, ends = document.get("dataVersion"), document.get(LOG_ENDS)
    return (
        {
            key: {as_int(queue_id): as_int(offset) for queue_id, offset in object_in(queues, key).items()}
            for key, queues in table.items()
        },
        NO_VERSION if version is None else DataVersion.from_json(version),
        [as_int(each) for each in ends] if isinstance(ends, list) else None,
    )
