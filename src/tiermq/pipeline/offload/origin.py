"""OffloadOrigin: a broker whose messages an offload copies, by its store directory; `wire_broker` has the one by wire.

An origin names the broker, and opens a source: what the driver plans by. Tasks open a source of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from tiermq.files.os_file_access import OsFileAccess
from tiermq.history.scan_values import StorePlace
from tiermq.pipeline.leased_broker import Home
from tiermq.pipeline.offload.wire_source import BrokerPlace
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.dispatch.local_source import LOCAL_FORK_ADVICE, ReadOnlySource, RecordSource
from tiermq.tier.metadata.broker_state import read_config_files
from tiermq.tier.names import QueueName


class OffloadOrigin(Protocol):
    """See the module. `path` is its name in reports, and what distinguishes its tasks."""

    @property
    def path(self) -> str: ...
    @property
    def cluster(self) -> str: ...
    @property
    def broker(self) -> str: ...
    @property
    def home(self) -> Home:
        """Where its metadata are: in its store directory, or in memory."""
        ...

    @property
    def wire(self) -> BrokerPlace | None:
        """How tasks reach it; None by its directory."""
        ...

    @property
    def fork_advice(self) -> str:
        """What to do when the tier has other messages of the same offsets."""
        ...

    @property
    def retention_ms(self) -> int | None:
        """How long the broker keeps messages that were not copied; None: it does not delete them, or it is unknown."""
        ...

    @property
    def failed(self) -> Collection[str]:
        """Topics whose queues are not known now, though they exist."""
        ...

    @property
    def unread(self) -> Mapping[QueueName, range]:
        """The messages of queues that cannot be read."""
        ...

    @property
    def earliest_ms(self) -> int:
        """When its oldest message was stored; 0 when that is not known."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether several threads may use its source at once."""
        ...

    @property
    def life(self) -> int:
        """Grows when the broker may have lost its newest messages: its history must be compared again."""
        ...

    def open(self) -> AbstractContextManager[RecordSource]:
        """The source, for the time of the job."""
        ...

    def expect(self, names: Iterable[QueueName]) -> None:
        """The tier has these queues: the source must not leave one out that has messages."""
        ...

    def read_tables(self) -> dict[str, bytes]:
        """The broker's topics, groups and offsets, for `StateCopy`. Raises OSError, TierMQError."""
        ...

    def wait_s(self, name: QueueName, target: int) -> float | None:
        """How long until messages below `target` are durable; None: they are, or waiting does not help."""
        ...

    def store_time_of(self, name: QueueName, offset: int) -> int:
        """When the message was stored; -1 when it cannot be read."""
        ...


class StoreOrigin:
    """A store directory."""

    wire = None
    fork_advice = LOCAL_FORK_ADVICE
    retention_ms = None  # Its broker deletes only what is in the tier.
    failed: tuple[str, ...] = ()
    unread: Mapping[QueueName, range] = MappingProxyType({})
    earliest_ms = 0
    is_shared = False
    life = 0

    def __init__(self, place: StorePlace) -> None:
        self.path = place.path
        self.cluster = place.cluster
        self.broker = place.broker
        self.home = Home(place.cluster, place.broker, place)
        self._root = Path(place.path).expanduser()

    @contextmanager
    def open(self) -> Iterator[RecordSource]:
        """Raises StoreNotRecovered, and what opening does."""
        with ReadOnlyStore.open(self.path) as store:
            store.require_recovered()
            yield ReadOnlySource(store)

    def expect(self, names: Iterable[QueueName]) -> None:
        """Nothing: its queues are its directories."""

    def read_tables(self) -> dict[str, bytes]:
        return read_config_files(OsFileAccess(), str(self._root))

    def wait_s(self, _name: QueueName, _target: int) -> None:
        return None

    def store_time_of(self, _name: QueueName, _offset: int) -> int:
        return -1
