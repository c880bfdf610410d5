"""BrokerContext: the values that processors share. BrokerHooks: what they ask of the broker's life, by name.

    class SendProcessor:
        def __init__(self, parts: BrokerContext) -> None:
            parts.hooks.every(LOOK_S, self._answer_late)            # on the loop
            parts.hooks.busy_while(lambda: self.waiting > 0)        # a stop waits for it

        @serves(RequestCode.…, access=…)                            # which codes it serves, and who may send them
        def …(self, connection, command) -> …

Invariants: a context is made before its processors, outlives them and never changes; hooks are filled while processors
are made and read once the broker starts. Handlers run on the loop's thread and never wait: for the disk, for the tier,
for a peer. Blocking work goes to the server's pool (`in_pool=True`, `run_in_pool`), or comes back by
`server.call_threadsafe`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tiermq.broker.admin.rates import Rates
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.group.client_table import ClientTable
from tiermq.broker.group.consumer_offsets import ConsumerOffsets
from tiermq.broker.group.group_table import GroupTable
from tiermq.broker.pull.cold_flow import ColdFlow
from tiermq.broker.replication.replication import Replication
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.clock import Clock
from tiermq.delivery.redeliver import QueueFor, within_topic
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.metrics import Registry
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.server import RemotingServer
from tiermq.service import Service
from tiermq.store.local_store import LocalStore

if TYPE_CHECKING:  # A broker without a tier runs none of its hundred modules, and a start would spend half on them.
    from tiermq.tier.tiered_store import TieredStore

    Store = LocalStore | TieredStore

GivenCounts = dict[tuple[str, str], int]
"""Messages that were delivered since the start, by group and topic."""


class BrokerHooks:
    """What a broker does for its processors and services. Filled by the thread that makes the broker."""

    def __init__(self) -> None:
        self.periodic: list[tuple[float, Callable[[], None]]] = []
        self._services: list[Service] = []
        self._stops: list[Callable[[], None]] = []
        self._busy: list[Callable[[], bool]] = []
        self._given: list[Callable[[], GivenCounts]] = []
        self._held: dict[str, Callable[[], int]] = {}

    def every(self, period_s: float, call: Callable[[], None]) -> None:
        """Call it on the loop, again and again."""
        self.periodic.append((period_s, call))

    def run(self, service: Service) -> None:
        """Start a service a moment after the broker, and stop it with the broker."""
        self._services.append(service)
        self.on_stop(service.stop)

    def on_stop(self, call: Callable[[], None]) -> None:
        """Call it once, in the thread that stops the broker, when no more requests come and the store is still open."""
        self._stops.append(call)

    def busy_while(self, is_busy: Callable[[], bool]) -> None:
        """Let a stop wait while it returns True: a client is owed an answer that will come."""
        self._busy.append(is_busy)

    def count_given(self, read: Callable[[], GivenCounts]) -> None:
        """A source of the number of delivered messages."""
        self._given.append(read)

    def holds(self, kind: str, count: Callable[[], int]) -> None:
        """How many messages of that kind wait in the broker's own log for something to happen: no consumer sees them
        yet, and they are not uploaded.
        """
        self._held[kind] = count

    # For the broker, and for the processors that report.

    def held(self) -> dict[str, int]:
        """The kinds of which there are some."""
        return {kind: found for kind, count in self._held.items() if (found := count())}

    def start_services(self) -> None:
        """On the loop. Running ones continue."""
        for service in self._services:
            if not service.running:
                service.start()

    def stop(self) -> None:
        """In the order in which they were asked for."""
        for call in self._stops:
            call()

    @property
    def is_busy(self) -> bool:
        return any(is_busy() for is_busy in self._busy)

    def given(self) -> GivenCounts:
        """Totals of all processors that deliver messages."""
        totals: Counter[tuple[str, str]] = Counter()
        for read in self._given:
            totals.update(read())
        return dict(totals)


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """See the module."""

    config: BrokerConfig
    store: Store
    clock: Clock
    metrics: Registry
    server: RemotingServer
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    clients: ClientTable
    put_rates: Rates[str]
    """Messages that were put, by topic."""
    given_rates: Rates[tuple[str, str]]
    """Messages that were delivered, by group and topic."""
    cold_flow: ColdFlow
    """How much of the tier each group may read."""
    timers: TimerService | None
    """Keeps messages for a time of their own; None where the wheel is switched off, and on a slave."""
    replication: Replication
    """The broker's role: its slaves, or its master."""
    hooks: BrokerHooks
    wait_registered: Callable[[], bool]
    """Waits in the pool until the name servers have accepted topic changes; False after a timeout."""
    ask_name_server: Callable[[str, int], BlockingClient] = BlockingClient
    """Connects to a name server at a host and port, with the broker's TLS and signature."""
    ask_replica: Callable[[str, int], BlockingClient] = BlockingClient
    """The same to another replica of this broker, or to its master."""
    settings_file: Path | None = None
    """The file that the broker was started with: changed settings are written there."""
    protection: Mapping[str, str] = field(default_factory=dict)
    """Settings of RocketMQ that ask for the protection that this broker has: copied settings have them."""
    with_name_server: bool = False
    """Whether `namesrv_addr` is a name server of this process or its supervisor, and gone with it."""

    @property
    def queue_for(self) -> QueueFor:
        """Which queue of its topic a message gets that was stored elsewhere first: see `within_topic`."""
        return within_topic(self.local, self.topics.queue_count)

    @property
    def local(self) -> LocalStore:
        """The store's hot half."""
        return local_half(self.store)

    @property
    def tiered(self) -> TieredStore | None:
        """The whole store, if it has a tier."""
        return tiered_store(self.store)


def local_half(store: Store) -> LocalStore:
    """The hot half of a store: all of it, where it has no tier."""
    return store if isinstance(store, LocalStore) else store.local


def tiered_store(store: Store) -> TieredStore | None:
    """The store, if it has a tier."""
    return None if isinstance(store, LocalStore) else store


def config_directory(store_root: str | os.PathLike[str]) -> str:
    """Where RocketMQ's brokers keep their JSON files."""
    return os.path.join(os.fspath(store_root), "config")
