"""A broker's own tables in the tier, beside its manifests: topics, groups, offsets, request modes, settings.

    <cluster dir>/<broker>/state-topics.tiermq.json              one object for each of KINDS
    <cluster dir>/<broker>/state-consumerOffset.tiermq.json

    {"body":{"document":{…},"epoch":7,"kind":"topics","takenMs":…,"writer":"host:/store"},"crc32":…,"version":2}

`document` is RocketMQ's own JSON document, as `config/<kind>.json` of a store directory or a broker's response has it.
`settings` has the properties of the broker, without accounts and secrets. `takenMs` is when the table was read.

Invariants: written by the holder of the broker's lease only; an object with a newer epoch is never overwritten. Each
table is replaced by compare-and-set, so a writer that lost the lease since it asked finds another version, and stops.

Cost: nothing while nothing changes, but a refresh of each table every REFRESH_MS, so that its age is known. A changed
table is one PUT, at most one for each `tierManifestInterval`; tables that are due together share one GET of the lease.
The first write of each table by a process costs one GET more. Offsets of groups are also kept as they were
(`offset_history`).
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tiermq.clock import HOUR_MS, Clock, SystemClock
from tiermq.errors import FutureManifest, ManifestConflict, StoreDamaged, TierError
from tiermq.files.config_file import decode_lenient_json
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import is_seal_broken
from tiermq.message.topic_name import TOPIC_QUEUES_MAX, group_problem, topic_problem
from tiermq.settings import INT_MAX, LONG_MAX
from tiermq.store.table_journal import TableJournal
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.document import (
    CorruptManifest,
    natural_field,
    number_field,
    open_document,
    refuse_document,
    seal_document,
    text_field,
)
from tiermq.tier.metadata.manifest_store import EpochBehind, WriterLease
from tiermq.tier.metadata.offset_history import OffsetHistory
from tiermq.tier.names import broker_of_state, state_object

_log = logging.getLogger(__name__)

STATE_VERSION = 2
"""The first version whose checksum covers the version itself, see `document`."""
REFRESH_MS = HOUR_MS
REMEDY = "the broker, or the job that copies it, writes it again with its next change or within an hour"


@dataclass(frozen=True, slots=True)
class StateKind:
    """One table of a broker. `words`: how reports name it; `table`: the key of its entries in the document."""

    name: str
    words: str
    table: str

    @property
    def file(self) -> str:
        """Its name in the `config` directory of a store."""
        return f"{self.name}.json"


TOPICS = StateKind("topics", "topics", "topicConfigTable")
GROUPS = StateKind("subscriptionGroup", "groups", "subscriptionGroupTable")
OFFSETS = StateKind("consumerOffset", "group offsets", "offsetTable")
DELAY_OFFSETS = StateKind("delayOffset", "delay offsets", "offsetTable")
FILTERS = StateKind("consumerFilter", "filters of groups", "filterDataByTopic")
REQUEST_MODES = StateKind("messageRequestMode", "request modes", "messageRequestModeMap")
SETTINGS = StateKind("settings", "settings", "properties")
KINDS = (TOPICS, GROUPS, OFFSETS, DELAY_OFFSETS, FILTERS, REQUEST_MODES, SETTINGS)
IN_FILES = KINDS[:-1]
"""Those with a file in a `config` directory."""
CHOSEN_FILE = "restoredTopics.json"
"""In a directory that was restored with some topics only: these topics, and what was left out of its tables."""
JOURNALLED = (TOPICS, GROUPS)

BrokerState = Mapping[str, bytes]
"""Names of kinds, and the tables as JSON text in RocketMQ's dialect."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as the tier has it."""

    kind: StateKind
    document: dict[str, Any]
    taken_ms: int
    epoch: int
    writer: str


# Sources of the tables.

_SECRET = re.compile(r"secret|passw|access_?key|credential|token|authenticationuser|privatekey|accounts?$", re.I)
_USER_IN_URL = re.compile(r"://[^/@\s]+@")


def encode_settings(properties: Mapping[str, str]) -> bytes:
    """The table of a broker's settings, without those that are or contain accounts and secrets."""
    kept = {
        name: value
        for name, value in properties.items()
        if not (_SECRET.search(name) or _SECRET.search(value) or _USER_IN_URL.search(value))
    }
    return json.dumps({SETTINGS.table: dict(sorted(kept.items()))}, separators=(",", ":"), ensure_ascii=False).encode()


def read_config_files(access: FileAccess, root: str) -> dict[str, bytes]:
    """The tables of a store directory, of TierMQ or RocketMQ, in use or not. Changes nothing there.

    A file that is damaged, or is being replaced at this moment, is left out. Raises OSError.
    """
    found = {}
    for kind in IN_FILES:
        path = f"{root}/config/{kind.file}"
        try:
            data = access.read_bytes(path)
            if not data:
                continue
            if is_seal_broken(path, data):
                _log.error(
                    "%s: expected the bytes that were written, found others; it is not copied into the tier", path
                )
                continue
            found[kind.name] = _with_journal(access, path, kind, data) if kind in JOURNALLED else data
        except FileNotFoundError:
            continue
        except StoreDamaged as error:
            _log.error("a table is not copied into the tier: %s", error)
    return _with_left_out(access, f"{root}/config/{CHOSEN_FILE}", found)


def _with_left_out(access: FileAccess, path: str, found: dict[str, bytes]) -> dict[str, bytes]:
    """The tables with the entries that a restore of some topics left out: the tier must not lose them."""
    if not access.exists(path):
        return found
    left_out = decode_lenient_json(access.read_bytes(path), path)["leftOut"]
    for kind in IN_FILES:
        if (others := left_out.get(kind.name)) and kind.name in found:
            document = decode_lenient_json(found[kind.name], kind.file)
            document[kind.table] = {**others, **document[kind.table]}
            found[kind.name] = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    return found


def _with_journal(access: FileAccess, path: str, kind: StateKind, data: bytes) -> bytes:
    """The table with the changes of the last seconds, which a large one has in its journal only."""
    journal = TableJournal(path, access)
    if not access.exists(journal.path):
        return data
    document = decode_lenient_json(data, path)
    table = document.get(kind.table) if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise StoreDamaged(f"{path}: expected {kind.table}, found none")
    version = document.get("dataVersion") or {}
    numbers = (version.get("timestamp", 0), version.get("counter", 0), version.get("stateVersion", 0))
    changes = journal.read(numbers, table.__contains__)
    for name in changes.gone:
        table.pop(name, None)
    table.update(changes.put)
    if changes.version is not None:
        document["dataVersion"] = dict(zip(("timestamp", "counter", "stateVersion"), changes.version, strict=True))
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


# The tier.


@dataclass(slots=True)
class _Held:
    """What this writer put last: the version that it may replace."""

    version: str
    crc32: int
    written_ms: int


class BrokerStateWriter:
    """Writes the tables of one broker under its lease. One thread at a time."""

    def __init__(
        self,
        driver: TierDriver,
        cluster: str,
        broker: str,
        lease: WriterLease,
        writer: str,
        *,
        interval_ms: int = 60_000,
        clock: Clock | None = None,
    ) -> None:
        """`interval_ms`: a table that changes all the time is written so often."""
        self._driver = driver
        self._names = {kind.name: state_object(cluster, broker, kind.name) for kind in KINDS}
        self._lease = lease
        self._writer = writer
        self._interval_ms = interval_ms
        self._clock = clock or SystemClock()
        self._held: dict[str, _Held] = {}
        self._history = OffsetHistory(driver, cluster, broker, lease, writer)
        self._noted: int | None = None  # The checksum of the offsets that are the last point.
        self._refused: dict[str, int] = {}  # Checksums of texts that are no table: each is reported once.

    def write(self, state: BrokerState, *, is_last: bool = False) -> list[str]:
        """Put the tables that changed, and those that are due for a refresh; the names of those that were written.

        `is_last`: the process ends, so that a changed table does not wait for its time. Raises StaleWriter when the
        lease was lost, EpochBehind when the tier has a table of a newer epoch, FutureManifest, TierError.
        """
        now_ms = self._clock.now_ms()
        sums = {kind.name: zlib.crc32(state[kind.name]) for kind in KINDS if kind.name in state}
        due = [name for name, crc32 in sums.items() if self._is_due(name, crc32, now_ms, is_last)]
        written: list[str] = []
        # Also of a table that was written before a point was due.
        has_last_point = is_last and sums.get(OFFSETS.name, self._noted) != self._noted
        if not due and not has_last_point:
            return written
        self._lease.check()
        for name in due:
            document = self._decoded(name, state[name], sums[name])
            if document is not None:
                self._held[name] = _Held(self._put(name, document, now_ms), sums[name], now_ms)
                written.append(name)
                if name == OFFSETS.name and not has_last_point:
                    self._add_point(document, sums[name], now_ms)
        if has_last_point:
            document = self._decoded(OFFSETS.name, state[OFFSETS.name], sums[OFFSETS.name])
            if document is not None:
                self._add_point(document, sums[OFFSETS.name], now_ms, is_last=True)
        return written

    def _add_point(self, document: dict[str, Any], crc32: int, now_ms: int, *, is_last: bool = False) -> None:
        table = document.get(OFFSETS.table)
        if isinstance(table, dict) and self._history.add(table, now_ms, is_last=is_last):
            self._noted = crc32

    def _is_due(self, name: str, crc32: int, now_ms: int, is_last: bool) -> bool:
        held = self._held.get(name)
        if held is None:
            return self._refused.get(name) != crc32
        age_ms = now_ms - held.written_ms
        if held.crc32 == crc32:
            return age_ms >= REFRESH_MS
        return is_last or age_ms >= self._interval_ms

    def _decoded(self, name: str, text: bytes, crc32: int) -> dict[str, Any] | None:
        try:
            document = decode_lenient_json(text, name)
        except StoreDamaged as error:
            document = error
        if isinstance(document, dict):
            return document
        self._refused[name] = crc32
        _log.error("%s: expected a JSON object for the tier, found %s", self._names[name], document)
        return None

    def _put(self, name: str, document: dict[str, Any], now_ms: int) -> str:
        held = self._held.get(name)
        data = seal_document(
            {"document": document, "epoch": self._lease.epoch, "kind": name, "takenMs": now_ms, "writer": self._writer},
            STATE_VERSION,
        )
        object_name = self._names[name]
        version = held.version if held is not None else self._version(object_name)
        try:
            return self._driver.put_object(object_name, data, expected=version)
        except ManifestConflict:  # Another process wrote it, or an earlier put of ours whose answer was lost.
            return self._driver.put_object(object_name, data, expected=self._version(object_name))

    def _version(self, object_name: str) -> str | None:
        """The version that may be replaced; None for no object. Raises EpochBehind, FutureManifest."""
        stored = self._driver.get_object(object_name)
        if stored is None:
            return None
        try:
            found = natural_field(open_document(stored.data, object_name, STATE_VERSION, REMEDY), "epoch")
        except (CorruptManifest, ValueError, LookupError) as error:
            _log.error("a damaged table of the broker is written again: %s", error)
            return stored.version
        if found > self._lease.epoch:
            raise EpochBehind(
                f"{object_name}: {self._writer} holds epoch {self._lease.epoch}, but the object has epoch {found}; "
                "nothing was written. Stop this writer, or acquire the broker's lease again with that epoch",
                found,
            )
        return stored.version


def write_broker_state(
    driver: TierDriver, lease: WriterLease, cluster: str, broker: str, state: BrokerState, writer: str
) -> list[str]:
    """Write all tables once, under a lease that the caller holds; see `BrokerStateWriter`, which is for many times."""
    return BrokerStateWriter(driver, cluster, broker, lease, writer).write(state, is_last=True)


def decode_table(data: bytes, name: str, kind: StateKind) -> StoredTable:
    """The table in `data`. Raises FutureManifest, CorruptManifest."""
    body = open_document(data, name, STATE_VERSION, REMEDY)
    try:
        if text_field(body, "kind") != kind.name:
            raise ValueError(f"the table is {body['kind']!r}")
        document = body["document"]
        if not isinstance(document, dict) or not isinstance(document.get(kind.table), dict):
            raise TypeError(f"no {kind.table}")
        return StoredTable(
            kind, document, number_field(body, "takenMs"), natural_field(body, "epoch"), text_field(body, "writer")
        )
    except (ValueError, TypeError, LookupError) as error:
        refuse_document(name, f"a body that is not the table {kind.name} ({error})", REMEDY)


def entry_problem(kind: StateKind, name: str, entry: object) -> str | None:
    """Why an entry of a table is none that a broker has; None: it may be. A job copies what a broker answers."""
    if kind is SETTINGS:
        return None
    if kind is DELAY_OFFSETS:
        return None if is_natural(entry) else "no offset"
    if not isinstance(entry, dict):
        return f"{type(entry).__name__} in place of an object"
    if kind is TOPICS:
        return topic_problem(name) or _topic_problem(name, entry)
    if kind is GROUPS:
        return group_problem(name) or _group_problem(entry)
    return _modes_problem(entry) if kind is REQUEST_MODES else None


def _topic_problem(name: str, entry: Mapping[str, Any]) -> str | None:
    if entry.get("topicName", name) != name:
        return "the entry of another topic"
    counts = [entry[key] for key in ("readQueueNums", "writeQueueNums") if key in entry]
    if not all(is_natural(count) and count <= TOPIC_QUEUES_MAX for count in counts):
        return f"expected at most {TOPIC_QUEUES_MAX} queues, found {str(counts)[:60]}"
    attributes = entry.get("attributes") or {}
    if not (isinstance(attributes, dict) and all(isinstance(value, str) for value in attributes.values())):
        return "attributes that are no texts"
    return _number_problem(entry, {"perm": INT_MAX, "topicSysFlag": INT_MAX}) or _text_problem(
        entry, ("topicName", "topicFilterType")
    )


def _group_problem(entry: Mapping[str, Any]) -> str | None:
    attributes, policy = entry.get("attributes"), entry.get("groupRetryPolicy")
    if attributes is not None and not (
        isinstance(attributes, dict) and not any(isinstance(value, dict | list) for value in attributes.values())
    ):
        return "attributes that are no texts"
    if not (policy is None or isinstance(policy, dict)):
        return f"expected an object in groupRetryPolicy, found {str(policy)[:60]!r}"
    return _number_problem(entry, _GROUP_NUMBERS) or _text_problem(entry, ("groupName",))


def _modes_problem(entry: Mapping[str, Any]) -> str | None:
    """Of the groups of a topic."""
    for group, mode in entry.items():
        if not isinstance(mode, dict):
            return f"{type(mode).__name__} in place of the mode of group {group[:60]!r}"
        if (problem := _number_problem(mode, {"popShareQueueNum": INT_MAX})) is not None:
            return problem
    return None


_GROUP_NUMBERS = {
    "retryQueueNums": INT_MAX,
    "retryMaxTimes": INT_MAX,
    "brokerId": LONG_MAX,
    "whichBrokerWhenConsumeSlowly": LONG_MAX,
    "groupSysFlag": INT_MAX,
    "consumeTimeoutMinute": INT_MAX,
}


def _number_problem(entry: Mapping[str, Any], highest: Mapping[str, int]) -> str | None:
    """Brokers read a number from text, too, and take the default for one that is absent or empty."""
    for name, high in highest.items():
        value = entry.get(name)
        try:
            if value is None or value == "" or -high - 1 <= int(value) <= high:
                continue
        except (TypeError, ValueError, OverflowError):
            pass
        return f"expected a number of {high.bit_length() + 1} bits in {name}, found {str(value)[:60]!r}"
    return None


def _text_problem(entry: Mapping[str, Any], names: Iterable[str]) -> str | None:
    for name in names:
        if not isinstance(value := entry.get(name), str | None):
            return f"expected text in {name}, found {str(value)[:60]!r}"
    return None


def is_forbidden_table(value: object) -> bool:
    """Whether a broker can read the topics that groups are forbidden to read."""
    return isinstance(value, dict) and all(
        isinstance(topics, dict) and _number_problem(topics, dict.fromkeys(topics, LONG_MAX)) is None
        for topics in value.values()
    )


def is_natural(value: object) -> bool:
    """Whether a value of JSON is a number that an offset or a count can be."""
    return type(value) is int and 0 <= value <= LONG_MAX


def state_kind_at(name: str) -> StateKind | None:
    """The kind of an object's table; None for other objects, and for kinds of a newer TierMQ."""
    home = broker_of_state(name)
    return None if home is None else next((kind for kind in KINDS if state_object(*home, kind.name) == name), None)


def load_broker_state(
    driver: TierDriver, cluster: str, broker: str, kinds: Iterable[StateKind] = KINDS
) -> tuple[dict[str, StoredTable], dict[str, TierError]]:
    """The tables of a broker in the tier, and by object name what is wrong with others. A GET for each kind."""
    found: dict[str, StoredTable] = {}
    problems: dict[str, TierError] = {}
    for kind in kinds:
        name = state_object(cluster, broker, kind.name)
        stored = driver.get_object(name)
        if stored is None:
            continue
        try:
            found[kind.name] = decode_table(stored.data, name, kind)
        except (CorruptManifest, FutureManifest) as error:
            problems[name] = error
    return found, problems
