"""The lease of a broker: who may copy its messages into the tier now, the embedded dispatcher or a job, never both.

One document per broker, `<cluster dir>/<broker>/lease.tiermq.json`: epoch, owner, and the time until which it is held.
It is only ever replaced by compare-and-set and never removed, so that its epoch never falls.

    free or expired ──acquire──► held (epoch + 1) ──renew──► held ──release──► free
                                      └── the time passes ──► expired, and somebody else may acquire

Clocks of two machines differ, so expiry alone proves nothing: the holder asks the tier (`check`) before it writes a
manifest, and the manifest's own compare-and-set settles the rest. `release` leaves the epoch where it is.

A lease that a disk damaged names nobody. Its holder writes it anew while his term runs, for nobody else may have it;
others wait for that as long as a term, and take over what is still damaged then. Only a sound one of a newer TierMQ is
left alone for ever (`document.py`).

Whoever takes a lease that is gone or damaged cannot read the epoch before, so he reads it from all manifests of the
broker (`epoch_survey.py`), before he puts the lease: once it lies there, nobody asks the manifests again.

Cost: acquire is one GET and one PUT, renew one PUT, check one GET. A lease that is not there costs a survey.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from tiermq.clock import Clock, SystemClock
from tiermq.errors import ManifestConflict, StaleWriter, TierError
from tiermq.tier.driver.contract import StoredObject, TierDriver
from tiermq.tier.metadata.document import (
    CorruptManifest,
    number_field,
    open_document,
    refuse_document,
    seal_document,
    text_field,
)
from tiermq.tier.metadata.epoch_survey import survey_epochs
from tiermq.tier.names import OBJECT_SUFFIX, broker_directory

_log = logging.getLogger(__name__)

LEASE_VERSION = 1
DEFAULT_TERM_MS = 60_000
REMEDY = (
    "a broker that is at work, or started now, writes it anew within two terms of the lease; if none is to run, and no "
    "process writes this broker's tier, remove the object"
)


class LeaseHeld(TierError):
    """Somebody else holds the broker's lease and has not let it expire."""


class LeaseDamaged(LeaseHeld):
    """The lease cannot be read, and its holder, if there is one, has had no time to write it anew."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What the tier says: nobody holds it when `owner` is empty."""

    epoch: int = 0
    owner: str = ""
    expires_ms: int = 0
    renewals: int = 0


def lease_name(cluster: str, broker: str) -> str:
    """The name of the broker's lease in the tier."""
    return f"{broker_directory(cluster, broker)}/lease{OBJECT_SUFFIX}"


def encode_lease(lease: Lease) -> bytes:
    """The lease's one form as bytes."""
    body = {
        "epoch": lease.epoch,
        "expiresMs": lease.expires_ms,
        "owner": lease.owner,
        "renewals": lease.renewals,
    }
    return seal_document(body, LEASE_VERSION)


def decode_lease(data: bytes, name: str) -> Lease:
    """The lease in `data`. Raises FutureManifest or CorruptManifest."""
    body = open_document(data, name, LEASE_VERSION, REMEDY)
    try:
        return Lease(
            number_field(body, "epoch"),
            text_field(body, "owner"),
            number_field(body, "expiresMs"),
            number_field(body, "renewals"),
        )
    except (ValueError, TypeError, LookupError) as error:
        refuse_document(name, f"a body that is no lease ({error})", REMEDY)


class BrokerLease:
    """One process's hand on one broker. Thread-safe.

    `owner` says who this is in words that an operator understands, and must be the name of one process at a time: the
    owner of a lease that is still running may acquire it again at once, which is how a broker comes back after a crash
    without waiting. (A store directory's lock already keeps a second broker out of it.)
    """

    def __init__(
        self,
        driver: TierDriver,
        cluster: str,
        broker: str,
        owner: str,
        *,
        term_ms: int = DEFAULT_TERM_MS,
        clock: Clock | None = None,
    ) -> None:
        if not owner:
            raise ValueError("a lease needs an owner that other owners can be told about")
        self.name = lease_name(cluster, broker)
        self.owner = owner
        self._driver = driver
        self._cluster = cluster
        self._broker = broker
        self._term_ms = term_ms
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._held: Lease | None = None
        self._version = ""
        self._lost: str | None = None
        self._wanted_epoch = 0  # Of the newest acquisition, which may have landed although its answer was lost.
        self._has_twin = False
        self._damaged: tuple[str, int] | None = None
        """The version of a lease that cannot be read, and since when it is known."""
        self._checks_begun = 0
        self._last_check = 0  # The number of the newest one that was answered with yes.

    @property
    def epoch(self) -> int:
        """The epoch of the lease that was acquired. Raises StaleWriter when none is, or it was lost."""
        with self._lock:
            return self._require_held().epoch

    @property
    def expires_ms(self) -> int:
        """Until when others will not take over, unless the lease is renewed."""
        with self._lock:
            return self._require_held().expires_ms

    def read(self) -> Lease | None:
        """The lease in the tier now, or None."""
        stored = self._driver.get_object(self.name)
        return None if stored is None else decode_lease(stored.data, self.name)

    def has_twin(self) -> bool:
        """Whether another process of the same name took it over: each would take it back for ever."""
        return self._has_twin

    def require_free(self) -> None:
        """Raises LeaseHeld, naming the holder, while the lease is another's. One that cannot be read names nobody."""
        try:
            found = self.read()
        except CorruptManifest as error:
            _log.error("who holds the broker's part of the tier cannot be read: %s", error)
            return
        now_ms = self._clock.now_ms()
        if found is not None and found.owner not in ("", self.owner) and now_ms < found.expires_ms:
            raise self._held_by(found, now_ms)

    def acquire(self, *, epoch_min: int = 1, force: bool = False) -> int:
        """Take the lease and return its epoch, which is higher than every one before and at least `epoch_min`.

        Where no lease tells the one before, those of the manifests do; `epoch_min` is for what only the caller knows.
        `force` takes it from a holder that is still running, when an operator knows better. Raises LeaseHeld, naming
        the holder, or LeaseDamaged: then ask again.
        """
        with self._lock:
            stored = self._driver.get_object(self.name)
            now_ms = self._clock.now_ms()
            old = None if stored is None else self._decoded(stored, now_ms, force=force)
            if old is None:
                old, now_ms = Lease(self._surveyed_epoch()), self._clock.now_ms()  # A survey may take its time.
            if old.owner not in ("", self.owner) and now_ms < old.expires_ms and not force:
                raise self._held_by(old, now_ms)
            lease = Lease(max(old.epoch + 1, epoch_min), self.owner, now_ms + self._term_ms)
            self._wanted_epoch = lease.epoch
            try:
                version = self._driver.put_object(
                    self.name, encode_lease(lease), expected=None if stored is None else stored.version
                )
            except ManifestConflict as conflict:
                winner = self.read()
                if winner is None or winner.owner in ("", self.owner):
                    raise  # Perhaps our own, whose answer was lost: the next one finds out.
                raise self._held_by(winner, now_ms) from conflict
            self._held, self._version, self._lost, self._damaged = lease, version, None, None
            return lease.epoch

    def _surveyed_epoch(self) -> int:
        told = survey_epochs(self._driver, self._cluster, self._broker)
        return told if self._held is None else max(told, self._held.epoch)

    def _decoded(self, stored: StoredObject, now_ms: int, *, force: bool) -> Lease | None:
        """What the tier says; None when it has been damaged for a whole term, or by force. Raises LeaseDamaged."""
        try:
            return decode_lease(stored.data, self.name)
        except CorruptManifest as error:
            if self._damaged is None or self._damaged[0] != stored.version:
                _log.error("who holds the broker's part of the tier cannot be read: %s", error)
                self._damaged = (stored.version, now_ms)
            left_ms = self._damaged[1] + max(self._term_ms, DEFAULT_TERM_MS) - now_ms
            if left_ms > 0 and not force:
                raise LeaseDamaged(f"{error}. Who still waits takes it over in {left_ms} ms") from error
            _log.error("%s: nobody wrote it anew, %s takes it over", self.name, self.owner)
            return None

    def renew(self) -> int:
        """Hold it for another term; returns the new expiry. Raises StaleWriter when somebody else took it.

        A lease that expired and was not taken by anyone is simply renewed: nobody wrote in between.
        """
        with self._lock:
            held = self._require_held()
            expires_ms = self._clock.now_ms() + self._term_ms
            lease = replace(held, expires_ms=expires_ms, renewals=held.renewals + 1)
            self._put(lease)
            self._held = lease
            return lease.expires_ms

    def is_renewal_due(self) -> bool:
        """Whether a third of the term has passed: early enough that two renewals may fail before it expires."""
        with self._lock:
            return self._clock.now_ms() >= self._require_held().expires_ms - self._term_ms * 2 // 3

    def check(self) -> None:
        """Ask the tier whether the lease is still ours. Raises StaleWriter, naming the new owner, when it is not.

        Whoever waits for his turn is content with an answer to a question that was asked after he came.
        """
        begun_before = self._checks_begun
        with self._lock:
            held = self._require_held()
            if self._last_check > begun_before:
                return
            self._checks_begun += 1
            number = self._checks_begun
            try:
                current = self.read()
            except CorruptManifest:
                self._put(held)
                current = held
            if current is None or (current.epoch, current.owner) != (held.epoch, held.owner):
                raise self._lose(current)
            self._last_check = number

    def release(self) -> None:
        """Let others in at once. Does nothing when the lease is not held or was lost."""
        with self._lock:
            if self._held is None or self._lost is not None:
                return
            try:
                self._put(replace(self._held, owner="", expires_ms=0))
            except StaleWriter:
                return  # It was taken over before; then there is nothing of ours to give back.
            finally:
                self._held = None

    def _put(self, lease: Lease) -> None:
        data = encode_lease(lease)
        try:
            self._version = self._driver.put_object(self.name, data, expected=self._version)
        except ManifestConflict:
            held = self._require_held()
            stored = self._driver.get_object(self.name)
            current = None if stored is None else self._ours_if_damaged(stored, held)
            if stored is None or current is None or (current.epoch, current.owner) != (held.epoch, held.owner):
                raise self._lose(current) from None
            # A renewal of ours, whose answer was lost, landed after all.
            self._version = self._driver.put_object(self.name, data, expected=stored.version)

    def _ours_if_damaged(self, stored: StoredObject, held: Lease) -> Lease:
        """What the tier says; what is damaged is ours while our term runs. Raises StaleWriter when that is over."""
        try:
            return decode_lease(stored.data, self.name)
        except CorruptManifest as error:
            if self._clock.now_ms() < held.expires_ms:
                _log.error("the broker's lease is written anew: %s", error)
                return held
            self._lost = "nobody knows whom: the lease is damaged"
            raise self._stale() from error

    def _lose(self, current: Lease | None) -> StaleWriter:
        if current is None:
            self._lost = "nobody: the lease is gone from the tier"
        elif not current.owner:
            self._lost = f"nobody: it was released at epoch {current.epoch}"
        else:
            self._has_twin = current.owner == self.owner and current.epoch != self._wanted_epoch
            self._lost = f"{'another ' * self._has_twin}{current.owner} (epoch {current.epoch})"
        return self._stale()

    def _require_held(self) -> Lease:
        if self._held is None:
            raise StaleWriter(f"{self.name}: {self.owner} does not hold the lease of this broker; acquire it first")
        if self._lost is not None:
            raise self._stale()
        return self._held

    def _stale(self) -> StaleWriter:
        epoch = self._held.epoch if self._held is not None else 0
        return StaleWriter(
            f"{self.name}: {self.owner} held it with epoch {epoch}, but it now belongs to {self._lost}; "
            f"stop writing, and acquire it again once the other is done"
        )

    def _held_by(self, other: Lease, now_ms: int) -> LeaseHeld:
        return LeaseHeld(
            f"{self.name}: {self.owner} wanted it, but {other.owner or 'somebody'} holds it with epoch {other.epoch} "
            f"for another {max(other.expires_ms - now_ms, 0)} ms; stop that one, wait, or take over by force"
        )
