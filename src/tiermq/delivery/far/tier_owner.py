"""TierOwner: far timers are written by whoever holds the broker's lease, and that is the tier's own writer."""

from __future__ import annotations

from tiermq.errors import StaleWriter
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.metadata.broker_lease import BrokerLease


class TierOwner:
    """The lease that a store's tier keeps (`far_state.TimerOwner`). Any thread may ask."""

    def __init__(self, writer: QueueWriter, lease: BrokerLease) -> None:
        self._writer = writer
        self._lease = lease

    @property
    def writer(self) -> str:
        return self._lease.owner

    def own(self) -> int:
        self._writer.claim()
        if self._writer.refusal:
            raise StaleWriter(f"{self._lease.name}: far timers are another's to write: {self._writer.refusal}")
        return self._lease.epoch

    def check(self) -> None:
        self._lease.check()
