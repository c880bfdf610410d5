"""Asking the index for a key: which files, in which order, and which of their items are true.

An item is a candidate, not a result: hashes collide, times are cut to seconds, topics are created again with other ids,
and messages expire. So each candidate is checked against its message, through a callback.

Files are queried newest first, a few at a time. The search ends as soon as enough messages are found and no file or
item that is left can hold a newer one; so a query over years with a small limit touches few files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

from tiermq.errors import SegmentMissing, TierMQError
from tiermq.tier.index.compacted_index import IndexEntry, IndexState
from tiermq.tier.index.index_item import IndexItem, index_hash, low_32_bits

Answer = TypeVar("Answer")

FILES_AT_ONCE = 8
MORE_FACTOR = 4
INDEX_LOOKS_MAX = 3  # Of a query whose index files are replaced meanwhile.
ITEMS_MIN = 1024
"""A file is queried for at least this many items: they need one read, and the last put may not be the newest."""

ITEMS_MAX = 1 << 20
"""The most items of one hash that a file is queried for."""

SECOND_LOOKS = 32
"""How many more messages are read, when enough are found, that may have been stored later in the same second."""


class Candidate(NamedTuple):
    """An item that may be an answer; its message was stored between the two times."""

    topic_id: int
    queue_id: int
    tier_offset: int
    size: int
    earliest_ms: int
    latest_ms: int

    @classmethod
    def of(cls, item: IndexItem, begin_ms: int) -> Candidate:
        return cls(
            item.topic_id, item.queue_id, item.tier_offset, item.size,
            item.earliest_ms(begin_ms), item.latest_ms(begin_ms),
        )  # fmt: skip


class MessageKeys(NamedTuple):
    """The keys and the store time of a candidate's message."""

    keys: Collection[str]
    store_ms: int


class IndexHit(NamedTuple):
    """A message that has the key: the offset of its record in its queue's tier commit log, and its store time."""

    topic_id: int
    queue_id: int
    tier_offset: int
    size: int
    store_ms: int


FetchKeys = Callable[[str, Candidate], MessageKeys | None]
"""The keys of the message of a topic at a candidate's location; None when it is gone. May raise TierError."""


@dataclass(frozen=True, slots=True)
class Question:
    """A query. `topic_id` None: any topic of that name."""

    topic: str
    key: str
    max_count: int
    begin_ms: int
    end_ms: int
    topic_id: int | None = None


@dataclass(slots=True)
class QueryAnswer:
    """Messages with the key, newest first by store time, then offset. Incomplete when there are failures."""

    hits: list[IndexHit] = field(default_factory=list)
    failures: list[TierMQError] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not self.failures


class QueryPool:
    """Runs tasks side by side. With no threads it runs them one after the other."""

    __slots__ = ("_pool",)

    def __init__(self, thread_count: int) -> None:
        self._pool = ThreadPoolExecutor(thread_count, "tier-index-query") if thread_count > 0 else None

    def run(self, tasks: Sequence[Callable[[], Answer]]) -> list[Answer | TierMQError]:
        """What each task returned, or the TierMQError that it raised, in their order."""
        if self._pool is None or len(tasks) < 2:
            return [_outcome(task) for task in tasks]
        futures: list[Future[Answer | TierMQError]] = [self._pool.submit(_outcome, task) for task in tasks]
        return [future.result() for future in futures]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _outcome(task: Callable[[], Answer]) -> Answer | TierMQError:
    try:
        return task()
    except TierMQError as error:
        return error


def search_again(search: Callable[[], QueryAnswer], look_again: Callable[[], object] | None) -> QueryAnswer:
    """Search; where a file is missing, look which files there are now, and search again. A job has merged or expired
    it since the last look.
    """
    answer = search()
    for _ in range(INDEX_LOOKS_MAX):
        if look_again is None or not any(isinstance(each, SegmentMissing) for each in answer.failures):
            break
        look_again()
        answer = search()
    return answer


class IndexSearch:
    """The state of one query. Belongs to its thread."""

    def __init__(self, question: Question, fetch_keys: FetchKeys | None, pool: QueryPool) -> None:
        self._question = question
        self._fetch_keys = fetch_keys
        self._pool = pool
        self._hash = index_hash(question.topic, question.key)
        self._seen: set[tuple[int, int, int]] = set()
        self._hits: list[IndexHit] = []
        self._failures: list[TierMQError] = []

    def run(self, entries: Sequence[IndexEntry]) -> QueryAnswer:
        """Query the files that can have results."""
        question = self._question
        if question.max_count <= 0 or question.begin_ms > question.end_ms:
            return QueryAnswer()
        newest = sorted(((entry.newest_ms(), at) for at, entry in enumerate(entries)), reverse=True)
        for start in range(0, len(newest), FILES_AT_ONCE):
            wave = newest[start : start + FILES_AT_ONCE]
            wanted = [entries[at] for newest_ms, at in wave if newest_ms >= self._worst_wanted_ms()]
            if not wanted:
                break
            self._ask_files(wanted)
        return QueryAnswer(self._hits[: question.max_count], self._failures)

    def _worst_wanted_ms(self) -> int:
        """Nothing older than this can be among the answers any more."""
        enough = len(self._hits) >= self._question.max_count
        return self._hits[self._question.max_count - 1].store_ms if enough else self._question.begin_ms

    def _ask_files(self, entries: Sequence[IndexEntry]) -> None:
        """Query some files, and those with more items again while the results do not suffice."""
        limit = max(self._question.max_count, ITEMS_MIN)
        while entries:
            answers = self._pool.run([partial(self._select, entry, limit) for entry in entries])
            candidates: list[Candidate] = []
            unfinished: list[IndexEntry] = []
            for entry, answer in zip(entries, answers, strict=True):
                if isinstance(answer, TierMQError):
                    if entry.state is not IndexState.SHUTDOWN:  # Else it expired meanwhile.
                        self._failures.append(answer)
                    continue
                found, has_more = answer
                candidates += found
                if has_more:
                    unfinished.append(entry)
            self._check(candidates)
            if len(self._hits) >= self._question.max_count or limit >= ITEMS_MAX:
                return
            entries = unfinished
            limit *= MORE_FACTOR

    def _select(self, entry: IndexEntry, limit: int) -> tuple[list[Candidate], bool]:
        question = self._question
        if entry.oldest_ms() > question.end_ms:
            return [], False
        items, has_more = entry.select(self._hash, limit, question.begin_ms, question.end_ms)
        return [Candidate.of(item, entry.begin_ms) for item in items], has_more

    def _check(self, candidates: list[Candidate]) -> None:
        """Check candidates against their messages, newest first, until no other can be among the answers."""
        fresh = [candidate for candidate in candidates if self._is_new(candidate)]
        fresh.sort(key=lambda candidate: (candidate.latest_ms, candidate.tier_offset), reverse=True)
        at = 0
        looks = SECOND_LOOKS
        while at < len(fresh) and looks > 0 and fresh[at].latest_ms >= self._worst_wanted_ms():
            missing = self._question.max_count - len(self._hits)
            some = fresh[at : at + (missing if missing > 0 else looks)]
            some = [one for one in some if one.latest_ms >= self._worst_wanted_ms()]
            at += len(some)
            looks -= len(some) if missing <= 0 else 0
            for verdict in self._pool.run([partial(self._verify, one) for one in some]):
                if isinstance(verdict, TierMQError):
                    self._failures.append(verdict)
                elif verdict is not None:
                    self._hits.append(verdict)
            self._hits.sort(key=lambda hit: (hit.store_ms, hit.tier_offset, hit.queue_id), reverse=True)

    def _is_new(self, candidate: Candidate) -> bool:
        wanted_id = self._question.topic_id
        if wanted_id is not None and candidate.topic_id != low_32_bits(wanted_id):
            return False
        location = (candidate.topic_id, candidate.queue_id, candidate.tier_offset)
        if location in self._seen:
            return False
        self._seen.add(location)
        return True

    def _verify(self, candidate: Candidate) -> IndexHit | None:
        """The hit that a candidate is; None when its message is gone, has other keys, or another time."""
        question = self._question
        if self._fetch_keys is None:
            return IndexHit(*candidate[:4], store_ms=candidate.latest_ms)
        message = self._fetch_keys(question.topic, candidate)
        if message is None or question.key not in message.keys:
            return None
        if not question.begin_ms <= message.store_ms <= question.end_ms:
            return None
        return IndexHit(*candidate[:4], store_ms=message.store_ms)
