"""A process that has used up its file descriptors, for the length of a `with`."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open `count` more files and then none, whatever it has open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, hard))
        while True:
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for descriptor in taken[len(taken) - count :]:
            os.close(descriptor)
        del taken[len(taken) - count :]
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
