"""Elections by a lease in a bucket, with moved clocks: who is the master when, and who may acknowledge."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulation.manual_clock import ManualClock
from tiermq.errors import TierUnavailable
from tiermq.replication import bucket_election
from tiermq.replication.bucket_election import BucketElection, LeaseTimes
from tiermq.replication.election import Candidate, Decision, LogEnds, Loss, QueueRanges, Role
from tiermq.replication.master_lease import (
    REPLICAS_MAX,
    MasterLease,
    Replica,
    decode_master_lease,
    encode_master_lease,
    master_lease_name,
)
from tiermq.tier.driver.contract import ForwardingDriver, StoredObject
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.broker_lease import this_process

TIMES = LeaseTimes(term_s=10.0, renew_s=3.0, margin_s=2.0, look_s=1.0)
_numbers = itertools.count()


class Away(ForwardingDriver):
    """A bucket that does not answer while `is_away`; `loses_answers`: it takes puts, and does not say so."""

    is_away = False
    loses_answers = False

    def get_object(self, name: str) -> StoredObject | None:
        self._require()
        return super().get_object(name)

    def put_object(self, name: str, data: bytes, **options: Any) -> str:
        self._require()
        version = super().put_object(name, data, **options)
        if self.loses_answers:
            raise TierUnavailable("the answer was lost")
        return version

    def _require(self) -> None:
        if self.is_away:
            raise TierUnavailable("away")


class Node:
    """One replica: its clock, which begins anywhere, its driver, and what it was told."""

    def __init__(self, path: Path, bucket: str, name: str, begins_s: float = 0.0) -> None:
        self.clock = ManualClock()
        self.clock.advance_ms(int(begins_s * 1000))
        self.driver = Away(MemoryDriver(bucket))
        self.end, self.confirmed, self.epoch = 100, 100, 0
        self.opens = True
        self.queues: QueueRanges | None = {}
        self.holes: QueueRanges = {}
        self.asked: list[QueueRanges] = []
        self.decisions: list[Decision] = []
        self.election = BucketElection(self.driver, "c", "b", str(path / name), times=TIMES, clock=self.clock)
        self.election.join()
        self.election._candidate = Candidate(
            address=f"{name}:1",
            ha_address=f"{name}:2",
            ends=lambda: LogEnds(self.end, self.confirmed, self.epoch),
            on_change=self.decisions.append,
            queues=lambda: self.queues,
            holes=self.find_holes,
        )

    def find_holes(self, queues: QueueRanges) -> QueueRanges:
        if queues not in self.asked:
            self.asked.append(queues)
        return self.holes

    def step(self, after_s: float = 0.0) -> Role:
        self.clock.advance_ms(round(after_s * 1000))
        self.election.run_once()
        decision = self.election.decision
        if decision.role is Role.MASTER and self.opens and self.epoch != decision.epoch:
            self.epoch = decision.epoch  # The broker is open, and wakes the election.
            self.election.run_once()
        return self.election.decision.role

    @property
    def may_acknowledge(self) -> bool:
        return self.election.may_acknowledge(self.election.decision.epoch)


Make = Callable[..., Node]


@pytest.fixture
def node(tmp_path: Path) -> Make:
    bucket = f"election{next(_numbers)}"
    return lambda name, begins_s=0.0: Node(tmp_path, bucket, name, begins_s)


def pair(node: Make) -> tuple[Node, Node]:
    """A master and a replica in sync."""
    first, second = node("first"), node("second", begins_s=86_400.0)
    assert first.step() is Role.MASTER
    assert second.step() is Role.SLAVE
    first.election.propose(1, 1, frozenset((1, 2)))
    first.step()
    second.epoch = 1
    second.step()
    return first, second


def test_the_first_replica_is_the_master_and_the_second_follows_it(node: Make) -> None:
    first, second = pair(node)
    assert (first.election.own, second.election.own) == (1, 2)
    assert first.election.decision.members == {1, 2}
    decided = second.election.decision
    assert (decided.role, decided.epoch, decided.address, decided.ha_address) == (Role.SLAVE, 1, "first:1", "first:2")
    assert first.may_acknowledge
    assert not second.may_acknowledge


def test_a_master_that_cannot_renew_stops_before_another_one_takes_over(node: Make) -> None:
    first, second = pair(node)
    first.driver.is_away = True
    waited = 0.0
    while second.step(0.5) is not Role.MASTER:
        waited += 0.5
        first.step(0.5)
        assert waited < 11.0
    assert 9.5 <= waited <= 10.5
    assert not first.may_acknowledge
    assert second.election.decision.epoch == 2
    first.driver.is_away = False
    assert first.step(1.0) is Role.SLAVE
    assert first.election.decision.address == "second:1"


@pytest.mark.parametrize("rate", [0.85, 1.0, 1.15])
def test_one_may_acknowledge_at_a_time_although_clocks_run_unequally(node: Make, rate: float) -> None:
    first, second = pair(node)
    first.driver.is_away = True
    for _ in range(300):
        first.clock.advance_ms(100)
        role = second.step(0.1 * rate)
        assert not (first.may_acknowledge and role is Role.MASTER)
    assert role is Role.MASTER


def test_a_lease_that_ended_is_renewed_when_no_other_replica_took_it(node: Make) -> None:
    first, _second = pair(node)
    first.driver.is_away = True
    first.step(9.0)
    assert [first.may_acknowledge, first.election.decision.role] == [False, Role.MASTER]
    first.driver.is_away = False
    assert [first.step(60.0), first.may_acknowledge] == [Role.MASTER, True]
    assert first.election.decision.epoch == 1, "there was no other master"


def test_of_two_replicas_that_take_over_at_once_one_wins(node: Make) -> None:
    first, second = pair(node)
    third = node("third")
    first.election.propose(1, 2, frozenset((1, 2, 3)))
    first.step(0.1)
    for each in (third, second, third):  # The first look records an address, which others must see, too.
        each.epoch = 1
        each.step(0.1)
    roles = [each.step(10.1) for each in (second, third)]
    assert roles == [Role.MASTER, Role.SLAVE]
    assert third.election.decision.address == "second:1"


def test_a_replica_that_is_not_in_sync_never_takes_over(node: Make) -> None:
    first, second = pair(node)
    first.election.propose(1, 3, frozenset((1,)))
    first.step(0.1)
    assert second.step(1.0) is Role.SLAVE
    assert second.step(100.0) is not Role.MASTER
    assert "not in sync" in second.election.why_not
    second.election.accept_loss()
    assert second.step(1.0) is Role.MASTER


@pytest.mark.parametrize("queues", [{("T", 0): (0, 70), ("U", 3): (5, 9)}, None])
def test_a_take_over_with_loss_knows_what_the_master_had(node: Make, queues: QueueRanges | None) -> None:
    first, second = node("first"), node("second")
    first.queues = queues
    first.step()
    first.end = first.confirmed = 900
    first.step(3.0)
    assert second.step() is Role.SLAVE
    second.end, second.epoch = 400, 1
    second.step(10.0)
    second.election.accept_loss()
    assert second.step(0.1) is Role.MASTER
    assert second.election.loss == Loss(1, 400, 900, 10.0, queues)
    assert second.election.lease.queues is None, "the old master's are not taken for its own"
    assert first.election.loss is None


def test_a_replica_whose_log_begins_behind_the_tier_takes_over_only_with_loss_accepted(node: Make) -> None:
    first, second = pair(node)
    first.queues = {("T", 0): (10, 70)}
    first.step(3.0)
    second.holes = {("T", 0): (10, 40)}
    second.step(0.1)
    assert second.step(10.0) is Role.SLAVE
    assert "neither has messages 10 to 39 of T-0" in second.election.why_not
    second.election.accept_loss()
    assert second.step(0.1) is Role.MASTER
    assert second.election.loss == Loss(1, 100, 100, 10.0, first.queues)
    assert not second.election.decision.is_clean


def test_a_replica_that_lacks_nothing_of_the_queues_takes_over(node: Make) -> None:
    first, second = pair(node)
    first.queues = {("T", 0): (10, 70)}
    first.step(3.0)
    second.step(0.1)
    assert second.step(10.0) is Role.MASTER
    assert second.asked == [first.queues]
    assert second.election.decision.is_clean


def test_what_is_lost_of_each_queue_is_behind_its_end_here() -> None:
    loss = Loss(1, 0, 900, 10.0, {("T", 0): (0, 70), ("T", 1): (40, 50), ("U", 0): (0, 9)})
    here = {("T", 0): 50, ("U", 0): 9}
    assert loss.lacking(lambda topic, queue_id: here.get((topic, queue_id), 0)) == {
        ("T", 0): (50, 70),
        ("T", 1): (40, 50),
    }
    assert Loss(1, 0, 900, 10.0, None).lacking(lambda _topic, _queue_id: 0) is None


def test_a_replica_that_lost_its_tail_does_not_take_over(node: Make) -> None:
    first, second = pair(node)
    first.end = first.confirmed = 500
    first.step(3.0)
    second.step(0.1)
    second.end = 499
    second.step(11.0)
    assert second.election.decision.role is not Role.MASTER
    assert "499" in second.election.why_not
    second.end = 500
    assert second.step(1.0) is Role.MASTER


def test_a_released_lease_is_taken_at_once_by_the_successor_first(node: Make) -> None:
    first, second = pair(node)
    third = node("third")
    first.election.propose(1, 4, frozenset((1, 2, 3)))
    first.step(0.1)
    for each in (second, third):
        each.epoch = 1
        each.step(0.1)
    first.election.resign(3)
    assert first.step(0.1) is Role.NONE
    assert not first.may_acknowledge
    assert second.step(0.1) is not Role.MASTER
    assert third.step(0.1) is Role.MASTER
    assert third.election.decision.epoch == 2
    assert first.step(0.1) is Role.SLAVE


def test_a_released_lease_is_not_left_to_a_successor_that_is_gone(node: Make) -> None:
    first, second = pair(node)
    first.election.propose(1, 5, frozenset((1, 2, 3)))
    first.step(0.1)
    first.election.resign(3)
    first.step(0.1)
    second.step(0.1)
    assert second.step(5.1) is Role.MASTER


def test_the_holder_takes_its_lease_again_at_once_when_its_process_has_ended(
    node: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _second = pair(node)
    again = node("first")
    again.epoch = 1
    assert again.election.own == 1
    assert again.step() is Role.NONE, "the process before may still run"
    assert "earlier process" in again.election.why_not
    monkeypatch.setattr(bucket_election, "has_ended", lambda process: process == this_process())
    assert again.step() is Role.MASTER
    assert again.election.decision.epoch == 2
    first.step(3.1)
    assert first.election.decision.role is not Role.MASTER
    assert not first.may_acknowledge


def test_a_copy_of_a_running_masters_directory_never_takes_its_lease(node: Make, tmp_path: Path) -> None:
    first, _second = pair(node)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    copy = node("copy")
    copy.epoch = 1
    assert copy.election.own == 1
    for _ in range(30):
        assert first.step(1.0) is Role.MASTER
        assert copy.step(1.0) is Role.NONE
    assert "directory was copied" in copy.election.why_not
    assert copy.step(100.0) is Role.NONE, "it lacks what the original has acknowledged since"


def test_a_renewal_that_was_on_its_way_when_its_process_ended_is_no_second_process(node: Make) -> None:
    first, _second = pair(node)
    again = node("first")
    again.epoch = 1
    first.step(3.1)  # It lands, and the process ends.
    assert again.step(1.0) is Role.NONE
    assert again.step(10.1) is Role.MASTER


def test_the_original_of_a_copy_that_was_the_master_is_another_replica(node: Make, tmp_path: Path) -> None:
    first, _second = pair(node)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    copy = node("copy")
    copy.epoch = 1
    copy.step(1.0)
    assert copy.step(10.1) is Role.MASTER, "the original did not renew"
    assert first.step(3.1) is Role.NONE
    assert "found another one" in first.election.why_not
    again = node("first")
    again.epoch = 1
    assert again.election.own == 3, "it does not have what the copy has acknowledged, and is not in sync"
    assert again.step(100.0) is not Role.MASTER


def test_a_replica_that_cannot_open_as_the_master_acknowledges_nothing_and_costs_no_other_its_place(node: Make) -> None:
    first, second = pair(node)
    third = node("third")
    first.step(3.1)  # It sees the third.
    first.election.propose(1, 6, frozenset((1, 2, 3)))
    first.step(0.1)
    for each in (second, third):
        each.epoch = 1
        each.step(0.1)
    second.opens = False
    first.election.resign(2)
    first.step(0.1)
    assert second.step(0.1) is Role.MASTER
    second.step(3.1)
    may = second.may_acknowledge
    assert not may, "it is not open"
    assert not second.election.decision.is_recorded
    assert second.election.lease.members == {1, 2, 3}
    second.election.resign(0)
    assert second.step(0.1) is Role.NONE
    assert third.step(0.1) is Role.MASTER
    assert third.may_acknowledge
    assert third.election.lease.members == {3}
    assert third.election.decision.is_recorded


def test_joins_of_other_replicas_neither_keep_a_replica_from_taking_over_nor_grow_the_lease(node: Make) -> None:
    _first, second = pair(node)
    waited = 0
    while second.step(1.0) is not Role.MASTER:
        node(f"new{waited}")
        waited += 1
        assert waited < 12
    for number in range(200):
        node(f"more{number}")
    second.step(3.1)
    assert len(second.election.lease.replicas) <= REPLICAS_MAX
    last = node("last")
    assert last.election.own > 200, "ids are given once"
    assert second.election.knows(2)


def test_a_running_replica_that_was_left_out_of_the_lease_adds_itself_with_its_id(node: Make) -> None:
    first, second = pair(node)
    third = node("third")
    for number in range(REPLICAS_MAX):
        node(f"more{number}")
    first.step(3.1)
    assert not first.election.knows(3)
    third.step(1.0)
    first.step(3.1)
    assert first.election.knows(3)
    assert (second.election.own, third.election.own) == (2, 3)


def test_accepting_loss_is_over_when_the_holder_renews_and_after_some_terms(node: Make) -> None:
    first, second = pair(node)
    third = node("third")
    third.end, third.epoch = 5, 1
    third.step()
    third.election.accept_loss()
    for _ in range(10):
        first.step(1.0)
        third.step(1.0)
        second.step(1.0)
    first.election.resign(2)
    first.step(0.1)
    assert third.step(0.1) is not Role.MASTER
    assert second.step(0.1) is Role.MASTER
    third.election.accept_loss()
    third.step(0.1)
    assert third.step(1000.0) is not Role.MASTER, "it was armed for some terms"
    third.election.accept_loss()
    assert third.step(0.1) is Role.MASTER


def test_a_released_lease_is_left_to_replicas_in_sync_for_a_term_although_loss_is_accepted(node: Make) -> None:
    first, second = pair(node)
    third = node("third")
    third.end, third.epoch = 5, 1
    first.step(3.1)
    third.step(0.1)
    first.election.resign(2)
    first.step(0.1)
    third.election.accept_loss()
    assert third.step(0.1) is not Role.MASTER
    assert third.step(9.0) is not Role.MASTER
    assert second.step(9.0) is Role.MASTER


def test_a_replica_that_restarts_while_the_lease_is_missing_keeps_its_id_and_the_master_goes_on(node: Make) -> None:
    first, second = pair(node)
    first.driver.delete_object(master_lease_name("c", "b"))
    again = node("second")
    again.epoch = 1
    assert again.election.own == second.election.own == 2
    assert first.step(3.1) is Role.MASTER
    assert first.election.lease.members == {1, 2}
    assert again.step(1.0) is Role.SLAVE


def test_an_id_that_a_new_replica_got_while_the_lease_was_missing_is_not_used(node: Make) -> None:
    first, _second = pair(node)
    first.driver.delete_object(master_lease_name("c", "b"))
    new = node("new")
    new.end = new.confirmed = 0
    assert new.election.own == 1
    assert first.step(3.1) is Role.MASTER, "its holder writes it again"
    assert new.step(1.0) is Role.NONE
    assert "found another one" in new.election.why_not
    assert node("new").election.own == 3


def test_accepting_loss_without_a_lease_waits_for_a_master_that_writes_it_again(node: Make) -> None:
    first, second = pair(node)
    first.driver.delete_object(master_lease_name("c", "b"))
    second.step(1.0)
    second.election.accept_loss()
    assert second.step(1.0) is not Role.MASTER
    assert first.step(3.1) is Role.MASTER
    assert second.step(1.0) is Role.SLAVE


def test_an_older_lease_of_the_same_epoch_does_not_bring_its_members_back(node: Make) -> None:
    first, second = pair(node)
    name = master_lease_name("c", "b")
    old = first.driver.get_object(name)
    assert old is not None
    first.election.propose(1, 7, frozenset((1,)))
    first.step(3.0)
    first.end = first.confirmed = 1000
    first.step(3.0)
    first.driver.put_object(name, old.data)
    second.step(1.0)
    assert first.step(3.0) is Role.MASTER
    assert first.election.lease.members == {1}
    assert second.step(100.0) is not Role.MASTER


def test_a_master_knows_the_replicas_of_its_broker_and_no_other(node: Make) -> None:
    first, _second = pair(node)
    assert [first.election.knows(each) for each in (2, 7)] == [True, False]


def test_a_take_over_whose_answer_was_lost_is_repeated_with_another_epoch(node: Make) -> None:
    first, second = pair(node)
    second.driver.loses_answers = True
    assert second.step(10.1) is not Role.MASTER
    assert not second.may_acknowledge
    second.driver.loses_answers = False
    assert second.step(0.1) is Role.MASTER
    assert second.election.decision.epoch == 3
    assert not first.election.may_acknowledge(3)


def test_a_renewal_whose_answer_was_lost_keeps_the_lease(node: Make) -> None:
    first, second = pair(node)
    first.driver.loses_answers = True
    first.election.propose(1, 8, frozenset((1,)))
    first.step(3.1)
    assert first.election.decision.members == {1, 2}, "it is not known"
    first.driver.loses_answers = False
    assert first.step(1.1) is Role.MASTER
    assert first.election.decision.members == {1}
    assert second.step(1.0) is Role.SLAVE


def test_a_renewal_that_landed_before_does_not_count_from_now(node: Make) -> None:
    first, second = pair(node)
    first.driver.loses_answers = True
    first.step(3.1)  # It lands.
    second.step(0.1)
    first.driver.loses_answers, first.driver.is_away = False, True
    first.step(8.0)
    ended = first.may_acknowledge
    assert ended is False
    first.driver.is_away = False
    first.step(1.1)
    assert first.may_acknowledge, "renewed again"
    assert second.step(10.1) is not Role.MASTER, "and others have seen that"


def test_what_a_master_of_an_earlier_epoch_proposes_is_not_recorded(node: Make) -> None:
    first, _second = pair(node)
    first.election.propose(0, 9, frozenset((1,)))
    first.step(0.1)
    assert first.election.lease.members == {1, 2}


def test_an_empty_replica_lets_one_with_messages_go_first(node: Make) -> None:
    empty, full = node("empty"), node("full")
    empty.end = empty.confirmed = 0
    assert empty.step(1.0) is Role.NONE
    assert full.step(1.0) is Role.MASTER
    assert empty.step(1.0) is Role.SLAVE


def test_a_missing_lease_is_not_begun_again_by_a_replica_with_epochs(node: Make) -> None:
    _first, second = pair(node)
    second.driver.delete_object(master_lease_name("c", "b"))
    second.step(1.0)
    second.step(100.0)
    assert second.election.decision.role is Role.NONE
    assert "accept-loss" in second.election.why_not


def test_a_lease_that_was_damaged_or_removed_is_rewritten_by_its_holder(node: Make) -> None:
    first, second = pair(node)
    name = master_lease_name("c", "b")
    first.driver.put_object(name, b"{damaged")
    second.step(1.0)
    assert "expected a document" in second.election.problem
    assert first.step(3.1) is Role.MASTER
    assert second.step(1.0) is Role.SLAVE
    first.driver.delete_object(name)
    assert first.step(3.1) is Role.MASTER
    assert first.election.lease.members == {1, 2}
    assert second.step(1.0) is Role.SLAVE


def test_an_emptied_directory_gets_another_id(node: Make, tmp_path: Path) -> None:
    _first, second = pair(node)
    (tmp_path / "second" / "config" / "replicaIdentity.json").unlink()
    for each in (tmp_path / "second" / "config").iterdir():
        each.unlink()
    again = node("second")
    assert (second.election.own, again.election.own) == (2, 3)


def test_a_lease_survives_its_encoding() -> None:
    lease = MasterLease(
        epoch=7, holder=2, address="a:1", ha_address="a:2", term_ms=10, renewals=4, confirmed=9,
        members=frozenset((1, 2)), successor=1, claim="c", process="p", next_id=4,
        replicas={1: Replica("x", "a:1"), 2: Replica("y")},
    )  # fmt: skip
    assert decode_master_lease(encode_master_lease(lease), "n") == lease
