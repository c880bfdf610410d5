"""The log of elected masters is linearizable, in simulated time with everything that may go wrong."""

from __future__ import annotations

import logging
import secrets
from typing import Any

import pytest

from simulation.simulated_election import simulate
from tiermq.replication import bucket_election
from tiermq.replication.master_lease import MasterLease

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


def test_the_simulation_finds_an_election_of_replicas_that_are_not_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_election, "why_not_take", _anyone)
    assert fails()


def test_the_simulation_finds_renewals_that_count_from_a_repeated_put(monkeypatch: pytest.MonkeyPatch) -> None:
    token = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda size: "" if size == 8 else token(size))
    with pytest.raises(AssertionError, match="a read went back"):
        simulate(1496)
