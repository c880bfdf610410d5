"""The lease of a broker: one holder, taken over after it expired, and the old holder is notified."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.manual_clock import ManualClock
from tier.metadata.lease_samples import DISPATCHER, JOB, lease_of
from tier.metadata.manifest_values import I64, NATURALS, SAMPLE, TEXT
from tiermq.clock import SystemClock
from tiermq.errors import FutureManifest, StaleWriter, TierUnavailable
from tiermq.tier.driver.contract import ANY, Expected, StoredObject
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import (
    EPOCH_BELIEVED_MAX,
    EPOCH_MARGIN,
    LENT_MS,
    UNTAKEN_REST_S,
    BrokerLease,
    EpochsUsedUp,
    Lease,
    LeaseDamaged,
    LeaseHeld,
    LeaseKeeper,
    LeaseRequest,
    decode_lease,
    encode_lease,
    has_ended,
    lease_name,
    this_process,
)
from tiermq.tier.metadata.document import CorruptManifest, seal_document
from tiermq.tier.metadata.manifest import encode_manifest, manifest_name
from tiermq.tier.metadata.metadata_values import LEASE_TERM_MS
from tiermq.tier.names import QueueKey
from tiermq.tier.open_tier import broker_lease, lease_owner, take_over_leases
from tiermq.tier.tier_config import TierConfig


@given(st.builds(Lease, NATURALS, TEXT, I64, NATURALS, I64, TEXT))
def test_a_lease_reads_back_as_it_was_written(lease: Lease) -> None:
    assert decode_lease(encode_lease(lease), "x") == lease


@pytest.mark.parametrize("body", [{}, {"epoch": 1, "owner": 2, "expiresMs": 3, "renewals": 4}])
def test_a_document_that_is_no_lease_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(CorruptManifest, match="no lease"):
        decode_lease(seal_document(body, 1), "x")


@pytest.mark.parametrize("epoch", [-1, 1 << 62, (1 << 63) - 1, 1 << 70])
def test_an_epoch_that_no_database_could_keep_is_damage_which_is_named_and_taken_over(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture, epoch: int
) -> None:
    driver = MemoryDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    body = {"epoch": epoch, "owner": "", "expiresMs": 0, "renewals": 4}
    driver.put_object(lease.name, seal_document(body, 1), expected=ANY)
    with pytest.raises(LeaseDamaged, match=f"{lease.name}: .*epoch is an integer from 0 .* found {epoch}"):
        lease.acquire()
    assert lease.name in caplog.text
    manual_clock.advance_ms(LEASE_TERM_MS)
    assert lease.acquire() == 1


@pytest.mark.parametrize("epoch", [2 * EPOCH_BELIEVED_MAX, (1 << 62) - 1])
@pytest.mark.parametrize("owner", ["", "a stranger"])
def test_a_forged_epoch_is_not_believed_and_the_next_one_is_above_the_manifests(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture, epoch: int, owner: str
) -> None:
    driver = MemoryDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    key = QueueKey("DefaultCluster", "broker-a", "orders", 0)
    driver.put_object(manifest_name(key), encode_manifest(replace(SAMPLE, key=key, epoch=7)))
    forged = Lease(epoch, owner, (1 << 62) if owner else 0)
    driver.put_object(lease.name, encode_lease(forged), expected=ANY)
    if owner:
        with pytest.raises(LeaseHeld, match=f"a stranger holds it with epoch {epoch} .*tiermq tier takeover"):
            lease.acquire()
        assert lease_of(driver, "an operator", manual_clock).take_over() == 8 + EPOCH_MARGIN
    assert lease.acquire() == 8 + EPOCH_MARGIN + bool(owner)
    assert f"epoch {epoch} is none that TierMQ wrote" in caplog.text
    lease.check()
    assert lease.renew() > 0
    assert lease_of(driver, DISPATCHER, manual_clock).acquire() == 9 + EPOCH_MARGIN + bool(owner), "it goes on there"


def test_an_epoch_of_manifests_is_believed_wherever_it_is(manual_clock: ManualClock) -> None:
    """A lease below it would be refused by the manifest's own compare-and-set."""
    driver = MemoryDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    key = QueueKey("DefaultCluster", "broker-a", "orders", 0)
    driver.put_object(manifest_name(key), encode_manifest(replace(SAMPLE, key=key, epoch=1 << 50)))
    driver.put_object(lease.name, encode_lease(Lease((1 << 50) + 1)), expected=ANY)
    assert lease.acquire() == (1 << 50) + 2
    driver.put_object(manifest_name(key), encode_manifest(replace(SAMPLE, key=key, epoch=(1 << 62) - 1)))
    with pytest.raises(EpochsUsedUp, match=f"{lease.name}: expected an epoch below {1 << 62}.*tiermq tier verify"):
        lease_of(driver, DISPATCHER, manual_clock).acquire(epoch_min=1 << 62)


def test_a_lease_lies_in_the_directory_of_its_broker() -> None:
    assert lease_name("DefaultCluster", "broker-a") == "212d6b50_DefaultCluster/broker-a/lease.tiermq.json"


def test_a_free_lease_is_acquired_and_reports_who_holds_it(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    assert lease.read() is None
    assert lease.acquire() == lease.epoch == 1
    assert lease.read() == Lease(1, DISPATCHER, manual_clock.now_ms() + 30_000, acquired_ms=manual_clock.now_ms())
    lease.check()


def test_no_other_gets_a_lease_that_is_held_and_the_error_names_the_holder(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease_of(driver, DISPATCHER, manual_clock).acquire()
    manual_clock.advance_ms(29_999)
    with pytest.raises(
        LeaseHeld, match=f"{DISPATCHER} holds it with epoch 1 for another 1 s; stop that process. If it is dead, wait"
    ):
        lease_of(driver, JOB, manual_clock).acquire()


def test_the_errors_of_a_lease_name_the_command_that_ends_it(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease_of(driver, DISPATCHER, manual_clock).acquire()
    other = lease_of(driver, JOB, manual_clock)
    command = rf"`tiermq tier takeover {driver.url} --cluster \S+ --broker \S+`"
    with pytest.raises(LeaseHeld, match=command):
        other.acquire()
    with pytest.raises(LeaseHeld, match=command):
        other.require_free()
    driver.put_object(other.name, b"{", expected=ANY)
    with pytest.raises(LeaseDamaged, match=command):
        other.acquire()


def test_a_take_over_fences_the_holder_at_once_and_leaves_the_lease_free(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    old, new = lease_of(driver, DISPATCHER, manual_clock), lease_of(driver, JOB, manual_clock)
    old.acquire()
    assert lease_of(driver, "operator", manual_clock).take_over() == 2
    with pytest.raises(StaleWriter, match="no holder: it was released at epoch 2"):
        old.check()
    with pytest.raises(StaleWriter):
        old.renew()
    assert new.acquire() == 3


@pytest.mark.parametrize("act", [BrokerLease.release, BrokerLease.renew], ids=["releases", "renews"])
def test_a_take_over_succeeds_while_its_holder_acts(
    manual_clock: ManualClock, act: Callable[[BrokerLease], object]
) -> None:
    """An elected master takes over from one that is ending: it would fail to open, and end without an upload."""
    acts: list[Callable[[BrokerLease], object]] = []

    class Crossed(MemoryDriver):
        def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
            if acts:
                acts.pop()(old)
            return super().put_object(name, data, expected=expected)

    driver = Crossed()
    old = lease_of(driver, DISPATCHER, manual_clock)
    old.acquire()
    acts.append(act)
    assert lease_of(driver, "operator", manual_clock).take_over() >= 2
    assert lease_of(driver, JOB, manual_clock).acquire() >= 3
    with pytest.raises(StaleWriter):
        old.check()


def test_after_expiry_the_lease_is_taken_over_with_a_higher_epoch_and_the_old_holder_is_stale(
    manual_clock: ManualClock,
) -> None:
    driver = MemoryDriver()
    old, new = lease_of(driver, DISPATCHER, manual_clock), lease_of(driver, JOB, manual_clock)
    old.acquire()
    manual_clock.advance_ms(30_000)
    assert new.acquire() == 2
    with pytest.raises(StaleWriter, match=rf"{DISPATCHER} held it with epoch 1.*{JOB} \(epoch 2\)"):
        old.renew()
    with pytest.raises(StaleWriter, match=JOB):
        old.check()
    with pytest.raises(StaleWriter, match=JOB):
        _ = old.epoch
    old.release()  # Gives back nothing, since nothing is its own.
    assert new.read() == Lease(2, JOB, manual_clock.now_ms() + 30_000, acquired_ms=manual_clock.now_ms())
    new.renew()


def test_a_holder_that_renews_in_time_keeps_the_lease(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    lease.acquire()
    for _ in range(5):
        assert not lease.is_renewal_due()
        manual_clock.advance_ms(10_000)
        assert lease.is_renewal_due()
        assert lease.renew() == lease.expires_ms == manual_clock.now_ms() + 30_000
    with pytest.raises(LeaseHeld):
        lease_of(driver, JOB, manual_clock).acquire()
    assert lease.epoch == 1


def test_a_lease_that_expired_unnoticed_is_renewed_when_it_was_not_taken(manual_clock: ManualClock) -> None:
    lease = lease_of(MemoryDriver(), DISPATCHER, manual_clock)
    lease.acquire()
    manual_clock.advance_ms(3_600_000)
    lease.renew()
    assert lease.epoch == 1


def test_a_released_lease_is_free_at_once_and_its_epoch_goes_on(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    old, new = lease_of(driver, DISPATCHER, manual_clock), lease_of(driver, JOB, manual_clock)
    old.acquire()
    old.release()
    with pytest.raises(StaleWriter, match="acquire it first"):
        old.renew()
    assert new.acquire() == 2


def test_the_same_owner_comes_back_after_a_crash_without_waiting(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease_of(driver, DISPATCHER, manual_clock).acquire()
    assert lease_of(driver, DISPATCHER, manual_clock).acquire() == 2


def test_an_operator_may_take_it_by_force(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    old = lease_of(driver, DISPATCHER, manual_clock)
    old.acquire()
    assert lease_of(driver, JOB, manual_clock).acquire(force=True) == 2
    with pytest.raises(StaleWriter):
        old.check()


def test_the_epoch_continues_above_manifests_when_the_lease_itself_was_lost(manual_clock: ManualClock) -> None:
    assert lease_of(MemoryDriver(), JOB, manual_clock).acquire(epoch_min=12) == 12


def test_a_lease_that_vanished_is_not_ours_any_more(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    lease.acquire()
    driver.delete_object(lease.name)
    with pytest.raises(StaleWriter, match="missing in the tier"):
        lease.renew()


def test_an_owner_has_a_name(manual_clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="owner"):
        lease_of(MemoryDriver(), "", manual_clock)


def test_of_many_that_want_a_free_lease_one_gets_it(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    start = threading.Barrier(8)
    won: list[int] = []
    lost: list[str] = []

    def run(number: int) -> None:
        lease = lease_of(driver, f"owner-{number}", manual_clock)
        start.wait()
        try:
            lease.acquire()
            won.append(number)
        except LeaseHeld as error:
            lost.append(str(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == 7
    assert all(f"owner-{won[0]} holds it" in text for text in lost)


class LossyDriver(MemoryDriver):
    """Stores the object and loses the answer, once."""

    lose = False

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        version = super().put_object(name, data, expected=expected)
        if self.lose:
            self.lose = False
            raise TierUnavailable("the answer was lost")
        return version


def test_a_renewal_whose_answer_was_lost_does_not_cost_the_lease(manual_clock: ManualClock) -> None:
    driver = LossyDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    lease.acquire()
    driver.lose = True
    with pytest.raises(TierUnavailable):
        lease.renew()
    manual_clock.advance_ms(1)
    lease.renew()
    lease.check()


def test_a_conflict_with_another_owner_of_the_same_epoch_loses_the_lease(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    epoch = lease.acquire()
    theirs = Lease(epoch, JOB, manual_clock.now_ms() + 30_000)
    driver.put_object(lease.name, encode_lease(theirs))
    with pytest.raises(StaleWriter, match=JOB):
        lease.renew()
    assert lease.read() == theirs
    assert not lease.is_held


class TellingLock:
    """A lock that shows who has come to it."""

    def __init__(self) -> None:
        self.came = threading.Semaphore(0)
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self.came.release()
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()


class SlowDriver(MemoryDriver):
    """Answers what the tier says when it is asked, as soon as `gate` lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.began = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def get_object(self, name: str) -> StoredObject | None:
        found = super().get_object(name)
        self.asked += 1
        self.began.release()
        self.gate.acquire()
        return found


def test_those_who_wait_for_a_check_share_the_next_one_and_not_the_one_before_they_came(
    manual_clock: ManualClock,
) -> None:
    driver = SlowDriver()
    driver.gate.release()
    lease = lease_of(driver, DISPATCHER, manual_clock)
    lease.acquire()
    driver.asked, driver.began, lock = 0, threading.Semaphore(0), TellingLock()
    lease._lock = lock  # type: ignore[assignment]
    threads = [threading.Thread(target=lease.check) for _ in range(6)]
    threads[0].start()
    driver.began.acquire()
    for thread in threads[1:]:
        thread.start()
    for _ in threads:
        lock.came.acquire()
    driver.gate.release(6)
    for thread in threads:
        thread.join()
    assert driver.asked == 2
    lease.check()
    assert driver.asked == 3


def damage(driver: MemoryDriver, name: str) -> None:
    stored = driver.get_object(name)
    assert stored is not None
    driver.put_object(name, stored.data.replace(b'"epoch":', b'"epocx":'), expected=ANY)


def test_a_damaged_lease_is_taken_over_when_it_was_not_written_again_for_a_term(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    driver = MemoryDriver()
    lease_of(driver, DISPATCHER, manual_clock).acquire()
    job = lease_of(driver, JOB, manual_clock)
    damage(driver, job.name)
    manual_clock.advance_ms(3_600_000)  # When it expires cannot be read, either.
    with pytest.raises(LeaseDamaged, match=f"`tiermq tier takeover` does it at once.* {LEASE_TERM_MS} ms"):
        job.acquire(epoch_min=7)
    assert job.name in caplog.text
    manual_clock.advance_ms(LEASE_TERM_MS - 1)
    with pytest.raises(LeaseDamaged, match="in 1 ms"):
        job.acquire(epoch_min=7)
    manual_clock.advance_ms(1)
    assert job.acquire(epoch_min=7) == 7
    assert job.read() == Lease(7, JOB, manual_clock.now_ms() + 30_000, acquired_ms=manual_clock.now_ms())


def make_newer(driver: MemoryDriver, name: str) -> None:
    stored = driver.get_object(name)
    assert stored is not None
    driver.put_object(name, stored.data.replace(b'"version":1', b'"version":3'), expected=ANY)


def test_a_lease_whose_version_digit_went_bad_is_damaged_and_taken_over_after_a_term(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    driver = MemoryDriver()
    lease_of(driver, DISPATCHER, manual_clock).acquire()
    job = lease_of(driver, JOB, manual_clock)
    make_newer(driver, job.name)
    with pytest.raises(LeaseDamaged, match=f"checksum .* version 3 .* {LEASE_TERM_MS} ms"):
        job.acquire()
    assert "cannot be read" in caplog.text
    manual_clock.advance_ms(LEASE_TERM_MS)
    job.acquire()
    job.check()


def test_a_holder_writes_a_lease_again_whose_version_digit_went_bad(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    holder = lease_of(driver, DISPATCHER, manual_clock)
    holder.acquire(epoch_min=5)
    make_newer(driver, holder.name)
    holder.check()
    assert holder.read() == Lease(5, DISPATCHER, manual_clock.now_ms() + 30_000, acquired_ms=manual_clock.now_ms())


@pytest.mark.parametrize("force", [False, True])
def test_a_sound_lease_of_a_newer_version_is_left_alone_for_ever(manual_clock: ManualClock, force: bool) -> None:
    driver = MemoryDriver()
    job = lease_of(driver, JOB, manual_clock)
    newer = seal_document({"epoch": 1, "owner": "", "expiresMs": 0, "renewals": 0}, 2)
    driver.put_object(job.name, newer)
    for _ in range(3):
        with pytest.raises(FutureManifest, match="a newer TierMQ writes here"):
            job.acquire(force=force)
        manual_clock.advance_ms(LEASE_TERM_MS)
    stored = driver.get_object(job.name)
    assert stored is not None
    assert stored.data == newer


def test_a_lease_of_the_first_release_is_read(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    job = lease_of(driver, JOB, manual_clock)
    old = b'{"body":{"epoch":41,"expiresMs":0,"owner":"","renewals":3},"crc32":3545448418,"version":1}'
    driver.put_object(job.name, old)
    assert job.read() == Lease(41, renewals=3)
    assert job.acquire() == 42


def test_damage_that_changed_is_waited_for_again_because_a_writer_may_be_at_work(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    job = lease_of(driver, JOB, manual_clock)
    for text in (b"x", b"y"):
        driver.put_object(job.name, text, expected=ANY)
        with pytest.raises(LeaseDamaged, match=f"{LEASE_TERM_MS} ms"):
            job.acquire()
        manual_clock.advance_ms(LEASE_TERM_MS)
    assert job.acquire() == 1


def test_a_damaged_lease_yields_to_force(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    job = lease_of(driver, JOB, manual_clock)
    driver.put_object(job.name, b"", expected=ANY)
    assert job.acquire(force=True) == 1


@pytest.mark.parametrize("act", [BrokerLease.check, BrokerLease.renew], ids=["check", "renew"])
def test_a_holder_writes_a_damaged_lease_again_while_its_term_runs(
    act: Callable[[BrokerLease], object], manual_clock: ManualClock
) -> None:
    driver = MemoryDriver()
    holder, job = (lease_of(driver, owner, manual_clock) for owner in (DISPATCHER, JOB))
    holder.acquire(epoch_min=5)
    damage(driver, holder.name)
    with pytest.raises(LeaseDamaged):
        job.acquire()
    manual_clock.advance_ms(29_999)
    act(holder)
    found = job.read()
    assert found is not None
    assert (found.epoch, found.owner) == (5, DISPATCHER)
    holder.check()


@pytest.mark.parametrize("act", [BrokerLease.check, BrokerLease.renew], ids=["check", "renew"])
def test_a_holder_whose_term_is_over_does_not_take_a_damaged_lease_for_its_own(
    act: Callable[[BrokerLease], object], manual_clock: ManualClock
) -> None:
    driver = MemoryDriver()
    holder, job = (lease_of(driver, owner, manual_clock) for owner in (DISPATCHER, JOB))
    holder.acquire()
    manual_clock.advance_ms(30_000)
    job.acquire(epoch_min=9)  # And that cannot be read any more.
    damage(driver, job.name)
    before = driver.get_object(job.name)
    with pytest.raises(StaleWriter, match="the lease is damaged"):
        act(holder)
    assert driver.get_object(job.name) == before
    job.check()
    assert job.epoch == 9
    with pytest.raises(LeaseHeld, match=JOB):
        holder.acquire()


def test_a_lease_that_was_lost_by_damage_comes_back_with_a_higher_epoch(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    holder = lease_of(driver, DISPATCHER, manual_clock)
    holder.acquire(epoch_min=5)
    manual_clock.advance_ms(30_000)
    damage(driver, holder.name)
    with pytest.raises(StaleWriter):
        holder.renew()
    with pytest.raises(LeaseDamaged):
        holder.acquire()
    manual_clock.advance_ms(LEASE_TERM_MS)
    assert holder.acquire() == 6


def test_a_keeper_renews_what_is_due_and_lets_a_lost_lease_go(
    manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    driver = MemoryDriver()
    held = lease_of(driver, JOB, manual_clock)
    held.acquire()
    keeper = LeaseKeeper(held.keep)
    begun = held.expires_ms
    keeper.run_once()
    assert held.expires_ms == begun, "nothing is due yet"
    for _ in range(5):  # Far longer than a term, in steps as a keeper takes them.
        manual_clock.advance_ms(10_001)
        keeper.run_once()
    assert held.expires_ms == manual_clock.now_ms() + 30_000
    lease_of(driver, DISPATCHER, manual_clock).acquire(force=True)
    manual_clock.advance_ms(10_001)
    keeper.run_once()
    assert f"{JOB} may not write any more" in caplog.text
    caplog.clear()
    keeper.run_once()
    assert caplog.text == ""


def test_whether_a_process_has_ended_is_known_of_this_machine_only_and_not_by_its_pid_alone() -> None:
    mine = this_process()
    *machine, pid, started = mine.split(" ")
    assert not has_ended(mine)
    assert has_ended(" ".join([*machine, pid, "1"]))  # Another process had this pid.
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(" ".join([*machine, str(child.pid), started]))  # A zombie.
    assert has_ended(" ".join([*machine, str(child.pid), started]))
    for number, other in enumerate(("another-host", "another-boot", "pid:[1]")):
        assert not has_ended(" ".join([*machine[:number], other, *machine[number + 1 :], str(child.pid), started]))
    assert not has_ended("")
    assert not has_ended("something else")


def test_a_lease_of_a_process_that_has_ended_is_taken_over_at_once() -> None:
    driver = MemoryDriver()
    *machine, _pid, started = this_process().split(" ")
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        pass
    ended = BrokerLease(driver, "c", "b", "killed", process=" ".join([*machine, str(child.pid), started]))
    assert ended.acquire() == 1
    job = BrokerLease(driver, "c", "b", "next", process=this_process())
    job.require_free()
    assert job.acquire() == 2
    with pytest.raises(StaleWriter):
        ended.check()
    with pytest.raises(LeaseHeld):
        BrokerLease(driver, "c", "b", "third").acquire()


BORROWER = "host-2:17 (pipeline compact)"


class SetClock(ManualClock):
    """Its time of day can be set; time passes as before."""

    __slots__ = ("step_ms",)

    def __init__(self) -> None:
        super().__init__()
        self.step_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.step_ms


def lender(driver: MemoryDriver, clock: ManualClock) -> BrokerLease:
    lease = lease_of(driver, DISPATCHER, clock)
    lease.lends = True
    lease.acquire()
    return lease


def asked(lease: BrokerLease, job: BrokerLease) -> LeaseRequest | None:
    """What the holder knows after a job has asked."""
    job.ask()
    lease.check()
    return lease.request


@pytest.mark.parametrize("step_ms", [0, -3_600_000, 3_600_000])
def test_a_job_that_asks_for_ever_and_never_takes_gets_a_lease_once_a_minute(step_ms: int) -> None:
    """Whatever the clock was set to meanwhile."""
    driver, clock = MemoryDriver(), SetClock()
    lease, job = lender(driver, clock), lease_of(driver, BORROWER, clock)
    request = asked(lease, job)
    assert request is not None
    lease.lend(request)
    clock.step_ms = step_ms
    if step_ms <= 0:
        with pytest.raises(LeaseHeld):
            lease.acquire()
    clock.advance_ms(LENT_MS)
    lease.acquire()
    assert asked(lease, job) is None
    lease.renew()
    clock.advance_ms(int(UNTAKEN_REST_S * 1000))
    assert asked(lease, job) is not None


def test_a_job_that_takes_what_it_was_lent_is_lent_to_again_at_once(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    lease = lender(driver, manual_clock)
    job = lease_of(driver, BORROWER, manual_clock)
    for _ in range(3):
        request = asked(lease, job)
        assert request is not None
        lease.lend(request)
        manual_clock.advance_ms(LENT_MS + 1)
        job.acquire()
        with pytest.raises(LeaseHeld):
            lease.acquire()
        job.release()
        lease.acquire()


@pytest.mark.parametrize("owner", ["host-2:/data/copy", "", DISPATCHER])
def test_a_request_that_is_no_job_s_is_lent_nothing(manual_clock: ManualClock, owner: str) -> None:
    """Another broker that had the lease would keep this one from taking messages."""
    driver = MemoryDriver()
    lease = lender(driver, manual_clock)
    stored = driver.get_object(lease.name)
    assert stored is not None
    forged = replace(decode_lease(stored.data, "x"), request=LeaseRequest(owner, 1 << 61))
    driver.put_object(lease.name, encode_lease(forged), expected=ANY)
    lease.check()
    assert lease.request is None
    lease.renew()
    found = lease.read()
    assert found is not None
    assert (found.owner, found.request) == (DISPATCHER, None)


def test_an_older_lease_of_our_own_that_a_backup_brought_back_is_no_twin(manual_clock: ManualClock) -> None:
    driver = MemoryDriver()
    before = lease_of(driver, DISPATCHER, manual_clock)
    before.acquire()
    backup = driver.get_object(before.name)
    assert backup is not None
    lease = lease_of(driver, DISPATCHER, manual_clock)
    assert lease.acquire() == 2
    driver.put_object(lease.name, backup.data, expected=ANY)
    with pytest.raises(StaleWriter):
        lease.check()
    assert not lease.has_twin()
    assert lease.acquire(epoch_min=3) == 3
    twin = lease_of(driver, DISPATCHER, manual_clock)
    twin.acquire()
    with pytest.raises(StaleWriter, match="another embedded dispatcher"):
        lease.check()
    assert lease.has_twin()


@pytest.mark.parametrize("pid", ["99999999999999999999999", "-1", "0", "x", "9" * 5_000])
def test_a_process_that_cannot_be_is_not_known_to_have_ended(pid: str) -> None:
    machine, _, rest = this_process().rpartition(" pid:[")
    namespace = rest.split(" ")[0]
    assert not has_ended(f"{machine} pid:[{namespace} {pid} 1")


def test_an_elected_master_logs_whom_it_has_replaced_and_no_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"file://{tmp_path}/tier"
    config = TierConfig(store_path_root_dir=str(tmp_path / "old"), broker_cluster_name="c", broker_name="b")
    driver = open_driver(url)
    broker_lease(config, driver, SystemClock()).acquire()
    take_over_leases(url, tmp_path / "new", "c", "b")
    driver.close()
    [said] = [each.message for each in caplog.records if "elected master" in each.message]
    assert f"has taken its tier over from {lease_owner(config)}, epoch 1" in said
    assert "stop that process" not in said
