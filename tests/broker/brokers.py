"""A broker for a test: small files, a free port, and a client that says the least that a producer must say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from small_store import pause_dispatch, resume_dispatch
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.limits import ServerLimits
from tiermq.testing.local_broker import NEVER_S
from waiting import until

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 64,
    "max_index_num": 2000,
    "sync_flush_timeout": 60_000,  # A disk may stop for longer than the usual five seconds.
}
BORN_MS = 1_700_000_000_000


def broker_config(**settings: Any) -> BrokerConfig:
    return BrokerConfig(**{"bind_address": "127.0.0.1", "listen_port": 0, "broker_name": "b1", **settings})


@contextmanager
def running(path: Path, *, config: BrokerConfig | None = None, **settings: Any) -> Iterator[Broker]:
    """A started broker on a store below `path`; `settings` are the store's, or `Broker.open`'s. With a clock that is
    moved, nobody is closed for being silent.
    """
    if "clock" in settings:
        settings = {"limits": ServerLimits(idle_s=NEVER_S), **settings}
    with Broker.open(path / "store", config=config or broker_config(), **{**SMALL, **settings}) as broker:
        yield broker


class Producer:
    """Sends over the wire and gives what was answered."""

    def __init__(self, broker: Broker, header_type: int = 0) -> None:
        self.client = BlockingClient("127.0.0.1", broker.port, header_type=header_type, timeout_s=30.0)

    def send(self, topic: str = "T", body: bytes = b"hello", **fields: Any) -> RemotingCommand:
        return self.client.request(send_command(topic, body, **fields))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.client.close()


def send_command(
    topic: str = "T",
    body: bytes = b"hello",
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    properties: str = "UNIQ_KEY\x01KEY1\x02WAIT\x01true\x02",
    group: str = "PG",
    queue: int = 0,
    default_topic: str = "TBW102",
    queues: int = 4,
    sys_flag: int = 0,
    reconsume: int = 0,
    max_reconsume: int | None = None,
    batch: bool = False,
    unit_mode: bool = False,
) -> RemotingCommand:
    values = {
        "a": group,
        "b": topic,
        "c": default_topic,
        "d": queues,
        "e": queue,
        "f": sys_flag,
        "g": BORN_MS,
        "h": 7,
        "i": properties,
        "j": reconsume,
        "k": str(unit_mode).lower(),
        "m": str(batch).lower(),
    }
    if max_reconsume is not None:
        values["l"] = max_reconsume
    names = dict(zip("abcdefghijklm", NAMES, strict=True)) if code in (10, 324) else {}
    ext = {names.get(letter, letter): str(value) for letter, value in values.items()}
    return RemotingCommand(code, ext=ext, body=body)


NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
)  # fmt: skip


def stored(broker: Broker, topic: str = "T", queue_id: int = 0, offset: int = 0) -> list[StoredMessage]:
    """The messages of a queue, read from the store."""
    broker.parts.local.flush()
    broker.parts.local.dispatch_now()
    return list(broker.parts.local.get(topic, queue_id, offset).messages)


@contextmanager
def lagging_dispatch(broker: Broker) -> Iterator[None]:
    """Within, what is sent is acknowledged and not dispatched until a pull is held for it."""
    [pulls] = (each for each in broker.processors if isinstance(each, PullProcessor))
    over = threading.Event()

    def resume() -> None:
        until(lambda: over.is_set() or pulls.long_polling.held)
        resume_dispatch(broker.parts.local)

    resuming = threading.Thread(target=resume)
    pause_dispatch(broker.parts.local)
    resuming.start()
    try:
        yield
    finally:
        over.set()
        resuming.join()
