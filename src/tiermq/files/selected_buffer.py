"""SelectedBuffer: a piece of a mapped file, without a copy, that keeps the file alive until it is released."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self


class SelectedBuffer:
    """`data` is a read-only view of `size` bytes that lie at absolute offset `start_offset` of their queue.

    Belongs to the thread that selected it. Release it exactly when the bytes are no longer needed; a second release
    changes nothing.
    """

    __slots__ = ("_on_release", "data", "size", "start_offset")

    def __init__(self, start_offset: int, data: memoryview, on_release: Callable[[], None]) -> None:
        self.start_offset = start_offset
        self.data = data
        self.size = len(data)
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Let go of the bytes. `data` cannot be used afterwards."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            self.data.release()
            on_release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
