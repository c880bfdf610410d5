"""ConsumerOffsets: the consumed offset of each group and queue, kept in RocketMQ's `consumerOffset.json`.

    {"dataVersion":{"counter":3,"stateVersion":0,"timestamp":…},"groupTopicMap":{"CG":["orders"]},
     "offsetTable":{"orders@CG":{0:12,1:7}},"popLogEnds":[3,0],"popOpen":{"orders@CG":{"0":9}},"tableLogNext":4}

Keys of queues are bare numbers in the offset table, as RocketMQ writes them. Three keys are TierMQ's own. RocketMQ
skips and drops them, and 5.5.0 can only skip standard JSON: a bare number in a field that it does not know makes it
refuse the whole file and load the `.bak`. `popLogEnds`: where POP's log ended when the offsets were taken, so that what
was popped later is known by that. `popOpen`: from where on messages were popped and not acknowledged. Only a restore
from the tier reads it, which has no log of POP. `tableLogNext`: the first record of the table log (`table_replay`) that
these offsets do not have.
Besides the committed offsets there are two tables that live in memory only: pull offsets (how far a group has been
given messages), and resets (offsets that an operator set, which the group's next pull of that queue is sent to).

Invariants: a commit is in memory when it returns and on disk when a later `flush` has; so after a crash a group may
consume again what it consumed since the last flush, never skip anything. While a reset waits, commits of that queue
are refused, since they were made in ignorance of it.

A file of up to WHOLE_BYTES_MAX is written whole by each flush, and RocketMQ finds everything in it also after a crash.
A larger one is not: a flush appends the entries that changed to a journal (`store/table_journal.py`), so that it costs
as much as was committed, not as much as there is. The file follows each WHOLE_PERIOD_MS, when the journal is as large,
and at a clean end. Each line of the journal has TierMQ's own values under OWN, a name that is no entry's:

    {"v":[…],"put":{"orders@CG":{"0":12,"1":7},"":{"popLogEnds":[3,0],"crc":2774…}}}

`crc` is that of the file it belongs to. RocketMQ may have written the file under the same version (it counts every
500th commit): then only entries that the file lacks are taken from the journal.
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from tiermq.broker.topic.table_file import TableFile, version_after
from tiermq.clock import Clock
from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import NO_VERSION, DataVersion
from tiermq.remoting.json_dialect import as_int, decode_object, encode_body, in_order, object_in, quoted

_log = logging.getLogger(__name__)

FILE = "consumerOffset.json"
SEPARATOR = "@"
LOG_ENDS = "popLogEnds"
POP_OPEN = "popOpen"
LOG_NEXT = "tableLogNext"
NONE = -1
OWN = ""
CRC = "crc"
WHOLE_BYTES_MAX = 1024 * 1024
"""Some 30,000 offsets."""
WHOLE_PERIOD_MS = 60_000
Offsets = dict[str, dict[int, int]]


class ConsumerOffsets:
    """See the module. Any thread may call; commits never wait for the disk, `flush` does."""

    def __init__(self, directory: str, clock: Clock) -> None:
        """Reads the file in `directory` if there is one. Raises StoreDamaged when it cannot be read."""
        self.path = os.path.join(directory, FILE)
        self.clock = clock
        self._file = TableFile(self.path, WHOLE_BYTES_MAX)
        self._file_crc = 0
        self._whole_ms = clock.now_ms()
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._table: Offsets = {}
        self._pulled: Offsets = {}
        self._resets: Offsets = {}
        self._changed = False
        self._dirty: set[str] = set()
        """Entries that were changed. Only `add` and `pop` change it, so that commits need no lock."""
        self._collect_lock = threading.Lock()
        self._unflushed: set[str] = set()
        self._unlogged: set[str] = set()
        self.is_logged = False
        """Whether `take_changed` is called: a master writes its offsets to the table log."""
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
        self._followed_ends: list[int] | None = None
        self.table_log_next: int | None = 0
        """The stored position in the table log; None: another program has written the file."""
        self.take_table_log_next: Callable[[], int | None] = lambda: None
        """The position now, asked by a flush before it takes the offsets; None without a table log."""
        self.elsewhere: Offsets = {}
        """Where groups are at the broker that a read-only one reads: they begin there, until they commit here. Replaced
        as a whole, never changed, never stored.
        """
        self.data_version = NO_VERSION
        if (found := self._file.read(self._decoded)) is not None:
            self._table, self.data_version, self.log_ends = found
        self._replay()

    def _decoded(self, data: bytes) -> tuple[Offsets, DataVersion, list[int] | None]:
        self._file_crc = zlib.crc32(data)
        document = decode_object(data)
        found = document.get(LOG_NEXT)
        self.table_log_next = None if found is None else as_int(found)
        return _offsets_in(document)

    def _replay(self) -> None:
        """Apply the journal of a broker that was killed. Raises StoreDamaged."""
        is_ours = True

        def check(name: str, entry: Any) -> None:
            nonlocal is_ours
            if name == OWN:
                is_ours = is_ours and _decoded_own(entry).crc == self._file_crc
            else:
                decode_queues(entry, name)

        version = self.data_version
        changes = self._file.changes_since(version, self._table.__contains__, check)
        own = changes.put.pop(OWN, None)
        if not changes.put and not changes.gone and own is None:
            return
        is_ours = is_ours or changes.is_of_older
        if is_ours or changes.version is None:
            kept, gone = changes.put, changes.gone
        else:
            _log.warning("%s: another program wrote it; what it lacks is added from the journal", self.path)
            kept, gone = {name: each for name, each in changes.put.items() if name not in self._table}, set()
        for name in gone:
            self._table.pop(name, None)
        self._table.update({name: decode_queues(each, name) for name, each in kept.items()})
        if is_ours and changes.version is not None and own is not None:
            self.log_ends, self.table_log_next, _ = _decoded_own(own)
        self.data_version = version_after(changes, version, self.clock.now_ms())
        self._write_whole(self.data_version, self.log_ends, {})

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
        self._dirty.add(key)
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
        found = NONE if queues is None else queues.get(queue_id, NONE)
        return self.elsewhere.get(key, {}).get(queue_id, NONE) if found == NONE and self.elsewhere else found

    def follow(self, table: Offsets, version: DataVersion = NO_VERSION) -> None:
        """Take the offsets of a master, over those that this broker has. Its version is at least the master's then, so
        that a RocketMQ master that returns takes what was committed here.
        """
        with self._lock:
            if version.counter > self.data_version.counter:
                self.data_version = version
            for key, queues in table.items():
                own = self._table.setdefault(key, {})
                if any(own.get(queue_id) != offset for queue_id, offset in queues.items()):
                    self._table[key] = {**own, **queues}
                    self._changed = True

    def take_greater(self, table: Offsets) -> None:
        """Take what groups have consumed at a slave that acted for this broker."""
        with self._lock:
            for key, queues in table.items():
                own = self._table.get(key, {})
                newer = {queue_id: offset for queue_id, offset in queues.items() if offset > own.get(queue_id, NONE)}
                if newer:
                    self._table[key] = {**own, **newer}
                    self._dirty.add(key)
                    self._changed = True

    def take_changed(self) -> tuple[Offsets, list[str]]:
        """What was committed since the last call, and the names of entries that were removed."""
        with self._collect_lock:
            self._collect()
            taken, self._unlogged = list(self._unlogged), set()
        found = self._entries(taken)
        return found, [key for key in taken if key not in found]

    def follow_log(self, put: Offsets, gone: Iterable[str], ends: list[int] | None) -> None:
        """Take changes of a master, of its log, and where POP's log ended before them."""
        with self._lock:
            for key, queues in put.items():
                self._table[key] = {**self._table.get(key, {}), **queues}
                self._dirty.add(key)
            for key in gone:
                self._table.pop(key, None)
                self._dirty.add(key)
            self._changed = True
        if ends is not None:
            self.log_ends = self._followed_ends = ends

    def _collect(self) -> None:
        """Move names of changed entries to those that wait for them. Under `_collect_lock`."""
        while self._dirty:  # Before their values are read: a later commit of the entry adds it again.
            key = self._dirty.pop()
            self._unflushed.add(key)
            if self.is_logged:
                self._unlogged.add(key)

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
            self._resets.setdefault(key, {})[queue_id] = offset
            self._dirty.add(key)
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
            queues = self._resets.get(key, {})
            found = queues.pop(queue_id, None)
            if found is not None and not queues:
                del self._resets[key]
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
            self._dirty.add(f"{topic}@{target_group}")
            self._changed = True
        return True

    def remove_group(self, group: str) -> int:
        """Forget all offsets of a group; how many topics there were."""
        return self._remove(lambda topic, each: each == group)  # noqa: ARG005

    def remove_topic(self, topic: str) -> int:
        """Forget all offsets of a topic; how many groups there were."""
        return self._remove(lambda each, group: each == topic)  # noqa: ARG005

    def remove_topics(self, topics: Collection[str]) -> int:
        """The same of several, at the cost of one."""
        gone = frozenset(topics)
        return self._remove(lambda each, group: each in gone)  # noqa: ARG005

    def remove(self, group: str, topic: str) -> bool:
        return self._remove(lambda each, name: each == topic and name == group) > 0

    def _remove(self, is_gone: Callable[[str, str], bool]) -> int:
        count = 0
        with self._lock:
            for table in (self._table, self._pulled):
                gone = [key for key in table if is_gone(*_parts(key))]
                for key in gone:
                    del table[key]
                    self._dirty.add(key)
                count = max(count, len(gone))
            self._resets = {key: queues for key, queues in self._resets.items() if not is_gone(*_parts(key))}
            self._changed = self._changed or count > 0
        return count

    def snapshot(self) -> Offsets:
        """All committed offsets, copied. Commits go on meanwhile."""
        keys = tuple(self._table)
        return {key: dict(queues) for key in keys if (queues := self._table.get(key)) is not None}

    # The disk.

    @property
    def changed(self) -> bool:
        """Whether there is anything to flush."""
        return self._changed or (self._file.is_behind and self._is_whole_due())

    def _is_whole_due(self) -> bool:
        is_late = self.clock.now_ms() - self._whole_ms >= WHOLE_PERIOD_MS
        return is_late or self._file.journal_bytes > max(self._file.bytes, WHOLE_BYTES_MAX)

    def flush(self, *, is_last: bool = False) -> bool:
        """Make every commit that returned before this call durable; whether there was anything to write.

        With `is_last` everything is in the file on return. Waits for the disk. Raises OSError and StoreError; then the
        next flush writes again.
        """
        with self._flush_lock:
            is_whole = self._file.is_behind and (is_last or self._is_whole_due())
            if not self._changed and not is_whole:
                return False
            self._changed = False
            taken: list[str] = []
            try:
                ends = self._followed_ends if self.take_log_ends is None else self.take_log_ends()
                log_next = self.take_table_log_next()
                version = self.data_version.next(self.clock.now_ms())
                is_whole = is_whole or is_last or self._file.bytes <= WHOLE_BYTES_MAX
                with self._collect_lock:
                    self._collect()
                    taken, self._unflushed = list(self._unflushed), set()
                self.table_log_next = log_next
                table = self.snapshot() if is_whole else self._entries(taken)
                for call in self.before_write:
                    call()
                if is_whole:
                    self._write_whole(version, ends, {} if self.take_open is None else self.take_open(), table)
                else:
                    self._append(version, ends, table, [key for key in taken if key not in table])
                self.data_version = version
            except BaseException:
                with self._collect_lock:
                    self._unflushed.update(taken)
                self._changed = True
                raise
        return True

    def _entries(self, keys: list[str]) -> Offsets:
        return {key: dict(queues) for key in keys if (queues := self._table.get(key)) is not None}

    def _append(self, version: DataVersion, ends: list[int] | None, table: Offsets, gone: list[str]) -> None:
        put: dict[str, Any] = {key: {str(each): offset for each, offset in table[key].items()} for key in table}
        own = {CRC: self._file_crc, LOG_ENDS: ends, LOG_NEXT: self.table_log_next}
        put[OWN] = {name: value for name, value in own.items() if value is not None}
        self._file.save(version, put, gone, lambda: self._encoded(version, ends, {}, self.snapshot()))

    def _write_whole(
        self, version: DataVersion, ends: list[int] | None, opened: Offsets, table: Offsets | None = None
    ) -> None:
        self._file.write(version, self._encoded(version, ends, opened, self._table if table is None else table))
        self._whole_ms = self.clock.now_ms()

    def _encoded(self, version: DataVersion, ends: list[int] | None, opened: Offsets, table: Offsets) -> bytes:
        data = encode_offsets(table, version, ends, opened, self.table_log_next)
        self._file_crc = zlib.crc32(data)
        return data


def _parts(key: str) -> tuple[str, str]:
    topic, _, group = key.partition(SEPARATOR)
    return topic, group


def encode_offsets(
    table: Offsets,
    version: DataVersion,
    log_ends: list[int] | None = None,
    pop_open: Offsets | None = None,
    table_log_next: int | None = None,
) -> bytes:
    encoded, grouped = encode_body(version.to_json()), _topics_of_groups(table)
    own = b"" if log_ends is None else b',"%b":%b' % (LOG_ENDS.encode(), encode_body(log_ends))
    if pop_open:
        own += b',"%b":%b' % (POP_OPEN.encode(), encode_body(pop_open))
    if table_log_next is not None:
        own += b',"%b":%d' % (LOG_NEXT.encode(), table_log_next)
    return b'{"dataVersion":%b,"groupTopicMap":%b,"offsetTable":%b%b}' % (encoded, grouped, _offset_table(table), own)


def _topics_of_groups(table: Offsets) -> bytes:
    """As text from the start: a list for each of a hundred thousand groups makes the collector look at the whole
    process again, while every thread waits.
    """
    found: dict[str, str] = {}
    for key in in_order(table):
        topic, _, group = key.partition(SEPARATOR)
        before = found.get(group)
        found[group] = quoted(topic) if before is None else f"{before},{quoted(topic)}"
    return f"{{{','.join(f'{quoted(group)}:[{found[group]}]' for group in in_order(found))}}}".encode()


def _offset_table(table: Offsets) -> bytes:
    parts = []
    for key in in_order(table):
        queues = ",".join(f"{queue_id}:{offset}" for queue_id, offset in sorted(table[key].items()))
        parts.append(f"{quoted(key)}:{{{queues}}}")
    return f"{{{','.join(parts)}}}".encode()


def decode_offsets(data: bytes) -> tuple[Offsets, DataVersion, list[int] | None]:
    """Raises RequestRefused for what is no offset table."""
    return _offsets_in(decode_object(data))


def _offsets_in(document: dict[str, Any]) -> tuple[Offsets, DataVersion, list[int] | None]:
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


def decode_queues(entry: Any, name: str) -> dict[int, int]:
    """An entry of a journal. Raises RequestRefused for one that no broker writes."""
    found = {as_int(each): offset for each, offset in object_in(entry, name).items()}
    if SEPARATOR not in name or not all(type(each) is int for each in found.values()):
        raise RequestRefused(f"expected offsets of a topic and a group, found them under {name[:80]!r}")
    return found


class _Own(NamedTuple):
    """TierMQ's own values of a line of the journal."""

    log_ends: list[int] | None
    table_log_next: int | None
    crc: int


def _decoded_own(entry: Any) -> _Own:
    """Raises RequestRefused."""
    table = object_in(entry, "TierMQ's own values")
    ends, log_next = table.get(LOG_ENDS), table.get(LOG_NEXT)
    return _Own(
        [as_int(each) for each in ends] if isinstance(ends, list) else None,
        None if log_next is None else as_int(log_next),
        as_int(table.get(CRC)),
    )
