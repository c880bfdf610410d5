"""Addresses of servers as users write them."""

from __future__ import annotations

from tiermq.errors import BadConfig

Address = tuple[str, int]


def parse_name_servers(text: str) -> list[Address]:
    """`host:port;host:port`, as in `namesrvAddr`. Raises BadConfig."""
    found: list[Address] = []
    for part in filter(None, (piece.strip() for piece in text.replace(",", ";").split(";"))):
        host, _, port = part.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and len(port) <= 5) or not 0 < int(port) < 65_536:
            raise BadConfig(f"namesrv_addr: expected host:port, found {part!r}")
        address = (host.removeprefix("[").removesuffix("]"), int(port))
        if address not in found:
            found.append(address)
    return found
