"""The log of elected masters is linearizable, in simulated time with everything that may go wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from simulation.simulated_election import simulate
from tiermq.replication import bucket_election
from tiermq.replication.bucket_election import BucketElection
from tiermq.replication.master_lease import MasterLease, why_not_take
from tiermq.replication.sync_set import SyncSet

SEEDS = range(40)


@pytest.fixture(autouse=True)
def _quietly() -> Any:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_acknowledged_message_is_lost_and_no_read_goes_back() -> None:
    acknowledged = reads = 0
    for seed in SEEDS:
        history = simulate(seed)
        acknowledged += len(history.acknowledged)
        reads += history.reads
    assert acknowledged > 10_000
    assert reads > 1_000


def fails() -> bool:
    for seed in SEEDS:
        try:
            simulate(seed)
        except AssertionError:
            return True
    return False


def _anyone(lease: MasterLease, own: int, *_log: int, seen_ms: int, **_options: bool) -> str:
    return "" if lease.holder in (0, own) or seen_ms >= lease.term_ms else "held"


def _early(why_not: Callable[..., str]) -> Callable[..., str]:
    return lambda *values, seen_ms, **options: why_not(*values, seen_ms=seen_ms + 4_000, **options)


def test_the_simulation_finds_an_election_of_replicas_that_are_not_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_election, "why_not_take", _anyone)
    assert fails()


def test_the_simulation_finds_a_lease_that_is_taken_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_election, "why_not_take", _early(why_not_take))
    assert fails()


def test_the_simulation_finds_answers_without_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketElection, "may_acknowledge", lambda self, epoch: epoch == self._lease.epoch)
    assert fails()


def test_the_simulation_finds_members_that_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    refresh = SyncSet._refresh

    def only_own(self: SyncSet) -> None:
        refresh(self)
        self.effective = frozenset((self.own,))

    monkeypatch.setattr(SyncSet, "_refresh", only_own)
    assert fails()
