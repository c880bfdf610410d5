"""Where a broker listens, settled before its store opens: message ids hold the address and the real port.

Names are resolved here, once; a record holds addresses.
"""

from __future__ import annotations

import socket

from tiermq.errors import BadConfig


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound but does not listen yet; port 0 takes a free one. Raises OSError when it is taken."""
    family, kind, protocol, _, address = _resolved(host, port, socket.AI_PASSIVE)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # A broker that restarts takes its port at once.
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made


def store_host(host: str, port: int) -> str:
    """The address and port as a record keeps them: `1.2.3.4:10911` or `[::1]:10911`. Raises BadConfig."""
    found = _resolved(host, port, 0)
    plain = [each for each in found if each[0] == socket.AF_INET] or found
    address = str(plain[0][4][0])
    return f"[{address}]:{port}" if plain[0][0] == socket.AF_INET6 else f"{address}:{port}"


def _resolved(
    host: str, port: int, flags: int
) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]]]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=flags)
    except OSError as error:
        raise BadConfig(f"expected an address of this machine, or a name of one, found {host!r}: {error}") from error
    return found  # type: ignore[return-value]  # Another form is for builds without IPv6.
