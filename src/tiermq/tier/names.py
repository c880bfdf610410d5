"""Names in the tier: where a segment of a queue lies, in RocketMQ's own layout.

    {md5_8(cluster)}_{cluster}/{broker}/{topic}/{queueId}/{TYPE}/{md5_8(base)}{base as 20 digits}

    212d6b50_DefaultCluster/broker-a/orders/3/COMMIT_LOG/1f329fef00000000001073741775
    |-- directory of the cluster |    logical path: broker-a/orders/3    | 8 hex + 20 digits

`md5_8(s)` is the first 8 hex digits of MD5 over UTF-8. The hashes only spread keys over an object store's partitions;
they carry no information, and a name whose hash does not fit is not one of ours.

Invariants: `parse(key.path) == key`; two keys have one path only when they are equal; names are never escaped, so what
cannot be a path component (empty, `.`, `..`, a slash, NUL) is refused when the key is made.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from enum import IntEnum

from tiermq.errors import BadTierName

INDEX_TOPIC = "rmq_sys_INDEX"
INDEX_QUEUE_ID = 0
OBJECT_SUFFIX = ".tiermq.json"
TIMERS_SUFFIX = ".tiermq.timers"
OBJECT_SUFFIXES = (OBJECT_SUFFIX, TIMERS_SUFFIX)
BASE_DIGITS = 20
HASH_DIGITS = 8
FILE_NAME_LENGTH = HASH_DIGITS + BASE_DIGITS
BASE_MAX = 2**63 - 1
assert len(str(BASE_MAX)) <= BASE_DIGITS
assert FILE_NAME_LENGTH == 28


class SegmentType(IntEnum):
    """The numbers are those of tieredStoreMetadata.json; the names are those of the directories."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


def md5_8(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:HASH_DIGITS]


@functools.lru_cache(maxsize=256)
def cluster_directory(cluster: str) -> str:
    return f"{md5_8(cluster)}_{_component('cluster', cluster)}"


def broker_directory(cluster: str, broker: str) -> str:
    return f"{cluster_directory(cluster)}/{_component('broker', broker)}"


@functools.lru_cache(maxsize=4096)
def file_name(base: int) -> str:
    return f"{md5_8(str(base))}{base:0{BASE_DIGITS}d}"


@dataclass(frozen=True, slots=True, order=True)
class QueueKey:
    """One queue of one topic of one broker."""

    cluster: str
    broker: str
    topic: str
    queue_id: int

    def __post_init__(self) -> None:
        _component("cluster", self.cluster)
        _component("broker", self.broker)
        _component("topic", self.topic)
        if self.queue_id < 0:
            raise BadTierName(f"expected a queue id of 0 or more, found {self.queue_id} (topic {self.topic!r})")

    @property
    def logical_path(self) -> str:
        """The key of RocketMQ's metadata tables."""
        return f"{self.broker}/{self.topic}/{self.queue_id}"

    @property
    def directory(self) -> str:
        """Everything of this queue lies below it."""
        return f"{cluster_directory(self.cluster)}/{self.logical_path}"

    def segment(self, segment_type: SegmentType, base: int) -> SegmentKey:
        return SegmentKey(self.cluster, self.broker, self.topic, self.queue_id, segment_type, base)

    def object_name(self, stem: str) -> str:
        """Where a small object of this queue lies, such as its manifest."""
        return f"{self.directory}/{_component('object', stem)}{OBJECT_SUFFIX}"


def index_queue(cluster: str, broker: str) -> QueueKey:
    """The logical queue that holds a broker's index files."""
    return QueueKey(cluster, broker, INDEX_TOPIC, INDEX_QUEUE_ID)


@dataclass(frozen=True, slots=True, order=True)
class SegmentKey:
    """One segment of a queue: the bytes from offset `base` of one of its three files."""

    cluster: str
    broker: str
    topic: str
    queue_id: int
    type: SegmentType
    base: int

    def __post_init__(self) -> None:
        QueueKey(self.cluster, self.broker, self.topic, self.queue_id)
        if not 0 <= self.base <= BASE_MAX:
            raise BadTierName(f"expected a base offset of 0 to {BASE_MAX}, found {self.base} ({self.logical_path})")

    @property
    def queue(self) -> QueueKey:
        return QueueKey(self.cluster, self.broker, self.topic, self.queue_id)

    @property
    def logical_path(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}"

    @property
    def path(self) -> str:
        return f"{cluster_directory(self.cluster)}/{self.logical_path}/{self.type.name}/{file_name(self.base)}"

    def __str__(self) -> str:
        return self.path

    @classmethod
    def parse(cls, path: str) -> SegmentKey:
        """The key whose path this is; anything else raises BadTierName."""
        key = segment_at(path)
        if key is None:
            raise BadTierName(
                f"expected <hash>_<cluster>/<broker>/<topic>/<queue id>/<type>/<8 hex + 20 digits>, found {path!r}"
            )
        return key


def segment_at(path: str) -> SegmentKey | None:
    """The key of a path, or None when it is not the path of a segment: for listings, where others' files may lie."""
    parts = path.split("/")
    if len(parts) != 6 or len(parts[5]) != FILE_NAME_LENGTH:
        return None
    _, _, cluster = parts[0].partition("_")
    digits = parts[5][HASH_DIGITS:]
    if parts[4] not in SegmentType.__members__ or not _is_number(parts[3]) or not _is_number(digits):
        return None
    try:
        key = SegmentKey(cluster, parts[1], parts[2], int(parts[3]), SegmentType[parts[4]], int(digits))
    except BadTierName:
        return None
    # Written out again it must be the same: that checks both hashes, and refuses other spellings of a number.
    return key if key.path == path else None


def check_object_name(name: str) -> str:
    """Small objects and objects with timers are told from segments, parts and foreign files by their suffix alone."""
    for part in name.split("/"):
        _component("object", part)
    if not name.endswith(OBJECT_SUFFIXES):
        expected = " or ".join(OBJECT_SUFFIXES)
        raise BadTierName(f"expected an object name that ends with {expected}, found {name!r}")
    return name


def may_begin_a_name(prefix: str) -> bool:
    """Whether anything in a tier can have a name that begins so: a listing by any other prefix is empty.

    The part behind the last slash may be cut anywhere; those before it are whole, and lead nowhere else.
    """
    *whole, last = prefix.split("/")
    return "\0" not in last and all(_is_component(part) for part in whole)


def _component(what: str, name: str) -> str:
    if not _is_component(name):
        raise BadTierName(
            f"expected a {what} name that can be one part of a path, found {name!r}: "
            "it may not be empty, '.' or '..', nor hold a slash"
        )
    return name


def _is_component(name: str) -> bool:
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
