"""A master and its slaves, as brokers of one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker.brokers import broker_config, running
from tiermq.broker.broker import Broker
from tiermq.broker.send.send_processor import SendProcessor
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.command import RemotingCommand
from waiting import until as until


@contextmanager
def master(path: Path, *, store: dict[str, Any] | None = None, **settings: Any) -> Iterator[Broker]:
    with running(path / "master", config=broker_config(**{"ha_listen_port": 0, **settings}), **(store or {})) as made:
        yield made


@contextmanager
def slave(path: Path, of: Broker | None, *, store: dict[str, Any] | None = None, **settings: Any) -> Iterator[Broker]:
    """A slave that is told where its master is; `of` None: it asks its name server."""
    places = {} if of is None else {"ha_master_address": of.replication.ha_address, "master_address": of.address}
    config = broker_config(**{"broker_id": 1, "master_sync_interval": 50, **places, **settings})
    folder = f"slave{config.broker_id}"
    with running(path / folder, config=config, **{"broker_role": "SLAVE", **(store or {})}) as made:
        yield made


def sends_of(broker: Broker) -> SendProcessor:
    [found] = (each for each in broker.processors if isinstance(each, SendProcessor))
    return found


def caught_up(copy: Broker, of: Broker) -> None:
    """Wait until the slave has and shows everything."""
    local = copy.parts.local
    until(lambda: local.max_physical_offset == of.parts.local.max_physical_offset)
    local.flush()
    until(lambda: local.confirm_offset == local.max_physical_offset)  # What the master has committed comes after it.
    local.dispatch_now()


def synced(copy: Broker) -> None:
    """Wait for a whole round of the tables that begins after this call."""
    assert copy.metadata_sync is not None
    sync, wanted = copy.metadata_sync, copy.metadata_sync.round_count + 2
    sync.wake()
    until(lambda: sync.round_count >= wanted)
    assert sync.problem == ""


def ask(broker: Broker, code: int, body: bytes = b"", **ext: str) -> RemotingCommand:
    with BlockingClient("127.0.0.1", broker.port, timeout_s=30.0) as client:
        return client.request(RemotingCommand(code, ext=ext, body=body))
