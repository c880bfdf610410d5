"""Waiting for what another thread or process does and no event announces."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.002
LOOK_AT_MOST_S = 0.1
COST_OF_LOOKS = 4
"""Between two looks the processor is free for what is waited for: so many times as long as a look takes it."""


def until(is_so: Callable[[], object]) -> None:
    """Return when the condition is true. Its end, if it never is, is the test's own time limit."""
    began_s = time.thread_time()
    while not is_so():
        took_s = time.thread_time() - began_s
        time.sleep(min(max(LOOK_S, COST_OF_LOOKS * took_s), LOOK_AT_MOST_S))
        began_s = time.thread_time()
