"""The collector rests while a call is inside, and goes on as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from remoting.peers import serving
from tiermq.remoting.access import ANY_ACCOUNT, serves
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.limits import INLINE_BODY_BYTES
from tiermq.remoting.server import RemotingServer
from tiermq.service import CollectorPause


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_rests_until_the_last_one_leaves() -> None:
    pause = CollectorPause()
    with pause:
        with pause:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="no reason"), CollectorPause():
        raise ValueError("no reason")
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with CollectorPause():
        pass
    assert not gc.isenabled()


def test_it_rests_while_a_long_body_is_decoded_and_not_while_it_is_handled() -> None:
    class Handler:
        @serves(2_001, access=ANY_ACCOUNT, decode=lambda _command: gc.isenabled())
        def handle(self, _connection: Connection, command: RemotingCommand, decoded: bool) -> RemotingCommand:
            return command.respond(remark=f"{decoded} {gc.isenabled()}")

    server = RemotingServer()
    server.serve(Handler())
    with serving(server) as started, BlockingClient("127.0.0.1", started.port, timeout_s=60) as client:
        assert client.request(RemotingCommand(2_001, body=bytes(INLINE_BODY_BYTES + 1))).remark == "False True"
        assert client.request(RemotingCommand(2_001)).remark == "True True"
