"""A tier that takes the job with it at its n-th change, before or after the change was made."""

from __future__ import annotations

from typing import Any

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
