"""The log of elected masters is linearizable in simulated time, and the simulation finds each rule that is broken."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from simulation.simulated_replicas import simulate
from tiermq.broker.replication import replication
from tiermq.errors import ReplicationError
from tiermq.replication import bucket_election, ha_slave, sync_set
from tiermq.replication.bucket_election import BucketElection
from tiermq.replication.ha_master import HaMaster
from tiermq.replication.ha_slave import HaSlave, HaSlaveSettings
from tiermq.replication.master_lease import MasterLease, why_not_take
from tiermq.replication.sync_set import SyncSet

SEEDS = range(8)
MORE_SEEDS = 20
"""Tried when the known one does not show a broken rule any more, because the product takes other steps."""
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _quietly() -> Any:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_acknowledged_message_is_lost_and_no_read_goes_back() -> None:
    acknowledged = reads = cuts = 0
    for seed in SEEDS:
        cluster = simulate(seed)
        acknowledged += cluster.history.acknowledged
        reads += cluster.history.reads
        cuts += cluster.counts["cuts"]
    assert acknowledged > 3_000
    assert reads > 3_000
    assert cuts > 0, "tails of replaced masters were cut"


@pytest.mark.parametrize("seed", [215458130038])
def test_what_the_campaign_found(seed: int) -> None:
    """A master that was replaced before anybody had a byte of its first epoch follows again."""
    simulate(seed)


def test_a_run_is_the_same_by_its_seed() -> None:
    one, other = simulate(7), simulate(7)
    assert one.history.known == other.history.known
    assert one.counts == other.counts


def _epoch_is_not_raised(patch: pytest.MonkeyPatch) -> None:
    take = BucketElection._take

    def same(self: BucketElection, candidate: Any, lease: MasterLease, epoch: int, confirmed: int) -> None:
        take(self, candidate, lease, max(1, epoch - 1), confirmed)

    patch.setattr(BucketElection, "_take", same)


def _tail_is_not_cut(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ha_slave, "consistent_end", lambda _local, end, _master, master_end, _others: min(end, master_end))


def _everything_counts_as_replicated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sync_set, "confirmed_by", lambda _members, _own, _acks, end: end)


def _set_shrinks_before_it_is_recorded(patch: pytest.MonkeyPatch) -> None:
    look = SyncSet.look

    def at_once(self: SyncSet, acks: Mapping[int, int], end: int, now_s: float) -> frozenset[int] | None:
        wanted = look(self, acks, end, now_s)
        if wanted is not None and wanted < self.recorded:
            self.recorded, self._unsettled = wanted, frozenset()
            self._refresh()
        return wanted

    patch.setattr(SyncSet, "look", at_once)


def _margin_is_dropped(patch: pytest.MonkeyPatch) -> None:
    hold = BucketElection._hold

    def longer(self: BucketElection, began_s: float) -> None:
        hold(self, began_s)
        self._held_until_s = began_s + self.times.term_s

    patch.setattr(BucketElection, "_hold", longer)


def _renewal_counts_from_its_answer(patch: pytest.MonkeyPatch) -> None:
    hold = BucketElection._hold
    patch.setattr(BucketElection, "_hold", lambda self, _began_s: hold(self, self._clock.monotonic()))


def _repeated_put_counts_as_new(patch: pytest.MonkeyPatch) -> None:
    token = secrets.token_hex
    patch.setattr(secrets, "token_hex", lambda size: "" if size == 8 else token(size))


def _answers_leave_without_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BucketElection, "may_acknowledge", lambda _self, _epoch: True)


def _candidate_waits_half_a_term(patch: pytest.MonkeyPatch) -> None:
    def early(lease: MasterLease, *log: int, seen_ms: int, **options: Any) -> str:
        return why_not_take(lease, *log, seen_ms=2 * seen_ms, **options)

    patch.setattr(bucket_election, "why_not_take", early)


def _replica_out_of_sync_is_elected(patch: pytest.MonkeyPatch) -> None:
    def anyone(lease: MasterLease, own: int, end: int, epoch: int, **options: Any) -> str:
        taken = dataclasses.replace(lease, members=lease.members | {own}, confirmed=0)
        return why_not_take(lease if lease.is_new else taken, own, end, epoch, **options)

    patch.setattr(bucket_election, "why_not_take", anyone)


def _master_forgets_whom_it_needs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HaMaster, "replicated_where", lambda self: self.log.max_physical_offset)


def _slave_reports_what_is_not_on_its_disk(patch: pytest.MonkeyPatch) -> None:
    def careless(**settings: Any) -> HaSlaveSettings:
        return HaSlaveSettings(**{**settings, "flushes": False})

    patch.setattr(replication, "HaSlaveSettings", careless)


def _handshake_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    def trusting(self: HaSlave, answer: Any, epochs: Any) -> None:
        if answer.log_end < self._log.max_physical_offset:
            self.needs_cut(answer.log_end)
            raise ReplicationError("cut")
        epochs.cut(self._log.max_physical_offset)

    patch.setattr(HaSlave, "fit", trusting)


RULES: dict[str, tuple[Break, int, str]] = {
    "a new master raises the epoch": (_epoch_is_not_raised, 2, ""),
    "a slave cuts what its master does not have": (_tail_is_not_cut, 1, ""),
    "every member of the set has what is confirmed": (_everything_counts_as_replicated, 7, ""),
    "a smaller set is recorded before it counts": (_set_shrinks_before_it_is_recorded, 0, ""),
    "the lease has a margin": (_margin_is_dropped, 7, "last"),
    "a renewal counts from before it was sent": (_renewal_counts_from_its_answer, 3, "slow"),
    "each put of the lease differs": (_repeated_put_counts_as_new, 21, "lost"),
    "answers leave while the lease is valid": (_answers_leave_without_the_lease, 1, ""),
    "a candidate waits for a whole term": (_candidate_waits_half_a_term, 0, ""),
    "only members of the recorded set are elected": (_replica_out_of_sync_is_elected, 1, ""),
    "nothing is committed before it is replicated": (_master_forgets_whom_it_needs, 1, ""),
    "a slave reports what is on its disk": (_slave_reports_what_is_not_on_its_disk, 105, ""),
    "epochs are compared before bytes are copied": (_handshake_is_not_compared, 1, ""),
}
"""What must hold, how it is broken, and a run that shows it: its seed, and the kind of faults."""


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, seed, alone = RULES[rule]
    simulate(seed, alone=alone)
    breaks(monkeypatch)
    assert any(_fails(each, alone) for each in (seed, *range(MORE_SEEDS))), "no run shows that the rule is needed"


def _fails(seed: int, alone: str) -> bool:
    try:
        simulate(seed, alone=alone)
    except AssertionError:
        return True
    return False
