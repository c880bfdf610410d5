"""A tier that takes the job with it at its n-th change, before or after the change was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.job_world import JobWorld
from tiermq.tier.driver.contract import TierDriver

CHANGES = ("write", "seal", "delete", "put_object", "delete_object", "trim", "replace")


class Killed(BaseException):
    """The end of the process, as far as a test can have it."""


class DyingTier:
    """Passes everything on. `changes` counts; with `dies_at` the change of that number is the last thing there is."""

    def __init__(self, driver: TierDriver, dies_at: int = -1, *, after: bool = False) -> None:
        self._driver, self._dies_at, self._after = driver, dies_at, after
        self.changes = 0
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if name not in CHANGES:
            return found

        def changing(*args: Any, **options: Any) -> Any:
            if self.is_dead:
                raise Killed(name)  # Also of what runs on the way out: nothing does in a process that was killed.
            number, self.changes = self.changes, self.changes + 1
            self.is_dead = number == self._dies_at
            if self.is_dead and not self._after:
                raise Killed(name)
            answer = found(*args, **options)
            if self.is_dead:
                raise Killed(name)
            return answer

        return changing


def killed_at_each_change(
    tmp_path: Path, make: Callable[[Path], JobWorld], *, after: bool
) -> Iterator[tuple[int, JobWorld]]:
    """Worlds whose tier dies at its first change, its second, and so on, up to the first job that ends alive."""
    dies_at = 0
    while True:
        path = tmp_path / str(dies_at)
        path.mkdir()
        world = make(path)
        dying = DyingTier(world.driver, dies_at, after=after)
        world.use(dying)
        yield dies_at, world
        world.close()
        if not dying.is_dead:
            break
        dies_at += 1
    assert dies_at > 10
