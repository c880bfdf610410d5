"""GrpcLeases: more time for messages of push consumers, for as long as their client lives.

    pop with a lease ─► check point with the client's name ─► due soon, client alive ─► the same check point, later
                                                           └► client gone ─► due at once, another client gets it

A push consumer asks for no time and says nothing until it has consumed. What it has is in the check points of POP's
log (and in the orders of queues that are popped in order), with its name: so a broker that starts again goes on where
it was once the client is back, and the receipt that the client has stays valid. There is no other table.

Invariants: a message is extended while its client is known, for at most `LEASE_MS_MAX` since its pop; of a client that
is not known (the broker has just started) messages become visible when their time is over. On the loop's thread.
"""

from __future__ import annotations

import logging

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.grpc.grpc_clients import GrpcClient, GrpcClients
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.errors import RequestRefused

_log = logging.getLogger(__name__)

RENEWED_MS = 60_000
"""How long a message is invisible, and for how long it is extended each time."""
RENEW_S = 5.0
AHEAD_MS = 20_000
"""How long before its end a time is extended."""
LEASE_MS_MAX = 3 * 3_600_000
RELEASE_MS = 1_000
"""After this time another client gets what a client had that is gone."""


class GrpcLeases:
    """See the module."""

    def __init__(self, parts: BrokerContext, clients: GrpcClients, pops: PopProcessor) -> None:
        self._parts = parts
        self._clients = clients
        self._log = pops.log
        self._orders = pops.orders
        self.renewed_count = 0
        clients.on_gone.append(self.release)
        parts.hooks.every(RENEW_S, self.renew)
        parts.metrics.counter(
            "tiermq_grpc_leases_renewed_total", "times of popped messages that were extended", (), self._renewed
        )

    def _renewed(self) -> int:
        return self.renewed_count

    def renew(self) -> None:
        """Extend what is due soon and whose client is there."""
        now_ms = self._parts.clock.now_ms()
        for point in self._log.points.leased():
            held_ms = now_ms - point.popped.pop_ms
            is_due = point.due_ms - now_ms < AHEAD_MS and held_ms < LEASE_MS_MAX
            if is_due and point.lease is not None and self._clients.is_alive(point.lease):
                try:
                    self.renewed_count += self._log.extend(point.popped, held_ms + RENEWED_MS, point.lease)
                except RequestRefused as error:  # The store is full, or busy: the next look tries again.
                    _log.warning("%s: its time cannot be extended now: %s", point.popped, error)
        for queue, lease, pop_ms, until_ms in self._orders.leased():
            is_due = until_ms - now_ms < AHEAD_MS and now_ms - pop_ms < LEASE_MS_MAX
            if is_due and self._clients.is_alive(lease):
                self._orders.extend(queue, pop_ms, now_ms + RENEWED_MS, lease)
                self.renewed_count += 1

    def release(self, client: GrpcClient) -> None:
        """A client is gone: others get what it had."""
        key, now_ms = client.caller.key, self._parts.clock.now_ms()
        for point in self._log.points.leased():
            if point.lease == key:
                try:
                    self._log.extend(point.popped, now_ms - point.popped.pop_ms + RELEASE_MS, None)
                except RequestRefused as error:  # It becomes visible when its time is over.
                    _log.warning("%s: it cannot be released now: %s", point.popped, error)
        for queue, lease, pop_ms, _ in self._orders.leased():
            if lease == key:
                self._orders.extend(queue, pop_ms, now_ms + RELEASE_MS, None)
