"""Every work there is, in the order of the report, and the choice that a command line makes among them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from benchmarks.compare import (
    network_works,
    open_loop_works,
    process_works,
    queue_works,
    spark_works,
    store_works,
    tier_works,
)
from benchmarks.compare.work import Work, by_name

MODULES = (store_works, tier_works, network_works, open_loop_works, spark_works, process_works, queue_works)


class UnknownWork(ValueError):
    """There is no work and no group of that name."""


def all_works() -> list[Work]:
    """All of them; their names are unique."""
    return list(by_name([work for module in MODULES for work in module.WORKS]).values())


def choose(works: Sequence[Work], names: Sequence[str]) -> list[Work]:
    """Works that are called so (`put_16_*` takes many) or whose group is, in the plan's order; all when none are named.

    Raises UnknownWork for an unknown name.
    """
    for name in names:
        if not any(_is_called(work, name) for work in works):
            groups = dict.fromkeys(work.group for work in works)
            near = difflib.get_close_matches(name, [*groups, *(work.name for work in works)], n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"groups are {', '.join(groups)};"
            raise UnknownWork(f"there is no work or group {name!r}; {hint} `dev.py bench compare --list` shows all")
    return [work for work in works if not names or any(_is_called(work, name) for name in names)]


def _is_called(work: Work, name: str) -> bool:
    """A group's first word stands for it, too: `store` is `store put` and `store`."""
    return fnmatchcase(work.name, name) or name in (work.group, work.group.split()[0])
