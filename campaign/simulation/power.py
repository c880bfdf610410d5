"""Power: everything that a store asks of the outside goes through here, so that a life can end at any such moment.

Files, metadata and tier call `touch` before each call, and metadata and tier once more after it took effect. What was
asked is kept as a digest: two runs that asked for the same things in the same order were the same run.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable


class PowerCut(BaseException):
    """Raised by every call to a world that has no power any more. It is not handled."""


class Power:
    """The power of one life. It never comes back: the next life has its own."""

    def __init__(self, digest: int = 0) -> None:
        self.is_off = False
        self.calls = 0
        self.digest = digest
        self._left: int | None = None
        self._on_cut: Callable[[], None] = _nothing

    def arm(self, calls: int, on_cut: Callable[[], None]) -> None:
        """Go off at the call behind the next `calls`; `on_cut` sees the world exactly as it is then."""
        self._left, self._on_cut = calls, on_cut

    def disarm(self) -> None:
        """Stay on."""
        self._left, self._on_cut = None, _nothing

    def cut(self) -> None:
        """Go off now."""
        if not self.is_off:
            self.is_off = True
            self._on_cut()

    def touch(self, what: str, where: str) -> None:
        """Raises PowerCut."""
        if self.is_off:
            raise PowerCut
        self.calls += 1
        self.digest = zlib.crc32(f"{what} {where}".encode(), self.digest)
        if self._left is not None:
            if self._left <= 0:
                self.cut()
                raise PowerCut
            self._left -= 1


def _nothing() -> None:
    """The cut leaves nothing to be seen."""
