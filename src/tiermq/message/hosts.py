"""Hosts: `1.2.3.4:10911` and `[::1]:10911` as text; address (4 or 16 bytes) + i32 port as bytes.

Names are never resolved here: a record holds addresses.
"""

from __future__ import annotations

import socket
from functools import lru_cache

from tiermq.errors import IllegalMessage
from tiermq.message.layout import I32, PORT_MAX

LOOPBACK = "127.0.0.1"


@lru_cache(maxsize=4096)
def encode_host(host: str) -> bytes:
    """8 bytes for an IPv4 host, 20 for an IPv6 host in brackets. Raises IllegalMessage for anything else."""
    address_text, colon, port_text = host.rpartition(":")
    if not colon or not (port_text.isascii() and port_text.isdigit()) or int(port_text) > PORT_MAX:
        raise IllegalMessage(f"a host is written address:port with a port of 0..{PORT_MAX}, not {host!r}")
    return encode_address(address_text) + I32.pack(int(port_text))


def encode_address(address: str) -> bytes:
    """4 bytes for `1.2.3.4`, 16 for `[::1]`."""
    family = socket.AF_INET
    text = address
    if address.startswith("[") and address.endswith("]"):
        family = socket.AF_INET6
        text = address[1:-1]
    try:
        return socket.inet_pton(family, text)
    except (OSError, ValueError) as error:  # ValueError: an embedded null character or a character that is not ASCII.
        raise IllegalMessage(
            f"{address!r} is not an address: write IPv4 as 1.2.3.4 and IPv6 as [::1]; names are not resolved"
        ) from error


@lru_cache(maxsize=4096)
def format_host(address: bytes, port: int) -> str:
    """`address` has 4 or 16 bytes."""
    if len(address) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, address)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"
