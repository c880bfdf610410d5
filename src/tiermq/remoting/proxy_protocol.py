"""PROXY protocol, versions 1 and 2: how a load balancer names the peer whose connection it passes on.

    PROXY TCP4 203.0.113.7 198.51.100.1 4711 8081\\r\\n               version 1; then the peer's bytes
    signature 12 | version, command u8 | family u8 | length u16 | addresses, more    version 2; the same

A header is believed of trusted peers alone, and these must send one: nothing is guessed from what a peer sends first.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from tiermq.errors import BadFrame

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
TEXT_BEGIN = b"PROXY "
TEXT_BYTES_MAX = 107
"""Of version 1, with the end of its line."""
BYTES_MAX = 4_096
"""Of version 2, with what load balancers add behind the addresses."""
HEAD = struct.Struct(
    ">"
    "12s"  # signature
    "B"  # version, command
    "B"  # family of addresses, and of transport
    "H"  # length of what follows
)
HEAD_BYTES = HEAD.size
assert HEAD_BYTES == 16
BINARY_VERSION, LOCAL, PASSED_ON = 2, 0, 1
PORTS = struct.Struct(">HH")  # of the source, of the destination
_ADDRESS_BYTES = {0x11: 4, 0x21: 16}
"""By family: TCP over IPv4, TCP over IPv6."""
_TEXT_VERSIONS = {b"TCP4": 4, b"TCP6": 6}
Address = tuple[str, int]


class Header(NamedTuple):
    """The contents of a header: ends of the connection that was passed on; None keeps those of the load balancer's own,
    which looks whether the server is there.
    """

    length: int
    source: Address | None
    destination: Address | None


def is_within(host: str, networks: Networks) -> bool:
    """Whether a peer is one of these. A dual-stack socket shows an IPv4 peer as ::ffff:1.2.3.4."""
    try:
        address = ipaddress.ip_address(host.removeprefix("::ffff:").partition("%")[0])
    except ValueError:
        return False
    return any(address in network for network in networks)


def header_in(data: bytes) -> Header | None:
    """The header that `data` begins with; None while it is not whole. Raises BadFrame."""
    if data.startswith(SIGNATURE[: len(data)]):
        return _binary(data)
    if data.startswith(TEXT_BEGIN[: len(data)]):
        return _text(data)
    raise BadFrame(f"expected a header of the PROXY protocol from this peer, found {data[:16]!r}")


def _text(data: bytes) -> Header | None:
    end = data.find(b"\r\n", 0, TEXT_BYTES_MAX)
    if end < 0:
        if len(data) >= TEXT_BYTES_MAX:
            raise BadFrame(f"expected a line of at most {TEXT_BYTES_MAX} bytes, found none")
        return None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return Header(end + 2, None, None)
    try:
        kind, source, destination, *ports = words[1:]
        hosts = [ipaddress.ip_address(each.decode("ascii")) for each in (source, destination)]
        if {each.version for each in hosts} != {_TEXT_VERSIONS[kind]} or len(ports) != 2:
            raise ValueError(kind)
        numbers = [_port(each) for each in ports]
    except (KeyError, ValueError) as error:
        raise BadFrame(f"expected two addresses and two ports, found {data[:end]!r}") from error
    return Header(end + 2, (str(hosts[0]), numbers[0]), (str(hosts[1]), numbers[1]))


def _port(word: bytes) -> int:
    if not word.isdigit() or int(word) > 0xFFFF:
        raise ValueError(word)
    return int(word)


def _binary(data: bytes) -> Header | None:
    if len(data) < HEAD_BYTES:
        return None
    _, mixed, family, length = HEAD.unpack_from(data)
    end, command = HEAD_BYTES + length, mixed & 0x0F
    if mixed >> 4 != BINARY_VERSION or command not in (LOCAL, PASSED_ON):
        raise BadFrame(f"expected version 2 and a command of 0 or 1, found {mixed:#x}")
    if end > BYTES_MAX:
        raise BadFrame(f"expected a header of at most {BYTES_MAX} bytes, found {end}")
    if len(data) < end:
        return None
    size = _ADDRESS_BYTES.get(family)
    if command == LOCAL or size is None:  # Another family: its addresses mean nothing here.
        return Header(end, None, None)
    if length < 2 * size + PORTS.size:
        raise BadFrame(f"expected two addresses and two ports, found {length} bytes")
    hosts = [str(ipaddress.ip_address(data[at : at + size])) for at in (HEAD_BYTES, HEAD_BYTES + size)]
    ports = PORTS.unpack_from(data, HEAD_BYTES + 2 * size)
    return Header(end, (hosts[0], ports[0]), (hosts[1], ports[1]))
