"""Which part of a log is on enough replicas: a function of values."""

from __future__ import annotations

import pytest

from tiermq.replication.replica_acks import Replica, ReplicaRules, state_of

TWO = ReplicaRules(in_sync_replicas=2, gap_bytes_max=100)
THREE = ReplicaRules(in_sync_replicas=3, gap_bytes_max=100)


def acks(**reported: int) -> list[Replica]:
    return [Replica(host, ack) for host, ack in reported.items()]


def test_a_message_is_confirmed_once_as_many_replicas_have_it_as_are_needed() -> None:
    assert state_of(TWO, 500, acks(a=450, b=420), 0).confirmed == 450
    assert state_of(THREE, 500, acks(a=450, b=420), 0).confirmed == 420
    assert state_of(TWO, 500, [], 400).confirmed == 400
    assert not state_of(TWO, 500, [], 400).is_available


def test_slaves_of_one_address_count_once_by_the_best_of_them() -> None:
    state = state_of(THREE, 500, [Replica("a", 480), Replica("a", 490)], 300)
    assert (state.in_sync, state.confirmed, state.is_available) == (2, 300, False)
    assert state_of(TWO, 500, [Replica("a", 480), Replica("a", 490)], 300).confirmed == 490


def test_what_is_confirmed_never_goes_back_and_never_passes_the_end() -> None:
    assert state_of(TWO, 500, acks(a=100), 450).confirmed == 450
    assert state_of(TWO, 500, acks(a=900), 450).confirmed == 500


def test_a_slave_that_is_too_far_behind_is_not_in_sync() -> None:
    assert state_of(TWO, 500, acks(a=399), 0).in_sync == 1
    assert state_of(TWO, 500, acks(a=400), 0).in_sync == 2


@pytest.mark.parametrize(("reported", "needed"), [({}, 1), ({"a": 500}, 2), ({"a": 500, "b": 500}, 3)])
def test_auto_needs_what_is_in_sync_down_to_the_least(reported: dict[str, int], needed: int) -> None:
    rules = ReplicaRules(in_sync_replicas=3, min_in_sync_replicas=1, auto=True, gap_bytes_max=100)
    assert state_of(rules, 500, acks(**reported), 0).needed == needed
    least = ReplicaRules(in_sync_replicas=3, min_in_sync_replicas=2, auto=True, gap_bytes_max=100)
    assert state_of(least, 500, acks(**reported), 0).needed == max(2, needed)
