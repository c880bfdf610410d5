"""OffloadIndex: the key index of one broker during an offload; IndexTasks: its tasks, over all brokers of a job.

    staged keys of a wave ─► build ─► index files ─► register, after the commit of their messages
    committed and not covered (unindexed) ─► read back by tasks ─► build ─► register
    too many small files ─► merge ─► swap

A failure never holds up messages: what is not registered is not covered, and the next wave finds it, or the next job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tiermq.errors import TierError
from tiermq.pipeline.broker_index import BrokerIndex
from tiermq.pipeline.compact.merge import MadeIndex, MergeTask, run_merge_task
from tiermq.pipeline.index_build import BuildTask, BuiltIndex, StagedKeys, run_build_task, unstage
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.leased_broker import LeasedBroker, data_queues
from tiermq.pipeline.reindex.task import BUNDLE_BYTES, KeyTask, KeyWork, run_key_task
from tiermq.pipeline.task_runner import JobTasks
from tiermq.tier.dispatch.plan import TopicFilter
from tiermq.tier.names import QueueKey
from tiermq.tier.tier_config import TierConfig

_log = logging.getLogger(__name__)


class OffloadIndex:
    """See the module. Belongs to the job's thread, except for `expect`. `open` before anything else."""

    def __init__(
        self,
        held: LeasedBroker,
        config: TierConfig,
        topics: TopicFilter,
        *,
        name_topics: Callable[[Iterable[QueueKey]], None],
        step: Callable[[str], None],
    ) -> None:
        """`name_topics` has the topic ids of queues written to manifests, before index items carry them."""
        self._held = held
        self._name_topics = name_topics
        self._topics = topics
        self._step = step
        self._index = BrokerIndex(
            held,
            config.tier_url,
            slots=config.tiered_store_index_file_max_hash_slot_num,
            items_max=max(1, config.tiered_store_index_file_max_index_num - 1),  # It counts item 0, which is not used.
            few_slots=True,
            step=step,
        )
        self._is_known = False
        self._unchecked: set[QueueKey] = set()
        self.keys = 0
        self.files = 0
        self.files_merged = 0  # Files that are gone, since another one has their items.

    def open(self) -> None:
        """Read what is indexed, and look at every queue for what is not. Raises StoreDamaged, TierError."""
        self._index.open()
        self._unchecked = set(data_queues(self._held.metadata))
        self._is_known = True

    def close(self) -> None:
        """Remove the staged keys of attempts whose result was not used. Raises TierError."""
        unstage(self._held.driver, self._held.home.index)

    def expect(self, queues: Iterable[QueueKey]) -> None:
        """These queues have committed records whose keys do not come by a task."""
        self._unchecked.update(queues)

    @property
    def is_complete(self) -> bool:
        """Whether everything that is committed is covered, as far as it can be read."""
        return self._is_known and not self._unchecked

    def unindexed(self) -> list[KeyWork]:
        """What is committed and not covered: of earlier runs, of a crash, of keys that were lost on the way.

        Each queue is looked at once, and again after a failure.
        """
        works: list[KeyWork] = []
        if not self._is_known:
            self.open()
        for queue in sorted(self._unchecked):
            if not self._topics.is_filtered(queue.topic) and not self._has_other_id(queue.topic):
                missing = self._index.missing(queue, trust_doubtful=True)
                works += self._index.works(queue, missing) if missing else []
        self._unchecked.clear()
        return works

    def _has_other_id(self, topic: str) -> bool:
        """Whether items of the topic may carry an id that is not known: RocketMQ's do. Our jobs name topics first."""
        is_foreign = any(file.marks is None for file in self._index.files.registered)
        return topic in self._held.topics_without_id and is_foreign

    def key_task(self, works: tuple[KeyWork, ...]) -> KeyTask:
        return KeyTask(self._index.tier, self._held.home.index, works)

    def build_tasks(self, keys: Sequence[StagedKeys], parallelism: int) -> list[BuildTask]:
        """The tasks that make index files of the keys, up to so many at a time."""
        return self._index.build_tasks(keys, parallelism) if self._is_known else []

    def register(self, keys: Sequence[StagedKeys], built: Sequence[BuiltIndex]) -> None:
        """Let index files count that were built of the keys of committed records."""
        if not keys or not self._is_known:
            return
        self._step("index")
        try:
            self._name_topics({each.queue for each in keys})
            self._index.register(built, keys, trust_doubtful=True)
            self._index.write_local()
            self.keys += sum(each.count for each in keys)
            self.files += len(built)
        except TierError as error:
            self.failed(error)

    def merge_tasks(self, *, at_end: bool) -> list[MergeTask]:
        """Too many small files as one; `at_end` all that have few slots."""
        index = self._index
        if not self._is_known:
            return []
        return index.merge_tasks(index.unfit(), all_slots=True) if at_end else index.merge_tasks(index.crowded())

    def swap(self, task: MergeTask, made: MadeIndex) -> None:
        """Let a merged file count."""
        try:
            self._index.swap(task, made)
            self.files += 1
            self.files_merged += len(task.sources)
        except TierError as error:
            self.failed(error)

    def failed(self, error: TierError) -> None:
        """Files were not made or not registered: read the tier again to see what is there and what is missing."""
        _log.warning("%s: the index of some records is left for later: %s", self._held.home, error)
        self._is_known = False


class HasIndex(Protocol):
    """A broker of an offload; without an index, or closed, it is left out."""

    @property
    def is_open(self) -> bool: ...
    @property
    def index(self) -> OffloadIndex | None: ...


class IndexTasks:
    """Runs the tasks of all brokers' indexes together. Belongs to the job's thread."""

    def __init__(self, tasks: JobTasks, report: JobReport, step: Callable[[str], None]) -> None:
        self._tasks = tasks
        self._report = report
        self._step = step

    def catch_up(self, brokers: Sequence[HasIndex]) -> None:
        """Index what is committed and not covered."""
        tasks: list[tuple[OffloadIndex, KeyTask]] = []
        for index in _indexes(brokers):
            try:
                works = index.unindexed()
            except TierError as error:
                index.failed(error)
                continue
            bundles = self._tasks.bundles(works, lambda work: work.size_bytes, BUNDLE_BYTES) if works else []
            tasks += [(index, index.key_task(bundle)) for bundle in bundles]
        if not tasks:
            return
        self._step("keys")
        keys: dict[OffloadIndex, list[StagedKeys]] = {}
        for (index, _), found in zip(tasks, self._tasks.run(run_key_task, [task for _, task in tasks]), strict=True):
            keys.setdefault(index, []).extend(found.keys)
            self._report.problems += found.errors
        for index, built in self.build(keys).items():
            index.register(keys[index], built)

    def build(self, keys: dict[OffloadIndex, list[StagedKeys]]) -> dict[OffloadIndex, list[BuiltIndex]]:
        """Index files of the keys, which are put in order."""
        for some in keys.values():
            some.sort(key=lambda each: (each.queue, each.start))
        each = -(-self._tasks.parallelism // max(1, len(keys)))
        tasks = [(index, task) for index, some in keys.items() for task in index.build_tasks(some, each)]
        built: dict[OffloadIndex, list[BuiltIndex]] = {index: [] for index in keys}
        if tasks:
            self._step("build")
            try:
                made = self._tasks.run(run_build_task, [task for _, task in tasks])
            except TierError as error:
                for index in {index for index, _ in tasks}:
                    index.failed(error)
                return built
            for (index, _), file in zip(tasks, made, strict=True):
                built[index].append(file)
        return built

    def merge(self, brokers: Sequence[HasIndex], *, at_end: bool = False) -> None:
        """Make fewer files of small ones."""
        tasks = [(index, task) for index in _indexes(brokers) for task in index.merge_tasks(at_end=at_end)]
        if not tasks:
            return
        self._step("merge")
        try:
            made = self._tasks.run(run_merge_task, [task for _, task in tasks])
        except TierError as error:
            for index in {index for index, _ in tasks}:
                index.failed(error)
            return
        for (index, task), each in zip(tasks, made, strict=True):
            index.swap(task, each)


def _indexes(brokers: Sequence[HasIndex]) -> list[OffloadIndex]:
    return [broker.index for broker in brokers if broker.is_open and broker.index is not None]
