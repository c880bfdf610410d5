"""QueueTable: every consume queue of a store, by topic and queue id.

    <root>/consumequeue/<topic>/<queue id>/        20-byte units
    <root>/consumequeue_ext/<topic>/<queue id>/    ext units, when they are enabled
    <root>/batchconsumequeue/<topic>/<queue id>/   46-byte units, topics whose `queue.type` is BatchCQ

A queue exists once a record was dispatched to it. A lookup does not create one. (In RocketMQ a read of any name creates
a queue, so that "no such queue" is never returned.)

Threads: any; `_lock` guards the table. For the queues see `ConsumeQueue`.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections.abc import Callable

from tiermq.clock import LINE_INTERVAL_S, Clock
from tiermq.consumequeue.batch_consume_queue import BatchConsumeQueue
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.consume_queue_ext import ConsumeQueueExt
from tiermq.errors import IllegalMessage, StoreDamaged
from tiermq.files.file_access import DirectorySync, FileAccess
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.message.topic_name import QueueName, is_light_queue

_log = logging.getLogger(__name__)

OWN_MAPS = 1024
"""Maps of the process: libraries, stacks and buffers."""
LIGHT_SHARE = 2
"""Light queues begin in one map of so many that clients' queues may take."""
COUNT_EVERY = 1024
"""Maximum new queues between two counts of files."""
COUNT_INTERVAL_S = 1.0


class MapBudget:
    """May another queue begin, or would the next start find no memory map for it?

    Each file of a queue is a memory map while the store is open, and a process has only so many
    (`vm.max_map_count`, 65,530 by default). A store that took messages for one queue too many could not be opened
    again. So new queues are refused before that, and existing ones continue:

        0 ──────────────── maps in use ───────────── 7/8 ──────────── 15/16 ──────── all
          every queue may begin                       │ none of clients │ none at all  │ files of queues that grow, the
          (sends, light queues)                       │ (delayed ones   │              │ process' own maps
                                                      │ still arrive)   │

    Light queues have half of what clients' queues have: one message names many, and topics must still get theirs.

    Threads: any. Files are counted from time to time, since that reads the list of every queue; in between what began
    is added.

    `maps_max` is the limit of the process, None where there is none; `count_files` counts maps: all, light queues'.
    """

    def __init__(self, maps_max: int | None, clock: Clock, count_files: Callable[[], tuple[int, int]]) -> None:
        self.refused_count = 0
        self._maps_max = maps_max
        self._clock = clock
        self._count_files = count_files
        self._lock = threading.Lock()
        self._begun: set[QueueName] = set()
        """Admitted, and without a file so far."""
        self._light_begun = 0
        self._files = 0
        self._light_files = 0
        self._left = 0
        self._counted_s = 0.0
        self._logged_s: float | None = None

    def admit(self, name: QueueName, *, for_client: bool) -> bool:
        """Whether a queue that has no file yet may begin; from then on it counts."""
        if self._maps_max is None:
            return True
        limit = self._maps_max * (14 if for_client else 15) // 16 - OWN_MAPS
        is_light = is_light_queue(name[0])
        with self._lock:
            if name in self._begun:
                return True
            if self._left <= 0 or (not self._has_room(limit, is_light) and self._may_count()):
                self._count()
            if self._has_room(limit, is_light):
                self._begun.add(name)
                self._light_begun += is_light
                self._left -= 1
                return True
            self.refused_count += 1
        self._log_refusal(name, limit)
        return False

    def _has_room(self, limit: int, is_light: bool) -> bool:
        if self._files + len(self._begun) >= limit:
            return False
        return not is_light or self._light_files + self._light_begun < limit // LIGHT_SHARE

    def made(self, name: QueueName) -> None:
        """A queue has come to the table: its file is counted from now on."""
        with self._lock:
            self._unbegin(name)
            self._files += 1
            self._light_files += is_light_queue(name[0])

    def forget(self, names: list[QueueName]) -> None:
        """These queues are deleted."""
        with self._lock:
            for name in names:
                self._unbegin(name)
                self._light_files -= is_light_queue(name[0])
            self._files -= len(names)

    def _unbegin(self, name: QueueName) -> None:
        if name in self._begun:
            self._begun.remove(name)
            self._light_begun -= is_light_queue(name[0])

    def _may_count(self) -> bool:
        return self._clock.monotonic() - self._counted_s >= COUNT_INTERVAL_S

    def _count(self) -> None:
        self._files, self._light_files = self._count_files()
        self._left = COUNT_EVERY
        self._counted_s = self._clock.monotonic()

    def _log_refusal(self, name: QueueName, limit: int) -> None:
        now_s = self._clock.monotonic()
        if self._logged_s is not None and now_s - self._logged_s < LINE_INTERVAL_S:
            return
        self._logged_s = now_s
        _log.warning(
            "queue %s-%d is not begun (%d refused): %d files are mapped or about to be, of %d; %d of %d for light "
            "queues (vm.max_map_count is %d); raise it, or delete topics that are not used",
            *name, self.refused_count, self._files + len(self._begun), limit,
            self._light_files + self._light_begun, limit // LIGHT_SHARE, self._maps_max,
        )  # fmt: skip


log = logging.getLogger(__name__)

FILE_SIZE = 6_000_000
EXT_FILE_SIZE = 50_331_648
BATCH_FILE_SIZE = 13_800_000

EXT_DIRECTORY = "consumequeue_ext"

Queue = ConsumeQueue | BatchConsumeQueue


class QueueType(enum.Enum):
    """The topic attribute `queue.type`, by its value."""

    SIMPLE = "SimpleCQ"
    BATCH = "BatchCQ"

    @property
    def directory(self) -> str:
        """The directory of the store that holds queues of this type."""
        return "consumequeue" if self is QueueType.SIMPLE else "batchconsumequeue"


class QueueTable:
    """See the module. `queue_type_of(topic)` gives the topic's attribute; a topic without it is SIMPLE."""

    def __init__(
        self,
        access: FileAccess,
        root: str,
        clock: Clock,
        queue_type_of: Callable[[str], QueueType] = lambda _: QueueType.SIMPLE,
        *,
        file_size: int = FILE_SIZE,
        ext_file_size: int = EXT_FILE_SIZE,
        batch_file_size: int = BATCH_FILE_SIZE,
        enable_ext: bool = False,
        maps_max: int | None = None,
        other_maps: Callable[[], int] = lambda: 0,
    ) -> None:
        """`maps_max`: memory maps that the process may have; `other_maps`: those of the store's other files."""
        self._access = access
        self._root = root
        self._clock = clock
        self._queue_type_of = queue_type_of
        self._file_size = file_size
        self._ext_file_size = ext_file_size
        self._batch_file_size = batch_file_size
        self._enable_ext = enable_ext
        self._names = DirectorySync(access, root)
        self._lock = threading.Lock()
        self._topics: dict[str, dict[int, Queue]] = {}
        self._other_maps = other_maps
        self.budget = MapBudget(maps_max, clock, self._count_maps)

    # Finding

    def find(self, topic: str, queue_id: int) -> Queue | None:
        """The queue, or None. Never creates one."""
        queues = self._topics.get(topic)
        return None if queues is None else queues.get(queue_id)

    def find_or_create(self, topic: str, queue_id: int) -> Queue:
        """The queue; a new one has no file until its first append."""
        found = self.find(topic, queue_id)
        if found is not None:
            return found
        _check_name(topic, queue_id)
        with self._lock:
            queues = self._topics.setdefault(topic, {})
            is_new = queue_id not in queues
            if is_new:
                queues[queue_id] = self._make(self._queue_type_of(topic), topic, queue_id)
            found = queues[queue_id]
        if is_new:
            self.budget.made((topic, queue_id))
        return found

    def may_begin(self, topic: str, queue_id: int, *, for_client: bool = False) -> bool:
        """Whether messages for a queue may be stored: it is there, or there is a memory map for it at the next start.

        Clients are refused earlier than what the store's owner delivers to queues.
        """
        if self.find(topic, queue_id) is not None:
            return True
        return self.budget.admit((topic, queue_id), for_client=for_client or is_light_queue(topic))

    def _count_maps(self) -> tuple[int, int]:
        """Of everything, and of light queues."""
        with self._lock:
            queues = [queue for queues in self._topics.values() for queue in queues.values()]
        own = light = 0
        for queue in queues:
            maps = max(1, queue.files.file_count)  # A queue that has no file yet will have one.
            if isinstance(queue, ConsumeQueue) and queue.ext is not None:
                maps += queue.ext.files.file_count
            own += maps
            if is_light_queue(queue.topic):
                light += maps
        return own + self._other_maps(), light

    def topics(self) -> list[str]:
        """The topics that have queues, sorted."""
        with self._lock:
            return sorted(self._topics)

    def queues_of(self, topic: str) -> dict[int, Queue]:
        """The queues of one topic by id; empty when there are none."""
        with self._lock:
            return dict(self._topics.get(topic, {}))

    def all_queues(self) -> list[Queue]:
        """Every queue, by topic and id."""
        with self._lock:
            return [queues[queue_id] for _, queues in sorted(self._topics.items()) for queue_id in sorted(queues)]

    # Starting

    def load(self, *, lazily: bool = False) -> None:
        """Map the files of every queue in the store directory. Follow with `recover_all`.

        `lazily`: those of most queues are mapped when they are used.
        Raises StoreDamaged when a topic's files are not of the type of its attribute, or a file is foreign.
        """
        loaded: dict[str, dict[int, Queue]] = {}
        try:
            for queue_type in QueueType:
                self._load_type(queue_type, loaded, lazily)
        except BaseException:
            for queues in loaded.values():
                for queue in queues.values():
                    queue.close()
            raise
        with self._lock:
            self._topics = loaded

    def _load_type(self, queue_type: QueueType, loaded: dict[str, dict[int, Queue]], lazily: bool) -> None:
        base = os.path.join(self._root, queue_type.directory)
        for topic in self._access.list_directories(base):
            for name in self._access.list_directories(os.path.join(base, topic)):
                if not (name.isascii() and name.isdigit()):
                    log.warning("%s is not named by a queue id and is left alone", os.path.join(base, topic, name))
                    continue
                expected = self._queue_type_of(topic)
                if expected is not queue_type:
                    raise StoreDamaged(
                        f"topic {topic}: expected queues of type {expected.value}, by its queue.type attribute, "
                        f"found {os.path.join(base, topic, name)}, which holds {queue_type.value}. The attribute of a "
                        "topic that has messages cannot change; set it back, or delete the topic's queues."
                    )
                queue = self._make(queue_type, topic, int(name))
                if isinstance(queue, ConsumeQueue):
                    queue.load(lazily=lazily)
                else:
                    queue.load()
                loaded.setdefault(topic, {})[int(name)] = queue

    def _make(self, queue_type: QueueType, topic: str, queue_id: int) -> Queue:
        directory = os.path.join(self._root, queue_type.directory, topic, str(queue_id))
        if queue_type is QueueType.BATCH:
            return BatchConsumeQueue(self._access, directory, topic, queue_id, self._batch_file_size, self._clock)
        ext = None
        if self._enable_ext:
            ext_directory = os.path.join(self._root, EXT_DIRECTORY, topic, str(queue_id))
            ext = ConsumeQueueExt(self._access, ext_directory, self._ext_file_size, self._clock)
        return ConsumeQueue(self._access, directory, topic, queue_id, self._file_size, self._clock, ext, self._names)

    def recover_all(self, last_exit_ok: bool = False) -> int | None:
        """Find the end of every queue. Returns from which physical offset on records must be dispatched again.

        None: no queue lost units to a hole. Otherwise the smallest offset where one did. (RocketMQ continues at the
        largest offset that *some* queue has, which misses those.)
        """
        lossy = [queue for queue in self.all_queues() if queue.recover(last_exit_ok)]
        for queue in lossy:
            log.warning("%s lost units behind a hole; dispatch again from %d", queue, max(0, queue.max_physical_offset))
        return min((max(0, queue.max_physical_offset) for queue in lossy), default=None)

    def truncate_dirty_all(self, physical_offset: int) -> None:
        """Drop the units of records that end behind `physical_offset`, in every queue that may have some."""
        for queue in self.all_queues():
            if queue.max_physical_offset > physical_offset:
                queue.truncate_dirty(physical_offset)

    # Over all queues

    def sync_all(self) -> bool:
        """Make all queues durable by few calls, whatever else their file systems have to write. False where that cannot
        be done: flush each queue. For a store without a writer.
        """
        parts = [part for queue in self.all_queues() for part in _parts_of(queue)]
        changed = self._names.changed
        if not self._access.sync_all([self._root, *(file.path for part in parts for file in part.files)]):
            return False
        self._names.synced(changed)
        for part in parts:
            part.note_synced()
        return True

    def max_physical_offset(self) -> int:
        """The end of the newest record that has a unit in any queue; -1 when there is none."""
        return max((queue.max_physical_offset for queue in self.all_queues()), default=-1)

    def min_physical_offset(self) -> int:
        """Physical offset of the oldest record that any queue still has; -1 when there is none."""
        oldest = (queue.unit_at(queue.min_offset) for queue in self.all_queues())
        return min((unit.physical_offset for unit in oldest if unit is not None), default=-1)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Remove the files of every queue whose records are all deleted; how many."""
        return sum(queue.delete_expired(min_physical_offset) for queue in self.all_queues())

    # Removing

    def delete_queue(self, topic: str, queue_id: int) -> bool:
        """Remove one queue and its files; False when there is none."""
        with self._lock:
            queues = self._topics.get(topic, {})
            queue = queues.pop(queue_id, None)
            if not queues:
                self._topics.pop(topic, None)
        if queue is None:
            return False
        self.budget.forget([(topic, queue_id)])
        queue.destroy()
        self._remove_empty_directories(topic)
        return True

    def delete_topic(self, topic: str) -> int:
        """Remove every queue of a topic with its files and directories; how many there were.

        Raises IllegalMessage for a name that would lead out of the directory.
        """
        _check_name(topic, 0)
        with self._lock:
            queues = self._topics.pop(topic, {})
        self.budget.forget([(topic, queue_id) for queue_id in queues])
        for queue in queues.values():
            queue.destroy()
        self._remove_empty_directories(topic)
        return len(queues)

    def destroy(self) -> None:
        """Remove every queue."""
        for topic in self.topics():
            self.delete_topic(topic)

    def close(self) -> None:
        """Unmap every queue. Deletes and flushes nothing."""
        for queue in self.all_queues():
            queue.close()

    def _remove_empty_directories(self, topic: str) -> None:
        for kind in (*(queue_type.directory for queue_type in QueueType), EXT_DIRECTORY):
            self._access.remove_directory_if_empty(os.path.join(self._root, kind, topic))


def flush_whole(queue: Queue) -> None:
    """Make durable what the queue has now. What is appended meanwhile may wait: a busy queue would never be done."""
    ends = [(part, part.max_offset) for part in _parts_of(queue)]
    while not queue.flush(0) and any(part.flushed_where < end for part, end in ends):
        pass


def _parts_of(queue: Queue) -> list[MappedFileQueue]:
    if isinstance(queue, ConsumeQueue) and queue.ext is not None:
        return [queue.files, queue.ext.files]
    return [queue.files]


def _check_name(topic: str, queue_id: int) -> None:
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic or queue_id < 0:
        raise IllegalMessage(
            f"expected a topic that can be a directory's name and a queue id >= 0, found {topic!r} and {queue_id}"
        )
