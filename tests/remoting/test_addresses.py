"""Addresses of name servers, as `namesrvAddr` lists them."""

from __future__ import annotations

import pytest

from tiermq.errors import BadConfig
from tiermq.remoting.addresses import Address, parse_name_servers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("a:1", [("a", 1)]),
        (" a:1 ; b:2;", [("a", 1), ("b", 2)]),
        ("a:1,a:1", [("a", 1)]),
        ("[::1]:9876", [("::1", 9876)]),
    ],
)
def test_addresses_of_name_servers_are_read(text: str, found: list[Address]) -> None:
    assert parse_name_servers(text) == found


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a:1;b", "a:²"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="namesrv_addr"):
        parse_name_servers(text)


def test_a_port_of_thousands_of_digits_is_refused_in_words() -> None:
    with pytest.raises(BadConfig, match="host:port"):
        parse_name_servers("host:" + "1" * 5000)
