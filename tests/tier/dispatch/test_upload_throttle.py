"""Who puts is not made to wait: the engine's threads hold back while many messages come, and only then."""

from __future__ import annotations

from tiermq.tier.dispatch.ready_queue import BUSY_REST_S, REST_MAX_S, Pace, PaceSettings

SETTINGS = PaceSettings(put_rate=1000, cpu_percent=20, batch_factor=3, sample_ms=20)
SAMPLE_S = 0.02


class World:
    def __init__(self, settings: PaceSettings = SETTINGS) -> None:
        self.now_s = 100.0
        self.puts = 0
        self.pace = Pace(lambda: self.puts, settings, monotonic=lambda: self.now_s)

    def pass_time(self, seconds: float, puts_per_s: float = 0) -> None:
        self.now_s += seconds
        self.puts += round(seconds * puts_per_s)


def test_without_many_puts_any_number_of_turns_begin_at_once() -> None:
    world = World()
    for _ in range(10):
        world.pass_time(2 * SAMPLE_S, puts_per_s=900)
        assert world.pace.begin() == 0
        assert world.pace.begin() == 0
        world.pace.end(5.0)


def test_while_many_messages_come_turns_are_taken_one_at_a_time() -> None:
    world = World()
    world.pass_time(2 * SAMPLE_S, puts_per_s=5000)
    assert world.pace.begin() == 0
    assert world.pace.is_paced
    assert world.pace.begin() == BUSY_REST_S


def test_while_many_messages_come_turns_use_no_more_than_their_share_of_a_processor() -> None:
    world = World()
    begun_s, used_s = world.now_s, 0.0
    for _ in range(500):
        world.pass_time(SAMPLE_S / 4, puts_per_s=5000)
        rest_s = world.pace.begin()
        while rest_s:
            world.pass_time(rest_s, puts_per_s=5000)
            rest_s = world.pace.begin()
        world.pass_time(0.01, puts_per_s=5000)
        world.pace.end(0.01)
        used_s += 0.01
    assert 0.15 < used_s / (world.now_s - begun_s) < 0.21


def test_rests_are_short_enough_to_notice_the_end_and_are_over_once_the_puts_are() -> None:
    world = World()
    world.pass_time(2 * SAMPLE_S, puts_per_s=5000)
    assert world.pace.begin() == 0
    world.pace.end(60.0)
    assert world.pace.begin() == REST_MAX_S
    world.pass_time(2 * SAMPLE_S)
    assert world.pace.begin() == 0
    assert not world.pace.is_paced


def test_turns_are_larger_while_many_messages_come() -> None:
    world = World()
    assert world.pace.batch_factor == 1
    world.pass_time(2 * SAMPLE_S, puts_per_s=5000)
    world.pace.begin()
    assert world.pace.batch_factor == 3
    world.pass_time(2 * SAMPLE_S)
    world.pace.begin()
    assert world.pace.batch_factor == 1


def test_a_reader_is_notified_of_now_although_no_turn_is_taken() -> None:
    world = World()
    world.pass_time(2 * SAMPLE_S, puts_per_s=5000)
    assert world.pace.is_paced
    world.pass_time(2 * SAMPLE_S)
    assert not world.pace.is_paced


def test_a_put_rate_of_zero_means_that_nothing_is_ever_held_back() -> None:
    world = World(PaceSettings(put_rate=0))
    world.pass_time(2 * SAMPLE_S, puts_per_s=10**7)
    assert world.pace.begin() == world.pace.begin() == 0
    assert not world.pace.is_paced
