"""The file descriptors of this process: those of a directory, and none left for the length of a `with`.

Other parts of the process have descriptors of their own, which come and go at any time (an idle connection is closed by
its library, a garbage collection ends a map), so that all of them together say nothing about one part.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_STANDARD = 3


def descriptors_below(path: Path) -> list[str]:
    """The names of open files, sorted, that are `path` or lie below it, as often as they are open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # The one that the directory was listed with, or closed since.
            continue
        if Path(name).is_relative_to(path):
            found.append(name)
    return sorted(found)


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open `count` more files and then none, whatever it has open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        if count == 0:  # Below this limit no file is closed, so none becomes free by chance.
            resource.setrlimit(resource.RLIMIT_NOFILE, (_STANDARD, hard))
        else:
            highest = max(map(int, os.listdir("/proc/self/fd")))
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, hard))
            _take_all(taken)
            for descriptor in taken[len(taken) - count :]:
                os.close(descriptor)
            del taken[len(taken) - count :]
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _take_all(taken: list[int]) -> None:
    while True:
        try:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return
