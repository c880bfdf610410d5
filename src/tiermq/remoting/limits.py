"""Limits of a server, so that no number of peers, no slow peer and no single request takes all
memory, or all the time of the event loop.

A request's body is bounded before it is parsed. What is larger than `INLINE_BODY_BYTES` is parsed in the pool. Lists
are bounded by what the largest real clients need; more is refused with a remark. Long work is done in steps
(`RemotingServer.in_steps`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.errors import BadConfig, RequestRefused
from tiermq.kernel import FRAME_BYTES_MAX
from tiermq.remoting.codes import ResponseCode

HEADER_FIELDS_MAX = 512
"""Of one header. Requests of RocketMQ have some twenty."""
HEADER_BYTES_MAX = 256 * 1024
"""Of a request: properties of 32 KiB in JSON, each character escaped, and the rest of a send. None is as long."""
BODY_BYTES_MAX = 1024 * 1024
"""Of a request that is no message and no registration."""
INLINE_BODY_BYTES = 16 * 1024
"""A larger one is parsed in the pool: a loop should not spend more than a millisecond on it."""
SLICE_S = 0.005
"""The time slice of one step on the loop."""


def check_count(what: str, count: int, most: int) -> None:
    """Raises RequestRefused when there are more than `most`."""
    if count > most:
        raise RequestRefused(
            f"expected at most {most} {what}, found {count}: split the request", ResponseCode.INVALID_PARAMETER
        )


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Defaults suit a broker on a machine of its own."""

    connections_max: int = 20_000
    idle_s: float = 120.0
    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX
    """A peer that announces a longer one is closed."""
    write_high_bytes: int = 4 * 1024 * 1024
    """Answers beyond this wait in the peer's way: nothing more is read from it until it has taken some."""
    write_bytes_max: int = 64 * 1024 * 1024
    """Answers and notices beyond this end the connection."""
    write_bytes_total_max: int = 512 * 1024 * 1024
    """Answers that peers have not taken, over all connections; beyond it the peer with the most is closed."""
    partial_bytes_max: int = 512 * 1024 * 1024
    """Bytes of frames that are not complete, over all connections; beyond it the peer with the most is closed."""
    body_bytes_max: int = BODY_BYTES_MAX
    """Of a request's body, unless its handler declares that it takes more (`large_body`)."""
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
