"""GrpcLeases: what was popped goes back if its client did not get it; a push consumer keeps it while it lives.

    popped ─► sent ─► the client has it ─► of a push consumer: leased ─► due soon, client alive ─► more time
                  │                                                  └► client gone ─► due at once, another gets it
                  └► the call, or its connection, ended before ─► due at once

A push consumer asks for no time and sends nothing until it has consumed. What it has is in the check points of POP's
log (and in the orders of queues that are popped in order), with its name: so a broker that starts again goes on where
it was once the client is back, and the receipt that the client has stays valid. There is no other table.

Until a client is known to have them (`Call.on_taken`) its messages have the time of any pop, `RENEWED_MS`, in the log
too. So whatever is lost on the way, also with the broker's process, becomes visible then at the latest.

Invariants: a message is extended while its client is known, for at most `LEASE_MS_MAX` since its pop; of a client that
is not known (the broker has just started) messages become visible when their time is over. After a kill no lease of
messages in order goes on: acknowledgements since their file was written are lost, the client sends no others, and the
queue would be closed for as long as it lives. On the loop's thread, in slices of its time.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from functools import partial
from time import monotonic
from typing import NamedTuple

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.grpc.grpc_clients import GrpcClient, GrpcClients
from tiermq.broker.pop.order_infos import QueueOfGroup
from tiermq.broker.pop.pop_checkpoints import CheckPoint, Lease, PoppedMessage
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.errors import RequestRefused
from tiermq.remoting.limits import SLICE_S

_log = logging.getLogger(__name__)

RENEWED_MS = 60_000
"""How long a message is invisible, and for how long it is extended each time."""
RENEW_S = 5.0
AHEAD_MS = 20_000
"""How long before its end a time is extended."""
LEASE_MS_MAX = 3 * 3_600_000
RELEASE_MS = 1_000
"""After this time another client gets what a client had that is gone, and what did not reach its client."""
Steps = Generator[None, None, None]


class Given(NamedTuple):
    """What a receive has popped, until its client has it: pops, and whether they are in order."""

    popped: frozenset[PoppedMessage]
    is_ordered: bool

    @property
    def queues(self) -> list[tuple[QueueOfGroup, int]]:
        """Of pops in order: their queues, and when they were popped."""
        return [((each.topic, each.group, each.queue_id), each.pop_ms) for each in self.popped]


class GrpcLeases:
    """See the module."""

    def __init__(self, parts: BrokerContext, clients: GrpcClients, pops: PopProcessor) -> None:
        self._parts = parts
        self._clients = clients
        self._pops = pops
        self._log = pops.log
        self._orders = pops.orders
        self._is_renewing = False
        if not parts.local.was_closed and (count := pops.orders.end_leases(RENEWED_MS)):
            _log.warning("the broker was killed: %d leases of messages in order have ended", count)
        self.renewed_count = 0
        self.returned_count = 0
        clients.on_gone.append(self.release)
        parts.hooks.every(RENEW_S, self.renew)
        parts.hooks.on_stop(self._keep)
        parts.metrics.counter(
            "tiermq_grpc_leases_renewed_total", "times of popped messages that were extended", (), self._renewed
        )
        parts.metrics.counter(
            "tiermq_grpc_pops_returned_total",
            "pops that did not reach their client, and were made visible again",
            (),
            lambda: self.returned_count,
        )

    def _renewed(self) -> int:
        return self.renewed_count

    # Of one receive.

    def take(self, given: Given, lease: Lease, client: GrpcClient | None) -> None:
        """A push consumer has got what it popped: it is its own from now on. `client`: what it was known as when it
        asked; None if it has not sent its settings yet, as after a restart of the broker.
        """
        if client is not None and client.closing:
            self.give_back(given)
        elif given.is_ordered:
            for queue, pop_ms in given.queues:
                self._orders.lease(queue, pop_ms, lease)
        else:
            for popped in given.popped:
                self._log.points.lease(popped, lease)

    def give_back(self, given: Given) -> None:
        """A client did not get what it popped: another does."""
        self.returned_count += 1
        if given.is_ordered:
            for queue, pop_ms in given.queues:
                self._free_soon(queue, pop_ms)
        else:
            for popped in given.popped:
                point = self._log.points.find(popped)
                if point is not None:
                    self._due_soon(point)

    def _due_soon(self, point: CheckPoint) -> None:
        held_ms = self._parts.clock.now_ms() - point.popped.pop_ms + RELEASE_MS
        if held_ms < point.invisible_ms:
            try:
                self._log.extend(point.popped, held_ms, None)
            except RequestRefused as error:  # It becomes visible when its time is over.
                _log.warning("%s: it cannot be released now: %s", point.popped, error)

    def _free_soon(self, queue: QueueOfGroup, pop_ms: int) -> None:
        self._orders.extend(queue, pop_ms, self._parts.clock.now_ms() + RELEASE_MS, None)
        self._pops.queue_freed(queue[0], queue[2])  # Others that wait look when it is free now.

    # Of clients.

    def renew(self) -> None:
        """Extend what is due soon and whose client is there."""
        if not self._is_renewing:
            self._is_renewing = True
            self._go_on(self._renewing())

    def release(self, client: GrpcClient) -> None:
        """A client is gone: others get what it had."""
        self._go_on(self._releasing(client))

    def _go_on(self, steps: Steps) -> None:
        """For a slice of the loop's time; what is left waits for its turn among all work in steps."""
        until_s = monotonic() + SLICE_S
        for _ in steps:
            if monotonic() >= until_s:
                self._parts.server.give_way(partial(self._go_on, steps))
                return

    def _renewing(self) -> Steps:
        try:
            for point in self._log.points.leased():
                yield
                self._renew_point(point)
            for queue, lease, pop_ms, until_ms in self._orders.leased():
                yield
                now_ms = self._parts.clock.now_ms()
                is_due = until_ms - now_ms < AHEAD_MS and now_ms - pop_ms < LEASE_MS_MAX
                if is_due and self._clients.is_alive(lease):
                    self._orders.extend(queue, pop_ms, now_ms + RENEWED_MS, lease)
                    self.renewed_count += 1
        finally:
            self._is_renewing = False

    def _renew_point(self, point: CheckPoint) -> None:
        now_ms = self._parts.clock.now_ms()
        held_ms = now_ms - point.popped.pop_ms
        is_due = point.due_ms - now_ms < AHEAD_MS or not _is_kept(point)
        if point.open and point.lease is not None and is_due and held_ms < LEASE_MS_MAX:
            if not self._clients.is_alive(point.lease):
                return
            try:
                self.renewed_count += self._log.extend(point.popped, max(1, held_ms) + RENEWED_MS, point.lease)
            except RequestRefused as error:  # The store is full, or busy: the next look tries again.
                _log.warning("%s: its time cannot be extended now: %s", point.popped, error)

    def _releasing(self, client: GrpcClient) -> Steps:
        key = client.caller.key
        for point in self._log.points.leased(key):
            yield
            if point.open and point.lease == key:
                self._due_soon(point)
        for queue, _, pop_ms, _ in self._orders.leased(key):
            yield
            self._free_soon(queue, pop_ms)

    def _keep(self) -> None:
        """The broker ends in order: its log has all leases."""
        for point in self._log.points.leased():
            if not _is_kept(point):
                self._renew_point(point)


def _is_kept(point: CheckPoint) -> bool:
    """Whether the log knows of the lease: a point's first record has the time of any pop, and no lease."""
    return point.invisible_ms > RENEWED_MS
