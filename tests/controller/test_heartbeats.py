"""Which brokers a controller takes for alive."""

from __future__ import annotations

from simulation.manual_clock import ManualClock
from tiermq.controller.broker_set import Life, Lives
from tiermq.controller.heartbeats import BROKERS_MAX, LISTEN_S, BrokerKey, Heartbeats, SetKey

SET = SetKey("C", "b")
ONE, TWO = BrokerKey(SET, 1), BrokerKey(SET, 2)


def test_a_broker_lives_until_its_time_out_or_its_connection_ends(manual_clock: ManualClock) -> None:
    heartbeats = Heartbeats(manual_clock)
    assert heartbeats.heard(ONE, Life(1, 10), 1_000, "connection 1")
    assert heartbeats.heard(TWO, Life(1, 20), 5_000, "connection 2")
    assert heartbeats.lives(SET) == Lives({1: Life(1, 10), 2: Life(1, 20)}, frozenset(), is_settled=False)
    manual_clock.advance_ms(1_001)
    assert heartbeats.lives(SET) == Lives({2: Life(1, 20)}, frozenset({1}), is_settled=False)
    assert heartbeats.expire() == [(ONE, "connection 1")]
    assert heartbeats.expire() == []
    assert heartbeats.closed("connection 2") == [TWO]
    assert heartbeats.lives(SET).lost == {1, 2}
    assert heartbeats.sets() == []
    heartbeats.heard(ONE, Life(1, 10), 1_000, "connection 3")
    assert heartbeats.lives(SET).lost == {2}
    assert heartbeats.sets() == [SET]
    assert heartbeats.lives(SetKey("D", "b")).alive == {}


def test_a_broker_that_came_back_on_another_connection_is_not_lost_with_the_old_one(manual_clock: ManualClock) -> None:
    heartbeats = Heartbeats(manual_clock)
    heartbeats.heard(ONE, Life(1, 10), 1_000, "old")
    heartbeats.heard(ONE, Life(1, 12), 1_000, "new")
    assert heartbeats.closed("old") == []
    heartbeats.heard(ONE, Life(1, 11, 5), 1_000, "new")  # It was under way for longer.
    assert heartbeats.lives(SET).alive == {1: Life(1, 12, 5)}


def test_what_was_never_heard_of_may_live_until_the_controller_has_listened(manual_clock: ManualClock) -> None:
    heartbeats = Heartbeats(manual_clock)
    assert not heartbeats.lives(SET).is_gone(1)
    manual_clock.advance_ms(int(LISTEN_S * 1000))
    assert heartbeats.lives(SET).is_gone(1)
    heartbeats.listen_again()
    assert not heartbeats.lives(SET).is_gone(1)


def test_the_table_of_brokers_is_bounded(manual_clock: ManualClock) -> None:
    heartbeats = Heartbeats(manual_clock)
    for number in range(BROKERS_MAX):
        assert heartbeats.heard(BrokerKey(SetKey("C", str(number)), 1), Life(), 1_000, number)
    assert not heartbeats.heard(ONE, Life(), 1_000, "one more")
    assert heartbeats.closed(0)
    assert heartbeats.heard(ONE, Life(), 1_000, "one more")
    manual_clock.advance_ms(2_000)
    assert len(heartbeats.expire()) == BROKERS_MAX
    assert not heartbeats.sets()


def test_lost_brokers_are_bounded_by_their_number_and_not_by_that_of_sets(manual_clock: ManualClock) -> None:
    heartbeats = Heartbeats(manual_clock)
    for number in range(1, 2 * BROKERS_MAX + 1):
        heartbeats.heard(BrokerKey(SET, number), Life(), 1_000, number)
        heartbeats.closed(number)
    lost = heartbeats.lives(SET).lost
    assert len(lost) == BROKERS_MAX
    assert 2 * BROKERS_MAX in lost, "those that were lost first are forgotten"


def test_no_other_address_is_heard_under_the_id_of_a_living_broker(manual_clock: ManualClock) -> None:
    heartbeats = Heartbeats(manual_clock)
    heartbeats.heard(ONE, Life(1, 10), 1_000, "connection 1", "a:1")
    assert heartbeats.other_address(ONE, "a:1") == ""
    assert heartbeats.other_address(ONE, "b:1") == "a:1"
    manual_clock.advance_ms(1_001)
    assert heartbeats.other_address(ONE, "b:1") == "", "it is gone, or has moved"
