"""What a server allows its peers, so that no number of them and no slowness of theirs takes all memory."""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.errors import BadConfig
from tiermq.kernel import FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Defaults suit a broker on a machine of its own."""

    connections_max: int = 20_000
    idle_s: float = 120.0
    frame_bytes_max: int = FRAME_BYTES_MAX
    write_high_bytes: int = 4 * 1024 * 1024
    """Answers beyond this wait in the peer's way: nothing more is read from it until it has taken some."""
    write_bytes_max: int = 64 * 1024 * 1024
    """Answers and notices beyond this end the connection."""
    partial_bytes_max: int = 1024 * 1024 * 1024
    """Bytes of frames that are not complete, over all connections; the peer that exceeds it is closed."""
    blocking_threads: int = 8
    blocking_line_max: int = 10_000
    """Requests that wait for a thread of the pool; beyond it they are answered SYSTEM_BUSY."""
    backlog: int = 1024

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise BadConfig(f"{name}: expected a number above 0, found {getattr(self, name)}")
        if self.write_bytes_max < self.write_high_bytes:
            raise BadConfig(
                f"write_bytes_max: expected at least write_high_bytes ({self.write_high_bytes}), "
                f"found {self.write_bytes_max}"
            )
