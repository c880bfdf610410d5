"""WireFleet: the brokers that an offload over the wire copies, found by their name servers.

    find      the masters of the clusters, again before each wave: a broker that comes later is copied, too
    look      ask all of them at once (`WireBroker.ask`); one that is down or slow delays only its own queues
    check     before the first byte: may this account read every topic that was chosen, by the group of tools?

A broker that was found once and is not registered any more stays, as one that cannot be reached.
Belongs to the driver's thread.
"""

from __future__ import annotations

import asyncio
import difflib
import fnmatch
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass

from tiermq.clock import Clock
from tiermq.errors import BadConfig, BadTierName, RemotingError, RequestRefused, RequestTimedOut
from tiermq.message.topic_name import (
    TOOLS_GROUP,
    TRANSACTION_TOPICS,
    is_dead_letter_topic,
    is_retry_topic,
)
from tiermq.pipeline.offload.wire_broker import BrokerLook, WireBroker
from tiermq.pipeline.offload.wire_source import BrokerPlace, cluster_of
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.tls import ANY_SERVER, ClientTls
from tiermq.tier.dispatch.plan import TopicFilter
from tiermq.tier.names import QueueKey

KINDS = ("retry", "dlq", "transactions")
"""Topics of the system that are copied only by choice."""
TOPICS_SHOWN_MAX = 5
FAILED_WAIT_S = 0.2
"""For an answer of a broker that gave none the last time, where a wave of others waits."""


@dataclass(frozen=True, slots=True)
class FleetScope:
    """Which brokers and topics of the name servers are copied. Patterns are a shell's: `audit-*`."""

    name_servers: str
    cluster: str | None = None
    brokers: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    exclude: tuple[str, ...] = ()
    exclude_brokers: tuple[str, ...] = ()
    include: frozenset[str] = frozenset()
    tls: bool = False
    certificates: ClientTls = ANY_SERVER
    settle_s: float | None = None
    """None: of each broker as long as its own flush may take; see `wire_broker`."""
    accept_gaps: bool = False
    """Record gaps of any size."""

    def __post_init__(self) -> None:
        unknown = sorted(self.include - set(KINDS))
        if unknown:
            raise BadConfig(f"--include is {', '.join(KINDS)}, found {', '.join(unknown)}")

    def wants_broker(self, name: str) -> bool:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude_brokers):
            return False
        return not self.brokers or name in self.brokers

    def topic_filter(self, cluster: str, broker: str) -> TopicFilter:
        """The system's own topics, and those named after the cluster or a broker, are never copied."""
        return TopicFilter(broker, cluster, whitelist=self.topics or None, also=TRANSACTION_TOPICS)

    def wants(self, cluster: str, broker: str) -> Callable[[str, bool], bool]:
        """Whether a topic of that broker is copied, and with its own `tierTransactionsEnable`."""
        chosen = self.topic_filter(cluster, broker)

        def is_wanted(topic: str, with_transactions: bool) -> bool:
            if chosen.is_filtered(topic) or any(fnmatch.fnmatchcase(topic, pattern) for pattern in self.exclude):
                return False
            if topic in self.topics:
                return True
            if topic in TRANSACTION_TOPICS:
                return "transactions" in self.include or (with_transactions and not self.topics)
            if is_retry_topic(topic):
                return "retry" in self.include
            return "dlq" in self.include if is_dead_letter_topic(topic) else True

        return is_wanted


class WireFleet:
    """See the module."""

    def __init__(self, scope: FleetScope, clock: Clock, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Nothing is asked yet. Raises BadConfig for an access that cannot be."""
        self.scope = scope
        self._clock = clock
        self._monotonic = monotonic
        place = BrokerPlace("", "", "", scope.name_servers, scope.tls, scope.certificates)
        self._client = cluster_of(place)
        self.brokers: dict[tuple[str, str], WireBroker] = {}
        self.troubles: dict[str, str] = {}
        """Brokers of the name servers that cannot be copied as they are registered, and why."""
        self.busy: set[WireBroker] = set()
        """Brokers that another thread plans by: what they have stays as that thread has seen it."""
        self._asked: dict[tuple[str, str], Future[BrokerLook | RemotingError]] = {}

    def find(self) -> list[WireBroker]:
        """The brokers that were not known yet, each looked at once. Raises RemotingError, BadConfig without any."""
        table = self._client.run(self._client.client.master_table())
        self._note_troubles(table.problems)
        masters = {each: at for each, at in table.addresses.items() if self.scope.cluster in (None, each[0])}
        if not masters and not self.brokers and not self.troubles:
            wanted = f" of cluster {self.scope.cluster}" if self.scope.cluster else ""
            raise BadConfig(f"{self.scope.name_servers}: expected brokers{wanted}, found none; `tiermq topic list` or "
                            "`mqadmin clusterList` shows what is registered")  # fmt: skip
        lost = sorted(self.scope.brokers - {name for _, name in (*masters, *table.problems, *self.brokers)})
        if lost and not self.brokers:
            near = difflib.get_close_matches(lost[0], [name for _, name in masters], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadConfig(f"there is no broker {lost[0]!r} at {self.scope.name_servers}{hint}")
        new = []
        for (cluster, name), address in masters.items():
            known = self.brokers.get((cluster, name))
            if not self.scope.wants_broker(name):
                continue
            if known is None:
                known = self._broker(cluster, name, address)
                if known is not None:
                    self.brokers[cluster, name] = known
                    new.append(known)
            elif known.wire.address != address and known not in self.busy:
                known.move(address)
        for (_, name), broker in self.brokers.items():
            broker.is_shared_name = name in table.shared
        return new

    def _note_troubles(self, problems: Mapping[tuple[str, str], str]) -> None:
        self.troubles = {
            f"{cluster}/{name}": why
            for (cluster, name), why in problems.items()
            if self.scope.cluster in (None, cluster) and self.scope.wants_broker(name)
        }

    def _broker(self, cluster: str, name: str, address: str) -> WireBroker | None:
        """None for names that have no place in a tier: then it is in `troubles`."""
        scope = self.scope
        try:
            QueueKey(cluster, name, "topic", 0)
        except BadTierName as error:
            self.troubles[f"{cluster}/{name}"] = f"it cannot have a place in a tier: {error}"
            return None
        return WireBroker(
            BrokerPlace(cluster, name, address, scope.name_servers, scope.tls, scope.certificates),
            self._client,
            scope.wants(cluster, name),
            settle_s=scope.settle_s,
            clock=self._clock,
            monotonic=self._monotonic,
            accept_gaps=scope.accept_gaps,
        )

    def look(self, wait_s: float | None = None) -> None:
        """Ask every broker that is not busy what it has now. One that does not answer has an `error`.

        Brokers that need longer than `wait_s` are left out until a later look finds their answers. For one that failed
        the last time others do not wait so long: it may be down for days.
        """
        free = {key: broker for key, broker in self.brokers.items() if broker not in self.busy}
        new = {key: broker for key, broker in free.items() if key not in self._asked}
        self._asked |= {key: self._client.later(broker.ask()) for key, broker in new.items()}
        if wait_s is None:
            wait(self._asked.values())
        else:
            failed = [self._asked[key] for key, broker in new.items() if broker.error is not None]
            wait([self._asked[key] for key, broker in new.items() if broker.error is None], timeout=wait_s)
            wait(failed, timeout=min(wait_s, FAILED_WAIT_S))
        for key, answer in list(self._asked.items()):
            if key not in free:
                continue
            if answer.done():
                self.brokers[key].take(self._asked.pop(key).result())
            else:
                slow = f"{self.brokers[key].wire}: expected its answers within {wait_s:g} s, still waiting for them"
                self.brokers[key].take(RequestTimedOut(slow))

    def check(self) -> None:
        """Raises RequestRefused where this account may not read what it should copy, BadConfig for an unknown topic."""
        reached = [broker for broker in self.brokers.values() if broker.error is None]

        async def checks() -> list[BaseException | None]:
            return await asyncio.gather(*(broker.check_readable() for broker in reached), return_exceptions=True)

        for found in self._client.run(checks()):
            if found is not None and not isinstance(found, RemotingError):
                raise found  # A broker that went away meanwhile is reported by the next look.
        for broker in reached:
            for topic, why in broker.passed_over.items():
                if topic in self.scope.topics:
                    raise BadConfig(f"--topic {topic}: it cannot be copied: {why} ({broker.path})")
            if broker.refused:
                raise RequestRefused(_refusal(broker), ResponseCode.NO_PERMISSION)
        known = {topic for broker in reached for topic in (*broker.failed, *(topic for topic, _ in broker.queues()))}
        for topic in sorted(self.scope.topics - known) if len(reached) == len(self.brokers) else ():
            near = difflib.get_close_matches(topic, {name for broker in reached for name in broker.topic_names}, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadConfig(f"there is no topic {topic!r} at these brokers{hint}")


def _refusal(broker: WireBroker) -> str:
    shown = "; ".join(f"{topic}: {why}" for topic, why in sorted(broker.refused.items())[:TOPICS_SHOWN_MAX])
    more = len(broker.refused) - TOPICS_SHOWN_MAX
    return (
        f"{broker.path}: expected to read every topic that is to be copied, found {len(broker.refused)} that cannot "
        f"be. {shown}{f'; and {more} more' if more > 0 else ''}. Nothing was copied. Grant the account SUB on these "
        f"topics and on the group {TOOLS_GROUP} (with ACL 2.0: Topic:NAME Sub, Group:{TOOLS_GROUP} Sub), create the "
        f"group if it is missing (`mqadmin updateSubGroup -g {TOOLS_GROUP}`), or leave topics out with --exclude"
    )
