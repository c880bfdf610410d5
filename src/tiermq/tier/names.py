"""Names in the tier: the paths of a queue's segments, in RocketMQ's layout.

    {md5_8(cluster)}_{cluster}/{broker}/{topic}/{queueId}/{TYPE}/{md5_8(base)}{base as 20 digits}

    212d6b50_DefaultCluster/broker-a/orders/3/COMMIT_LOG/1f329fef00000000001073741775
    |-- directory of the cluster |    logical path: broker-a/orders/3    | 8 hex + 20 digits

`md5_8(s)` is the first 8 hex digits of MD5 over UTF-8. The hashes only spread keys over an object store's partitions;
they carry no information, and a name with a wrong hash is not a segment's.

Invariants: `parse(key.path) == key`; two keys have one path only when they are equal; names are never escaped, so an
invalid path component (empty, `.`, `..`, a slash, NUL) is refused when the key is made.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from dataclasses import dataclass
from enum import IntEnum

from tiermq.errors import BadTierName
from tiermq.message.topic_name import QueueName as QueueName

INDEX_TOPIC = "rmq_sys_INDEX"
INDEX_QUEUE_ID = 0
OBJECT_SUFFIX = ".tiermq.json"
TIMERS_SUFFIX = ".tiermq.timers"
TIMERS_DIRECTORY = "timers.tiermq"
BUNDLES_DIRECTORY = "bundles.tiermq"
OBJECT_SUFFIXES = (OBJECT_SUFFIX, TIMERS_SUFFIX)
STATE_STEM = "state-"
"""Begins the names of objects with a broker's own tables, such as its topics."""
KEYS_STEM = "keys-"
"""Begins the names of objects with keys that wait for their index file."""
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


def state_object(cluster: str, broker: str, kind: str) -> str:
    """Name of the object with one of a broker's own tables."""
    return f"{broker_directory(cluster, broker)}/{STATE_STEM}{_component('object', kind)}{OBJECT_SUFFIX}"


def broker_of_state(name: str) -> tuple[str, str] | None:
    """Cluster and broker of the object of a broker's table; None for other objects."""
    parts = name.split("/")
    if len(parts) != 3 or not parts[2].startswith(STATE_STEM) or not parts[2].endswith(OBJECT_SUFFIX):
        return None
    cluster = parts[0].partition("_")[2]
    return (cluster, parts[1]) if cluster and cluster_directory(cluster) == parts[0] else None


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
    def name(self) -> QueueName:
        """Topic and queue id, without cluster and broker."""
        return self.topic, self.queue_id

    @property
    def logical_path(self) -> str:
        """The key of RocketMQ's metadata tables."""
        return f"{self.broker}/{self.topic}/{self.queue_id}"

    @property
    def directory(self) -> str:
        """The directory of all objects of this queue."""
        return f"{cluster_directory(self.cluster)}/{self.logical_path}"

    def segment(self, segment_type: SegmentType, base: int) -> SegmentKey:
        return SegmentKey(self.cluster, self.broker, self.topic, self.queue_id, segment_type, base)

    def object_name(self, stem: str) -> str:
        """Name of a small object of this queue, such as its manifest."""
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
    """The key of a path, or None when it is not the path of a segment: for listings, which may have foreign files."""
    parts = path.split("/")
    if len(parts) != 6 or len(parts[5]) != FILE_NAME_LENGTH:
        return None
    _, _, cluster = parts[0].partition("_")
    digits = parts[5][HASH_DIGITS:]
    if parts[4] not in SegmentType.__members__ or not _is_number(parts[3]) or not _is_number(digits):
        return None
    try:
        cluster, broker, topic = map(sys.intern, (cluster, parts[1], parts[2]))  # A listing repeats them.
        key = SegmentKey(cluster, broker, topic, int(parts[3]), SegmentType[parts[4]], int(digits))
    except BadTierName:
        return None
    # Formatting it again must give the same path: checks both hashes, and refuses other spellings of a number.
    return key if key.path == path else None


def check_object_name(name: str) -> str:
    """Refuse a name without the suffix that marks small objects and timer objects."""
    for part in name.split("/"):
        _component("object", part)
    if not name.endswith(OBJECT_SUFFIXES):
        expected = " or ".join(OBJECT_SUFFIXES)
        raise BadTierName(f"expected an object name that ends with {expected}, found {name!r}")
    return name


def may_begin_a_name(prefix: str) -> bool:
    """Whether any name in a tier can begin with `prefix`: a listing by any other prefix is empty.

    The component behind the last slash may be partial; those before it are whole and valid.
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


@functools.lru_cache(maxsize=1 << 16)
def _is_component(name: str) -> bool:
    return bool(name) and name not in (".", "..") and "/" not in name and "\0" not in name


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
