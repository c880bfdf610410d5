"""Which replicas must have a message, of an elected master."""

from __future__ import annotations

import itertools

from tiermq.replication.sync_set import SyncSet, confirmed_by

BEHIND_S = 15.0


def test_a_replica_joins_once_it_has_what_was_acknowledged_without_it() -> None:
    sync = SyncSet(1, BEHIND_S)
    assert sync.is_alone
    assert not sync.welcome({2: 50}, confirmed=100)
    assert sync.welcome({2: 100}, confirmed=100)
    assert sync.effective == frozenset(
        (
            1,
            2,
        )
    ), "from now on every message waits for it"
    assert sync.look({2: 100}, end=130, now_s=0.0) is None, "it lacks what was acknowledged a moment ago"
    assert sync.look({2: 129}, end=140, now_s=0.0) is None
    assert sync.look({2: 130}, end=150, now_s=0.0) == frozenset(
        (
            1,
            2,
        )
    )
    assert sync.recorded == frozenset((1,))
    sync.note_recorded(frozenset((1, 2)), sync.number)
    assert (
        sync.recorded
        == sync.effective
        == frozenset(
            (
                1,
                2,
            )
        )
    )
    assert sync.look({2: 150}, end=150, now_s=1.0) is None


def recorded(*ids: int) -> SyncSet:
    sync = SyncSet(1, BEHIND_S)
    sync.note_recorded(frozenset(ids), sync.number)
    return sync


def test_a_member_that_is_gone_counts_until_a_set_without_it_is_recorded() -> None:
    sync = recorded(1, 2, 3)
    assert sync.look({3: 10}, end=10, now_s=0.0) == frozenset(
        (
            1,
            3,
        )
    )
    assert sync.effective == frozenset(
        (
            1,
            2,
            3,
        )
    )
    assert sync.look({3: 10}, end=10, now_s=0.5) is None, "it was proposed"
    sync.note_recorded(frozenset((1, 3)), sync.number)
    assert sync.effective == frozenset(
        (
            1,
            3,
        )
    )


def test_a_member_that_is_behind_for_too_long_leaves() -> None:
    sync = recorded(1, 2)
    assert sync.look({2: 10}, end=100, now_s=0.0) is None
    assert sync.look({2: 60}, end=200, now_s=10.0) is None
    assert sync.look({2: 100}, end=300, now_s=14.0) is None, "it has what the log had at the first look"
    assert sync.look({2: 100}, end=400, now_s=28.0) is None
    assert sync.look({2: 100}, end=400, now_s=29.1) == frozenset((1,))


def test_a_set_whose_recording_is_not_known_counts_until_a_newer_one_is_recorded() -> None:
    sync = SyncSet(1, BEHIND_S)
    sync.welcome({2: 0}, confirmed=0)
    assert sync.look({2: 0}, end=0, now_s=0.0) == frozenset(
        (
            1,
            2,
        )
    )
    assert sync.look({}, end=0, now_s=1.0) is None, "it went away while that was recorded: one proposal at a time"
    assert sync.effective == frozenset(
        (
            1,
            2,
        )
    ), "the election may have it"
    sync.note_recorded(frozenset((1, 2)), sync.number)
    assert sync.effective == frozenset(
        (
            1,
            2,
        )
    )
    assert sync.look({}, end=0, now_s=1.1) == frozenset((1,))
    assert sync.effective == frozenset(
        (
            1,
            2,
        )
    )
    sync.note_recorded(frozenset((1,)), sync.number)
    assert sync.effective == frozenset((1,))


def test_a_replica_that_leaves_before_it_was_proposed_is_forgotten() -> None:
    sync = SyncSet(1, BEHIND_S)
    sync.welcome({2: 5}, confirmed=5)
    assert sync.look({2: 5}, end=9, now_s=0.0) is None
    assert sync.look({}, end=9, now_s=0.1) is None
    assert sync.is_alone


def test_everything_is_confirmed_that_all_members_have() -> None:
    assert confirmed_by(frozenset((1,)), 1, {}, 70) == 70
    assert confirmed_by(frozenset((1, 2, 3)), 1, {2: 50, 3: 60, 4: 10}, 70) == 50
    assert confirmed_by(frozenset((1, 2, 3)), 1, {2: 50}, 70) == 0


def test_a_replica_that_is_a_moment_behind_joins_a_master_under_load() -> None:
    sync = SyncSet(1, BEHIND_S)
    end = 0

    def grown() -> int:
        nonlocal end
        end += 10
        return end

    confirmed, proposed = 0, None
    for tenth in range(40):
        acks = {2: max(0, end - 30)}
        _, confirmed, wanted = sync.advance(acks, confirmed, grown, tenth / 10, needed=1)
        proposed = proposed or wanted
        assert confirmed <= end
    assert proposed == frozenset(
        (
            1,
            2,
        )
    )


def test_below_the_least_number_of_members_nothing_more_is_confirmed() -> None:
    sync = SyncSet(1, BEHIND_S)
    assert sync.advance({}, 70, lambda: 100, 0.0, needed=2) == (1, 70, None)
    assert sync.advance({2: 70}, 70, lambda: 100, 0.0, needed=2) == (2, 70, None), "it joins"
    assert sync.advance({2: 100}, 70, lambda: 100, 0.0, needed=2) == (2, 100, frozenset((1, 2)))


def test_a_master_whose_set_is_not_recorded_yet_confirms_and_proposes_nothing() -> None:
    sync = SyncSet(1, BEHIND_S, is_recorded=False)
    assert [sync.is_alone] == [False]
    assert sync.advance({2: 100}, 50, lambda: 100, 0.0, needed=1) == (1, 50, None)
    sync.note_recorded(frozenset((1,)), sync.number)
    assert sync.is_alone
    assert sync.advance({}, 50, lambda: 100, 1.0, needed=1).confirmed == 100


def test_an_id_that_no_replica_has_never_joins() -> None:
    sync = SyncSet(1, BEHIND_S)
    sync.knows = lambda replica: replica == 2
    assert not sync.welcome({7: 100}, confirmed=100)
    assert sync.welcome({2: 100, 7: 100}, confirmed=100)
    assert sync.effective == {1, 2}


def test_an_empty_replica_that_connects_to_a_master_just_opened_holds_nothing_up() -> None:
    sync = SyncSet(1, BEHIND_S)
    for tenth in range(20):
        assert sync.advance({7: 0}, 100, lambda: 100, tenth / 10, needed=1) == (1, 100, None)


def test_a_replica_that_is_too_slow_to_join_is_no_longer_waited_for() -> None:
    sync = SyncSet(1, BEHIND_S)
    assert sync.advance({2: 100}, 100, lambda: 100, 0.0, needed=1).in_sync == 2
    sync.welcome({3: 100}, confirmed=100)
    assert sync.advance({2: 500, 3: 100}, 100, lambda: 500, 1.0, needed=1).in_sync == 3
    assert sync.advance({2: 600, 3: 100}, 100, lambda: 600, 2.0, needed=1).confirmed == 100
    assert sync.advance({2: 700, 3: 100}, 100, lambda: 700, BEHIND_S + 2.5, needed=1) == (2, 700, None)


def test_a_recording_that_is_reported_twice_settles_no_newer_proposal() -> None:
    sync = SyncSet(1, 2.0)
    sync.note_recorded(frozenset((1, 2, 3)), 0)
    assert sync.look({}, 80, 0.0) == frozenset((1,)), "both are gone"
    first = sync.number
    sync.note_recorded(frozenset((1,)), first)
    sync.welcome({2: 80}, 80)
    assert sync.look({2: 80}, 80, 0.2) == frozenset((1, 2))
    second = sync.number
    assert sync.look({}, 80, 0.3) is None, "it is gone again, and the set with it may land in the bucket"
    sync.note_recorded(frozenset((1,)), first)
    assert sync.effective == frozenset((1, 2))
    sync.note_recorded(frozenset((1, 2)), second)
    assert sync.look({}, 80, 0.4) == frozenset((1,))
    sync.note_recorded(frozenset((1,)), first)
    assert sync.effective == frozenset((1, 2)), "the same members, of the older recording: the newer one is not known"
    sync.note_recorded(frozenset((1,)), sync.number)
    assert sync.effective == frozenset((1,))


def test_a_late_report_of_an_older_recording_takes_no_member_out() -> None:
    sync = SyncSet(1, 2.0)
    sync.note_recorded(frozenset((1, 2)), 0)
    assert sync.look({}, 80, 0.0) == frozenset((1,))
    alone = sync.number
    sync.note_recorded(frozenset((1,)), alone)
    sync.welcome({2: 80}, 80)
    assert sync.look({2: 80}, 80, 0.1) == frozenset((1, 2))
    both = sync.number
    sync.note_recorded(frozenset((1, 2)), both)
    sync.note_recorded(frozenset((1,)), alone)
    assert sync.recorded == sync.effective == frozenset((1, 2)), "nothing is proposed, and the election needs both"
    sync.note_recorded(frozenset((1, 2)), both)
    assert sync.recorded == frozenset((1, 2))


def test_a_set_of_a_broker_that_is_opened_again_ignores_recordings_before_its_first() -> None:
    numbers = itertools.count(1)
    before = SyncSet(1, 2.0, numbers=numbers)
    before.note_recorded(frozenset((1, 2)), 0)
    before.look({}, 80, 0.0)
    again = SyncSet(1, 2.0, numbers=numbers)
    again.note_recorded(frozenset((1, 2)), before.number)
    again.note_recorded(frozenset((1,)), 0)
    assert again.effective == frozenset((1, 2))
    again.look({}, 80, 0.1)
    assert again.number > before.number
    again.note_recorded(frozenset((1,)), before.number)
    assert again.effective == frozenset((1, 2))
