"""BrokerParts: what the processors of a broker share. Each processor gets all of it and uses what it needs.

    class SendProcessor:
        def __init__(self, parts: BrokerParts) -> None: ...
        @serves(RequestCode.…, access=…)                            # which codes it serves, and who may ask for them
        def …(self, connection, command) -> …

Invariants: parts are made before processors and outlive them. Handlers run on the loop's thread and never wait: for the
disk, for the tier, for a peer. What waits goes to the server's pool (`in_pool=True`, `run_in_pool`), or comes back
by `server.call_threadsafe`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.clients import ClientTable
from tiermq.broker.cold_flow import ColdFlow
from tiermq.broker.consumer_offsets import ConsumerOffsets
from tiermq.broker.groups import GroupTable
from tiermq.broker.rates import Rates
from tiermq.broker.topics import TopicTable
from tiermq.clock import Clock
from tiermq.delivery.put_again import QueueFor, within_topic
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.metrics import Registry
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.server import RemotingServer
from tiermq.store.local_store import LocalStore

if TYPE_CHECKING:  # A broker without a tier runs none of its hundred modules, and a start would spend half on them.
    from tiermq.tier.tiered_store import TieredStore

    Store = LocalStore | TieredStore


@dataclass(slots=True)
class BrokerParts:
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
    """Messages that were given out, by group and topic."""
    cold_flow: ColdFlow
    """How much of the tier each group may read."""
    holds_locks: Callable[[str], bool] = lambda _group: False
    """Whether a group holds a queue locked, which says that it consumes in order. Whoever keeps the locks sets it."""
    wait_told: Callable[[], bool] = lambda: True
    """Waits in the pool until the name servers know what was changed of topics; False when that took too long."""
    ask_name_server: Callable[[str, int], BlockingClient] = BlockingClient
    """Connects to a name server at a host and port, as the broker itself does: with its TLS and its signature."""
    settings_file: Path | None = None
    """The file that the broker was started with: changed settings are written there."""
    timers: TimerService | None = None
    """Who keeps messages for a time of their own; None where the wheel is switched off, and on a slave."""
    given: list[Callable[[], dict[tuple[str, str], int]]] = field(default_factory=list)
    """Each says how many messages it has given out since the start, by group and topic."""
    periodic: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """(every so many seconds, what is done then on the loop): each processor adds its own."""
    is_busy: list[Callable[[], bool]] = field(default_factory=list)
    """Each says whether it owes somebody an answer that will come: a broker that stops waits for them."""
    on_stop: list[Callable[[], None]] = field(default_factory=list)
    """Called once, in the thread that stops the broker, when no more requests come and the store is still open."""

    @property
    def queue_for(self) -> QueueFor:
        """Which queue of its topic a message gets that was stored elsewhere first: see `within_topic`."""

        def queues_of(topic: str) -> int:
            found = self.topics.get(topic)
            return 0 if found is None else max(found.read_queues, found.write_queues)

        return within_topic(self.local, queues_of)

    @property
    def local(self) -> LocalStore:
        """The store's hot half."""
        return self.store if isinstance(self.store, LocalStore) else self.store.local

    @property
    def tiered(self) -> TieredStore | None:
        """The whole store, if it has a tier."""
        return None if isinstance(self.store, LocalStore) else self.store


def config_directory(store_root: str | os.PathLike[str]) -> str:
    """Where RocketMQ's brokers keep their JSON files."""
    return os.path.join(os.fspath(store_root), "config")
