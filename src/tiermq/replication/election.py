"""Election: who is the master of a broker, decided outside of it: by a lease in the bucket, or by a controller.

    Election ─► Decision (role, epoch, master, in-sync set) ─► the owner of the broker's life changes its role
         ◄── end and confirm offset of this log; the in-sync set that the master wants to have recorded

The in-sync set is what makes a change of masters safe: a message is committed once every recorded member has it, and
only a recorded member is elected. Every epoch begins with its master as the only member, so its whole log counts as
committed; a replica joins when it has that.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


class Role(enum.Enum):
    """What an election has decided for this replica. NONE: it is not known who the master is."""

    MASTER = "master"
    SLAVE = "slave"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A role in an epoch. `address` and `ha_address` are the master's, for clients and for slaves."""

    role: Role = Role.NONE
    epoch: int = 0
    replica_id: int
    address: str = ""
    ha_address: str = ""
    members: frozenset[int] = frozenset()
    """The recorded in-sync set."""
    recording: int = 0
    """The number of the proposal by which it was recorded; 0: by none of this term."""
    is_recorded: bool = True
    """False: of a master whose set is not recorded yet, because its broker is not open: nothing is committed by it."""
    is_clean: bool = True
    """False: of a master that was not in sync when it was made one; it may lack acknowledged messages."""


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Of this replica's log: where it ends, up to where whole records of it are known to be committed, and the newest
    epoch in it.
    """

    end: int
    confirmed: int
    epoch: int = 0


QueueRanges = Mapping[tuple[str, int], tuple[int, int]]
"""By topic and id: the first queue offset, and the one behind the last."""
LEASED_QUEUES_MAX = 1_000
"""A master with more queues than that has none of them recorded: what is lost of each is not known then."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a master that was not in sync when it was made one lacks, as far as the election knows: of `epoch` the
    physical offsets `begin` to `end`, and what was acknowledged in `unknown_s` after that was recorded.

    `queues`: the committed messages of each queue of clients at that time; None: they are not known.
    """

    epoch: int
    begin: int
    end: int
    unknown_s: float
    queues: QueueRanges | None

    def lacking(self, end_of: Callable[[str, int], int]) -> QueueRanges | None:
        """The messages that are behind the end of their queue here, whether they came from its log or from the tier."""
        if self.queues is None:
            return None
        found = {name: (max(begin, end_of(*name)), end) for name, (begin, end) in self.queues.items()}
        return {name: (begin, end) for name, (begin, end) in found.items() if begin < end}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What an election asks of a replica. The calls are made on the election's thread, and never wait: a decision is
    only noted. `queues`: of a master, its queues of clients, or None for more than LEASED_QUEUES_MAX. `holes`: what of
    these messages neither the tier has, as far as it is known here, nor this log, because that begins behind them.
    """

    address: str
    ha_address: str
    ends: Callable[[], LogEnds]
    on_change: Callable[[Decision], None]
    queues: Callable[[], QueueRanges | None] = lambda: None
    holes: Callable[[QueueRanges], QueueRanges] = lambda _queues: {}


class Election(Protocol):
    """A source of roles. `start` and `stop` are called by one thread, the rest by any."""

    @property
    def decision(self) -> Decision: ...

    @property
    def loss(self) -> Loss | None:
        """What this process lacked when it was made master with loss accepted; None of any other."""

    def join(self) -> int:
        """Find out, or be given, the id of this replica, 1 or above. Raises TierMQError when that is not possible."""

    def start(self, candidate: Candidate) -> None: ...

    def stop(self) -> None:
        """Leave: a master lets another replica take over at once."""

    def may_acknowledge(self, epoch: int) -> bool:
        """Whether this process is the master of this epoch for certain, by its monotonic clock. Costs no request."""

    def knows(self, replica_id: int) -> bool:
        """Whether a replica of this broker may have this id: another one is never in sync."""

    def propose(self, epoch: int, number: int, members: frozenset[int]) -> None:
        """Of the master of this epoch: have another in-sync set recorded. `on_change` is called once that is done, also
        when it was recorded before, with this number, which is above those of earlier proposals.
        """

    def resign(self, successor: int) -> None:
        """Of a master: let another replica be the master; the one with this id if it is not 0 and can be."""

    def accept_loss(self) -> None:
        """Become the master as soon as there is none, although this replica may lack acknowledged messages."""

    def look_soon(self) -> None:
        """Find out now whether there is a new decision, and not at the next interval."""

    def addresses(self) -> Mapping[int, str]:
        """Where each replica that is known serves clients, by id. Raises RequestRefused when that is not known now."""

    def status(self) -> dict[str, object]:
        """For operators, as JSON."""
