"""BackEndPace: whether a fetch from the back end is waiting or work.

A fetch from a network or a disk is mostly waiting: it is worth doing ahead of the reader, in another thread. A fetch
from files that the page cache has is a copy, all work: handing it to another thread costs more than doing it, and the
interpreter runs one of the two threads at a time anyway. The back end's name does not tell which of the two it is (a
directory may be a mounted network share), but the system does: it counts how often a thread gave up the processor
because it had to wait. Being interrupted is counted apart, so a busy machine does not look like a slow back end.

Whoever fetches for himself votes: his fetch waited, or it did not. One vote can be chance (another thread had the
interpreter), so it takes two in a row to change an opinion that is settled. A new back end is believed to be slow until
its first vote.

Fetches ahead do not vote: the reader keeps them waiting for the interpreter, which says nothing about the back end.
Threads: any; two votes at once may count as one.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

VOTES_MAX = 3
VOTES_FOR_SLOW = 2
assert VOTES_FOR_SLOW - 1 > 0, "One vote does not change a settled opinion that it is quick ..."
assert VOTES_MAX - 1 >= VOTES_FOR_SLOW, "... nor one that it is slow."

_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
"""Where threads are not counted apart, somebody in the process always waits: every back end is a slow one."""


def waits_so_far() -> int:
    """How often this thread gave up the processor because it had to wait for something."""
    return resource.getrusage(_WHOSE).ru_nvcsw


class BackEndPace:
    """See the module. One of these for one back end; `is_slow`: fetches wait, so that reading ahead pays."""

    __slots__ = ("_votes", "_waits_so_far", "is_slow")

    def __init__(self, waits_so_far: Callable[[], int] = waits_so_far) -> None:
        self._waits_so_far = waits_so_far
        self._votes = VOTES_FOR_SLOW
        self.is_slow = True

    def begin(self) -> int:
        """Before a fetch; the answer goes to `end`, in the same thread."""
        return self._waits_so_far()

    def end(self, begun: int) -> None:
        """After a fetch that was answered."""
        vote = 1 if self._waits_so_far() > begun else -1
        self._votes = max(0, min(VOTES_MAX, self._votes + vote))
        self.is_slow = self._votes >= VOTES_FOR_SLOW
