"""Where a broker listens, and what its records say of that."""

from __future__ import annotations

import socket

import pytest

from tiermq.broker.listening import bound_socket, store_host
from tiermq.errors import BadConfig
from tiermq.message.hosts import encode_host


def test_a_free_port_is_known_before_anybody_listens() -> None:
    with bound_socket("127.0.0.1", 0) as first:
        host, port = first.getsockname()
        assert (host, port > 0) == ("127.0.0.1", True)
        with socket.socket() as peer, pytest.raises(ConnectionRefusedError):
            peer.connect((host, port))
        first.listen()
        with pytest.raises(OSError, match="in use"):
            bound_socket(host, port)


@pytest.mark.parametrize(
    ("host", "kept"), [("127.0.0.1", "127.0.0.1:5"), ("::1", "[::1]:5"), ("[::1]", "[::1]:5"), ("localhost", None)]
)
def test_a_record_gets_an_address_that_it_can_hold(host: str, kept: str | None) -> None:
    found = store_host(host, 5)
    assert kept is None or found == kept
    assert len(encode_host(found)) in (8, 20)


def test_a_name_that_nobody_has_is_a_bad_setting() -> None:
    with pytest.raises(BadConfig, match="no-such-host"):
        store_host("no-such-host.invalid", 1)
