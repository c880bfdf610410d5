"""What a Python worker does once in its life, before its first task."""

from __future__ import annotations

import gc


def freeze_once() -> None:
    """Take everything that was imported so far out of the garbage collector's walks.

    Spark's daemon collects garbage after each task, which takes 10 to 25 ms with pandas loaded, all of it spent on
    modules that live as long as the worker.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
