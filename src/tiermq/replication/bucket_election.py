"""BucketElection: elects the master of a broker by a lease in its bucket, without further servers.

    join ─► look (every `look_s`) ──free, or over, and this replica is in sync──► take it with epoch + 1 ─► master
               ▲                                                                                renew, record sets │
               └───────────── another replica has it ◄── renewal refused, or released (stop, resign) ◄────────────┘

Rules: `master_lease.why_not_take`. A lease that ended although no other replica has it is renewed: there was no other
master. While it cannot be renewed, nothing is acknowledged (`may_acknowledge`), and the role stays until another holder
is seen.

Cost: a master puts once every `renew_s` and once for each change of its in-sync set; a replica gets once every
`look_s`. Every request is sent by one thread (`election`), which owns everything here but the flags that other threads
set; `may_acknowledge` reads one number.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import ManifestConflict, TierError
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.replication.election import Candidate, Decision, Role
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
from tiermq.tier.metadata.document import CorruptManifest

_log = logging.getLogger(__name__)

IDENTITY_FILE = "replicaIdentity.json"
TWIN = (
    "expected to be the only process of this replica, found another one: the store directory was copied. Remove "
    f"config/{IDENTITY_FILE} of the copy, and start it again"
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
        self._next_renewal_s = 0.0
        self._wanted: tuple[int, frozenset[int]] | None = None  # With the epoch whose master wants it.
        self._release_for: int | None = None
        self._rests_until_s = 0.0
        self._accepts_loss = False
        self._has_twin = False
        self._is_clean = True
        self._lost: dict[str, int] | None = None

    # What others call.

    @property
    def own(self) -> int:
        return self.decision.replica_id

    @property
    def lease(self) -> MasterLease:
        """As it was last read or written."""
        return self._lease

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

    def propose(self, epoch: int, members: frozenset[int]) -> None:
        self._wanted = epoch, members
        self.wake()

    def addresses(self) -> dict[int, str]:
        return {number: each.address for number, each in sorted(self._lease.replicas.items())}

    def status(self) -> dict[str, object]:
        lease = self._lease
        return {
            "by": "lease",
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
            "lost": self._lost,
            "problem": self.problem,
        }

    def resign(self, successor: int) -> None:
        """Of a master: let another replica take over; the one with this id first, if it is not 0."""
        self._release_for = successor
        self.wake()

    def look_soon(self) -> None:
        self.wake()

    def accept_loss(self) -> None:
        """Take the lease as soon as no other replica holds it, although this one may lack acknowledged messages."""
        self._accepts_loss = True
        self.wake()

    def join(self) -> int:
        """Be given an id, or find the one that this directory has. Raises TierError."""
        known = self._access.read_config(self._path, json.loads) or {}
        token = str(known.get("token") or secrets.token_hex(16))
        if "token" not in known:
            self._keep_identity({"token": token})
        try:
            number = self._claim_id(token)
        except TierError as error:
            if not known.get("id"):
                raise
            _log.warning("the lease of the master cannot be read yet: %s", error)
            number = int(known["id"])
        if number != known.get("id"):
            self._keep_identity({"token": token, "id": number})
        self.decision = replace(self.decision, replica_id=number)
        return number

    def _keep_identity(self, identity: dict[str, Any]) -> None:
        self._access.make_directories(os.path.dirname(self._path))
        self._access.write_config(self._path, json.dumps(identity).encode())

    def _claim_id(self, token: str) -> int:
        for _ in range(JOIN_TRIES):
            self._read()
            if number := self._lease.id_of(token):
                return number
            number = max(self._lease.replicas, default=0) + 1
            replicas = {**self._lease.replicas, number: Replica(token)}
            try:
                self._put(replace(self._lease, replicas=replicas))
                return number
            except ManifestConflict:
                continue  # Another replica joined, or the master renewed.
        raise ManifestConflict(f"{self.name_of_lease}: expected to get an id, found it changed {JOIN_TRIES} times")

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
        elif self._release_for is not None:
            self._release(self._release_for)
        elif self._clock.monotonic() >= self._next_renewal_s or self._wanted is not None:
            self._renew()

    def _read(self, ours: MasterLease | None = None) -> None:
        """Raises TierError. `ours` is taken for a damaged one while our own term lasts."""
        stored = self._driver.get_object(self.name_of_lease)
        now_s = self._clock.monotonic()  # Behind the answer: the version is older than that.
        version = None if stored is None else stored.version
        if stored is None:
            self._lease = MasterLease(term_ms=round(self.times.term_s * 1000))
        elif version != self._version:
            try:
                self._lease = decode_master_lease(stored.data, self.name_of_lease)
            except CorruptManifest:
                if ours is None or not self.may_acknowledge(ours.epoch):
                    raise
                self._lease = ours
        if version != self._version:
            self._version, self._seen_s = version, now_s

    def _put(self, lease: MasterLease) -> None:
        """Raises ManifestConflict when another replica has changed it, or an earlier put of ours has landed."""
        lease = replace(lease, nonce=secrets.token_hex(8))
        self._version = self._driver.put_object(self.name_of_lease, encode_master_lease(lease), expected=self._version)
        self._lease, self._seen_s = lease, self._clock.monotonic()

    # Without the lease.

    def _look(self) -> None:
        candidate = self._candidate
        assert candidate is not None
        self._read()
        lease, ends, now_s = self._lease, candidate.ends(), self._clock.monotonic()
        seen_ms = int((now_s - self._seen_s) * 1000)
        self.why_not = (
            TWIN
            if self._has_twin
            else why_not_take(lease, self.own, ends.end, ends.epoch, seen_ms=seen_ms, accept_loss=self._accepts_loss)
        )
        if not self.why_not and (now_s >= self._rests_until_s or lease.successor == self.own):
            self._take(candidate, lease, max(lease.epoch, ends.epoch) + 1, ends.confirmed)
            return
        known = lease.replicas.get(self.own)
        if known is not None and known.address != candidate.address:
            with suppress(ManifestConflict):  # Another replica has changed it: the next look records it.
                self._put(replace(lease, replicas=self._with_address(lease, candidate)))
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

    def _take(self, candidate: Candidate, lease: MasterLease, epoch: int, confirmed: int) -> None:
        began_s = self._clock.monotonic()
        end, is_clean = candidate.ends().end, self.own in lease.members or lease.is_new
        mine = replace(
            lease,
            epoch=epoch,
            holder=self.own,
            address=candidate.address,
            ha_address=candidate.ha_address,
            term_ms=round(self.times.term_s * 1000),
            renewals=0,
            confirmed=max(confirmed, lease.confirmed) if is_clean else confirmed,
            members=frozenset((self.own,)),
            successor=0,
            replicas=self._with_address(lease, candidate),
        )
        try:
            self._put(mine)
        except ManifestConflict:
            self._version = ""  # Read it again, also when the put landed and its answer was lost.
            return
        self._is_mine, self._accepts_loss, self._wanted = True, False, None
        self._hold(began_s)
        if not is_clean:
            self._lost = {"epoch": lease.epoch, "fromOffset": end, "toOffset": max(end, lease.confirmed)}
            _log.error(
                "epoch %d: this replica is the master now although it was not in sync. Of epoch %d it lacks what was "
                "acknowledged above physical offset %d; up to %d was, and perhaps more within %g s after that",
                epoch, lease.epoch, end, lease.confirmed, self.times.renew_s,
            )  # fmt: skip
        self._is_clean = is_clean
        self._decide_master()

    def _with_address(self, lease: MasterLease, candidate: Candidate) -> dict[int, Replica]:
        known = dict(lease.replicas)
        if self.own in known:
            known[self.own] = replace(known[self.own], address=candidate.address)
        return known

    # With the lease.

    def _hold(self, began_s: float) -> None:
        self._held_until_s = began_s + self.times.term_s - self.times.margin_s
        self._next_renewal_s = began_s + self.times.renew_s

    def _renew(self) -> None:
        """Renew it, with the in-sync set that the master wants."""
        candidate, wanted = self._candidate, self._wanted
        assert candidate is not None

        def renewed(lease: MasterLease) -> MasterLease:
            confirmed = max(lease.confirmed, candidate.ends().confirmed)
            members = wanted[1] if wanted is not None and wanted[0] == lease.epoch else lease.members
            return replace(lease, renewals=lease.renewals + 1, confirmed=confirmed, members=members)

        self._next_renewal_s = self._clock.monotonic() + self.times.look_s  # After a failure; a success sets it later.
        if not self._replace(renewed):
            return
        if wanted is not None:
            if self._wanted is wanted:
                self._wanted = None
            self._decide_master()

    def _release(self, successor: int) -> None:
        self._held_until_s = 0.0  # Before another replica can take it.
        candidate = self._candidate
        assert candidate is not None
        confirmed = candidate.ends().confirmed
        if not self._replace(
            lambda lease: replace(
                lease,
                holder=0,
                successor=successor,
                confirmed=max(lease.confirmed, confirmed),
                address="",
                ha_address="",
            ),
            holds=False,
        ):
            return
        self._is_mine = False
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
                epoch, before = self._lease.epoch, self._lease
                self._read(before)
                if self._version is None:
                    self._lease = before  # It was removed by hand: its holder writes it again.
                elif (self._lease.epoch, self._lease.holder) != (epoch, self.own):
                    self._lose()
                    return False
                continue  # A replica joined, or a put of ours landed whose answer was lost.
            if holds:
                self._hold(began_s)
            return True
        raise ManifestConflict(f"{self.name_of_lease}: expected to replace it, found it changed {PUT_TRIES} times")

    def _lose(self) -> None:
        lease = self._lease
        self._has_twin = lease.holder == self.own
        if self._has_twin:
            _log.error("epoch %d: %s", lease.epoch, TWIN)
        else:
            _log.error("epoch %d: replica %d is the master, and not this one, %d", lease.epoch, lease.holder, self.own)
        self._is_mine, self._held_until_s, self._wanted = False, 0.0, None
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
                members=lease.members,
                is_clean=self._is_clean,
            ),
            also_same=True,
        )

    def _decide(self, decision: Decision, *, also_same: bool = False) -> None:
        is_same = decision == self.decision
        self.decision = decision
        if self._candidate is not None and (also_same or not is_same):
            self._candidate.on_change(decision)
