"""Stalls: a run in which threads stand still at random moments, to find what depends on luck.

    TIERMQ_STALLS=back python3 dev.py test tests/broker     threads of the product stand still where they call something
    TIERMQ_STALLS=main python3 dev.py test tests/broker     tests stand still between their own lines

Each test has a few stalls of some hundredths of a second. A failure says the seed; TIERMQ_STALLS_SEED repeats the
choice, although not the threads' own order.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Generator, Mapping
from time import sleep
from types import FrameType
from typing import Any

import pytest

CHANCE = 0.1
STALLS_OF_A_TEST = 6
STALL_S = (0.01, 0.05, 0.12)
PRODUCT, TESTS = f"{os.sep}src{os.sep}tiermq{os.sep}", f"{os.sep}tests{os.sep}"


class Stalls:
    """See the module. A pytest plugin; `kind` is back or main."""

    def __init__(self, kind: str, seed: int) -> None:
        if kind not in ("back", "main"):
            raise pytest.UsageError(f"TIERMQ_STALLS: expected back or main, found {kind!r}")
        self._kind = kind
        self._seed = seed
        self._chance = random.Random(seed)
        self._left = 0
        if kind == "back":
            threading.setprofile(self._called)  # Of threads that begin from now on; the main one is not among them.

    def pytest_report_header(self) -> str:
        return f"stalls: {self._kind}, TIERMQ_STALLS_SEED={self._seed}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        self._left = STALLS_OF_A_TEST
        before = sys.gettrace()
        if self._kind == "main":
            sys.settrace(self._entered)
        try:
            return (yield)
        finally:
            self._left = 0
            sys.settrace(before)

    def stall(self) -> None:
        """Stand still, by chance and while there are stalls left for this test."""
        if self._left > 0 and self._chance.random() < CHANCE:
            self._left -= 1
            sleep(self._chance.choice(STALL_S))

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and PRODUCT in frame.f_code.co_filename:
            self.stall()

    def _entered(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._passed if TESTS in frame.f_code.co_filename else None

    def _passed(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.stall()
        return self._passed


def asked_for(environment: Mapping[str, str]) -> Stalls | None:
    """What the environment wants; None in a usual run."""
    kind = environment.get("TIERMQ_STALLS")
    if not kind:
        return None
    seed = environment.get("TIERMQ_STALLS_SEED")
    return Stalls(kind, random.randrange(1 << 30) if seed is None else int(seed))
