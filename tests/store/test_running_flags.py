"""RunningFlags: each reason counts for itself, and a change returns what came of it."""

from __future__ import annotations

import threading

import pytest

from tiermq.store.running_flags import Flag, RunningFlags


def test_the_numbers_are_rocketmq_s_and_our_own_are_far_above() -> None:
    assert [flag.value for flag in Flag] == [1, 2, 4, 8, 16, 32, 64, 1 << 16, 1 << 17, 1 << 18]


@pytest.mark.parametrize("flag", list(Flag))
def test_every_flag_but_not_readable_forbids_writing(flag: Flag) -> None:
    flags = RunningFlags(lambda writeable: None)
    assert (flags.readable, flags.writeable) == (True, True)
    assert flags.set(flag)
    assert flags.writeable is (flag is Flag.NOT_READABLE)
    assert flags.readable is (flag is not Flag.NOT_READABLE)
    assert flags.names() == [flag.name]
    plain = flags.words()
    flags.set(flag, "some detail")
    assert flags.words() == f"{plain}: some detail"
    assert flags.clear(flag)
    assert (flags.readable, flags.writeable, flags.names(), flags.words()) == (True, True, [], "")


def test_setting_twice_is_one_change_and_is_reported_once() -> None:
    reported: list[bool] = []
    flags = RunningFlags(reported.append)
    assert [flags.set(Flag.FENCED), flags.set(Flag.FENCED), flags.set(Flag.DISK_FULL)] == [True, False, True]
    assert [flags.clear(Flag.FENCED), flags.clear(Flag.FENCED), flags.clear(Flag.DISK_FULL)] == [True, False, True]
    assert reported == [False, False, False, True]


def test_flags_of_many_threads_do_not_undo_each_other() -> None:
    reported: list[bool] = []
    flags = RunningFlags(reported.append)
    started = threading.Barrier(4)

    def toggle(flag: Flag) -> None:
        started.wait()
        for _ in range(2_000):
            flags.set(flag)
            flags.clear(flag)
        flags.set(flag)

    chosen = [Flag.DISK_FULL, Flag.FENCED, Flag.NOT_WRITEABLE, Flag.LOGIC_DISK_FULL]
    threads = [threading.Thread(target=toggle, args=(flag,)) for flag in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(flags.names()) == sorted(flag.name for flag in chosen if flag.name)
    assert reported[-1] is False
