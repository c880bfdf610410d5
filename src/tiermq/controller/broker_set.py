"""BrokerSet: the brokers of one name, which one is master, and which ones have all that is acknowledged. Pure.

    members                id → address and check code; ids are given once, by 1012 and 1013
    master, master_epoch   the master of this epoch, or none; the epoch rises with each change of the master
    in_sync, set_epoch     the SyncStateSet: replicas with every acknowledged message; its epoch rises with each change

    register ids ──► elect (the first one who asks) ──► alter (slaves that caught up join, lost ones leave)
                       ▲                                   │
                       └── the master is gone ◄────────────┘      a new one comes out of the SyncStateSet

Every function here takes the state and what is known about the brokers' lives, and returns an Outcome: the response
code, its remark, and the next state, which is the same object when nothing changes.

Invariants: neither epoch ever falls, also when the metadata of a set is deleted; an epoch has at most one master; the
master is in the SyncStateSet, and all of that are members; with members and a past election the SyncStateSet is never
empty; a broker outside of the SyncStateSet becomes master only if the controller is configured to allow it.

Offsets are compared as they are: RocketMQ 5.3.3 casts their difference to 32 bits, and may elect the shorter log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tiermq.remoting.codes import ResponseCode
from tiermq.settings import INT_MAX

FIRST_ID = 1
MEMBERS_MAX = 64
"""Each of them copies the whole log of the master."""


@dataclass(frozen=True, slots=True)
class Member:
    """A broker of the set; `check_code` was made by the broker that applied for the id."""

    address: str
    check_code: str


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """See the module. An empty `members` means that the metadata was deleted, and only the epochs are kept."""

    name: str
    cluster: str
    members: Mapping[int, Member] = field(default_factory=dict)
    next_id: int = FIRST_ID
    master: int | None = None
    master_epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    set_epoch: int = 0

    @property
    def master_address(self) -> str:
        return "" if self.master is None else self.members[self.master].address


@dataclass(frozen=True, slots=True)
class Life:
    """What the last heartbeats of a living broker reported."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = INT_MAX


@dataclass(frozen=True, slots=True)
class Lives:
    """What a controller knows about the lives of a set's brokers.

    A broker that was never heard of may live until the controller has listened for long enough (`is_settled`).
    """

    alive: Mapping[int, Life]
    lost: Collection[int] = ()
    """Were heard of, and are silent or disconnected now."""
    is_settled: bool = True

    def is_gone(self, broker: int) -> bool:
        return broker not in self.alive and (broker in self.lost or self.is_settled)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a request, and the state afterwards; None if the set does not exist."""

    code: int
    state: BrokerSet | None
    remark: str | None = None

    @property
    def is_success(self) -> bool:
        return self.code == ResponseCode.SUCCESS


def _done(state: BrokerSet) -> Outcome:
    return Outcome(ResponseCode.SUCCESS, state)


def exists(state: BrokerSet | None) -> bool:
    return state is not None and bool(state.members)


def refuse_cluster(state: BrokerSet | None, cluster: str) -> Outcome | None:
    """A refusal for a broker of another cluster that has the same name; None if there is nothing to refuse."""
    if state is None or not state.members or not cluster or state.cluster == cluster:
        return None
    text = f"broker set {state.name}: expected brokers of cluster {state.cluster}, found one of {cluster}: rename one"
    return Outcome(ResponseCode.CONTROLLER_INVALID_REQUEST, state, text)


def apply_id(state: BrokerSet | None, cluster: str, name: str, broker: int, check_code: str) -> Outcome:
    """Give an id to a broker. The same request again is answered alike: the check code shows which broker has it."""
    if refused := refuse_cluster(state, cluster):
        return refused
    known = state if state is not None else BrokerSet(name, cluster)
    taken = known.members.get(broker)
    if taken is not None and taken.check_code == check_code:
        return _done(known)
    invalid = ""
    if taken is not None:
        invalid = "it was given to another broker"
    elif not known.members and broker != FIRST_ID:
        invalid = f"the set has no broker yet, so expected {FIRST_ID}"
    elif not FIRST_ID <= broker <= min(known.next_id, INT_MAX):
        invalid = f"expected a number from {FIRST_ID} to {known.next_id}, the next one: ask for it"
    elif len(known.members) >= MEMBERS_MAX:
        invalid = f"the set has {MEMBERS_MAX} brokers: delete the metadata of those that are no more"
    if invalid:
        remark = f"broker id {broker} of set {name}: {invalid}"
        return Outcome(ResponseCode.CONTROLLER_BROKER_ID_INVALID, state, remark)
    members = {**known.members, broker: Member(check_code.split(";")[0], check_code)}
    return _done(replace(known, cluster=cluster, members=members, next_id=max(known.next_id, broker + 1)))


def register(state: BrokerSet | None, cluster: str, name: str, broker: int, address: str) -> Outcome:
    """A broker that has its id reports its address."""
    if refused := refuse_cluster(state, cluster):
        return refused
    if state is None or broker not in state.members:
        remark = f"broker id {broker} of set {name}: not known here; apply for an id first"
        return Outcome(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, state, remark)
    member = state.members[broker]
    if member.address == address:
        return _done(state)
    return _done(replace(state, members={**state.members, broker: replace(member, address=address)}))


def elect(
    state: BrokerSet | None,
    lives: Lives,
    name: str,
    *,
    asker: int | None,
    designated: bool = False,
    unclean: bool = False,
) -> Outcome:
    """Elect a master. `asker` is the broker that asks, or that an administrator has `designated`; None: the controller.

    The first one who asks is the first master. Later ones come out of the SyncStateSet, or with `unclean` out of all
    members; the master stays while it may live, unless another one is designated.
    """
    if state is None or not state.members or (asker is not None and asker not in state.members):
        who = f"broker set {name}" if asker is None else f"broker id {asker} of set {name}"
        return Outcome(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, state, f"{who}: not registered here")
    winner = asker if not state.in_sync else _winner(state, lives, asker, designated, unclean)
    if winner is not None and winner == state.master:
        remark = f"broker set {name}: its master {winner} of epoch {state.master_epoch} is alive, and stays"
        return Outcome(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, state, remark)
    if winner is not None:
        return _done(
            replace(
                state,
                master=winner,
                master_epoch=state.master_epoch + 1,
                in_sync=frozenset({winner}),
                set_epoch=state.set_epoch + 1,
            )
        )
    if asker is None and state.master is not None and any(each in lives.alive for each in state.members):
        remark = f"broker set {name}: its master {state.master} is gone, and no other replica in sync is alive"
        gone = replace(state, master=None, master_epoch=state.master_epoch + 1)
        return Outcome(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, gone, remark)
    wanted = "the designated broker is not" if designated else "none is"
    remark = (
        f"broker set {name}: expected a living replica of the SyncStateSet {sorted(state.in_sync)}, {wanted}. "
        "Start one of them; enableElectUncleanMaster=true elects others, and what those lack is lost"
    )
    return Outcome(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, state, remark)


def _winner(state: BrokerSet, lives: Lives, asker: int | None, designated: bool, unclean: bool) -> int | None:
    wanted = asker if designated else None
    if state.master is not None and not lives.is_gone(state.master) and wanted in (None, state.master):
        return state.master
    for pool in (state.in_sync, state.members) if unclean else (state.in_sync,):
        candidates = {each: lives.alive[each] for each in pool if each in lives.alive}
        if asker is not None and asker in pool and not designated:
            candidates.setdefault(asker, Life())  # It lives, since it asks.
        if wanted is not None and wanted in candidates:
            return wanted
        if wanted is None and candidates:
            return min(candidates, key=lambda each: _rank(each, candidates[each]))
    return None


def _rank(broker: int, life: Life) -> tuple[int, int, int, int]:
    return -life.epoch, -life.max_offset, life.priority, broker


def alter(
    state: BrokerSet | None,
    lives: Lives,
    name: str,
    *,
    master: int,
    master_epoch: int,
    in_sync: Collection[int],
    set_epoch: int,
) -> Outcome:
    """The master's request to change the SyncStateSet, which had `set_epoch`. The order of checks is RocketMQ's."""
    wanted = frozenset(in_sync)

    def refuse(code: int, text: str) -> Outcome:
        return Outcome(code, state, f"SyncStateSet {sorted(wanted)} of broker set {name}: {text}")

    if state is None or not state.members:
        return refuse(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "the set is not known here")
    if wanted == state.in_sync:
        return refuse(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "it is so already")
    if state.master is None or state.master != master:
        return refuse(ResponseCode.CONTROLLER_INVALID_MASTER, f"the master is {state.master}, not {master}")
    if state.master_epoch != master_epoch:
        text = f"the master's epoch is {state.master_epoch}, not {master_epoch}"
        return refuse(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, text)
    if state.set_epoch != set_epoch:
        text = f"the epoch of the SyncStateSet is {state.set_epoch}, not {set_epoch}"
        return refuse(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, text)
    for each in sorted(wanted):
        if each not in state.members:
            return refuse(ResponseCode.CONTROLLER_INVALID_REPLICAS, f"{each} is no broker of the set")
        if each not in lives.alive:
            return refuse(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"{each} sends no heartbeats to this controller")
    if master not in wanted:
        return refuse(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, f"the master {master} is not in it")
    return _done(replace(state, in_sync=wanted, set_epoch=state.set_epoch + 1))


def clean(state: BrokerSet | None, lives: Lives, name: str, *, brokers: Collection[int], also_living: bool) -> Outcome:
    """Delete the metadata of brokers that are no more, or of the whole set if none is named. The epochs are kept."""

    def refuse(text: str) -> Outcome:
        remark = f"metadata of broker set {name}: {text}; nothing was deleted"
        return Outcome(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, state, remark)

    if state is None or not state.members:
        return refuse("the set is not known here")
    doomed = frozenset(brokers or state.members)
    if unknown := sorted(doomed - state.members.keys()):
        return refuse(f"expected ids of {sorted(state.members)}, found {unknown}")
    if not also_living and (living := sorted(each for each in doomed if not lives.is_gone(each))):
        return refuse(f"expected brokers that are stopped, found that {living} may be alive")
    members = {each: member for each, member in state.members.items() if each not in doomed}
    in_sync = state.in_sync - doomed
    if members and state.in_sync and not in_sync:
        return refuse(
            f"expected that another replica of the SyncStateSet {sorted(state.in_sync)} is left, found none: "
            "elect another master first"
        )
    master = state.master if state.master not in doomed else None
    return _done(
        replace(
            state,
            members=members,
            next_id=state.next_id if members else FIRST_ID,
            master=master,
            master_epoch=state.master_epoch + (master != state.master),
            in_sync=in_sync,
            set_epoch=state.set_epoch + (in_sync != state.in_sync),
        )
    )
