"""Hosts as bytes and as text."""

from __future__ import annotations

import pytest
from hypothesis import given

from fuzz.records import HOSTS
from tiermq.errors import IllegalMessage
from tiermq.message.hosts import encode_host, format_host


def host_of(data: bytes) -> str:
    return format_host(data[:-4], int.from_bytes(data[-4:], "big"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:10911", "7f00000100002a9f"),
        ("192.168.1.10:10911", "c0a8010a00002a9f"),
        ("0.0.0.0:0", "0000000000000000"),
        ("255.255.255.255:65535", "ffffffff0000ffff"),
        ("[::1]:10911", "0000000000000000000000000000000100002a9f"),
        ("[2001:db8::ff00:42:8329]:1", "20010db8000000000000ff000042832900000001"),
        ("[::ffff:1.2.3.4]:9", "00000000000000000000ffff0102030400000009"),
    ],
)
def test_hosts_are_address_and_port(text: str, expected: str) -> None:
    assert encode_host(text).hex() == expected
    assert host_of(bytes.fromhex(expected)) == text


@given(HOSTS)
def test_every_host_survives_a_round_trip(host: str) -> None:
    encoded = encode_host(host)
    assert encode_host(host_of(encoded)) == encoded


@pytest.mark.parametrize(
    "text",
    [
        "", "localhost:10911", "127.0.0.1", "127.0.0.1:", ":10911", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:+1",
        "127.0.0.1: 1", "127.1:10911", "::1:10911", "[127.0.0.1]:1", "[::1", "[::1]", "[fe80::1%eth0]:1",
        "1.2.3.4\x00:1",        "256.0.0.1:1", "1.2.3.4:١", "١.2.3.4:1", "[]:1",
    ],
)  # fmt: skip
def test_anything_else_is_refused_as_a_host(text: str) -> None:
    with pytest.raises(IllegalMessage):
        encode_host(text)
