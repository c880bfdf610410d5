"""The leases of a broker: who may write which part of its tier now.

    role       object                        its holder writes
    log        lease.tiermq.json             queues, manifests, key index, tables: the embedded dispatcher, or a job
    delivery   lease-delivery.tiermq.json    tiered timers: the broker, also where a job copies its messages

Both are in `<cluster dir>/<broker>/`, with epochs of their own: epoch, owner, and the time until which it is held. A
lease is only ever replaced by compare-and-set and never removed, so that its epoch never falls.

    free or expired ──acquire──► held (epoch + 1) ──renew──► held ──release──► free
                                      └── the term ends ──► expired: another process may acquire

Clocks of two machines differ, so expiry alone proves nothing: the holder reads the lease (`check`) before it writes a
manifest, and the manifest's own compare-and-set settles the rest. `release` leaves the epoch where it is.

A job names its process in the lease (`this_process`). Once that process has ended without a release, other processes of
the same machine take the lease over at once; what its tasks still write elsewhere is fenced by the epoch.

A broker that tiers by itself lends its lease of messages to a job that asks for it, by a request inside the lease:

    broker's (lends) ──ask──► the same, with the request ──lend──► the job's, same epoch ──acquire──► held (epoch + 1)

A request changes nothing else of the lease, so it costs the broker nothing: its next renewal, or a check before a
manifest, finds the lease replaced, reads it, and sees the request. What was lent is the job's alone for LENT_MS; if it
has not acquired it by then, its lender does, whatever the clock was set to meanwhile, and lends it to none for
UNTAKEN_REST_S: a job that asks and never takes must not keep a broker from its uploads. Only jobs are lent to.

An operator ends the term of a holder that is dead at once (`take_over`, `tiermq tier takeover`): the epoch rises, and
the lease is free. A holder that is not dead after all loses it at its next check, and nothing of it is committed.

A damaged lease names no holder. Its holder rewrites it while its own term lasts; other processes wait for one term, and
take over a lease that is still damaged then. A valid lease of a newer TierMQ is never taken over (`document.py`).

A missing or damaged lease does not contain the last epoch, so the new holder reads it from all manifests of the broker
(`highest_epoch`) before it puts the lease: once the lease exists, manifests are not read for it again.

Epochs rise by one: a lease more than EPOCH_BELIEVED_MAX above all manifests is forged, and its epoch is not believed;
the next holder goes on EPOCH_MARGIN above the manifests. One above EPOCH_OF_MANIFEST_MAX is damage of its manifest. So
a forged lease keeps the owner from the tier for its term at most, or until `tiermq tier takeover`.

Cost: acquire is one GET and one PUT, renew one PUT, check one GET, ask one GET and one PUT, lend one PUT. A missing
lease costs a read of all manifests.
"""

from __future__ import annotations

import logging
import os
import shlex
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tiermq.clock import Clock, SystemClock
from tiermq.errors import ManifestConflict, StaleWriter, TierError
from tiermq.service import Service
from tiermq.tier.driver.contract import StoredObject, TierDriver
from tiermq.tier.metadata.document import (
    COUNT_MAX,
    CorruptManifest,
    natural_field,
    number_field,
    open_document,
    refuse_document,
    seal_document,
    text_field,
)
from tiermq.tier.metadata.manifest import MANIFEST_STEM
from tiermq.tier.metadata.metadata_values import LEASE_TERM_MS
from tiermq.tier.names import OBJECT_SUFFIX, TIMERS_DIRECTORY, broker_directory, broker_of_state

# The highest epoch of the manifests of a role, for a process that acquires a missing or damaged lease.
#
# The broker's own metadata may be older, since jobs write without the broker; the manifests of its queues, its index
# and its tables (log), and of its tiered timers (delivery) are current. All versions of them have `epoch` in the body,
# so newer ones count. Earlier versions had one lease for both roles: the epochs of its timers go on.
#
# A damaged manifest is logged and skipped: its queue is not written before a repair has rewritten the manifest, with
# the epoch of the lease that the repair holds.
#
# Cost: one listing of the broker's directory, and one GET for each manifest, in parallel.


READ_THREADS = 16
TELL_EVERY = 1_000
_NAME_END = f"/{MANIFEST_STEM}{OBJECT_SUFFIX}"
_ANY_VERSION = 1 << 63
EPOCH_BELIEVED_MAX = 1 << 40
"""35,000 years of one acquisition in each second."""
EPOCH_MARGIN = 1 << 20
"""Above the manifests' highest epoch, for leases that were acquired meanwhile and wrote no manifest."""
EPOCH_OF_MANIFEST_MAX = COUNT_MAX // 2


class LeaseRole(StrEnum):
    """What the holder of a lease writes."""

    LOG = "log"
    DELIVERY = "delivery"


def highest_epoch(driver: TierDriver, cluster: str, broker: str, role: LeaseRole = LeaseRole.LOG) -> int:
    """The highest epoch in any manifest of the role; 0 when there is none. Raises what the driver raises."""
    home = broker_directory(cluster, broker)
    timers = f"{home}/{TIMERS_DIRECTORY}/"
    listed = driver.list_objects(timers if role is LeaseRole.DELIVERY else f"{home}/")
    names = [name for name in listed if name.endswith(_NAME_END) or broker_of_state(name) is not None]
    if role is LeaseRole.LOG:
        names = [name for name in names if not name.startswith(timers)]
    if not names:
        return 0
    _log.warning("%s: no valid lease has the broker's epoch, so it is read from %d manifests", home, len(names))
    highest = 0
    with ThreadPoolExecutor(min(READ_THREADS, len(names)), thread_name_prefix="epoch-discovery") as pool:
        try:
            for done, epoch in enumerate(pool.map(lambda name: _epoch(driver, name), names), start=1):
                highest = max(highest, epoch)
                if done % TELL_EVERY == 0 and done < len(names):
                    _log.info("%s: %d of %d manifests are read for the broker's epoch", home, done, len(names))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    _log.warning("%s: the highest epoch of %d manifests is %d", home, len(names), highest)
    return highest


def _epoch(driver: TierDriver, name: str) -> int:
    stored = driver.get_object(name)
    if stored is None:
        return 0  # Deleted since it was listed.
    try:
        return _epoch_of(stored.data, name)
    except CorruptManifest as error:
        _log.error("a manifest is damaged, its epoch is not known: %s", error)
        return 0


def _epoch_of(data: bytes, name: str) -> int:
    body = open_document(data, name, _ANY_VERSION)
    try:
        return number_field(body, "epoch", 0, EPOCH_OF_MANIFEST_MAX)
    except (ValueError, LookupError) as error:
        refuse_document(name, f"a body without an epoch ({error})")


_log = logging.getLogger(__name__)

LEASE_VERSION = 1
LEASE_FILES = {
    LeaseRole.LOG: f"lease{OBJECT_SUFFIX}",  # Its name from before there were roles.
    LeaseRole.DELIVERY: f"lease-{LeaseRole.DELIVERY}{OBJECT_SUFFIX}",
}
KEEPER_REST_S = 1.0
LENT_MS = 10_000
REQUEST_MS = 300_000
UNTAKEN_REST_S = 60.0
_PUT_TRIES = 3
_TAKE_OVER_TRIES = 16
REMEDY = (
    "a running broker, or one started now, rewrites it within two lease terms; `tiermq tier takeover` does it at once"
)


class LeaseHeld(TierError):
    """Another process holds the broker's lease: `lease`, for another `left_s`; `takeover` is the command to end it."""

    def __init__(self, text: str, lease: Lease | None = None, *, left_s: int = 0, takeover: str = "") -> None:
        super().__init__(text)
        self.lease = lease
        self.left_s = left_s
        self.takeover = takeover


class EpochsUsedUp(TierError):
    """The broker's manifests have an epoch without a successor. TierMQ never writes one: an operator must look."""


class LeaseDamaged(LeaseHeld):
    """The lease is damaged, and its holder, if there is one, has not had the time to rewrite it."""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A job that asks the broker that holds a lease to lend it, until when, and its process, of `this_process`."""

    owner: str
    expires_ms: int
    process: str = ""

    def is_live(self, now_ms: int) -> bool:
        """Whether it is a job, and still waits, as far as is known."""
        return _is_job(self.owner) and now_ms < self.expires_ms and not has_ended(self.process)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as stored in the tier; an empty `owner` means that it is free."""

    epoch: int = 0
    owner: str = ""
    expires_ms: int = 0
    renewals: int = 0
    acquired_ms: int = 0
    """Since when the owner holds it; 0: not known, written by an earlier version."""
    process: str = ""
    """The process that holds it, of `this_process`; empty: not known, or a broker, whose directory has a lock."""
    lends: bool = False
    """Whether its holder lends it to a job that asks."""
    request: LeaseRequest | None = None

    @property
    def is_believed(self) -> bool:
        """Whether its epoch can be one that TierMQ wrote."""
        return self.epoch <= EPOCH_BELIEVED_MAX

    def is_held(self, now_ms: int) -> bool:
        """Whether an owner has it and its term has not ended."""
        return bool(self.owner) and now_ms < self.expires_ms

    @property
    def is_by_job(self) -> bool:
        """Whether a job of the pipeline holds it, and not a broker."""
        return _is_job(self.owner)


def _is_job(owner: str) -> bool:
    return "(pipeline " in owner


def this_process() -> str:
    """This process among those of all machines: host, boot, pid namespace, pid, start time. Empty without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        machine = f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
        return f"{machine} {os.getpid()} {_started(os.getpid())}"
    except (OSError, ValueError, IndexError):
        return ""


def has_ended(process: str) -> bool:
    """Whether that process has ended. False for one of another machine, boot or pid namespace: it cannot be known.

    A process that got the same pid later has another start time.
    """
    machine, _, rest = process.rpartition(" pid:[")
    here = this_process().rpartition(" pid:[")
    namespace, *names = rest.split(" ")
    if not here[0] or (machine, namespace) != (here[0], here[2].split(" ")[0]) or len(names) != 2:
        return False
    try:
        os.kill(int(names[0]), 0)  # Also where /proc hides the processes of other users.
        return _started(int(names[0])) != names[1]
    except ProcessLookupError:
        return True
    except (OSError, ValueError, IndexError, OverflowError):
        return False


def _started(pid: int) -> str:
    """When a process began, in ticks since the boot; "ended" for one that only waits for its parent."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    is_zombie = fields[0] in "ZX" and len(os.listdir(f"/proc/{pid}/task")) <= 1
    return "ended" if is_zombie else fields[19]


def lease_name(cluster: str, broker: str, role: LeaseRole = LeaseRole.LOG) -> str:
    """The name of the broker's lease in the tier."""
    return f"{broker_directory(cluster, broker)}/{LEASE_FILES[role]}"


def broker_of_lease(name: str, role: LeaseRole = LeaseRole.LOG) -> tuple[str, str] | None:
    """Cluster and broker of an object that is a lease of that role; None for other objects."""
    directory, _, rest = name.partition("/")
    cluster, broker = directory.partition("_")[2], rest.partition("/")[0]
    return (cluster, broker) if cluster and broker and name == lease_name(cluster, broker, role) else None


def encode_lease(lease: Lease) -> bytes:
    """The lease's one form as bytes."""
    body = {
        "acquiredMs": lease.acquired_ms,
        "epoch": lease.epoch,
        "expiresMs": lease.expires_ms,
        "owner": lease.owner,
        "renewals": lease.renewals,
        **({"process": lease.process} if lease.process else {}),
        **({"lends": True} if lease.lends else {}),
        **({"request": _encode_request(lease.request)} if lease.request is not None else {}),
    }
    return seal_document(body, LEASE_VERSION)


def decode_lease(data: bytes, name: str) -> Lease:
    """The lease in `data`. Raises FutureManifest or CorruptManifest."""
    body = open_document(data, name, LEASE_VERSION, REMEDY)
    try:
        return Lease(
            natural_field(body, "epoch"),
            text_field(body, "owner"),
            number_field(body, "expiresMs"),
            natural_field(body, "renewals"),
            number_field(body, "acquiredMs") if "acquiredMs" in body else 0,
            text_field(body, "process") if "process" in body else "",
            bool(body.get("lends", False)),
            _decode_request(body["request"]) if "request" in body else None,
        )
    except (ValueError, TypeError, LookupError) as error:
        refuse_document(name, f"a body that is no lease ({error})", REMEDY)


def _encode_request(request: LeaseRequest) -> dict[str, object]:
    return {"expiresMs": request.expires_ms, "owner": request.owner, "process": request.process}


def _decode_request(fields: Any) -> LeaseRequest:
    return LeaseRequest(text_field(fields, "owner"), number_field(fields, "expiresMs"), text_field(fields, "process"))


class BrokerLease:
    """A lease of one broker, for one process. Thread-safe.

    `owner` is shown to operators, and must name one process at a time: the owner of a lease that has not expired may
    acquire it again at once, so that a broker restarts after a crash without waiting. (The lock of the store directory
    excludes a second broker in it.)
    """

    def __init__(
        self,
        driver: TierDriver,
        cluster: str,
        broker: str,
        owner: str,
        *,
        role: LeaseRole = LeaseRole.LOG,
        term_ms: int = LEASE_TERM_MS,
        clock: Clock | None = None,
        process: str = "",
    ) -> None:
        """`process`, of `this_process`: others of this machine take over as soon as it has ended."""
        if not owner:
            raise ValueError("a lease needs an owner that is not empty")
        self.name = lease_name(cluster, broker, role)
        self._role = role
        self.owner = owner
        self._driver = driver
        self._cluster = cluster
        self._broker = broker
        self._term_ms = term_ms
        self._clock = clock or SystemClock()
        self._process = process
        self.lends = False
        """Whether its holder calls `lend` when there is a `request`; set it before the lease is acquired."""
        self._lock = threading.RLock()
        self._held: Lease | None = None
        self._version = ""
        self._lost: str | None = None
        self._wanted_epoch = 0  # Of the newest acquisition, which may have landed although its answer was lost.
        self._has_twin = False
        self._damaged: tuple[str, int] | None = None
        """The version of a lease that cannot be read, and since when it is known."""
        self.epoch_before = 0
        """The epoch that the lease had when it was acquired."""
        self.epoch_seen: int | None = None
        """The epoch of the lease that `require_free` has found, 0 without a lease; None: unknown."""
        self._request: LeaseRequest | None = None
        self._lent: tuple[str, float] | None = None
        """The version of the lease that was lent, and when, by a clock that is never set."""
        self._lend_again_s = 0.0
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

    @property
    def is_held(self) -> bool:
        """Whether it was acquired, and neither released nor lost as far as this process knows. Costs no request."""
        return self._held is not None and self._lost is None

    def read(self) -> Lease | None:
        """The lease in the tier now, or None."""
        stored = self._driver.get_object(self.name)
        return None if stored is None else decode_lease(stored.data, self.name)

    def has_twin(self) -> bool:
        """Whether another process of the same name took it over: each would take it back for ever."""
        return self._has_twin

    def require_free(self, *, beside_jobs: bool = False) -> Lease | None:
        """Raises LeaseHeld, naming the holder, while another process holds the lease. A damaged one names no holder.

        `beside_jobs`: the lease of a job that holds it is returned.
        """
        try:
            found = self.read()
        except CorruptManifest as error:
            _log.error("who holds the broker's part of the tier cannot be read: %s", error)
            return None
        self.epoch_seen = 0 if found is None else found.epoch
        now_ms = self._clock.now_ms()
        if found is None or not self._is_kept_by_other(found, now_ms):
            return None
        if beside_jobs and found.is_by_job:
            return found
        raise self._held_by(found, now_ms)

    def _is_kept_by_other(self, lease: Lease, now_ms: int) -> bool:
        return lease.owner != self.owner and lease.is_held(now_ms) and not has_ended(lease.process)

    def acquire(self, *, epoch_min: int = 1, force: bool = False) -> int:
        """Take the lease and return its epoch, which is higher than every one before and at least `epoch_min`.

        Without a valid lease the last epoch is read from the manifests; `epoch_min` is a lower bound of the caller.
        `force` takes the lease from a holder whose term has not ended. Raises LeaseHeld, naming the holder, or
        LeaseDamaged: then try again.
        """
        with self._lock:
            stored = self._driver.get_object(self.name)
            now_ms = self._clock.now_ms()
            old = None if stored is None else self._decoded(stored, now_ms, force=force)
            if old is None:
                old, now_ms = Lease(self._highest_epoch()), self._clock.now_ms()  # Takes a while.
            is_untaken = stored is not None and self._is_untaken(stored)
            if not force and not is_untaken and self._is_kept_by_other(old, now_ms):
                raise self._held_by(old, now_ms)
            last = old.epoch if old.is_believed else self._epoch_beside(old)
            lease = Lease(
                max(last + 1, epoch_min), self.owner, now_ms + self._term_ms, 0, now_ms, self._process, self.lends
            )  # fmt: skip
            if lease.epoch >= COUNT_MAX:
                raise EpochsUsedUp(
                    f"{self.name}: expected an epoch below {COUNT_MAX} for the next holder, found {lease.epoch - 1} in "
                    "a manifest of the broker, or in its metadata, which TierMQ did not write; run `tiermq tier verify`"
                )
            if old.owner != self.owner or old.epoch != self._wanted_epoch:
                self.epoch_before = old.epoch  # Else it is ours since the last call, whose answer was lost.
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
            self._request = self._lent = None
            if is_untaken:
                self._lend_again_s = self._clock.monotonic() + UNTAKEN_REST_S
                _log.warning("%s: %s asked for it, and did not take it", self.name, old.owner)
            return lease.epoch

    def _epoch_beside(self, lease: Lease) -> int:
        """The last epoch, when that of the lease is none that TierMQ wrote."""
        known = self._highest_epoch()
        if lease.epoch <= known + EPOCH_BELIEVED_MAX:
            return lease.epoch  # Manifests have gone nearly as far, and their queues must be written above them.
        _log.error(
            "%s: epoch %d is none that TierMQ wrote: the next one is above those of the manifests, which reach %d. "
            "Another process writes this tier: see which one may",
            self.name, lease.epoch, known,
        )  # fmt: skip
        return known + EPOCH_MARGIN

    def _is_untaken(self, stored: StoredObject) -> bool:
        """Whether it is as it was lent, and the borrower's time is over."""
        if self._lent is None or stored.version != self._lent[0]:
            return False
        return self._clock.monotonic() - self._lent[1] >= LENT_MS / 1000

    def _highest_epoch(self) -> int:
        found = highest_epoch(self._driver, self._cluster, self._broker, self._role)
        return found if self._held is None else max(found, self._held.epoch)

    def _decoded(self, stored: StoredObject, now_ms: int, *, force: bool) -> Lease | None:
        """The stored lease; None when it has been damaged for a term, or by force. Raises LeaseDamaged."""
        try:
            return decode_lease(stored.data, self.name)
        except CorruptManifest as error:
            if self._damaged is None or self._damaged[0] != stored.version:
                _log.error("who holds the broker's part of the tier cannot be read: %s", error)
                self._damaged = (stored.version, now_ms)
            left_ms = self._damaged[1] + max(self._term_ms, LEASE_TERM_MS) - now_ms
            if left_ms > 0 and not force:
                raise LeaseDamaged(
                    f"{error}. A process that waits takes it over in {left_ms} ms, `{self._takeover}` at once"
                ) from error
            _log.error("%s: it was not rewritten, %s takes it over", self.name, self.owner)
            return None

    def take_over(self) -> int:
        """End another holder's term now, and leave the lease free above its epoch, which is returned. For operators.

        A holder that renews or releases it at this moment does not prevent that. Raises FutureManifest for a lease of a
        newer TierMQ, and what the driver raises.
        """
        for _ in range(_TAKE_OVER_TRIES):
            with suppress(ManifestConflict, LeaseHeld):
                epoch = self.acquire(force=True)
                self.release()
                return epoch
        raise ManifestConflict(f"{self.name}: {self.owner} wanted to take it over, but its holder always came first")

    def ask(self) -> None:
        """Ask the broker that holds it to lend it. Raises LeaseHeld when the holder lends it to no job, or to another.

        Does nothing when it is asked already, or the lease is free or ours by now: then acquire it.
        """
        with self._lock:
            stored = self._driver.get_object(self.name)
            now_ms = self._clock.now_ms()
            held = None if stored is None else decode_lease(stored.data, self.name)
            if stored is None or held is None or not self._is_kept_by_other(held, now_ms):
                return
            asked = held.request if held.request is not None and held.request.is_live(now_ms) else None
            if not held.lends:
                raise self._held_by(held, now_ms)
            if asked is not None and asked.owner != self.owner:
                raise self._held_by(replace(held, owner=asked.owner), now_ms)
            if asked is None:
                request = LeaseRequest(self.owner, now_ms + REQUEST_MS, self._process)
                with suppress(ManifestConflict):  # Its holder renewed it: the next call asks again.
                    self._driver.put_object(
                        self.name, encode_lease(replace(held, request=request)), expected=stored.version
                    )

    @property
    def request(self) -> LeaseRequest | None:
        """The job that waits for this lease, as its last renewal or check has found it. Costs no request."""
        with self._lock:
            return self._live_request() if self._clock.monotonic() >= self._lend_again_s else None

    def _live_request(self) -> LeaseRequest | None:
        request = self._request if self.is_held else None
        return request if request is not None and request.is_live(self._clock.now_ms()) else None

    def lend(self, request: LeaseRequest) -> None:
        """Make it the lease of the job that asked. Its lender takes it back by `acquire`. Raises StaleWriter."""
        with self._lock:
            held = self._require_held()
            expires_ms = self._clock.now_ms() + LENT_MS
            self._put(Lease(held.epoch, request.owner, expires_ms, 0, self._clock.now_ms(), request.process))
            self._held = self._request = None
            self._lent = self._version, self._clock.monotonic()

    def renew(self) -> int:
        """Hold it for another term; returns the new expiry. Raises StaleWriter when another process took it.

        An expired lease that no other process took is renewed: there was no other writer.
        """
        with self._lock:
            held = self._require_held()
            expires_ms = self._clock.now_ms() + self._term_ms
            lease = replace(held, expires_ms=expires_ms, renewals=held.renewals + 1, request=self._live_request())
            self._held = self._put(lease)
            return lease.expires_ms

    def is_renewal_due(self) -> bool:
        """Whether a third of the term has passed: early enough that two renewals may fail before it expires."""
        with self._lock:
            return self._clock.now_ms() >= self._require_held().expires_ms - self._term_ms * 2 // 3

    def keep(self) -> None:
        """Renew it when that is due. A lease that was lost stays lost: `check` reports it before a commit."""
        try:
            if self._lost is None and self.is_renewal_due():
                self.renew()
        except StaleWriter as error:
            _log.error("%s may not write any more: %s", self.owner, error)

    def check(self) -> None:
        """Check in the tier that the lease is still ours. Raises StaleWriter, naming the new owner, when it is not.

        Callers that wait for the lock share the result of a request that was sent after they called.
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
                current = self._put(held)
            if current is None or (current.epoch, current.owner) != (held.epoch, held.owner):
                raise self._lose(current)
            self._last_check, self._request = number, current.request

    def release(self) -> None:
        """Let others in at once. Does nothing when the lease is not held or was lost."""
        with self._lock:
            if self._held is None or self._lost is not None:
                return
            try:
                self._put(Lease(self._held.epoch, renewals=self._held.renewals))
            except StaleWriter:
                return  # It was taken over before: nothing to release.
            finally:
                self._held = None

    def _put(self, lease: Lease) -> Lease:
        """Replace the lease that is ours; what was put. A request that another process has put meanwhile is kept."""
        for _ in range(_PUT_TRIES):
            try:
                self._version = self._driver.put_object(self.name, encode_lease(lease), expected=self._version)
                return lease
            except ManifestConflict:
                held = self._require_held()
                stored = self._driver.get_object(self.name)
                current = None if stored is None else self._ours_if_damaged(stored, held)
                if stored is None or current is None or (current.epoch, current.owner) != (held.epoch, held.owner):
                    raise self._lose(current) from None
                # A renewal of ours, whose answer was lost, landed after all; or a job asks for the lease.
                self._version, self._request = stored.version, current.request
                lease = replace(lease, request=self._live_request() if lease.owner == held.owner else None)
        raise ManifestConflict(f"{self.name}: {self.owner} wanted to replace it, but others did so {_PUT_TRIES} times")

    def _ours_if_damaged(self, stored: StoredObject, held: Lease) -> Lease:
        """The stored lease; a damaged one is ours while our term lasts. Raises StaleWriter after that."""
        try:
            return decode_lease(stored.data, self.name)
        except CorruptManifest as error:
            if self._clock.now_ms() < held.expires_ms:
                _log.error("the broker's damaged lease is rewritten: %s", error)
                return held
            self._lost = "an unknown holder: the lease is damaged"
            raise self._stale() from error

    def _lose(self, current: Lease | None) -> StaleWriter:
        if current is None:
            self._lost = "no holder: the lease is missing in the tier"
        elif not current.owner:
            self._lost = f"no holder: it was released at epoch {current.epoch}"
        else:
            # A lower epoch is a lease from a backup of the tier: no process can have acquired it.
            self._has_twin = current.owner == self.owner and current.epoch > self._wanted_epoch
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
        left_s = -(-max(other.expires_ms - now_ms, 0) // 1000)
        return LeaseHeld(
            f"{self.name}: {self.owner} wanted it, but {other.owner or 'another process'} holds it with epoch "
            f"{other.epoch} for another {left_s} s; stop that process. If it is dead, wait until the lease ends, or "
            f"end it at once: `{self._takeover}`",
            other,
            left_s=left_s,
            takeover=self._takeover,
        )

    @property
    def _takeover(self) -> str:
        options = shlex.join(["--cluster", self._cluster, "--broker", self._broker])
        if self._role is not LeaseRole.LOG:
            options += f" --role {self._role}"
        return f"tiermq tier takeover {shlex.quote(self._driver.url)} {options}"


class LeaseKeeper(Service):
    """Keeps leases while a job or a repair works: calls each of `renewals` every second, which renew when due."""

    def __init__(self, *renewals: Callable[[], object]) -> None:
        super().__init__("job-lease")
        self._renewals = renewals

    def run_once(self) -> float:
        for renew in self._renewals:
            renew()
        return KEEPER_REST_S
