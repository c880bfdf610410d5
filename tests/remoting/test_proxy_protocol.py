"""Headers of the PROXY protocol: what is read of them, and what is refused."""

from __future__ import annotations

import ipaddress

import pytest

from tiermq.errors import BadFrame
from tiermq.remoting.proxy_protocol import BYTES_MAX, SIGNATURE, Header, header_in, is_within

TCP4, TCP6, UNIX = 0x11, 0x21, 0x31
ENDS4 = bytes((203, 0, 113, 7, 198, 51, 100, 1)) + (4711).to_bytes(2) + (8081).to_bytes(2)
SOURCE, DESTINATION = ("203.0.113.7", 4711), ("198.51.100.1", 8081)


def binary(data: bytes, *, mixed: int = 0x21, family: int = TCP4) -> bytes:
    return SIGNATURE + bytes((mixed, family)) + len(data).to_bytes(2) + data


V6 = ipaddress.ip_address("2001:db8::7").packed
GOOD = {
    "text": (b"PROXY TCP4 203.0.113.7 198.51.100.1 4711 8081\r\n", SOURCE, DESTINATION),
    "text-6": (b"PROXY TCP6 2001:db8::7 2001:db8::7 1 65535\r\n", ("2001:db8::7", 1), ("2001:db8::7", 65535)),
    "text-unknown": (b"PROXY UNKNOWN ffff:f...f:ffff 65535 65535\r\n", None, None),
    "text-unknown-alone": (b"PROXY UNKNOWN\r\n", None, None),
    "binary": (binary(ENDS4), SOURCE, DESTINATION),
    "binary-with-more": (binary(ENDS4 + b"\x04\0\x03abc"), SOURCE, DESTINATION),
    "binary-6": (binary(V6 + V6 + bytes(4), family=TCP6), ("2001:db8::7", 0), ("2001:db8::7", 0)),
    "binary-local": (binary(ENDS4, mixed=0x20), None, None),
    "binary-unix": (binary(bytes(216), family=UNIX), None, None),
    "binary-unspecified": (binary(b"", family=0), None, None),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_header_is_read_once_it_is_whole_and_no_further(name: str) -> None:
    data, source, destination = GOOD[name]
    assert [header_in(data[:end]) for end in range(1, len(data))] == [None] * (len(data) - 1)
    assert header_in(data) == header_in(data + b"PRI * HTTP/2.0") == Header(len(data), source, destination)


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n",
        b"\x16\x03\x01",
        b"PROXY TCP4 203.0.113.7 198.51.100.1 4711\r\n",
        b"PROXY TCP4 203.0.113.7 198.51.100.1 4711 8081 9\r\n",
        b"PROXY TCP4 203.0.113.7 198.51.100.1 4711 65536\r\n",
        b"PROXY TCP4 203.0.113.7 198.51.100.1 -1 1\r\n",
        b"PROXY TCP4 2001:db8::7 2001:db8::7 1 1\r\n",
        b"PROXY TCP5 203.0.113.7 198.51.100.1 1 1\r\n",
        b"PROXY TCP4 name 198.51.100.1 1 1\r\n",
        b"PROXY \xff\r\n",
        b"PROXY " + b"1" * 101,
        binary(ENDS4, mixed=0x11),
        binary(ENDS4, mixed=0x22),
        binary(ENDS4[:-1]),
        binary(V6, family=TCP6),
        binary(bytes(BYTES_MAX - 15), family=UNIX)[:16],
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        header_in(data)


def test_a_peer_is_trusted_by_its_address() -> None:
    networks = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8"))
    assert [is_within(host, networks) for host in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1%eth0")] == [True] * 3
    assert [is_within(host, networks) for host in ("11.0.0.1", "fe80::1", "", "name")] == [False] * 4
    assert not is_within("127.0.0.1", ())
