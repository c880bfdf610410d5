"""One process at a time writes what a store knows of its tier."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiermq.errors import StoreLocked
from tiermq.tier.dispatch.tier_lock import TierLock


def test_a_second_owner_is_told_who_the_first_is_until_that_lets_go(tmp_path: Path) -> None:
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
