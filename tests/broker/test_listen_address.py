"""Where a broker listens, and what its records say of that."""

from __future__ import annotations

import socket

import pytest

from servers.loopback import free_ports
from tiermq.broker.broker_config import FastListenPort
from tiermq.broker.listen_address import bound_socket, bound_sockets, store_host
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


def test_the_vip_port_is_two_below() -> None:
    [port] = free_ports(1)
    bound = bound_sockets("127.0.0.1", port, FastListenPort.AUTO)
    try:
        assert [each.getsockname()[1] for each in bound.sockets] == [port, port - 2]
        assert bound.why_not_fast == ""
    finally:
        bound.close()


def test_a_taken_vip_port_is_reported_and_an_error_only_where_it_must_be() -> None:
    [port] = free_ports(1)
    with bound_socket("127.0.0.1", port - 2) as taken:
        taken.listen()
        bound = bound_sockets("127.0.0.1", port, FastListenPort.AUTO)
        assert (bound.fast, bound.why_not_fast) == (None, f"cannot listen at {port - 2}: Address already in use")
        bound.close()
        with pytest.raises(OSError, match="in use"):
            bound_sockets("127.0.0.1", port, FastListenPort.ON)
        bound_socket("127.0.0.1", port).close()  # The main one was given back.


@pytest.mark.parametrize(("port", "fast"), [(0, FastListenPort.AUTO), (0, FastListenPort.OFF)])
def test_a_port_that_was_chosen_freely_has_no_vip_port_unless_asked_for(port: int, fast: FastListenPort) -> None:
    bound = bound_sockets("127.0.0.1", port, fast)
    assert bound.fast is None
    assert bound.why_not_fast
    bound.close()


def test_free_ports_are_taken_in_a_pair_where_it_is_asked_for() -> None:
    bound = bound_sockets("127.0.0.1", 0, FastListenPort.ON)
    main, fast = (each.getsockname()[1] for each in bound.sockets)
    assert main == fast + 2
    bound.close()


def test_the_lowest_ports_have_no_vip_port() -> None:
    with pytest.raises((BadConfig, PermissionError)):
        bound_sockets("127.0.0.1", 2, FastListenPort.ON)
