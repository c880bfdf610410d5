"""The state of a broker set: every request in every order keeps the invariants of its module."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tiermq.controller.broker_set import (
    MEMBERS_MAX,
    BrokerSet,
    Life,
    Lives,
    Member,
    Outcome,
    alter,
    apply_id,
    clean,
    elect,
    register,
)
from tiermq.remoting.codes import ResponseCode as Code

IDS = st.integers(1, 5)
LIVES = st.builds(
    Lives,
    alive=st.dictionaries(IDS, st.builds(Life, st.integers(-1, 3), st.integers(-1, 1 << 40), st.integers(0, 9))),
    lost=st.frozensets(IDS),
    is_settled=st.booleans(),
)


def brokers(*ids: int) -> BrokerSet:
    members = {each: Member(f"10.0.0.{each}:10911", f"10.0.0.{each}:10911;1") for each in ids}
    return BrokerSet("b", "C", members, max(ids) + 1)


def led_by(master: int, *others: int) -> BrokerSet:
    in_sync = frozenset({master, *others})
    return replace(brokers(1, 2, 3), master=master, master_epoch=4, in_sync=in_sync, set_epoch=7)


def alive(*ids: int) -> Lives:
    return Lives({each: Life(4, 100) for each in ids}, lost={1, 2, 3} - set(ids))


def state_of(outcome: Outcome, code: Code = Code.SUCCESS) -> BrokerSet:
    assert outcome.code == code, outcome.remark
    assert outcome.state is not None
    return outcome.state


class AnyRequests(RuleBasedStateMachine):
    """Controllers that believe whatever they like about the brokers, and requests of any age."""

    def __init__(self) -> None:
        super().__init__()
        self.state: BrokerSet | None = None
        self.masters: dict[int, int] = {}
        self.seen = (0, 0)

    def take(self, outcome: Outcome, *, unclean: bool = False) -> None:
        before, self.state = self.state, outcome.state
        if before is None or self.state is None:
            return
        if outcome.code not in (Code.SUCCESS, Code.CONTROLLER_MASTER_NOT_AVAILABLE):
            assert self.state == before
        if self.state.master not in (None, before.master) and before.in_sync and not unclean:
            assert self.state.master in before.in_sync

    @rule(broker=IDS, code=st.sampled_from(["a;1", "b;2"]))
    def apply_for_an_id(self, broker: int, code: str) -> None:
        self.take(apply_id(self.state, "C", "b", broker, code))

    @rule(broker=IDS, address=st.sampled_from(["x:1", "y:2"]))
    def register(self, broker: int, address: str) -> None:
        self.take(register(self.state, "C", "b", broker, address))

    @rule(lives=LIVES, asker=st.none() | IDS, designated=st.booleans(), unclean=st.booleans())
    def elect(self, lives: Lives, asker: int | None, designated: bool, unclean: bool) -> None:
        is_designated = designated and asker is not None
        self.take(
            elect(self.state, lives, "b", asker=asker, designated=is_designated, unclean=unclean), unclean=unclean
        )

    @rule(lives=LIVES, in_sync=st.frozensets(IDS), master=IDS, back=st.integers(0, 1), set_back=st.integers(0, 1))
    def alter(self, lives: Lives, in_sync: frozenset[int], master: int, back: int, set_back: int) -> None:
        epochs = (0, 0) if self.state is None else (self.state.master_epoch - back, self.state.set_epoch - set_back)
        before = self.state
        outcome = alter(before, lives, "b", master=master, master_epoch=epochs[0], in_sync=in_sync, set_epoch=epochs[1])
        if outcome.is_success:
            assert (back, set_back) == (0, 0)
            assert before is not None
            assert before.master == master
        self.take(outcome)

    @rule(lives=LIVES, ids=st.frozensets(IDS), also_living=st.booleans())
    def clean(self, lives: Lives, ids: frozenset[int], also_living: bool) -> None:
        self.take(clean(self.state, lives, "b", brokers=ids, also_living=also_living))

    @invariant()
    def epochs_never_fall(self) -> None:
        if self.state is not None:
            now = (self.state.master_epoch, self.state.set_epoch)
            assert now[0] >= self.seen[0]
            assert now[1] >= self.seen[1]
            self.seen = now

    @invariant()
    def an_epoch_has_one_master(self) -> None:
        if self.state is not None and self.state.master is not None:
            assert self.masters.setdefault(self.state.master_epoch, self.state.master) == self.state.master

    @invariant()
    def the_master_is_in_sync_and_those_are_members(self) -> None:
        if self.state is not None:
            assert self.state.master is None or self.state.master in self.state.in_sync
            assert self.state.in_sync <= self.state.members.keys()
            assert all(each < self.state.next_id for each in self.state.members)


TestAnyRequests = AnyRequests.TestCase


def test_a_new_set_gives_id_1_only_and_the_same_request_again_is_answered_alike() -> None:
    assert apply_id(None, "C", "b", 2, "x;1").code == Code.CONTROLLER_BROKER_ID_INVALID
    first = state_of(apply_id(None, "C", "b", 1, "x;1"))
    assert (first.members, first.next_id) == ({1: Member("x", "x;1")}, 2)
    assert state_of(apply_id(first, "C", "b", 1, "x;1")) == first
    assert apply_id(first, "C", "b", 1, "y;1").code == Code.CONTROLLER_BROKER_ID_INVALID
    assert apply_id(first, "D", "b", 2, "y;1").code == Code.CONTROLLER_INVALID_REQUEST
    for far in (3, 2_147_483_647):
        assert apply_id(first, "C", "b", far, "y;1").code == Code.CONTROLLER_BROKER_ID_INVALID, "ids would run out"
    assert state_of(apply_id(first, "C", "b", 2, "y;1")).next_id == 3
    full = brokers(*range(1, MEMBERS_MAX + 1))
    assert apply_id(full, "C", "b", MEMBERS_MAX + 1, "y;1").code == Code.CONTROLLER_BROKER_ID_INVALID


def test_a_registration_takes_the_address_and_needs_an_id() -> None:
    moved = state_of(register(brokers(1), "C", "b", 1, "elsewhere:1"))
    assert moved.members[1].address == "elsewhere:1"
    assert register(brokers(1), "C", "b", 2, "x:1").code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert register(None, "C", "b", 1, "x:1").code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_the_first_one_who_asks_becomes_the_first_master() -> None:
    assert elect(brokers(1, 2), alive(1, 2), "b", asker=None).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    led = state_of(elect(brokers(1, 2), Lives({}), "b", asker=2))
    assert (led.master, led.master_epoch, led.in_sync, led.set_epoch) == (2, 1, frozenset({2}), 1)
    assert elect(brokers(1), alive(1), "b", asker=9).code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_a_living_master_stays_unless_another_one_is_designated() -> None:
    state = led_by(1, 2)
    assert state_of(elect(state, alive(1, 2), "b", asker=2), Code.CONTROLLER_MASTER_STILL_EXIST) is state
    assert state_of(elect(state, alive(1, 2), "b", asker=None), Code.CONTROLLER_MASTER_STILL_EXIST) is state
    moved = state_of(elect(state, alive(1, 2), "b", asker=2, designated=True))
    assert (moved.master, moved.master_epoch, moved.in_sync, moved.set_epoch) == (2, 5, frozenset({2}), 8)


def test_a_broker_outside_of_the_sync_state_set_is_elected_only_where_that_is_allowed() -> None:
    state = led_by(1, 2)
    assert elect(state, alive(1, 3), "b", asker=3, designated=True).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    assert elect(state, alive(3), "b", asker=3).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    gone = state_of(elect(state, alive(3), "b", asker=None), Code.CONTROLLER_MASTER_NOT_AVAILABLE)
    assert (gone.master, gone.master_epoch, gone.in_sync) == (None, 5, state.in_sync)
    assert state_of(elect(state, alive(3), "b", asker=None, unclean=True)).master == 3


def test_a_controller_that_hears_no_broker_at_all_changes_nothing() -> None:
    state = led_by(1, 2)
    assert state_of(elect(state, alive(), "b", asker=None), Code.CONTROLLER_ELECT_MASTER_FAILED) is state


def test_a_controller_that_has_just_started_takes_the_master_for_alive() -> None:
    state = led_by(1, 2)
    starting = Lives({2: Life(4, 100)}, is_settled=False)
    assert state_of(elect(state, starting, "b", asker=2), Code.CONTROLLER_MASTER_STILL_EXIST) is state
    assert state_of(elect(state, replace(starting, lost={1}), "b", asker=2)).master == 2


def test_the_old_master_that_returns_alone_is_elected_again_with_a_new_epoch() -> None:
    gone = replace(led_by(1, 2), master=None, master_epoch=5)
    back = state_of(elect(gone, Lives({}), "b", asker=1))
    assert (back.master, back.master_epoch) == (1, 6)


@pytest.mark.parametrize(
    ("second", "third", "winner"),
    [
        (Life(4, 100), Life(5, 10), 3),  # The newer epoch,
        (Life(4, 100), Life(4, 101), 3),  # then the longer log,
        (Life(4, 100, 2), Life(4, 100, 1), 3),  # then the priority,
        (Life(4, 100), Life(4, 100), 2),  # then the id.
        # RocketMQ 5.3.3 compares (int) (a - b): 2^32 more bytes look like none, 2^31 more like fewer.
        (Life(4, 0), Life(4, 1 << 32), 3),
        (Life(4, 0), Life(4, 1 << 31), 3),
    ],
)
def test_the_best_replica_is_elected_without_overflow(second: Life, third: Life, winner: int) -> None:
    lives = Lives({2: second, 3: third}, lost={1})
    assert state_of(elect(led_by(1, 2, 3), lives, "b", asker=None)).master == winner


def test_only_the_master_of_this_epoch_changes_the_sync_state_set() -> None:
    state = led_by(1)

    def ask(in_sync: set[int], lives: Lives, master: int = 1, epoch: int = 4, set_epoch: int = 7) -> Outcome:
        return alter(state, lives, "b", master=master, master_epoch=epoch, in_sync=in_sync, set_epoch=set_epoch)

    everybody = alive(1, 2, 3)
    grown = state_of(ask({1, 2}, everybody))
    assert (grown.in_sync, grown.set_epoch, grown.master_epoch) == (frozenset({1, 2}), 8, 4)
    assert ask({1}, everybody).code == Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert ask({2}, everybody).code == Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert ask({1, 2}, everybody, master=2).code == Code.CONTROLLER_INVALID_MASTER
    assert ask({1, 2}, everybody, epoch=3).code == Code.CONTROLLER_FENCED_MASTER_EPOCH
    assert ask({1, 2}, everybody, set_epoch=6).code == Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert ask({1, 9}, everybody).code == Code.CONTROLLER_INVALID_REPLICAS
    assert ask({1, 2}, alive(1)).code == Code.CONTROLLER_BROKER_NOT_ALIVE
    unknown = alter(None, everybody, "b", master=1, master_epoch=4, in_sync={1}, set_epoch=7)
    assert unknown.code == Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED


def test_metadata_of_living_brokers_and_of_the_last_replica_in_sync_is_kept() -> None:
    refused = Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    state = led_by(1, 2)
    assert clean(None, alive(), "b", brokers=[], also_living=True).code == refused
    assert clean(state, alive(1), "b", brokers=[1], also_living=False).code == refused
    assert clean(state, alive(1), "b", brokers=[], also_living=False).code == refused
    assert clean(state, Lives({}, is_settled=False), "b", brokers=[], also_living=False).code == refused
    assert clean(state, alive(), "b", brokers=[9], also_living=False).code == refused
    assert clean(state, alive(3), "b", brokers=[1, 2], also_living=True).code == refused
    left = state_of(clean(state, alive(1), "b", brokers=[2], also_living=False))
    assert (sorted(left.members), left.in_sync, left.set_epoch, left.next_id) == ([1, 3], frozenset({1}), 8, 4)
    deposed = state_of(clean(state, alive(1), "b", brokers=[1], also_living=True))
    assert (deposed.master, deposed.master_epoch, deposed.in_sync) == (None, 5, frozenset({2}))


def test_a_set_whose_metadata_was_deleted_goes_on_with_its_epochs() -> None:
    empty = state_of(clean(led_by(1, 2), alive(), "b", brokers=[], also_living=False))
    assert not empty.members
    again = state_of(apply_id(empty, "other", "b", 1, "x;2"))
    led = state_of(elect(again, alive(1), "b", asker=1))
    assert (led.cluster, led.master, led.master_epoch, led.set_epoch) == ("other", 1, 6, 9)
