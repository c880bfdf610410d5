"""BucketElection: elects the master of a broker by a lease in its bucket, without further servers.

    join ─► look (every `look_s`) ──free, or over, and this replica is in sync──► take it with epoch + 1
               ▲                                                                  │ the broker is open as master
               │                                                                  ▼
               │                               settle: it is the set, its directory has a new token ─► master
               │                                                                                renew, record sets │
               └───────────── another replica has it ◄── renewal refused, or released (stop, resign) ◄────────────┘

Rules: `master_lease.why_not_take`. A lease that ended although no other replica has it is renewed: there was no other
master. While it cannot be renewed, nothing is acknowledged (`may_acknowledge`), and the role stays until another holder
is seen. Until it has settled, nothing is acknowledged either, and the replicas of the set before may take over: a
replica that cannot open as master costs nothing.

A process is the holder by its claim, and a directory is a replica by its token, never by an id alone: a copy has the
same id. The next process of a holder waits for the term, unless the process before has ended on this machine.

Cost: a master puts once every `renew_s` and once for each change of its in-sync set; a replica gets once every
`look_s`. Every request is sent by one thread (`election`), which owns everything here but the flags that other threads
set; `may_acknowledge` reads one number.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from tiermq.clock import Clock, SystemClock
from tiermq.errors import ManifestConflict, TierError
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.replication.election import Candidate, Decision, LogEnds, Loss, QueueRanges, Role
from tiermq.replication.master_lease import (
    MasterLease,
    Replica,
    decode_master_lease,
    encode_master_lease,
    master_lease_name,
    why_not_take,
)
from tiermq.service import Service
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.broker_lease import has_ended, this_process
from tiermq.tier.metadata.document import CorruptManifest

_log = logging.getLogger(__name__)

IDENTITY_FILE = "replicaIdentity.json"
ACCEPT_LOSS_TERMS = 3
"""For how many terms a promotion that accepts loss is valid."""
TWIN = (
    "expected to be the only process of this replica, found another one: the store directory was copied. Remove "
    f"config/{IDENTITY_FILE} of the copy, and start it again"
)
OTHER_DIRECTORY = (
    "expected this directory's token beside its id in the lease, found another one: a copy of it was the master since, "
    "or the lease was begun again. Start this process again: it joins as a new replica"
)
JOIN_TRIES = 20
PUT_TRIES = 5


class BootClock(SystemClock):
    """Its monotonic time goes on while the machine is suspended: a lease ends meanwhile."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Seconds. A master acknowledges for `term_s` less `margin_s` after it began its last renewal."""

    term_s: float = 10.0
    renew_s: float = 3.0
    margin_s: float = 2.0
    look_s: float = 1.0


class BucketElection(Service):
    """See the module. One replica's part; an `Election`."""

    def __init__(
        self,
        driver: TierDriver,
        cluster: str,
        broker: str,
        root: str,
        *,
        times: LeaseTimes | None = None,
        clock: Clock | None = None,
        access: FileAccess | None = None,
    ) -> None:
        """`driver` should not retry by itself, and is this object's from now on; `root`: the replica's store."""
        super().__init__("election")
        self.name_of_lease = master_lease_name(cluster, broker)
        self.decision = Decision(replica_id=0)
        self.times = times or LeaseTimes()
        self.problem = ""
        """Why the last request failed, as text."""
        self.why_not = ""
        """Why this replica does not take the lease, as text."""
        self._driver = driver
        self._clock = clock or BootClock()
        self._access = access or OsFileAccess()
        self._path = os.path.join(root, "config", IDENTITY_FILE)
        self._candidate: Candidate | None = None
        self._lease = MasterLease()
        self._version: str | None = None
        self._seen_s = self._clock.monotonic()
        self._is_mine = False
        self._held_until_s = 0.0
        self._renewed_s = 0.0
        self._next_renewal_s = 0.0
        self._wanted: tuple[int, int, frozenset[int]] | None = None  # With the master's epoch, and its number.
        self._recording = 0
        self._release_for: int | None = None
        self._rests_until_s = 0.0
        self._accepted_s = -math.inf
        self._twin_renewals = 0  # By another process of this replica; one may have been on its way when that ended.
        self._is_clean = True
        self._is_settled = False
        self._claim = secrets.token_hex(12)
        self._token = self._next_token = ""
        self.loss: Loss | None = None

    # What others call.

    @property
    def own(self) -> int:
        return self.decision.replica_id

    @property
    def lease(self) -> MasterLease:
        """As it was last read or written."""
        return self._lease

    def knows(self, replica_id: int) -> bool:
        return replica_id in self._lease.replicas

    def may_acknowledge(self, epoch: int) -> bool:
        return self._clock.monotonic() < self._held_until_s and epoch == self._lease.epoch

    def left_s(self) -> float:
        """For how long this process may acknowledge, unless it renews; or how long its term may still last, of a
        lease of another replica.
        """
        now_s = self._clock.monotonic()
        if self._is_mine:
            return max(0.0, self._held_until_s - now_s)
        return max(0.0, self._seen_s + self._lease.term_ms / 1000 - now_s) if self._lease.holder else 0.0

    def propose(self, epoch: int, number: int, members: frozenset[int]) -> None:
        self._wanted = epoch, number, members
        self.wake()

    def addresses(self) -> dict[int, str]:
        return {number: each.address for number, each in sorted(self._lease.replicas.items())}

    def status(self) -> dict[str, object]:
        lease = self._lease
        return {
            "kind": "lease",
            "lease": f"{self._driver.url.rstrip('/')}/{self.name_of_lease}",
            "epoch": lease.epoch,
            "holder": lease.holder,
            "isMine": self._is_mine,
            "address": lease.address,
            "haAddress": lease.ha_address,
            "leftMs": round(self.left_s() * 1000),
            "termMs": lease.term_ms,
            "confirmedOffset": lease.confirmed,
            "inSync": sorted(lease.members),
            "replicas": {str(number): each for number, each in self.addresses().items()},
            "whyNotMaster": "" if self._is_mine else self.why_not,
            "problem": self.problem,
        }

    def resign(self, successor: int) -> None:
        """Of a master: let another replica take over; the one with this id first, if it is not 0."""
        self._release_for = successor
        self.wake()

    def look_soon(self) -> None:
        self.wake()

    def accept_loss(self) -> None:
        """Take the lease as soon as no other replica holds it, although this one may lack acknowledged messages. It is
        over when another replica renews the lease, and after ACCEPT_LOSS_TERMS.
        """
        self._accepted_s = self._clock.monotonic()
        self.wake()

    def join(self) -> int:
        """Be given an id, or find the one that this directory has. Raises TierError."""
        known = self._access.read_config(self._path, json.loads) or {}
        self._token, self._next_token = str(known.get("token") or ""), str(known.get("next") or "")
        number = int(known.get("id") or 0)
        if not self._token:
            self._token = secrets.token_hex(16)
            self._keep_identity(number)
        try:
            found = self._claim_id(number)
        except TierError as error:
            if not number:
                raise
            _log.warning("the lease of the master cannot be read yet: %s", error)
            found = number
        if found != number:
            self._keep_identity(found)
        self.decision = replace(self.decision, replica_id=found)
        return found

    def _keep_identity(self, number: int) -> None:
        """Raises OSError."""
        identity = {"token": self._token, "id": number, "next": self._next_token}
        self._access.make_directories(os.path.dirname(self._path))
        text = json.dumps({name: value for name, value in identity.items() if value})
        self._access.write_config(self._path, text.encode())

    def _claim_id(self, known: int) -> int:
        """`known`: the id that this directory has; 0 for none."""
        for _ in range(JOIN_TRIES):
            self._read()
            for token in filter(None, (self._next_token, self._token)):
                if number := self._lease.id_of(token):
                    self._take_token(token)
                    return number
            if known and self._version is None:
                return known  # It was removed: its holder writes it again, or an operator has another one begun.
            is_free = known and known not in self._lease.replicas and known not in self._lease.members
            number = known if is_free else self._lease.free_id
            try:
                self._put(self._lease.with_replica(number, Replica(self._token)))
                return number
            except ManifestConflict:
                continue  # Another replica joined, or the master renewed.
        raise ManifestConflict(f"{self.name_of_lease}: expected to get an id, found it changed {JOIN_TRIES} times")

    def _take_token(self, token: str) -> None:
        """The lease has this one: of two, the put of the next one has landed, or not."""
        if token == self._next_token:
            self._token, self._next_token = token, ""

    def start(self, candidate: Candidate | None = None) -> None:
        """A candidate is needed: it is an option for `Service`'s sake."""
        self._candidate = candidate
        super().start()

    def stop(self) -> None:
        super().stop()
        self._driver.close()

    # The thread.

    def run_once(self) -> float:
        try:
            self.step()
            if self.problem:
                _log.warning("%s: it answers again", self.name_of_lease)
            self.problem = ""
        except TierError as error:
            if str(error) != self.problem:
                _log.warning("the lease of the master: %s", error)
            self.problem = str(error)
        if self._is_mine:
            return min(self.times.look_s, max(0.05, self._next_renewal_s - self._clock.monotonic()))
        return self.times.look_s

    def finish(self) -> None:
        """Let another replica take over at once."""
        if self._is_mine:
            try:
                self._release(0)
            except TierError as error:
                _log.warning("the lease of the master is left to expire: %s", error)

    def step(self) -> None:
        """Do what is due now. Raises TierError: then it is tried again."""
        if not self._is_mine:
            self._release_for = None
            self._look()
            return
        if self._release_for is not None:
            if self._lease.members - {self.own}:
                self._release(self._release_for)
                return
            self._release_for = None  # There is no other replica to take over.
        if not self._is_settled and self._is_open():
            self._settle()
        is_due = self._clock.monotonic() >= self._next_renewal_s
        if self._is_mine and (is_due or (self._is_settled and self._wanted is not None)):
            self._renew()

    def _read(self, ours: MasterLease | None = None) -> None:
        """Raises TierError. `ours` is taken for a damaged one while our own term lasts."""
        stored = self._driver.get_object(self.name_of_lease)
        now_s = self._clock.monotonic()  # Behind the answer: the version is older than that.
        version = None if stored is None else stored.version
        if stored is None:
            self._note_lease(MasterLease(term_ms=round(self.times.term_s * 1000)), now_s)
        elif version != self._version:
            try:
                found = decode_master_lease(stored.data, self.name_of_lease)
            except CorruptManifest:
                if ours is None or not self.may_acknowledge(ours.epoch):
                    raise
                found = ours
            self._note_lease(found, now_s)
        self._version = version

    def _note_lease(self, lease: MasterLease, now_s: float) -> None:
        before, self._lease = self._lease, lease
        if lease.renewal == before.renewal:
            return
        self._seen_s = now_s
        is_renewed = (before.epoch, before.holder, before.claim) == (lease.epoch, lease.holder, lease.claim)
        if lease.holder != self.own:
            self._twin_renewals = 0
        if lease.holder and lease.claim != self._claim and is_renewed:
            self._twin_renewals += lease.holder == self.own
            if self._accepted_s < now_s - self.times.renew_s:  # Not a renewal from before that was read now.
                self._accepted_s = -math.inf

    def _put(self, lease: MasterLease) -> None:
        """Raises ManifestConflict when another replica has changed it, or an earlier put of ours has landed."""
        lease = replace(lease, nonce=secrets.token_hex(8))
        self._version = self._driver.put_object(self.name_of_lease, encode_master_lease(lease), expected=self._version)
        self._note_lease(lease, self._clock.monotonic())

    # Without the lease.

    def _look(self) -> None:
        candidate = self._candidate
        assert candidate is not None
        self._read()
        lease, ends, now_s = self._lease, candidate.ends(), self._clock.monotonic()
        is_here = self._version is not None
        known = lease.replicas.get(self.own)
        if known is not None and known.token not in (self._token, self._next_token):
            self.why_not = OTHER_DIRECTORY
            self._decide(Decision(replica_id=self.own))
            return
        if known is not None:
            self._take_token(known.token)
        self.why_not = TWIN if self._twin_renewals > 1 else self._why_not_take(lease, ends, now_s)
        if not self.why_not and (now_s >= self._rests_until_s or lease.successor == self.own):
            self._take(candidate, lease, max(lease.epoch, ends.epoch) + 1, ends.confirmed)
            return
        if is_here and (known is None or known.address != candidate.address):
            with suppress(ManifestConflict):  # Another replica has changed it: the next look records it.
                self._put(self._with_address(lease, candidate))
        role = Role.SLAVE if lease.holder not in (0, self.own) else Role.NONE
        is_known = role is Role.SLAVE
        self._decide(
            Decision(
                role=role,
                epoch=lease.epoch if is_known else 0,
                replica_id=self.own,
                address=lease.address if is_known else "",
                ha_address=lease.ha_address if is_known else "",
            )
        )

    def _why_not_take(self, lease: MasterLease, ends: LogEnds, now_s: float) -> str:
        return why_not_take(
            lease,
            self.own,
            ends.end,
            ends.epoch,
            seen_ms=int((now_s - self._seen_s) * 1000),
            holes=self._holes(lease),
            accept_loss=now_s < self._accepted_s + ACCEPT_LOSS_TERMS * self.times.term_s,
            has_ended=lease.holder == self.own and (lease.claim == self._claim or has_ended(lease.process)),
        )

    def _holes(self, lease: MasterLease) -> QueueRanges:
        """What this replica would lose of a lease's queues, although its log reaches the end."""
        candidate = self._candidate
        return {} if candidate is None or not lease.queues else candidate.holes(lease.queues)

    def _take(self, candidate: Candidate, lease: MasterLease, epoch: int, confirmed: int) -> None:
        """With the set before, until the broker is open. A first set, or one with accepted loss, is this replica."""
        end = candidate.ends().end
        is_clean = lease.is_new or (self.own in lease.members and end >= lease.confirmed and not self._holes(lease))
        mine = replace(
            self._with_address(lease, candidate),
            epoch=epoch,
            holder=self.own,
            claim=self._claim,
            process=this_process(),
            address=candidate.address,
            ha_address=candidate.ha_address,
            term_ms=round(self.times.term_s * 1000),
            renewals=0,
            confirmed=max(confirmed, lease.confirmed) if is_clean else confirmed,
            members=lease.members if is_clean and lease.members else frozenset((self.own,)),
            queues=lease.queues if is_clean else None,
            successor=0,
        )
        began_s = self._clock.monotonic()
        try:
            self._put(mine)
        except ManifestConflict:
            self._version = ""  # Read it again, also when the put landed and its answer was lost.
            return
        self._is_mine, self._is_settled, self._accepted_s, self._wanted = True, False, -math.inf, None
        self._recording = 0
        self._hold(began_s)
        if not is_clean:
            self.loss = Loss(lease.epoch, end, max(end, lease.confirmed), lease.term_ms / 1000, lease.queues)
            _log.error(
                "epoch %d: this replica is the master now although it was not in sync. Of epoch %d its log lacks what "
                "was acknowledged above physical offset %d; up to %d was, and perhaps more within %g s after that",
                epoch, lease.epoch, end, lease.confirmed, self.loss.unknown_s,
            )  # fmt: skip
        self._is_clean = is_clean
        self._decide_master()

    def _is_open(self) -> bool:
        """Whether the broker is open as the master of this epoch: then the epoch is on its disk."""
        assert self._candidate is not None
        return self._candidate.ends().epoch == self._lease.epoch

    def _settle(self) -> None:
        """From now on this replica is the set, and its directory is another one than every copy of it."""
        try:
            if not self._next_token:
                self._next_token = secrets.token_hex(16)
            self._keep_identity(self.own)
        except OSError as error:
            _log.error("epoch %d: the new token of this directory cannot be written: %s", self._lease.epoch, error)
            self._release_for = 0
            return
        token = self._next_token

        def settled(lease: MasterLease) -> MasterLease:
            named = lease.with_replica(self.own, Replica(token, lease.address))
            return replace(named, renewals=lease.renewals + 1, members=frozenset((self.own,)))

        if not self._replace(settled):
            return
        self._token, self._next_token = token, ""
        self._is_settled = True
        self._hold(self._renewed_s)
        self._decide_master()
        with suppress(OSError):  # It has both tokens, and finds out which one is in the lease.
            self._keep_identity(self.own)

    def _with_address(self, lease: MasterLease, candidate: Candidate) -> MasterLease:
        """With this replica in it."""
        known = lease.replicas.get(self.own, Replica(self._token))
        return lease.with_replica(self.own, replace(known, address=candidate.address))

    # With the lease.

    def _hold(self, began_s: float) -> None:
        self._renewed_s = began_s
        if self._is_settled:
            self._held_until_s = began_s + self.times.term_s - self.times.margin_s
        self._next_renewal_s = began_s + self.times.renew_s

    def _renew(self) -> None:
        """Renew it, with the in-sync set that the master wants."""
        candidate, wanted = self._candidate, self._wanted
        assert candidate is not None
        queues = candidate.queues() if self._is_settled else self._lease.queues

        def renewed(lease: MasterLease) -> MasterLease:
            confirmed = max(lease.confirmed, candidate.ends().confirmed)
            members = lease.members
            if self._is_settled and wanted is not None and wanted[0] == lease.epoch:
                members = wanted[2]
            return replace(lease, renewals=lease.renewals + 1, confirmed=confirmed, members=members, queues=queues)

        self._next_renewal_s = self._clock.monotonic() + self.times.look_s  # After a failure; a success sets it later.
        if not self._replace(renewed):
            return
        if wanted is not None and self._is_settled:
            if self._wanted is wanted:
                self._wanted = None
            if wanted[0] == self._lease.epoch:
                self._recording = wanted[1]
            self._decide_master()

    def _release(self, successor: int) -> None:
        self._held_until_s = 0.0  # Before another replica can take it.
        candidate = self._candidate
        assert candidate is not None
        confirmed = candidate.ends().confirmed
        queues = candidate.queues() if self._is_settled else self._lease.queues
        if not self._replace(
            lambda lease: replace(
                lease,
                holder=0,
                successor=successor,
                confirmed=max(lease.confirmed, confirmed),
                queues=queues,
                claim="",
                process="",
                address="",
                ha_address="",
            ),
            holds=False,
        ):
            return
        self._is_mine = self._is_settled = False
        self._release_for = None
        self._rests_until_s = self._clock.monotonic() + self.times.term_s
        self._decide(Decision(replica_id=self.own))

    def _replace(self, changed: Callable[[MasterLease], MasterLease], *, holds: bool = True) -> bool:
        """Replace the lease that is ours; False when another replica has it. Raises TierError."""
        for _ in range(PUT_TRIES):
            began_s = self._clock.monotonic()
            try:
                self._put(changed(self._lease))
            except ManifestConflict:
                before = self._lease
                self._read(before)
                found = self._lease
                if found.is_new or (self._is_same(found, before) and found.renewals < before.renewals):
                    # It was removed by hand (and a replica has joined since), or an older one restored: its holder
                    # writes it again.
                    self._lease = replace(
                        before,
                        replicas={**found.replicas, **before.replicas},
                        next_id=max(found.next_id, before.next_id),
                    )
                elif not self._is_same(found, before):
                    self._lose()
                    return False
                continue  # A replica joined, or a put of ours landed whose answer was lost.
            if holds:
                self._hold(began_s)
            return True
        raise ManifestConflict(f"{self.name_of_lease}: expected to replace it, found it changed {PUT_TRIES} times")

    def _is_same(self, found: MasterLease, before: MasterLease) -> bool:
        """Whether it is still this process's, in the same term."""
        return (found.epoch, found.holder, found.claim) == (before.epoch, self.own, self._claim)

    def _lose(self) -> None:
        lease = self._lease
        if lease.holder == self.own:
            _log.error("epoch %d: %s", lease.epoch, TWIN)
        else:
            _log.error("epoch %d: replica %d is the master, and not this one, %d", lease.epoch, lease.holder, self.own)
        self._is_mine, self._is_settled, self._held_until_s, self._wanted = False, False, 0.0, None
        self._look()

    def _decide_master(self) -> None:
        lease = self._lease
        self._decide(
            Decision(
                role=Role.MASTER,
                epoch=lease.epoch,
                replica_id=self.own,
                address=lease.address,
                ha_address=lease.ha_address,
                members=lease.members if self._is_settled else frozenset((self.own,)),
                recording=self._recording,
                is_recorded=self._is_settled,
                is_clean=self._is_clean,
            ),
            also_same=True,
        )

    def _decide(self, decision: Decision, *, also_same: bool = False) -> None:
        is_same = decision == self.decision
        self.decision = decision
        if self._candidate is not None and (also_same or not is_same):
            self._candidate.on_change(decision)
