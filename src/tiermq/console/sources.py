"""Sources: where the console reads from: a cluster over the wire, a tier, store directories, or any of them together.

    Sources(SourcePlace(access=Access("127.0.0.1:9876")))          routes, pulls, administration
    Sources(SourcePlace(tier="s3://history", stores=(…,)))          files and objects, without any broker

`Visit` is one user of them: which account signs its requests, whether it may read files beside brokers, and whether it
may change anything. Invariant: files are read only by visits that may, since a file has no permissions of accounts.

What is costly to list is kept for some seconds (`Kept`). Every method may be called by any thread.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tiermq.client.broker_state import REQUESTS
from tiermq.client.cluster_client import Access, BlockingCluster, ClusterClient
from tiermq.client.table_pages import ask_table
from tiermq.clock import Clock, SystemClock
from tiermq.console.query_runs import SPARK_LIMITS, VERIFY_LIMITS, QueryLimits, QueryRuns
from tiermq.errors import BadRequest, RequestRefused, TierMQError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.history.scan_values import DEFAULT_BROKER, HistoryPlace, ScanRequest, StorePlace
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.json_dialect import as_int, decode_object
from tiermq.remoting.permissions import Credentials
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.store.tier_continuation import recorded_names
from tiermq.tier.metadata.broker_state import GROUPS, OFFSETS, TOPICS, load_broker_state, read_config_files
from tiermq.tier.queue.segments import TierListing, TierScope, list_tier

LISTING_S = 15.0
TABLES_S = 5.0
CLUSTERS_MAX = 32
ANSWER_S = 5.0
SILENT_S = 15.0
"""A page waits so long for a broker, and then shows for a while what the others have."""
if TYPE_CHECKING:
    from tiermq.client.wire_history import WireHistory
    from tiermq.console.spark_query import SparkQuery
    from tiermq.history.catalog import Catalog
    from tiermq.history.open_history import OpenHistory

WIRE_TABLES = (TOPICS, GROUPS, OFFSETS)
_audit = logging.getLogger("tiermq.console.audit")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where. At least one of them is given."""

    access: Access | None = None
    tier: str | None = None
    stores: tuple[StorePlace, ...] = ()
    tables: tuple[str, ...] = ()
    """Tables that messages are exported to, as `pipeline export --to` has them: a message's life names those."""
    spark_master: str | None = None
    """Where queries run that are too large for the console's process."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of brokers, as files or a bucket have them: by name, with RocketMQ's own members."""

    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    offsets: Mapping[tuple[str, str], Mapping[tuple[str, int], int]] = field(default_factory=dict)
    """By (topic, group), then by (broker, queue)."""
    taken_ms: int | None = None
    """When a broker copied them into the tier; None: they are those of a store directory now."""
    problems: tuple[str, ...] = ()


class Kept(Generic[T]):
    """A value that is made again when it is older than some seconds. One thread makes it, others wait for it."""

    def __init__(self, seconds: float, clock: Clock, make: Callable[[], T]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[float, T] | None = None

    def get(self) -> T:
        with self._lock:
            now = self._clock.monotonic()
            if self._made is None or now - self._made[0] > self._seconds:
                self._made = now, self._make()
            return self._made[1]

    def forget(self) -> None:
        """Make it again at the next use."""
        with self._lock:
            self._made = None


class Sources:
    """See the module. Its owner closes it."""

    def __init__(
        self,
        place: SourcePlace,
        *,
        clock: Clock | None = None,
        limits: QueryLimits | None = None,
        spark_limits: QueryLimits = SPARK_LIMITS,
    ) -> None:
        if place.access is None and place.tier is None and not place.stores:
            raise BadRequest(
                "expected a name server, a tier or a store directory, found none: give --namesrv, --tier or --store"
            )
        self.place = place
        self.clock = clock or SystemClock()
        self.queries = QueryRuns(limits, clock=self.clock)
        self.spark_queries = QueryRuns(spark_limits, clock=self.clock)
        self.spark_query: SparkQuery | None = None
        """What runs on Spark now."""
        self.verifying = QueryRuns(VERIFY_LIMITS, clock=self.clock)
        self._lock = threading.RLock()
        self._files_lock = threading.RLock()
        self._history: OpenHistory | None = None
        self._clusters: OrderedDict[Credentials | None, BlockingCluster] = OrderedDict()
        self._listing = Kept(LISTING_S, self.clock, self._list_tier)
        self._wire_tables: dict[Credentials | None, Kept[Tables]] = {}
        self._kept: dict[tuple[object, ...], Kept[Any]] = {}
        self.verification: dict[str, Any] | None = None
        """The last verification that this console made, which a console that only reads does not keep in the tier."""
        self._tables = Kept(TABLES_S, self.clock, self._read_tables)
        self.seen_brokers: dict[tuple[str, str], tuple[str, int]] = {}
        """By (name, role): the address, and when it was registered the last time. Replaced by the overview."""

    @property
    def has_wire(self) -> bool:
        return self.place.access is not None

    @property
    def has_tier(self) -> bool:
        return self.place.tier is not None

    @property
    def has_files(self) -> bool:
        return self.has_tier or bool(self.place.stores)

    def stop_work(self) -> None:
        """End what runs, and take no more."""
        for each in (self.queries, self.spark_queries, self.verifying):
            each.stop()

    def close(self) -> None:
        self.stop_work()
        with self._lock:
            for cluster in self._clusters.values():
                cluster.close()
            self._clusters.clear()
            if self._history is not None:
                self._history.close()
                self._history = None

    # Over the wire

    def access(self, credentials: Credentials | None) -> Access:
        """The cluster's address with the keys of an account. Raises BadRequest without a name server."""
        if self.place.access is None:
            raise BadRequest("this needs brokers, and the console was started without `--namesrv`")
        if credentials is None:
            return self.place.access
        return replace(self.place.access, access_key=credentials.access_key, secret_key=credentials.secret_key)

    def cluster(self, credentials: Credentials | None) -> BlockingCluster:
        """The connections of an account; those that were used the longest ago are closed.

        By key and secret: connections of the right secret must not serve a log-in with a wrong one.
        """
        access = self.access(credentials)
        with self._lock:
            found = self._clusters.pop(credentials, None)
            if found is None:
                found = BlockingCluster(access)
            self._clusters[credentials] = found
            while len(self._clusters) > CLUSTERS_MAX:
                self._clusters.popitem(last=False)[1].close()
            return found

    def wire_tables(self, credentials: Credentials | None) -> Tables:
        """The tables of all masters, of the last seconds; empty ones where only an administrator may ask."""
        with self._lock:
            kept = self._wire_tables.get(credentials)
            if kept is None:
                while len(self._wire_tables) >= CLUSTERS_MAX:
                    self._wire_tables.pop(next(iter(self._wire_tables)))
                kept = Kept(TABLES_S, self.clock, lambda: self._ask_tables(credentials))
                self._wire_tables[credentials] = kept
        return kept.get()

    def kept(self, key: tuple[object, ...], seconds: float, make: Callable[[], T]) -> T:
        """What `make` gives, or gave in the last seconds for this key, which has all that it depends on."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                while len(self._kept) >= CLUSTERS_MAX:
                    self._kept.pop(next(iter(self._kept)))
                found = self._kept[key] = Kept(seconds, self.clock, make)
        value: T = found.get()
        return value

    def _ask_tables(self, credentials: Credentials | None) -> Tables:
        cluster = self.cluster(credentials)
        found, problems = cluster.run(_tables_of(cluster.client))
        return joined_tables(found, problems=problems)

    # Files and objects

    @property
    def history_place(self) -> HistoryPlace:
        return HistoryPlace(self.place.tier, self.place.stores)

    @contextmanager
    def files(self) -> Iterator[OpenHistory]:
        """The tier and the stores, for one thread at a time. Raises BadRequest when there are none."""
        if not self.has_files:
            raise BadRequest("this needs a tier or a store directory, and the console was started without")
        with self._files_lock:
            with self._lock:
                if self._history is None:
                    # Imported here and below: a history needs numpy, which lists of brokers do without.
                    from tiermq.history.open_history import OpenHistory

                    self._history = OpenHistory(self.history_place, clock=self.clock)
            yield self._history

    def own_files(self) -> OpenHistory:
        """The same, opened for one long reading, which then holds up no page. The caller closes it."""
        if not self.has_files:
            raise BadRequest("this needs a tier or a store directory, and the console was started without")
        from tiermq.history.open_history import OpenHistory

        return OpenHistory(self.history_place, clock=self.clock)

    @contextmanager
    def topic_catalog(self, topic: str) -> Iterator[Catalog]:
        """The queues of one topic, hot and cold, with times."""
        from tiermq.history.catalog import read_catalog

        with self.files() as history:
            yield read_catalog(history, ScanRequest(topics=frozenset({topic}), begin_ms=1))

    @contextmanager
    def stores(self) -> Iterator[list[ReadOnlyStore]]:
        """The store directories as they are now."""
        with self.files() as history:
            found = [history.store(each.path) for each in self.place.stores]
            for store in found:
                store.refresh()
            yield found

    def listing(self) -> TierListing:
        """Everything in the tier, of the last seconds."""
        return self._listing.get()

    def _list_tier(self) -> TierListing:
        with self.files() as history:
            return list_tier(history.tier, TierScope())

    def forget(self) -> None:
        """Look again at everything."""
        with self._lock:
            self._listing.forget()
            self._tables.forget()
            for kept in (*self._wire_tables.values(), *self._kept.values()):
                kept.forget()

    def tables(self) -> Tables:
        """The brokers' tables: of the store directories, else of the tier."""
        return self._tables.get()

    def _read_tables(self) -> Tables:
        if self.place.stores:
            found = []
            problems = []
            for store in self.place.stores:
                broker = store.broker or next((name for _, name in recorded_names(store.path)), DEFAULT_BROKER)
                try:
                    files = read_config_files(OsFileAccess(), store.path)
                    found.append((broker, {name: decode_object(data) for name, data in files.items()}))
                except (OSError, TierMQError) as error:
                    problems.append(f"{store.path}: {error}")
            return joined_tables(found, problems=problems)
        brokers = self.listing().brokers
        with self.files() as history:
            found, problems, taken = [], [], []
            for cluster, broker in brokers:
                tables, errors = load_broker_state(history.tier, cluster, broker, (TOPICS, GROUPS, OFFSETS))
                found.append((broker, {name: table.document for name, table in tables.items()}))
                taken += [table.taken_ms for table in tables.values()]
                problems += [str(error) for error in errors.values()]
            return joined_tables(found, min(taken, default=None), problems)


async def _tables_of(client: ClusterClient) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    problems: list[str] = []

    async def of(broker: str, address: str) -> tuple[str, dict[str, Any]]:
        documents = {}
        for kind in WIRE_TABLES:
            try:
                documents[kind.name] = decode_object(await ask_table(client, address, REQUESTS[kind.name]))
            except RequestRefused as error:
                if error.code != ResponseCode.NO_PERMISSION:
                    raise
                problems.append(f"{kind.words} of {broker}: only an administrator may ask for all of them")
        return broker, documents

    table = await client.master_table()
    masters = {name: address for (_, name), address in table.addresses.items()}
    if not masters:
        problems.append(f"There is no broker: {table.why_without_master}.")
    masters = await answering(client, masters)
    return list(await asyncio.gather(*(of(*each) for each in sorted(masters.items())))), problems


async def answering(client: ClusterClient, addresses: Mapping[str, str]) -> dict[str, str]:
    """Those of some brokers that answer, by name. One that is stopped must not hold up what the others have.

    What is shown without a broker names it: see `Visit.problems`.
    """
    await asyncio.gather(*(client.answers(each, ANSWER_S, SILENT_S) for each in set(addresses.values())))
    silent = client.silent
    return {name: address for name, address in addresses.items() if address not in silent}


def joined_tables(
    found: Iterable[tuple[str, Mapping[str, Any]]], taken_ms: int | None = None, problems: Sequence[str] = ()
) -> Tables:
    """The tables of several brokers, each by the names of its kinds."""
    topics: dict[str, Mapping[str, Any]] = {}
    groups: dict[str, Mapping[str, Any]] = {}
    offsets: dict[tuple[str, str], dict[tuple[str, int], int]] = {}
    for broker, document in found:
        topics |= document.get(TOPICS.name, {}).get(TOPICS.table) or {}
        groups |= document.get(GROUPS.name, {}).get(GROUPS.table) or {}
        for name, queues in (document.get(OFFSETS.name, {}).get(OFFSETS.table) or {}).items():
            topic, _, group = name.rpartition("@")
            own = offsets.setdefault((topic, group), {})
            own.update({(broker, as_int(queue)): as_int(offset) for queue, offset in queues.items()})
    return Tables(topics, groups, offsets, taken_ms, tuple(problems))


@dataclass(frozen=True, slots=True)
class Visit:
    """One user of the sources."""

    sources: Sources
    actor: str = "local"
    credentials: Credentials | None = None
    reads_files: bool = True
    may_change: bool = False

    @property
    def has_files(self) -> bool:
        return self.reads_files and self.sources.has_files

    @property
    def has_tier(self) -> bool:
        return self.reads_files and self.sources.has_tier

    @property
    def has_stores(self) -> bool:
        return self.reads_files and bool(self.sources.place.stores)

    @property
    def has_wire(self) -> bool:
        return self.sources.has_wire

    def tables(self) -> Tables:
        """Topics, groups and offsets: of the brokers where there are any, else of files."""
        if self.has_wire:
            return self.sources.wire_tables(self.credentials)
        self.require_files()
        return self.sources.tables()

    def require_files(self) -> None:
        """Raises BadRequest."""
        if not self.sources.has_files:
            raise BadRequest("this needs a tier or a store directory: start the console with `--tier` or `--store`")
        if not self.reads_files:
            raise BadRequest("this reads files past the brokers' permissions, which is for administrators")

    def require_tier(self) -> None:
        """Raises BadRequest."""
        if not self.sources.has_tier:
            raise BadRequest("this needs a tier: start the console with `--tier`")
        self.require_files()

    def ask(self, work: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
        """What the work gives, with the cluster and this account. Raises RemotingError."""
        cluster = self.sources.cluster(self.credentials)
        return cluster.run(work(cluster.client))

    def problems(self) -> list[str]:
        """Which servers do not answer: figures are without theirs."""
        if not self.has_wire:
            return []
        silent = self.sources.cluster(self.credentials).client.silent
        return [
            f"{address} does not answer, so that its share is missing here: {why}" for address, why in silent.items()
        ]

    def wire_history(self) -> WireHistory:
        """The cluster as a history, to be closed."""
        from tiermq.client.wire_history import WireHistory, WirePlace

        access = self.sources.access(self.credentials)
        return WireHistory(WirePlace(name_servers=access.name_servers), access=access)

    def audit(self, name: str, arguments: Mapping[str, object]) -> None:
        """One line for a change, before it is made."""
        shown = {key: value for key, value in arguments.items() if value is not None and key != "body"}
        _audit.warning("%s runs %s %s", self.actor, name, json.dumps(shown, ensure_ascii=True, default=str))
