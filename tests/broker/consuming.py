"""A broker to consume from, and a peer that asks as RocketMQ's consumers do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import waiting
from tiermq import Message
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.clock import Clock
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.limits import ServerLimits
from tiermq.remoting.permissions import AccessTable
from tiermq.settings import INT_MAX
from tiermq.testing.local_broker import NEVER_S
from tiermq.tier.tiered_store import TieredStore

SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 64,
    "max_index_num": 2000,
    "sync_flush_timeout": 60_000,  # A disk may stop for longer than the usual five seconds.
}
LOCALLY: dict[str, Any] = {"bind_address": "127.0.0.1", "listen_port": 0, "broker_name": "b"}


@contextlib.contextmanager
def running(
    path: Path,
    *,
    clock: Clock | None = None,
    store: dict[str, Any] | None = None,
    acl: AccessTable | None = None,
    **settings: Any,
) -> Iterator[Broker]:
    """A broker with a topic T of four queues. With a clock that is moved, nobody is closed for being silent."""
    patient: dict[str, Any] = {} if clock is None else {"channel_expired_timeout": INT_MAX}
    broker = Broker.open(
        path,
        config=BrokerConfig(**{**LOCALLY, **patient, **settings}),
        clock=clock,
        acl=acl,
        limits=None if clock is None else ServerLimits(idle_s=NEVER_S),
        **{**SIZES, **(store or {})},
    )
    if broker.parts.topics.get("T") is None:
        broker.parts.topics.put(TopicConfig("T", 4, 4))
    with broker:
        yield broker


def tiered(tmp_path: Path, driver: str = "", **settings: object) -> Broker:
    """A broker whose queue 0 of T has its first messages in the tier only."""
    small: dict[str, Any] = {
        **SIZES,
        **settings,
        "mapped_file_size_commit_log": 16 * 1024,
        "file_reserved_time": 0,
        "delete_when": "00",
    }
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, broker_name="b")
    tier = (tmp_path / "tier").as_uri() + (f"?driver={driver}" if driver else "")
    broker = Broker.open(tmp_path / "store", tier=tier, config=config, **small)
    broker.parts.topics.put(TopicConfig("T", 4, 4))
    for number in range(60):
        put(broker, f"{number} ".ljust(1000, "x"))
    store = broker.store
    assert isinstance(store, TieredStore)
    assert store.flush_to_tier(60)
    while store.local.min_offset("T", 0) == 0:
        store.clean_now()
    return broker


def part(broker: Broker, kind: type[Any]) -> Any:
    """The broker's processor of a kind."""
    return next(each for each in broker.processors if isinstance(each, kind))


def on_loop(broker: Broker, call: Callable[..., Any], *arguments: Any) -> Any:
    """What `call` gives, on the broker's loop."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call(*arguments))
        except BaseException as error:  # noqa: BLE001 - it is the caller's to see
            done.set_exception(error)

    broker.parts.server.call_threadsafe(run)
    return done.result(30)


def until(broker: Broker, condition: Callable[[], object]) -> None:
    """Wait, turn by turn of the broker's loop, until something is so."""
    waiting.until(lambda: on_loop(broker, condition))


class Peer:
    """One connection of a consumer."""

    def __init__(self, broker: Broker, *, header_type: int = 0) -> None:
        self.client = BlockingClient("127.0.0.1", broker.port, header_type=header_type, timeout_s=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.client.close()

    def ask(self, code: int, body: bytes | dict[str, Any] = b"", **ext: object) -> RemotingCommand:
        return self.ask_later(code, body, **ext).result(60)

    def ask_later(self, code: int, body: bytes | dict[str, Any] = b"", **ext: object) -> Future[RemotingCommand]:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        reported = {name: str(value) for name, value in ext.items()}
        return self.client.request_later(RemotingCommand(code, ext=reported, body=data), timeout_s=60)

    def join(self, group: str = "G", expression: str = "*", client_id: str = "c1", **changes: Any) -> RemotingCommand:
        """A heartbeat of a consumer of T."""
        return self.ask(RequestCode.HEART_BEAT, heartbeat(group, expression, client_id, **changes))

    def pull(self, offset: int = 0, **changes: object) -> RemotingCommand:
        return self.pull_later(offset, **changes).result(60)

    def pull_later(self, offset: int = 0, **changes: Any) -> Future[RemotingCommand]:
        code = int(str(changes.pop("code", int(RequestCode.PULL_MESSAGE))))
        return self.ask_later(code, **{**pull_fields(offset), **changes})


def heartbeat(group: str = "G", expression: str = "*", client_id: str = "c1", **changes: Any) -> dict[str, Any]:
    subscription = {
        "topic": changes.pop("topic", "T"),
        "subString": expression,
        "expressionType": changes.pop("expression_type", "TAG"),
        "subVersion": changes.pop("version", 1),
    }
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": changes.pop("model", "CLUSTERING"),
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "P"}], **changes}


def pull_fields(offset: int = 0) -> dict[str, Any]:
    return {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 0,
        "commitOffset": 0,
        "suspendTimeoutMillis": 100_000,
        "subVersion": 1,
    }


def damage_unit(store: Path, queue_id: int, offset: int) -> None:
    """Let a unit of a queue of T lead to physical offset 7, where no record begins."""
    with (store / "consumequeue" / "T" / str(queue_id) / ("0" * 20)).open("r+b") as file:
        file.seek(20 * offset)
        file.write((7).to_bytes(8, "big"))


def put(broker: Broker, *bodies: str, queue_id: int = 0, topic: str = "T", **fields: Any) -> None:
    """Store messages, and see to it that they can be got."""
    for body in bodies:
        assert broker.parts.local.put(Message(topic, body.encode(), queue_id, **fields)).ok
    broker.parts.local.dispatch_now()


def messages_of(answer: RemotingCommand) -> list[StoredMessage]:
    return list(decode_records(bytes(answer.body)))


def bodies_of(answer: RemotingCommand) -> list[str]:
    return [message.body.decode() for message in messages_of(answer)]
