"""Free ports of this machine's loopback address, and child processes that end by their own process id."""

from __future__ import annotations

import socket
import subprocess
from contextlib import ExitStack


def free_ports(count: int, *, also_above: int = 0) -> list[int]:
    """Ports that nobody listens on now. `also_above`: the port this much higher is free as well (gRPC twins)."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            if also_above:
                # The kernel hands out ports from the upper range; the lower half of the numbers leaves room for twins.
                port -= also_above
                try:
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                except OSError:
                    continue
            found.append(port)
    return found


def stop(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """End a process whose data nobody needs any more. Asking politely takes some servers twenty seconds."""
    if process.poll() is None:
        process.kill()
    process.wait()
