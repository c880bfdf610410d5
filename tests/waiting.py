"""Waiting for what another thread or process does and no event announces."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_S = 0.002
"""Between two looks the processor is free for what is waited for; a loop without it takes half of it."""


def until(is_so: Callable[[], object]) -> None:
    """Return when the condition is true. Its end, if it never is, is the test's own time limit."""
    while not is_so():
        time.sleep(LOOK_S)
