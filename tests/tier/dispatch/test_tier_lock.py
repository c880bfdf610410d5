"""One process at a time writes what a store knows of its tier."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiermq.errors import StoreLocked
from tiermq.tier.dispatch.writer import FOLLOWS, TierLock


def test_a_second_owner_is_notified_who_the_first_is_until_that_lets_go(tmp_path: Path) -> None:
    first = TierLock(tmp_path, "the embedded dispatcher")
    with pytest.raises(StoreLocked, match="a job wants to copy.*the embedded dispatcher"):
        TierLock(tmp_path, "a job")
    first.release()
    first.release()
    TierLock(tmp_path, "a job").release()


@pytest.mark.crash
def test_a_killed_owner_leaves_the_lock_free(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        TierLock(tmp_path, "a job")
        os._exit(9)
    os.waitpid(child, 0)
    TierLock(tmp_path, "another job").release()


def test_a_lock_that_a_following_broker_has_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = TierLock(tmp_path, f"a broker {FOLLOWS}")
    monkeypatch.setattr("tiermq.tier.dispatch.writer.time.sleep", lambda _s: follower.release())
    job = TierLock(tmp_path, "a job")
    with pytest.raises(StoreLocked, match="a job"):
        TierLock(tmp_path, "another job")
    job.release()
